"""What a broker does with record batches: check them, walk their records, stamp them.

Rules:
- The CRC (CRC-32C, from the attributes to the end) is checked before anything behind it is believed
  (spec F3). The base offset and the leader epoch are outside it, so that a broker may stamp them.
- Damage raises `CorruptRecordError`, never anything else (spec F6).
"""

from __future__ import annotations

from struct import Struct

from kohort.errors import CorruptRecordError
from kohort.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Compression
from kohort.records.implementation import check_records, crc32c
from kohort.records.layout import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    CRC_START,
    HEADER_BYTES,
    MAX_OFFSET,
    MIN_RECORD_BYTES,
    NO_PRODUCER_ID,
    PREFIX_BYTES,
    BatchHeader,
    Readable,
    RecordCheck,
)

_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_LAST_CODEC = int(Compression.ZSTD)


def crc_matches(buffer: Readable, header: BatchHeader) -> bool:
    """Whether the CRC in `header` is that of its batch in `buffer`."""
    start = header.position
    content = memoryview(buffer)[start + CRC_START : start + header.length + PREFIX_BYTES]
    return crc32c(content) == header.crc


def check_batch(buffer: Readable, header: BatchHeader) -> None:
    """Raises `CorruptRecordError` unless CRC, counts and codec of one batch are right."""
    if not crc_matches(buffer, header):
        raise _fault(header, "its CRC does not match")
    count, last, codec = header.record_count, header.last_offset_delta, header.codec
    records_bytes = header.length + PREFIX_BYTES - HEADER_BYTES
    if codec > _LAST_CODEC:
        raise _fault(header, f"unknown compression codec {codec}")
    if last < 0 or header.base_offset + last >= MAX_OFFSET:
        raise _fault(header, f"last offset delta {last}")
    if not 0 <= count <= last + 1:
        raise _fault(header, f"record count {count}")
    if codec == 0 and count * MIN_RECORD_BYTES > records_bytes:
        raise _fault(header, f"{count} records cannot stand in {records_bytes} bytes")


def check_produced(
    batch: Readable,
    header: BatchHeader,
    *,
    max_decompressed: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> RecordCheck:
    """Checks all that the CRC of a producer's batch says nothing about, and walks its records.

    Args:
        batch: A buffer with the whole batch, whose CRC is right.
        header: The batch's header.
        max_decompressed: The most bytes that its records may have.

    Returns:
        What the records say of themselves.

    Raises:
        DecompressionLimitError: The records expand past `max_decompressed`.
        CorruptRecordError: The offsets are not 0 to count - 1, there is no record, a record does
            not fit, the codec is unknown, the producer's fields contradict each other, or it is a
            control batch.
    """
    _check_fields(header)
    records = memoryview(batch)[header.position + HEADER_BYTES : header.position + header.size]
    try:
        return check_records(
            records, header.codec, header.record_count, header.base_timestamp, max_decompressed
        )
    except CorruptRecordError as error:
        raise _fault(header, str(error), type(error)) from None


def _check_fields(header: BatchHeader) -> None:
    """What must hold in the header of a batch that comes from a producer and not from a log."""
    count, last, attributes = header.record_count, header.last_offset_delta, header.attributes
    if header.base_offset != 0:
        raise _fault(header, f"its base offset is {header.base_offset}; producers begin at 0")
    if count <= 0 or count != last + 1:
        raise _fault(header, f"{count} records and last offset delta {last}")
    if header.codec > _LAST_CODEC:
        raise _fault(header, f"unknown compression codec {header.codec}")
    if attributes & ATTRIBUTE_CONTROL:
        raise _fault(header, "producers may not write control batches")
    producer_id = header.producer_id
    if producer_id == NO_PRODUCER_ID:
        if attributes & ATTRIBUTE_TRANSACTIONAL:
            raise _fault(header, "transactional without a producer id")
        return
    epoch, sequence = header.producer_epoch, header.base_sequence
    if producer_id < 0 or epoch < 0 or sequence < 0:
        raise _fault(header, f"producer id {producer_id}, epoch {epoch}, sequence {sequence}")


def _fault(
    header: BatchHeader, what: str, error: type[CorruptRecordError] = CorruptRecordError
) -> CorruptRecordError:
    return error(
        f"batch at byte {header.position} (offset {header.base_offset}) is damaged: {what}",
        offset=header.base_offset,
    )


def set_max_timestamp(batch: bytearray, max_timestamp: int) -> None:
    """Writes the max timestamp of the one batch in `batch`, and the CRC that it then needs."""
    batch[35:43] = max_timestamp.to_bytes(8, "big", signed=True)
    _CRC.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_START:]))


def stamp(
    buffer: bytearray | memoryview,
    position: int,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None = None,
) -> None:
    """Writes what a broker sets into the batch at `position` of a writable buffer.

    Base offset and leader epoch are outside the CRC. With `append_time_ms` the batch also becomes
    one of log append time: its attribute, its max timestamp, and a new CRC (KIP-32).
    """
    # Two writes, because pad bytes of one would overwrite the length between them with zeros.
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + 12, leader_epoch)
    if append_time_ms is None:
        return
    header = BatchHeader(buffer, position)
    attributes = header.attributes | ATTRIBUTE_LOG_APPEND_TIME
    view = memoryview(buffer)[position : position + header.size]
    view[21:23] = attributes.to_bytes(2, "big", signed=True)
    view[35:43] = append_time_ms.to_bytes(8, "big", signed=True)
    _CRC.pack_into(view, 17, crc32c(view[CRC_START:]))
