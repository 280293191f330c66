"""The rows of `format("kohort")` as Arrow, exactly as Spark wants them, and back into records.

Rules (spec 6.7):
- Column names, order and types are the JVM connector's. Spark compares the first batch's schema
  with `equals`: no large types, no dictionaries, `timestamp[us, UTC]`, list and not map.
- A batch is bounded in rows and in bytes: a batch that is too large kills the JVM.
- With range markers there are marker rows and nothing else. A marker says which range a task was
  given: topic id, start, end and the time of the plan.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.spark.formats.plain_arrays import plain_array
from kohort.spark.formats.record_columns import HEADERS, TIMESTAMP
from kohort.spark.formats.types import ddl_of, quoted
from kohort.spark.offsets import Range

pc: Any = pyarrow.compute
TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": HEADERS,
    "rangeEnd": pa.int64(),
}
RANGE_END: Final = "rangeEnd"


def ddl(columns: Sequence[str], types: Mapping[str, pa.DataType] = TYPES) -> str:
    """Spark's own text for the schema of these columns."""
    return ", ".join(f"{quoted(name)} {ddl_of(types[name])}" for name in columns)


def schema(columns: Sequence[str], types: Mapping[str, pa.DataType] = TYPES) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([pa.field(name, types[name]) for name in columns])


def markers(spans: Sequence[Range]) -> pa.RecordBatch:
    """One row a range: offset is its start, rangeEnd its end, key the topic's id, timestamp the
    time of its plan.
    """
    count = len(spans)
    columns = {
        "key": plain_array([s.topic_id.encode() for s in spans], pa.binary()),
        "value": pa.nulls(count, pa.binary()),
        "topic": plain_array([s.topic for s in spans], pa.string()),
        "partition": plain_array([s.partition for s in spans], pa.int32()),
        "offset": plain_array([s.start for s in spans], pa.int64()),
        "timestamp": plain_array([s.planned_ms * 1_000 for s in spans], pa.int64()).cast(TIMESTAMP),
        "timestampType": plain_array([int(s.first) for s in spans], pa.int32()),
        "headers": pa.nulls(count, HEADERS),
        RANGE_END: plain_array([s.end for s in spans], pa.int64()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema(tuple(columns)))


def read_markers(batch: pa.RecordBatch) -> list[Range]:
    """The ranges that the marker rows of a batch represent."""
    found = batch.select(
        ["topic", "partition", "offset", RANGE_END, "key", "timestampType", "timestamp"]
    )
    columns = [*found.columns[:-1], found.columns[-1].cast(pa.int64())]
    return [
        Range(
            topic, partition, start, end, (topic_id or b"").decode(), bool(first), planned // 1000
        )
        for topic, partition, start, end, topic_id, first, planned in zip(
            *(column.to_pylist() for column in columns), strict=True
        )
    ]


def none_as_null(headers: pa.Array) -> pa.Array:
    """Header lists with null where a record has none, as the JVM connector shows it."""
    counts = pc.list_value_length(headers)
    most = pc.max(counts).as_py()
    if not most:
        return pa.nulls(len(headers), headers.type)
    if pc.min(counts).as_py():
        return headers
    return pc.if_else(pc.equal(counts, 0), pa.scalar(None, headers.type), headers)


def cut(batch: pa.RecordBatch, max_rows: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batch in pieces within both limits; a single row may exceed the bytes."""
    count = len(batch)
    each = max(1, min(max_rows, count * max_bytes // max(1, batch.nbytes)))
    for low in range(0, count, each):
        yield batch.slice(low, each)
