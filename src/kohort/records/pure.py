"""The pure-Python twin of the kernel: its specification, and the fallback where none was compiled.

Rules:
- Same names, same results, same errors as `_kernel.pyx`, byte for byte; the tests run over both.
- The CRC is checked before a batch is read (F3); decompression is bounded (F5); damage of any kind
  is a `CorruptRecordError` that names topic, partition, offset and next offset (F6).
- Written to be read; it is fifty to two hundred times slower than the kernel.

`pure_record.py` reads single records, `pure_encode.py` holds the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, final

from kohort.errors import ConcurrentUseError, CorruptRecordError, UsageError
from kohort.records.columns import (
    COLUMN_NAMES,
    DEFAULT_COLUMNS,
    DEFAULT_MAX_ROWS,
    DEFAULT_PIECE_BYTES,
    MOST_PIECE_BYTES,
    Columns,
)
from kohort.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, decompress
from kohort.records.layout import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    CRC_START,
    HEADER_BYTES,
    MAGIC,
    MAX_DAMAGED_BYTES,
    MAX_OFFSET,
    MIN_RECORD_BYTES,
    PREFIX_BYTES,
    RECORD_FAULTS,
    BatchHeader,
    Readable,
    TimestampType,
    corrupt,
)
from kohort.records.pure_columns import ColumnWriter
from kohort.records.pure_crc import crc32c
from kohort.records.pure_encode import BatchBuilder
from kohort.records.pure_record import (
    BAD_END,
    BAD_KEY,
    Item,
    RecordFault,
    check_records,
    int64,
    read_item,
)

__all__ = ["CRC_PATH", "BatchBuilder", "Chunk", "Record", "check_records", "crc32c"]

CRC_PATH = "python"
_MIN_LENGTH = HEADER_BYTES - PREFIX_BYTES
_FAR = 1 << 31  # no batch spans more offsets


@final
class Record:
    """One record of a topic. Immutable; `headers` are (name, value) pairs in their order.

    `timestamp` is in milliseconds, -1 where there is none; `leader_epoch` is -1 where the broker
    gave none. Header names that are no UTF-8 get U+FFFD, as in Kafka's Java client.
    """

    __slots__ = (
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        timestamp: int = -1,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_type: int = TimestampType.CREATE_TIME,
        leader_epoch: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = TimestampType(timestamp_type)
        self.key = key
        self.value = value
        self.headers = tuple(headers)
        self.leader_epoch = leader_epoch

    @property
    def size(self) -> int:
        """Bytes of key and value together."""
        return len(self.key or b"") + len(self.value or b"")

    def detach(self) -> Record:
        """The same record with memory of its own, so that its batch may be freed."""
        return self

    def __reduce__(self) -> tuple[Callable[..., Record], tuple[Any, ...]]:
        return rebuild_record, (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp,
            self.key,
            self.value,
            self.headers,
            int(self.timestamp_type),
            self.leader_epoch,
        )

    def __repr__(self) -> str:
        return (
            f"<Record {self.topic}-{self.partition} offset {self.offset}, key {self.key!r}, "
            f"{len(self.value or b'')} bytes>"
        )


def rebuild_record(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    timestamp_type: int,
    leader_epoch: int,
) -> Record:
    """A record from its fields; what a pickled one is made from."""
    return Record(
        topic,
        partition,
        offset,
        timestamp=timestamp,
        key=key,
        value=value,
        headers=headers,
        timestamp_type=timestamp_type,
        leader_epoch=leader_epoch,
    )


@final
class Chunk:
    """A cursor over one partition's fetched record set.

    Records are read batch by batch, from `fetch_offset` up to and without `end_offset`; control
    batches and those of `aborted` transactions (producer id, first offset) are passed over
    (read_committed). `data` must never change while the chunk, or a record of the kernel's, lives.

    A damaged batch raises `CorruptRecordError` when it is its turn, again at each call, until
    `skip_batch`. Records read before it are given out first. One thread at a time.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        data: Readable,
        fetch_offset: int,
        *,
        end_offset: int | None = None,
        aborted: Iterable[tuple[int, int]] | None = None,
        check_crc: bool = True,
        max_decompressed: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.leader_epoch = -1
        """Epoch of the leader that wrote the records before `position`; -1 at the beginning."""
        self._data = memoryview(data)
        self._position = fetch_offset
        self._end_offset = MAX_OFFSET if end_offset is None else end_offset
        self._aborted = sorted((first, pid) for pid, first in aborted or ())
        self._aborting: set[int] = set()
        self._check_crc = check_crc
        self._max_decompressed = max_decompressed
        self._at = 0  # where the present batch starts
        self._header: BatchHeader | None = None  # of the present batch, once it is checked
        self._records: Readable | None = None  # its records, once it is open
        self._cursor = self._left = 0
        self._last_seen = -1
        self._done = self._busy = False
        self._settle()

    @property
    def position(self) -> int:
        """The next offset to fetch after what was given out."""
        return self._position

    @property
    def exhausted(self) -> bool:
        """True when nothing is left to give out."""
        return self._done

    @property
    def bytes(self) -> int:
        """Bytes of memory that the chunk holds."""
        opened = self._records if self._header and self._header.codec else None
        return self._data.nbytes + (0 if opened is None else len(opened))

    def next_records(self, max_records: int) -> list[Record]:
        """At most `max_records` more records; an empty list when the chunk is exhausted."""
        out: list[Record] = []

        def give(header: BatchHeader, item: Item, timestamp: int) -> None:
            names = tuple((n.decode("utf-8", "replace"), v) for n, v in item.headers)
            out.append(
                Record(
                    self.topic,
                    self.partition,
                    header.base_offset + item.delta,
                    timestamp=timestamp,
                    key=item.key,
                    value=item.value,
                    headers=names,
                    timestamp_type=header.timestamp_type,
                    leader_epoch=header.partition_leader_epoch,
                )
            )

        self._run(give, lambda _: len(out) >= max_records)
        return out

    def next_columns(
        self,
        max_rows: int = DEFAULT_MAX_ROWS,
        columns: Collection[str] = DEFAULT_COLUMNS,
        *,
        max_bytes: int = DEFAULT_PIECE_BYTES,
    ) -> Columns | None:
        """A piece of at most `max_rows` records as columns, or None when there are no more.

        It ends after `max_bytes` of records, or somewhat later. `UsageError` for an unknown column,
        or a limit below 1.
        """
        for name in columns:
            if name not in COLUMN_NAMES:
                raise UsageError(f"there is no column {name!r}; choose from COLUMN_NAMES")
        if max_rows < 1 or max_bytes < 1:
            raise UsageError(
                f"a piece of {max_rows} rows and {max_bytes} bytes; ask for at least one of each"
            )
        max_bytes = min(max_bytes, MOST_PIECE_BYTES)
        writer = ColumnWriter(columns)

        def give(header: BatchHeader, item: Item, timestamp: int) -> None:
            offset = header.base_offset + item.delta
            kind = header.timestamp_type
            writer.add(offset, timestamp, kind, item.key, item.value, item.headers)

        self._run(give, lambda read: writer.rows >= max_rows or read >= max_bytes)
        return writer.columns(self.topic, self.partition) if writer.rows else None

    def skip_batch(self) -> None:
        """Goes past the present batch, which is damaged or unwanted.

        `position` becomes the offset after it, as far as its header and the next batch's show it.
        """
        self._enter()
        try:
            after, size = self._next_after(), self._whole()
            if self._at + size < len(self._data) and self._witness() is None:
                size = 0  # its length is not to be believed either
            self._position = after
            self._next_batch(size)
            self._settle()
        finally:
            self._busy = False

    def _enter(self) -> None:
        if self._busy:
            raise ConcurrentUseError(
                f"two threads read the chunk of {self.topic}-{self.partition} at once; give each "
                "chunk to one thread at a time"
            )
        self._busy = True

    def _run(
        self, give: Callable[[BatchHeader, Item, int], None], full: Callable[[int], bool]
    ) -> None:
        """Returns records until `full`, called with the bytes read, is true, or to the chunk's
        end."""
        self._enter()
        emitted = read = 0
        try:
            while not full(read) and self._open():
                got, size = self._next_item(give)
                emitted += got
                read += size
            self._settle()
        except CorruptRecordError:
            if not emitted:
                raise
        finally:
            self._busy = False

    def _next_item(self, give: Callable[[BatchHeader, Item, int], None]) -> tuple[int, int]:
        """Reads one record of the open batch: whether it was given out, and its bytes."""
        header, records = self._header, self._records
        assert header is not None
        assert records is not None
        if self._left == 0:
            if self._cursor != len(records):
                raise self._corrupt(RECORD_FAULTS[BAD_END])
            self._pass_batch()
            return 0, 0
        try:
            last = header.last_offset_delta
            item, stop = read_item(records, self._cursor, len(records), self._last_seen, last)
        except RecordFault as fault:
            raise self._corrupt(str(fault)) from None
        size, offset = stop - self._cursor, header.base_offset + item.delta
        self._cursor, self._last_seen, self._left = stop, item.delta, self._left - 1
        if offset >= self._end_offset:
            self._stop_at_end()
            return 0, 0
        if offset < self._position:
            return 0, 0
        self._position = offset + 1
        self.leader_epoch = header.partition_leader_epoch
        give(header, item, _timestamp_of(header, item))
        if self._left == 0 and stop == len(records):
            self._pass_batch()
        return 1, size

    def _stop_at_end(self) -> None:
        self._position = max(self._position, self._end_offset)
        self._header = self._records = None
        self._done = True

    def _pass_batch(self) -> None:
        """Leaves the present batch behind: its records were returned or are skipped."""
        assert self._header is not None
        self._position = max(self._position, self._header.next_offset)
        self.leader_epoch = self._header.partition_leader_epoch
        self._next_batch(self._header.size)

    def _next_batch(self, size: int) -> None:
        self._header = self._records = None
        self._done = self._done or size == 0
        self._at += size

    def _open(self) -> bool:
        """Makes the next batch with records readable; False when there is none."""
        if self._records is not None:
            return True
        header = self._advance()
        if header is None:
            return False
        records: Readable = self._data[self._at + HEADER_BYTES : self._at + header.size]
        try:
            records = decompress(header.codec, records, self._max_decompressed)
        except CorruptRecordError as error:
            raise self._corrupt(str(error)) from None
        if header.record_count * MIN_RECORD_BYTES > len(records):
            raise self._corrupt(
                f"{header.record_count} records cannot stand in {len(records)} bytes"
            )
        self._records, self._cursor = records, 0
        self._left, self._last_seen = header.record_count, -1
        return True

    def _advance(self) -> BatchHeader | None:
        """Moves to the next batch that holds records for the caller, and checks it."""
        while self._header is None and not self._done:
            header = self._read_header()
            if header is None:
                return None
            self._header = header
            if header.base_offset >= self._end_offset:
                self._stop_at_end()
                return None
            try:
                unwanted = self._is_aborted(header) or header.is_control
            except CorruptRecordError:
                self._header = None
                raise
            if unwanted or header.last_offset < self._position or header.record_count == 0:
                self._pass_batch()
        return self._header

    def _read_header(self) -> BatchHeader | None:
        """Reads and checks the header of the batch at `_at`; None at the end."""
        left = len(self._data) - self._at
        if left < PREFIX_BYTES + 5:
            return self._ends()
        base_offset = int.from_bytes(self._data[self._at : self._at + 8], "big", signed=True)
        length = self._length()
        if length < _MIN_LENGTH or base_offset < 0:
            raise self._corrupt(f"its length is {length}")
        magic = self._data[self._at + 16]
        if magic != MAGIC:
            raise self._corrupt(
                f"message format {(magic ^ 0x80) - 0x80}; only format 2 (Kafka 0.11 and later) "
                "can be read"
            )
        if length > left - PREFIX_BYTES:
            return self._ends()
        header = BatchHeader(self._data, self._at)
        if self._check_crc:
            content = self._data[self._at + CRC_START : self._at + header.size]
            if crc32c(content) != header.crc:
                raise self._corrupt("its CRC does not match")
        if header.codec > 4:
            raise self._corrupt(f"unknown compression codec {header.attributes & ATTRIBUTE_CODEC}")
        if header.last_offset_delta < 0 or header.next_offset > MAX_OFFSET:
            raise self._corrupt(f"its last offset delta is {header.last_offset_delta}")
        if not 0 <= header.record_count <= header.last_offset_delta + 1:
            raise self._corrupt(f"its record count is {header.record_count}")
        return header

    def _is_aborted(self, header: BatchHeader) -> bool:
        """Follows the aborted transactions up to this batch (KIP-98, read_committed)."""
        while self._aborted and self._aborted[0][0] <= header.last_offset:
            self._aborting.add(self._aborted.pop(0)[1])
        if not self._aborting or not header.is_transactional:
            return False
        if header.is_control:
            if self._is_abort_marker(header):
                self._aborting.discard(header.producer_id)
            return False
        return header.producer_id in self._aborting

    def _is_abort_marker(self, header: BatchHeader) -> bool:
        """A control record whose key says type 0: version int16, type int16.

        Of a batch that compaction has emptied nothing is left but its header: it ends nothing.
        """
        if header.record_count == 0:
            return False
        start, end = self._at + HEADER_BYTES, self._at + header.size
        try:
            item, _ = read_item(self._data, start, end, -1, header.last_offset_delta)
            if len(item.key or b"") < 4:
                raise RecordFault(BAD_KEY)
        except RecordFault:
            raise self._corrupt("a control batch without a marker") from None
        return (item.key or b"")[2:4] == b"\x00\x00"

    def _ends(self) -> None:
        """The set ends here, which inside its very first batch is damage (Fetch v3, KIP-74)."""
        if self._at == 0 and len(self._data) > 0:
            raise self._corrupt("it is longer than the whole record set")
        self._done = True

    def _settle(self) -> None:
        """Passes what yields nothing, so that position and exhausted are true at once.

        Batches with records are left alone: their CRC is checked when they are read, while they
        are in the cache. Damage is left too, for the next call to raise.
        """
        while self._header is None and not self._done:
            if self._whole() and not self._seems_idle(BatchHeader(self._data, self._at)):
                return
            try:
                self._advance()
            except CorruptRecordError:
                return

    def _seems_idle(self, header: BatchHeader) -> bool:
        """Whether a batch whose CRC has not been checked looks as if it had no records for us."""
        if header.base_offset >= self._end_offset or header.record_count == 0:
            return True
        if header.attributes & ATTRIBUTE_CONTROL:
            return True
        following = bool(self._aborted or self._aborting)
        return following and bool(header.attributes & ATTRIBUTE_TRANSACTIONAL)

    def _length(self) -> int:
        start = self._at + 8
        return int.from_bytes(self._data[start : start + 4], "big", signed=True)

    def _whole(self) -> int:
        """The size of the present batch by its length, 0 when that cannot be."""
        left = len(self._data) - self._at
        if left < HEADER_BYTES:
            return 0
        length = self._length()
        return length + PREFIX_BYTES if _MIN_LENGTH <= length <= left - PREFIX_BYTES else 0

    def _witness(self) -> int | None:
        """The base offset of another batch that begins where the present one ends."""
        size = self._whole()
        start = self._at + size
        if size == 0 or len(self._data) - start < PREFIX_BYTES + 5:
            return None
        length = int.from_bytes(self._data[start + 8 : start + 12], "big", signed=True)
        if self._data[start + 16] != MAGIC or length < _MIN_LENGTH:
            return None
        return int.from_bytes(self._data[start : start + 8], "big", signed=True)

    def _next_after(self) -> int:
        """The offset after the present batch, as far as it can be trusted when it is damaged.

        The next batch's base offset is the best witness; else the batch's own last offset, if two
        of its fields agree on it; else one offset is given up.
        """
        after = self._witness()
        if after is not None and self._position < after <= self._position + _FAR:
            return after
        if len(self._data) - self._at >= HEADER_BYTES:
            header = BatchHeader(self._data, self._at)
            after, count = header.next_offset, header.record_count
            if header.base_offset >= 0 < count == header.last_offset_delta + 1 and (
                self._position < after <= min(self._position + _FAR, MAX_OFFSET)
            ):
                return after
        return min(self._position + 1, MAX_OFFSET)

    def _corrupt(self, what: str) -> CorruptRecordError:
        base = -1
        if len(self._data) - self._at >= PREFIX_BYTES:
            base = int.from_bytes(self._data[self._at : self._at + 8], "big", signed=True)
        after = self._next_after()
        size = min(self._whole() or len(self._data) - self._at, MAX_DAMAGED_BYTES)
        batch = bytes(self._data[self._at : self._at + size])
        return corrupt(self.topic, self.partition, base, self._position, after, what, batch)


def _timestamp_of(header: BatchHeader, item: Item) -> int:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    return int64(header.base_timestamp + item.timestamp_delta)
