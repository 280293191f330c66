"""Columns of records in Arrow's memory layout, as plain buffers.

Rules:
- Every buffer owns its memory (or keeps its owner alive); nothing is ever recycled under it (C13).
- Offsets are int32 and one more than the rows; validity has one bit a row, least significant first,
  and is None where no row is null. Integers are in the machine's byte order.
- No pyarrow here: `kohort.records.arrow` wraps these buffers without a copy.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from typing import NamedTuple

from kohort.records.layout import Readable

COLUMN_NAMES = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
)
ALL_COLUMNS = frozenset(COLUMN_NAMES)
DEFAULT_COLUMNS = frozenset({"offset", "timestamp", "key", "value"})
DEFAULT_MAX_ROWS = 65_536
# Raw record bytes a piece: what is still in the second-level cache when it is read again.
DEFAULT_PIECE_BYTES = 1024 * 1024
MOST_PIECE_BYTES = 1 << 30  # offsets are int32


class BinaryColumn(NamedTuple):
    """A column of byte strings. `first` is the index of its row 0 within the buffers."""

    validity: Readable | None
    offsets: Readable
    data: Readable
    nulls: int = 0
    first: int = 0


class HeaderColumn(NamedTuple):
    """A column of header lists: `offsets` into the keys (UTF-8) and values of all headers."""

    offsets: Readable
    keys: BinaryColumn
    values: BinaryColumn
    first: int = 0


def sound_keys(keys: BinaryColumn) -> BinaryColumn:
    """The keys of headers as valid UTF-8, which Arrow's strings must be.

    What is no UTF-8 gets U+FFFD, as in Kafka's Java client; almost always nothing is copied.
    """
    data = bytes(keys.data)
    if data.isascii():
        return keys
    offsets = memoryview(keys.offsets).cast("B").cast("i")
    names = [
        data[start:end].decode("utf-8", "replace").encode() for start, end in pairwise(offsets)
    ]
    ends = accumulate((len(name) for name in names), initial=0)
    return BinaryColumn(None, array("i", ends).tobytes(), b"".join(names))


class Columns:
    """Records of one partition as columns; columns that were not requested are None.

    `first_offset` and `last_offset` are those of its first and last row. `timestamp` is int64
    milliseconds, `timestamp_type` int8 (0 create time, 1 log append time).
    """

    __slots__ = (
        "first_offset",
        "headers",
        "key",
        "last_offset",
        "offset",
        "partition",
        "rows",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        rows: int,
        first_offset: int,
        last_offset: int,
        offset: Readable | None,
        timestamp: Readable | None,
        timestamp_type: Readable | None,
        key: BinaryColumn | None,
        value: BinaryColumn | None,
        headers: HeaderColumn | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.rows = rows
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers

    def __len__(self) -> int:
        return self.rows

    @property
    def bytes(self) -> int:
        """Bytes that the buffers hold."""
        buffers: list[Readable | None] = [self.offset, self.timestamp, self.timestamp_type]
        for column in (self.key, self.value):
            if column is not None:
                buffers += [column.validity, column.offsets, column.data]
        if self.headers is not None:
            keys, values = self.headers.keys, self.headers.values
            buffers += [self.headers.offsets, keys.offsets, keys.data]
            buffers += [values.validity, values.offsets, values.data]
        size = 0
        for buffer in buffers:
            if buffer is not None:
                size += memoryview(buffer).nbytes
        return size

    def __repr__(self) -> str:
        return (
            f"<Columns {self.topic}-{self.partition} offsets {self.first_offset}.."
            f"{self.last_offset}, {self.rows} rows, {self.bytes} bytes>"
        )
