"""Encoding record batches in pure Python: the specification of `_encode.pxi`, `_from_columns.pxi`.

Rules:
- The base timestamp of a batch is its first record's; later ones may be smaller (negative deltas).
- Offset deltas are 0 to count - 1; varints are as short as they can be, as Kafka's clients write
  them, so that equal records give equal bytes.
- The first record is always taken, at any size; later ones only within `max_bytes`. A record
  that would make a batch of more than `alone_bytes` by itself shares its batch with no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Literal, final

from kohort.errors import RecordTooLargeError, UsageError
from kohort.records.columns import BinaryColumn, HeaderColumn
from kohort.records.compression import Compression, check_level, compress
from kohort.records.layout import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    PREFIX_BYTES,
    Readable,
)
from kohort.records.pure_crc import crc32c

# A batch's length is an int32; its compressed form may be a little longer than its records.
MOST_BYTES = 0x7F000000
_PREFIX = Struct(">qiibI")
_CHECKED = Struct(">hiqqqhii")

Headers = Iterable[tuple[str, Readable | None]]


def put_varint(out: bytearray, value: int) -> None:
    """Appends a zigzag varint of up to 64 bits."""
    raw = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _put_field(out: bytearray, data: Readable | None) -> None:
    """Appends a length and its bytes; -1 is null."""
    if data is None:
        out.append(1)
    else:
        view = memoryview(data).cast("B")
        put_varint(out, len(view))
        out += view


@final
class BatchBuilder:
    """Gathers the records of one batch.

    `compression` is a codec of `Compression`, `level` its level (None: the codec's default),
    `max_bytes` the size before compression that no record may push the batch over. `alone_bytes`
    (no limit at first) is the largest batch that a record may make alone and still share one.
    """

    def __init__(
        self,
        compression: int = Compression.NONE,
        max_bytes: int = MOST_BYTES,
        *,
        level: int | None = None,
    ) -> None:
        self.compression = Compression(compression)
        self.level = level
        if level is not None:
            check_level(self.compression, level)
        self.max_bytes = max_bytes
        self.alone_bytes = MOST_BYTES
        self._records = bytearray()
        self._count = 0
        self._alone = False
        self.base_timestamp = self.max_timestamp = -1

    def __len__(self) -> int:
        """How many records were appended."""
        return self._count

    @property
    def max_bytes(self) -> int:
        """The limit, which may be changed at any time."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, size: int) -> None:
        self._max_bytes = min(max(size, HEADER_BYTES), MOST_BYTES)

    @property
    def alone_bytes(self) -> int:
        """The largest batch that a record may make by itself and still share one with others."""
        return self._alone_bytes

    @alone_bytes.setter
    def alone_bytes(self, size: int) -> None:
        self._alone_bytes = min(max(size, HEADER_BYTES), MOST_BYTES)

    @property
    def size(self) -> int:
        """Bytes of the batch so far, before compression, with its header."""
        return HEADER_BYTES + len(self._records)

    def clear(self) -> None:
        """Forgets all records; the builder may be used again."""
        self._records.clear()
        self._count = 0
        self._alone = False
        self.base_timestamp = self.max_timestamp = -1

    def append(
        self, timestamp: int, key: Readable | None, value: Readable | None, headers: Headers = ()
    ) -> int:
        """Appends one record and returns its offset within the batch, or -1 when it is full.

        A refused record leaves the batch as it was. `RecordTooLargeError` for one over 2 GB.
        """
        if not -(1 << 63) <= timestamp < 1 << 63:
            raise OverflowError(f"timestamp {timestamp} does not fit into 64 bits")
        body = bytearray(1)
        put_varint(body, _wrapped(timestamp - self.base_timestamp) if self._count else 0)
        put_varint(body, self._count)
        _put_field(body, key)
        _put_field(body, value)
        pairs = list(headers)
        put_varint(body, len(pairs))
        for name, content in pairs:
            if not isinstance(name, str):
                raise TypeError(f"a header's name must be str, not {type(name).__name__}")
            _put_field(body, name.encode())
            _put_field(body, content)
        length = bytearray()
        put_varint(length, len(body))
        after = self.size + len(length) + len(body)
        if after > MOST_BYTES and not self._count:
            raise RecordTooLargeError("a record of more than 2 GB cannot be encoded")
        large = HEADER_BYTES + len(length) + len(body) > self.alone_bytes
        if self._count and (after > self.max_bytes or large or self._alone):
            return -1
        self._records += length
        self._records += body
        if not self._count:
            self.base_timestamp = self.max_timestamp = timestamp
            self._alone = large
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self._count += 1
        return self._count - 1

    def extend(
        self,
        timestamps: int | Sequence[int],
        keys: Sequence[Readable | None] | None,
        values: Sequence[Readable | None],
        headers: Sequence[Headers] | None = None,
        *,
        start: int = 0,
    ) -> int:
        """Appends records from `start` on until the batch is full; returns how many were taken.

        `timestamps` is one for all, or one each. `UsageError` when the lengths differ.
        """
        fixed = isinstance(timestamps, int)
        for column in (keys, headers, None if fixed else timestamps):
            if column is not None and len(column) != len(values):
                raise UsageError(f"{len(values)} values, but {len(column)} rows in another column")
        for row in range(start, len(values)):
            timestamp = timestamps if isinstance(timestamps, int) else timestamps[row]
            key = None if keys is None else keys[row]
            if self.append(timestamp, key, values[row], headers[row] if headers else ()) < 0:
                return row - start
        return max(len(values) - start, 0)

    def extend_columns(
        self,
        timestamps: int | Readable,
        key: BinaryColumn | None,
        value: BinaryColumn | None,
        headers: HeaderColumn | None = None,
        *,
        start: int = 0,
        stop: int,
        rows: Readable | None = None,
        of: int = 0,
    ) -> int:
        """The same from columns in Arrow's layout, rows `start` to `stop`.

        `timestamps` is one for all, or a buffer of int64. `rows`, a buffer of int32, names the rows
        to take of the `of` that there are; `start` and `stop` count in it then. `UsageError` when a
        buffer is too short or its offsets or rows are wrong.
        """
        if start < 0 or stop < start or of < 0:
            raise UsageError(f"rows {start} to {stop} are no range")
        chosen = None if rows is None else _words(rows, "i", stop)
        count = stop if rows is None else of
        times = None if isinstance(timestamps, int) else _words(timestamps, "q", count)
        keys, values = _Strings(key, count), _Strings(value, count)
        lists = _HeaderLists(headers, count)
        for place in range(start, stop):
            row = place if chosen is None else int(chosen[place])
            if not 0 <= row < count:
                raise UsageError(f"row {place} of a column has offsets outside the column's data")
            timestamp = times[row] if times is not None else timestamps
            assert isinstance(timestamp, int)
            if self.append(timestamp, keys[row], values[row], lists[row]) < 0:
                return place - start
        return stop - start

    def build(
        self,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        append_time_ms: int | None = None,
    ) -> bytes:
        """The batch as it goes over the wire and into the log. It may be built again.

        `append_time_ms` makes it one of log append time. `UsageError` when nothing was appended.
        """
        if not self._count:
            raise UsageError("a batch without records cannot be built; append first")
        attributes = int(self.compression)
        attributes |= 0 if append_time_ms is None else ATTRIBUTE_LOG_APPEND_TIME
        attributes |= ATTRIBUTE_TRANSACTIONAL if transactional else 0
        attributes |= ATTRIBUTE_CONTROL if control else 0
        body = compress(self.compression, bytes(self._records), self.level)
        checked = _CHECKED.pack(
            attributes,
            self._count - 1,
            self.base_timestamp,
            self.max_timestamp if append_time_ms is None else append_time_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            self._count,
        )
        crc = crc32c(body, crc32c(checked))
        length = CRC_START - PREFIX_BYTES + len(checked) + len(body)
        return _PREFIX.pack(base_offset, length, leader_epoch, MAGIC, crc) + checked + body

    def take(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> Readable:
        """The same without a copy, where that can be: the builder is empty afterwards."""
        built = self.build(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
        self.clear()
        return built


def _wrapped(value: int) -> int:
    """As int64 arithmetic gives it."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _words(buffer: Readable, code: Literal["q", "i"], least: int) -> memoryview:
    """A buffer of at least `least` integers."""
    view = memoryview(buffer).cast("B")
    size = {"q": 8, "i": 4}[code]
    if len(view) < least * size:
        raise UsageError(f"a buffer has {len(view)} bytes where {least * size} are needed")
    return view[: len(view) // size * size].cast(code)


class _Strings:
    """The rows of a `BinaryColumn`; of no column at all, nulls."""

    def __init__(self, column: BinaryColumn | None, rows: int) -> None:
        self._column = column
        if column is None:
            return
        if column.first < 0:
            raise UsageError("a column begins before its buffers")
        end = column.first + rows
        self._offsets = _words(column.offsets, "i", end + 1 if rows else 0)
        self._data = memoryview(column.data).cast("B")
        needed = (end + 7) // 8
        if column.validity is not None and memoryview(column.validity).nbytes < needed:
            size = memoryview(column.validity).nbytes
            raise UsageError(f"a buffer has {size} bytes where {needed} are needed")

    def __getitem__(self, row: int) -> memoryview | None:
        if self._column is None:
            return None
        at = row + self._column.first
        bits = self._column.validity
        if bits is not None and not bits[at >> 3] >> (at & 7) & 1:
            return None
        start, end = self._offsets[at], self._offsets[at + 1]
        if not 0 <= start <= end <= len(self._data):
            raise UsageError(f"row {row} of a column has offsets outside the column's data")
        return self._data[start:end]


class _HeaderLists:
    """The rows of a `HeaderColumn`; of no column at all, no headers."""

    def __init__(self, column: HeaderColumn | None, rows: int) -> None:
        self._column = column
        if column is None:
            return
        if column.first < 0:
            raise UsageError("a column begins before its buffers")
        self._offsets = _words(column.offsets, "i", column.first + rows + 1)
        self._rows: int = self._offsets[column.first + rows]
        if self._rows < 0:
            raise UsageError("a column of headers has negative offsets")
        self._keys, self._values = (
            _Strings(column.keys, self._rows),
            _Strings(column.values, self._rows),
        )

    def __getitem__(self, row: int) -> list[tuple[str, memoryview | None]]:
        if self._column is None:
            return []
        at = row + self._column.first
        start, end = self._offsets[at], self._offsets[at + 1]
        outside = UsageError(f"row {row} of a column has offsets outside the column's data")
        if not 0 <= start <= end <= self._rows:
            raise outside
        out: list[tuple[str, memoryview | None]] = []
        for index in range(start, end):
            name = self._keys[index]
            if name is None:
                raise outside
            out.append((bytes(name).decode(), self._values[index]))
        return out
