"""Rows with hidden columns as records and verdicts, read column by column.

A row as a dict takes several times as long, and every copy of a record passes through here twice:
in the task that writes the next copy and in the driver that keeps the books.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, TypeAlias

import pyarrow as pa

from kohort.spark.formats.record_columns import Header, header_lists, milliseconds

Column: TypeAlias = "pa.Array | pa.ChunkedArray"
RecordValues = tuple[str, int, int, int, int, bytes | None, bytes | None, list[Header]]
"""Topic, partition, offset, timestamp in ms, its type, key, value, headers."""
VerdictValues = tuple[bool, str, str]
"""Permanent, reason, message."""
_PLACE = ("topic", "partition", "offset")
_VERDICT = ("permanent", "reason", "message")


def fields_of(column: Column) -> dict[str, Column]:
    """The columns of a struct by name."""
    names = [field.name for field in column.type]
    return dict(zip(names, column.flatten(), strict=True))


def records(columns: Mapping[str, Column]) -> Iterator[RecordValues]:
    """The record of each row, as `RetrySpec.attempt` takes it.

    Args:
        columns: Arrow columns by name. `value` may be absent: values are None then. So may
            `headers`: they are empty then.
    """
    values: Any = columns["value"].to_pylist() if "value" in columns else repeat(None)
    headers: Any = ([] for _ in repeat(None))
    if "headers" in columns:
        headers = header_lists(columns["headers"])
    yield from zip(  # the column of topics ends it
        *(columns[name].to_pylist() for name in _PLACE),
        milliseconds(columns["timestamp"]),
        columns["timestampType"].to_pylist(),
        columns["key"].to_pylist(),
        values,
        headers,
        strict=False,
    )


def verdicts(column: Column) -> Iterator[VerdictValues]:
    """The verdict of each row; all rows have one."""
    permanent, reasons, messages = (fields_of(column)[n].to_pylist() for n in _VERDICT)
    for each, reason, message in zip(permanent, reasons, messages, strict=True):
        yield each, reason, message or ""
