"""What the tasks of a micro-batch report to the driver, in one schema for tables and topics. Pure.

Rules:
- Tables and topics of a batch are one Spark job, so their reports share one schema.
- A row with a `topic` is of a writing task, one without is of a staging task.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from kohort.spark.formats.plain_arrays import plain_array

REPORT_SCHEMA: Final = pa.schema(
    [
        ("attempt", pa.int64()),
        ("rows", pa.int64()),
        ("output", pa.string()),
        ("rejected", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("problem", pa.string()),
    ]
)
"""`rows` counts rows staged for the table `output`, or records written to `topic`/`partition`.
`rejected` holds the rows that the database refused, as JSON; `problem` says why a write failed."""


def report_batch(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Reports as an Arrow batch of `REPORT_SCHEMA`; columns that a row lacks are null."""
    columns = [plain_array([row.get(f.name) for row in rows], f.type) for f in REPORT_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=REPORT_SCHEMA)
