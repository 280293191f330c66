"""A batch that turned out too large for a request or for the broker, as two. Pure.

Rules (as the Java client does it):
- The records stay in their order and keep their timestamps; the two batches have the sequences that
  the one had, so what follows them keeps its own (KIP-98).
- Futures that were given out look at the one delivery; it passes them on to the two.
- The memory that the one held is shared between them; the deadline is the same.
"""

from __future__ import annotations

from typing import Final

from kohort.client.producer.plan.accumulator import NO_SEQUENCE, Accumulator, Batch
from kohort.records import Chunk, Record

_NO_LIMIT: Final = 1 << 31


def split(accumulator: Accumulator, batch: Batch, sequence_mask: int) -> tuple[Batch, Batch]:
    """Two batches of the halves of a batch of several records that has its payload."""
    records = Chunk("", 0, batch.payload, 0, check_crc=False).next_records(batch.count)
    middle = len(records) // 2
    queue = batch.queue
    for later in (*queue.closed, *queue.in_flight):
        later.ordinal += later.ordinal > batch.ordinal
    queue.ordinals += 1
    first = _half(accumulator, batch, records[:middle])
    second = _half(accumulator, batch, records[middle:])
    second.ordinal += 1
    if batch.sequence != NO_SEQUENCE:
        second.sequence = (batch.sequence + middle) & sequence_mask
    first.reserved_bytes = batch.reserved_bytes // 2
    second.reserved_bytes = batch.reserved_bytes - first.reserved_bytes
    batch.reserved_bytes = 0
    batch.payload = b""
    batch.delivery.split(first.delivery, middle, second.delivery)
    return first, second


def _half(accumulator: Accumulator, batch: Batch, records: list[Record]) -> Batch:
    half = Batch(batch.queue, accumulator.new_builder(), batch.created_ms, batch.deadline_ms)
    assert half.builder is not None
    half.builder.max_bytes = _NO_LIMIT  # what the whole may grow to is less by now, perhaps
    for record in records:
        taken = half.builder.append(record.timestamp, record.key, record.value, record.headers)
        assert taken >= 0, "half of a batch fits where the whole did"
    half.count = len(records)
    half.attempts = batch.attempts
    half.in_doubt = batch.in_doubt
    half.ordinal = batch.ordinal
    half.sequence = batch.sequence
    return half
