"""Record batches of message format 2: the position of each field, by header alone.

Rules:
- A batch is 12 bytes (base offset, length) and `length` more; 61 bytes are its header, then come
  the records, compressed together or not at all.
- A record is a varint length, one byte of attributes (unused), timestamp delta (varlong), offset
  delta (varint), key and value (varint length, -1 for null), and a varint count of headers.
- A fetch may end in a part of a batch, which is no error; a produced record set may not.

Source: Apache Kafka's documentation of the record batch format (KIP-98, KIP-32, KIP-534).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from kohort.errors import CorruptRecordError

Readable = bytes | bytearray | memoryview

HEADER_BYTES = 61
PREFIX_BYTES = 12  # base offset and length, not counted by `length`
MAGIC = 2
CRC_START = 21  # the CRC covers everything from the attributes on
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

MIN_RECORD_BYTES = 7  # length, attributes, two deltas, two lengths of null, a header count of 0

ATTRIBUTE_CODEC = 0x07
ATTRIBUTE_LOG_APPEND_TIME = 0x08
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_DELETE_HORIZON = 0x40

_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH = Struct(">qiib")
_LEAST_LENGTH = HEADER_BYTES - PREFIX_BYTES
MAX_OFFSET = (1 << 63) - 1


class TimestampType(IntEnum):
    """Who set a record's timestamp: the producer, or the broker when it appended the record."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader:
    """One batch's header. `position` is where the batch starts in its buffer, `size` its bytes.

    All other fields are as stored in the batch; the properties take its attributes apart.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset_delta",
        "length",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    def __init__(self, buffer: Readable, position: int = 0) -> None:
        """Reads the header at `position`; at least `HEADER_BYTES` must be there."""
        self.position = position
        (
            self.base_offset,
            self.length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = _HEADER.unpack_from(buffer, position)

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch had before any compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The codec's number; see `Compression`."""
        return self.attributes & ATTRIBUTE_CODEC

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamps of this batch."""
        append = self.attributes & ATTRIBUTE_LOG_APPEND_TIME
        return TimestampType.LOG_APPEND_TIME if append else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """True for a batch that belongs to a transaction."""
        return bool(self.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True for a batch of markers, which is not for users."""
        return bool(self.attributes & ATTRIBUTE_CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on compaction may remove its tombstones (KIP-534); None: not decided yet.

        The base timestamp is that then; added to a record's delta it is the record's own all the
        same.
        """
        return self.base_timestamp if self.attributes & ATTRIBUTE_DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, or `NO_SEQUENCE`; it wraps at 2^31."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    def __repr__(self) -> str:
        return (
            f"<BatchHeader offsets {self.base_offset}..{self.last_offset}, {self.record_count} "
            f"records, {self.size} bytes at {self.position}>"
        )


def read_batch_header(buffer: Readable, position: int = 0) -> BatchHeader | None:
    """The header of the batch at `position`, or None where only a part of a batch is left.

    The length and the format are checked, the CRC is not. `CorruptRecordError` when they are
    impossible.
    """
    available = len(buffer) - position
    if available >= HEADER_BYTES:
        header = BatchHeader(buffer, position)
        length = header.length
        if length >= _LEAST_LENGTH and header.magic == MAGIC and header.base_offset >= 0:
            return header if length <= available - PREFIX_BYTES else None
    if available < PREFIX_BYTES + 5:
        return None
    base_offset, length, _, magic = _LENGTH.unpack_from(buffer, position)
    if length < _LEAST_LENGTH or base_offset < 0:
        raise CorruptRecordError(
            f"no record batch at byte {position}: length {length}, base offset {base_offset}"
        )
    if magic != MAGIC:
        raise CorruptRecordError(
            f"batch at byte {position} (offset {base_offset}) has message format {magic}; only "
            "format 2 (Kafka 0.11 and later) can be read",
            offset=base_offset,
        )
    return None


def iter_batches(
    buffer: Readable, position: int = 0, *, strict: bool = False
) -> Iterator[BatchHeader]:
    """Every whole batch from `position` on; CRCs are not checked.

    A part of a batch at the end (as fetches have it) ends the iteration, or with `strict` raises
    `CorruptRecordError`.
    """
    end = len(buffer)
    while position < end:
        header = read_batch_header(buffer, position)
        if header is None:
            if strict:
                raise CorruptRecordError(f"the record set ends inside the batch at byte {position}")
            return
        yield header
        position += header.length + PREFIX_BYTES


def end_of_set(data: Readable) -> int:
    """Where reading continues behind the last whole batch, by headers alone; -1: unknown.

    Unknown, too, when anything in the headers is odd: reading the set finds the cause.
    """
    after = -1
    try:
        for header in iter_batches(data):
            base, last_delta = header.base_offset, header.last_offset_delta
            if last_delta < 0 or base < max(after, 0) or base >= MAX_OFFSET - last_delta:
                return -1
            after = base + last_delta + 1
    except CorruptRecordError:
        return -1
    return after


def whole_batches(data: Readable) -> int:
    """How many bytes the whole batches at the beginning take, by headers alone."""
    after = 0
    try:
        for header in iter_batches(data):
            after = header.position + header.size
    except CorruptRecordError:
        pass  # up to what is no batch
    return after


# What can be wrong with one record; the kernel and its twin name a fault by its index.
RECORD_FAULTS = (
    "",
    "a record's length runs past the end of the batch",
    "a record's timestamp or offset delta is cut off",
    "a record's key runs past its end",
    "a record's value runs past its end",
    "a record's headers run past its end",
    "a record is shorter than its length",
    "offset deltas do not rise, or pass the batch's last one",
    "bytes are left over after the last record",
)


MAX_DAMAGED_BYTES = 16 << 20
"""So much of a damaged batch goes with its error."""


class RecordCheck(NamedTuple):
    """What walking the records of a produced batch shows, besides that they are sound.

    `earliest` and `latest` are timestamps in milliseconds, -1 where no record has one; `keyless` is
    how many records have no key.
    """

    earliest: int
    latest: int
    keyless: int


def too_many_records(count: int, size: int) -> CorruptRecordError:
    """The error for a batch whose header claims more records than its bytes can hold."""
    return CorruptRecordError(f"{count} records cannot stand in {size} bytes")


def corrupt(
    topic: str,
    partition: int,
    base_offset: int,
    position: int,
    next_offset: int,
    what: str,
    batch: bytes,
) -> CorruptRecordError:
    """The error for a damaged batch in a fetch.

    Args:
        position: the first offset that cannot be read.
        batch: the bytes of the batch, or what there is of them.
    """
    return CorruptRecordError(
        f"{topic}-{partition} cannot be read at offset {position}: the record batch at offset "
        f"{base_offset} is damaged: {what}. Fetch again; if it stays, skip to {next_offset}",
        topic=topic,
        partition=partition,
        offset=position,
        next_offset=next_offset,
        batch=batch,
    )
