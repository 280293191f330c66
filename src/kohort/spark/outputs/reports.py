"""What the tasks of a micro-batch report to the driver: one column of JSON. Pure.

Rules:
- Tables and topics of a batch are one Spark job, so their reports have one form.
- One column of text lets the driver read a job's rows without a query of their own
  (`PhysicalPlans.reports`).
- A report with a `topic` is of a writing task, one without is of a staging task.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kohort.spark.formats.plain_arrays import plain_array

REPORT_SCHEMA: Final = pa.schema([("report", pa.string())])


@dataclass(frozen=True, slots=True)
class Report:
    """What one task has done for one output or one partition.

    Args:
        attempt: the id of the task's attempt.
        rows: staged for the table `output`, or written to `topic` and `partition`.
        rejected: the rows that the database refused, as JSON.
        problem: why a write failed.
    """

    attempt: int
    rows: int = 0
    output: str = ""
    rejected: str = "[]"
    topic: str | None = None
    partition: int = -1
    problem: str = ""


def report_batch(reports: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Reports, each a mapping with fields of `Report`, as an Arrow batch of `REPORT_SCHEMA`."""
    texts = [json.dumps(report) for report in reports]
    return pa.RecordBatch.from_arrays([plain_array(texts, pa.string())], schema=REPORT_SCHEMA)
