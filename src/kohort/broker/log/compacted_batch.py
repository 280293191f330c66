"""A batch as compaction leaves it: without some of its records, and with its delete horizon. Pure.

The horizon (KIP-534) is the time from which tombstones and the marker of a transaction may go. A
pass that meets them for the first time sets it: else a reader between a value and its tombstone, or
behind a pass that took both, would never learn of the deletion. Kafka's form: bit 6 of the
attributes says that the base timestamp is the horizon; the records' deltas are from there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from kohort.broker.log.files import Buffer
from kohort.errors import CorruptRecordError
from kohort.records import BatchHeader, Chunk, TimestampType, compress, crc32c, decompress
from kohort.records.batch import check_batch
from kohort.records.layout import ATTRIBUTE_CODEC, ATTRIBUTE_DELETE_HORIZON, CRC_START, HEADER_BYTES
from kohort.records.pure_encode import put_varint
from kohort.records.pure_record import BAD_LENGTH, RecordFault, int64, varint

_REBUILT = struct.Struct(">qiibIhiqqqhii")
_ATTRIBUTES, _BASE_TIMESTAMP = struct.Struct(">h"), struct.Struct(">q")
_CRC = struct.Struct(">I")
_LATEST_MS = (1 << 63) - 1
_VARLONG_BYTES = 10
"""The longest that a number of 64 bits may be."""

Stays = Callable[[int, bytes | None], bool]
"""Whether a record, by its offset and key, is the last one of its key."""


class Deletion(NamedTuple):
    """When tombstones and markers go: the time of a pass, and `delete.retention.ms`."""

    now_ms: int
    retention_ms: int

    def is_due(self, header: BatchHeader) -> bool:
        """Whether the batch's horizon has passed."""
        horizon = header.delete_horizon_ms
        return horizon is not None and horizon <= self.now_ms

    @property
    def horizon_ms(self) -> int:
        """The horizon of what this pass is the first to meet."""
        return min(self.now_ms + self.retention_ms, _LATEST_MS)


def filtered(
    header: BatchHeader, batch: Buffer, stays: Stays, deletion: Deletion, *, keep_empty: bool
) -> Buffer | None:
    """The batch with the records that stay, or None when none does (unless `keep_empty`)."""
    records = records_of(header, batch)
    if records is None:
        return batch
    is_due = deletion.is_due(header)
    kept = [
        i
        for i, (offset, key, tombstone) in enumerate(records)
        if stays(offset, key) and not (tombstone and is_due)
    ]
    if not kept and not keep_empty:
        return None
    is_first = header.delete_horizon_ms is None and any(records[i][2] for i in kept)
    if len(kept) == len(records) and not is_first:
        return batch
    return _rebuilt(header, batch, kept, deletion.horizon_ms if is_first else None)


def marker_with_horizon(header: BatchHeader, batch: Buffer, horizon_ms: int) -> Buffer:
    """A transaction's marker with the time from which it may go.

    Its record stays byte for byte, so that it is read as any other marker (`marker_of`); its own
    timestamp, unlike that of the batch, is the horizon then. Nobody asks for it. Raises
    CorruptRecordError for one that is damaged: it must not get a right checksum.
    """
    check_batch(batch, BatchHeader(batch, 0))
    out = bytearray(batch)
    _ATTRIBUTES.pack_into(out, 21, header.attributes | ATTRIBUTE_DELETE_HORIZON)
    _BASE_TIMESTAMP.pack_into(out, 27, horizon_ms)
    _CRC.pack_into(out, 17, crc32c(memoryview(out)[CRC_START:]))
    return out


def records_of(header: BatchHeader, batch: Buffer) -> list[tuple[int, bytes | None, bool]] | None:
    """`(offset, key, is a tombstone)` of every record.

    None: its records cannot be decoded, as in a topic that was not always compacted. It
    stays. Raises CorruptRecordError for what is damaged here.
    """
    records: list[tuple[int, bytes | None, bool]] = []
    try:
        chunk = Chunk("", 0, batch, header.base_offset)
        while not chunk.exhausted:
            some = chunk.next_records(1_000)
            records.extend((record.offset, record.key, record.value is None) for record in some)
    except CorruptRecordError:
        check_batch(batch, BatchHeader(batch, 0))
        return None
    return records


def _rebuilt(header: BatchHeader, batch: Buffer, kept: list[int], horizon_ms: int | None) -> Buffer:
    """The batch with some of its records, each as it was, and perhaps with a horizon."""
    body = memoryview(decompress(header.codec, memoryview(batch)[HEADER_BYTES:]))
    spans = _spans(body)
    if len(spans) != header.record_count:
        raise CorruptRecordError(f"{header!r} has {len(spans)} records")
    attributes, base_timestamp, shift = header.attributes, header.base_timestamp, 0
    if horizon_ms is not None:
        attributes |= ATTRIBUTE_DELETE_HORIZON
        base_timestamp, shift = horizon_ms, header.base_timestamp - horizon_ms
    records = b"".join(_shifted(body, spans[i], shift) for i in kept)
    if not records:
        attributes &= ~ATTRIBUTE_CODEC
    packed = compress(header.codec, records) if records else b""
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        deltas = [_varlong(body, spans[i][2])[0] for i in kept]
        max_timestamp = max(
            (int64(header.base_timestamp + d) for d in deltas), default=max_timestamp
        )
    out = bytearray(HEADER_BYTES + len(packed))
    out[HEADER_BYTES:] = packed
    _REBUILT.pack_into(
        out,
        0,
        header.base_offset,
        len(out) - 12,
        header.partition_leader_epoch,
        2,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(kept),
    )
    _CRC.pack_into(out, 17, crc32c(memoryview(out)[CRC_START:]))
    return out


def _shifted(body: memoryview, span: tuple[int, int, int], shift: int) -> Buffer:
    """One record whose timestamp is counted from another base."""
    begin, end, delta_at = span
    if not shift:
        return body[begin:end]
    delta, after = _varlong(body, delta_at)
    inner = b"".join(
        (body[delta_at - 1 : delta_at], _varlong_bytes(int64(delta + shift)), body[after:end])
    )
    return _varlong_bytes(len(inner)) + inner


def _spans(body: memoryview) -> list[tuple[int, int, int]]:
    """Where each record begins and ends, and where its timestamp delta is."""
    spans: list[tuple[int, int, int]] = []
    at = 0
    while at < len(body):
        length, inside = _varlong(body, at)
        end = inside + length
        if length < 0 or end > len(body):
            raise CorruptRecordError(f"a record of {length} bytes at byte {at} of {len(body)}")
        spans.append((at, end, inside + 1))
        at = end
    return spans


def _varlong(data: memoryview, at: int) -> tuple[int, int]:
    """A zigzag number and where it ends."""
    try:
        return varint(data, at, len(data), BAD_LENGTH, _VARLONG_BYTES)
    except RecordFault as fault:
        raise CorruptRecordError(str(fault)) from None


def _varlong_bytes(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)
