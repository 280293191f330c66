"""The rows of `format("kohort")` as Arrow, exactly as Spark wants them, and back into records.

Rules (spec 6.7):
- Column names, order and types are the JVM connector's. Spark compares the first batch's schema
  with `equals`: no large types, no dictionaries, `timestamp[us, UTC]`, list and not map.
- A batch holds at most so many rows and so many bytes: one value too many of them kills a JVM.
- With range markers, a batch of marker rows comes first. A marker says which range a task was
  given: the sink needs ends and topic ids, and gaps (compaction) cannot be seen in rows.
"""

# pyarrow carries no complete types, so strict checking would only speak of it.
# pyright: basic
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.retry.fenced import RawRecord
from kohort.retry.unreadable import Unreadable
from kohort.spark.formats.types import ddl_of, quoted
from kohort.spark.offsets import Range

pc: Any = pyarrow.compute
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TYPES: Final = {
    "key": pa.binary(), "value": pa.binary(), "topic": pa.string(), "partition": pa.int32(),
    "offset": pa.int64(), "timestamp": TIMESTAMP, "timestampType": pa.int32(), "headers": HEADERS,
    "rangeEnd": pa.int64(),
}  # fmt: skip
RANGE_END: Final = "rangeEnd"
UNREADABLE: Final = -2
"""In `timestampType`: the row is a batch that nobody can read, its bytes in `value`."""
_NEXT_OFFSET: Final = "next_offset"
_WHY: Final = "why"


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
        "key": pa.array([s.topic_id.encode() for s in spans], pa.binary()),
        "value": pa.nulls(count, pa.binary()),
        "topic": pa.array([s.topic for s in spans], pa.string()),
        "partition": pa.array([s.partition for s in spans], pa.int32()),
        "offset": pa.array([s.start for s in spans], pa.int64()),
        "timestamp": pa.array([s.planned_ms * 1_000 for s in spans], TIMESTAMP),
        "timestampType": pa.array([int(s.first) for s in spans], pa.int32()),
        "headers": pa.nulls(count, HEADERS),
        RANGE_END: pa.array([s.end for s in spans], pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema(tuple(columns)))


def read_markers(batch: pa.RecordBatch) -> list[Range]:
    """The ranges that the marker rows of a batch stand for; rows of records are left out."""
    ends = batch.column(RANGE_END)
    if ends.null_count == len(batch):
        return []
    found = batch.filter(pc.is_valid(ends)).select(
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


def unreadable(batch: Unreadable) -> pa.RecordBatch:
    """One row for a batch that nobody can read."""
    reasons = [
        {"key": _NEXT_OFFSET, "value": b"%d" % batch.next_offset},
        {"key": _WHY, "value": batch.why.encode()},
    ]
    columns = {
        "key": pa.nulls(1, pa.binary()),
        "value": pa.array([batch.batch], pa.binary()),
        "topic": pa.array([batch.topic], pa.string()),
        "partition": pa.array([batch.partition], pa.int32()),
        "offset": pa.array([batch.offset], pa.int64()),
        "timestamp": pa.array([-1_000], TIMESTAMP),
        "timestampType": pa.array([UNREADABLE], pa.int32()),
        "headers": pa.array([reasons], HEADERS),
        RANGE_END: pa.nulls(1, pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema(tuple(columns)))


def runs(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """The batch cut where topic or partition changes, without its marker rows."""
    ends = batch.column(RANGE_END)
    if ends.null_count != len(batch):
        batch = batch.filter(pc.is_null(ends))
    count = len(batch)
    if not count:
        return
    topics, partitions = batch.column("topic"), batch.column("partition")
    changed = pc.or_(
        pc.not_equal(topics.slice(1), topics.slice(0, count - 1)),
        pc.not_equal(partitions.slice(1), partitions.slice(0, count - 1)),
    )
    cuts = [0, *(i + 1 for i in pc.indices_nonzero(changed).to_pylist()), count]
    for low, high in itertools.pairwise(cuts):
        yield topics[low].as_py(), partitions[low].as_py(), batch.slice(low, high - low)


def records(topic: str, partition: int, batch: pa.RecordBatch) -> list[RawRecord]:
    """The rows of a run as records, headers as pairs."""
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    found = [
        RawRecord(offset, stamp // 1000, kind, key, value, headers)
        for offset, stamp, kind, key, value, headers in zip(
            batch.column("offset").to_pylist(), stamps,
            batch.column("timestampType").to_pylist(), batch.column("key").to_pylist(),
            batch.column("value").to_pylist(), headers_of(batch.column("headers")), strict=True,
        )
    ]  # fmt: skip
    return [
        _damaged(topic, partition, row) if row.timestamp_type == UNREADABLE else row
        for row in found
    ]


def _damaged(topic: str, partition: int, row: RawRecord) -> RawRecord:
    headers = {name: value or b"" for name, value in row.headers}
    batch = Unreadable(
        topic, partition, row.offset, int(headers[_NEXT_OFFSET]), headers[_WHY].decode(), row.value
    )
    return row._replace(unreadable=batch)


def headers_of(column: pa.Array) -> list[tuple[tuple[str, bytes | None], ...]]:
    """Header lists as tuples of pairs; null is no headers."""
    if column.null_count == len(column):
        return [()] * len(column)
    return [
        () if row is None else tuple((h["key"], h["value"]) for h in row)
        for row in column.to_pylist()
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
