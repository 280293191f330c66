"""One record after another in pure Python: reading it, and walking a produced batch of them."""

from __future__ import annotations

from typing import NamedTuple

from kohort.errors import CorruptRecordError
from kohort.records.compression import decompress
from kohort.records.layout import (
    MIN_RECORD_BYTES,
    RECORD_FAULTS,
    Readable,
    RecordCheck,
    too_many_records,
)

_INT64 = 1 << 64

# Indexes of RECORD_FAULTS.
(
    BAD_LENGTH,
    BAD_DELTA,
    BAD_KEY,
    BAD_VALUE,
    BAD_HEADERS,
    BAD_SIZE,
    BAD_ORDER,
    BAD_END,
) = range(1, len(RECORD_FAULTS))


class RecordFault(Exception):
    """A record that cannot be read; `fault` is an index of RECORD_FAULTS."""

    def __init__(self, fault: int) -> None:
        self.fault = fault
        super().__init__(RECORD_FAULTS[fault])


class Item(NamedTuple):
    """One record as stored in its batch."""

    delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def varint(data: Readable, at: int, end: int, fault: int, longest: int = 5) -> tuple[int, int]:
    """A zigzag varint at `at` and where it ends; a `RecordFault` when it is cut off or too big."""
    raw = shift = 0
    for index in range(at, min(end, at + longest)):
        byte = data[index]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            value = (raw >> 1) ^ -(raw & 1)
            if longest == 5 and not -(1 << 31) <= value < 1 << 31:
                raise RecordFault(fault)
            return value, index + 1
        shift += 7
    raise RecordFault(fault)


def _field(data: Readable, at: int, end: int, fault: int, least: int) -> tuple[bytes | None, int]:
    """Bytes behind a varint length, None for a length of -1, and where they end."""
    size, at = varint(data, at, end, fault)
    if size < least or size > end - at:
        raise RecordFault(fault)
    if size < 0:
        return None, at
    return bytes(data[at : at + size]), at + size


def read_item(
    data: Readable, at: int, end: int, last_seen: int, last_delta: int
) -> tuple[Item, int]:
    """The record at `at`, its offset delta between two bounds, and where it ends."""
    size, at = varint(data, at, end, BAD_LENGTH)
    if size < MIN_RECORD_BYTES - 1 or size > end - at:
        raise RecordFault(BAD_LENGTH)
    stop = at + size
    time, at = varint(data, at + 1, stop, BAD_DELTA, 10)
    time = int64(time)
    delta, at = varint(data, at, stop, BAD_DELTA)
    if not last_seen < delta <= last_delta:
        raise RecordFault(BAD_ORDER)
    key, at = _field(data, at, stop, BAD_KEY, -1)
    value, at = _field(data, at, stop, BAD_VALUE, -1)
    count, at = varint(data, at, stop, BAD_HEADERS)
    if count < 0 or count > stop - at:
        raise RecordFault(BAD_HEADERS)
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, at = _field(data, at, stop, BAD_HEADERS, 0)
        content, at = _field(data, at, stop, BAD_HEADERS, -1)
        headers.append((name or b"", content))
    if at != stop:
        raise RecordFault(BAD_SIZE)
    return Item(delta, time, key, value, tuple(headers)), stop


def int64(raw: int) -> int:
    """A sum as 64 bits hold it."""
    return (raw + (_INT64 >> 1)) % _INT64 - (_INT64 >> 1)


def check_records(
    records: Readable, codec: int, count: int, base_timestamp: int, limit: int
) -> RecordCheck:
    """Walks the records of a produced batch, decompressed to at most `limit` bytes.

    `CorruptRecordError` unless they are exactly `count` records whose every length fits, with the
    offset deltas 0, 1, 2 and so on; `DecompressionLimitError` when they expand past the limit.
    """
    if count * MIN_RECORD_BYTES > limit:
        raise too_many_records(count, limit)
    data = decompress(codec, records, limit)
    if count * MIN_RECORD_BYTES > len(data):
        raise too_many_records(count, len(data))
    at = keyless = 0
    earliest = latest = -1
    for expected in range(count):
        try:
            item, at = read_item(data, at, len(data), expected - 1, expected)
        except RecordFault as fault:
            raise CorruptRecordError(str(fault)) from None
        timestamp = int64(base_timestamp + item.timestamp_delta)
        latest = max(latest, timestamp)
        if timestamp >= 0:
            earliest = timestamp if earliest < 0 else min(earliest, timestamp)
        keyless += item.key is None
    if at != len(data):
        raise CorruptRecordError(RECORD_FAULTS[BAD_END])
    return RecordCheck(earliest, latest, keyless)
