"""Idempotent producers of one partition: what came last from whom (KIP-98). Pure.

Rules:
- A batch whose sequence is among the last five of its producer is a duplicate: it is answered with
  the offset it got the first time and not appended again.
- A batch that does not follow the last one of its producer's epoch is out of order; a new epoch
  begins at sequence 0; an older epoch is refused. A producer nobody knows may begin anywhere.
- State changes only after the append (`note`), never before (KAFKA-6683).
- At most `MAX_PRODUCERS` are remembered; the one that wrote longest ago is forgotten first.

A snapshot holds all of it, CRC'd and named by the offset it stands for, so that a start need not
read the whole log again. Its format is our own: Kafka's keeps only the last batch of a producer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from struct import Struct
from zlib import crc32

from kohort.errors import ErrorCode
from kohort.records import BatchHeader

MAX_PRODUCERS = 10_000
WINDOW_BATCHES = 5
_SEQUENCES = 1 << 31
_SNAPSHOT_VERSION = 1
_HEAD = Struct(">hIi")
_PRODUCER = Struct(">qhqi")
_BATCH = Struct(">iiqq")


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """One batch of a producer as it stands in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


@dataclass(slots=True)
class Producer:
    """One producer id: its epoch, its last batches, and when it wrote last."""

    epoch: int
    last_ms: int
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=WINDOW_BATCHES))


class Producers:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def check(self, batch: BatchHeader) -> AppendedBatch | ErrorCode | None:
        """None: append it. An AppendedBatch: it is a duplicate of that. A code: refuse it."""
        known = self._by_id.get(batch.producer_id)
        if known is None:
            return None
        if batch.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if batch.producer_epoch > known.epoch:
            first = batch.base_sequence == 0
            return None if first else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        first, last = batch.base_sequence, batch.last_sequence
        for old in known.batches:
            if old.first_sequence == first and old.last_sequence == last:
                return old
        if known.batches and first != (known.batches[-1].last_sequence + 1) % _SEQUENCES:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return None

    def note(self, batch: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Take note of a batch that has been appended (or found in the log) at `base_offset`."""
        if batch.producer_id < 0 or batch.is_control:
            return
        known = self._by_id.get(batch.producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            known = self._by_id[batch.producer_id] = Producer(batch.producer_epoch, now_ms)
        known.last_ms = now_ms
        known.batches.append(
            AppendedBatch(
                batch.base_sequence, batch.last_sequence, base_offset, batch.max_timestamp
            )
        )
        self._by_id.move_to_end(batch.producer_id)
        if len(self._by_id) > MAX_PRODUCERS:
            self._by_id.popitem(last=False)

    def expire(self, before_ms: int) -> None:
        """Forget the producers that wrote last before a time."""
        for producer_id in [i for i, p in self._by_id.items() if p.last_ms < before_ms]:
            del self._by_id[producer_id]

    def clear(self) -> None:
        """Forget everything (before the log is read again)."""
        self._by_id.clear()

    def encode(self) -> bytes:
        """The snapshot."""
        parts: list[bytes] = []
        for producer_id, known in self._by_id.items():
            parts.append(
                _PRODUCER.pack(producer_id, known.epoch, known.last_ms, len(known.batches))
            )
            parts += [
                _BATCH.pack(b.first_sequence, b.last_sequence, b.base_offset, b.timestamp)
                for b in known.batches
            ]
        body = b"".join(parts)
        return _HEAD.pack(_SNAPSHOT_VERSION, crc32(body), len(self._by_id)) + body

    def restore(self, snapshot: bytes) -> bool:
        """Take a snapshot's state; False, and nothing changed, when it is damaged."""
        if len(snapshot) < _HEAD.size:
            return False
        version, crc, count = _HEAD.unpack_from(snapshot)
        if version != _SNAPSHOT_VERSION or crc != crc32(snapshot[_HEAD.size :]):
            return False
        self._by_id.clear()
        at = _HEAD.size
        for _ in range(count):
            producer_id, epoch, last_ms, batches = _PRODUCER.unpack_from(snapshot, at)
            at += _PRODUCER.size
            producer = self._by_id[producer_id] = Producer(epoch, last_ms)
            for _ in range(batches):
                producer.batches.append(AppendedBatch(*_BATCH.unpack_from(snapshot, at)))
                at += _BATCH.size
        return True
