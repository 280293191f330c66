"""Producers of one partition: what came last from whom, and whose transaction is open. Pure.

Rules (KIP-98, KIP-360, KIP-890):
- A batch whose sequence is among the last five of its producer is a duplicate: it is answered with
  the offset it got the first time and not appended again.
- A batch that does not follow the last one of its producer's epoch is out of order; a new epoch
  begins at sequence 0; an older epoch is refused. A producer of whom no batch is known may begin
  anywhere, but not behind a batch of its own that has to be sent again (`hold_back`).
- Batches of a coordinator (committed offsets of a transaction) have no sequence: only their epoch
  is looked at.
- A transaction is open from its first batch to its marker. The marker's epoch is the producer's
  from then on, so that what comes late from before it is refused.
- State changes only after the append (`note`), never before (KAFKA-6683).
- At most `MAX_PRODUCERS` are remembered; the one that wrote longest ago is forgotten first. One
  whose transaction is open is never forgotten.

A snapshot holds all of it, with a CRC and named by its offset, so that a start need not read the
whole log again. Its format is our own: Kafka's keeps only the last batch of a producer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import ItemsView
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from kohort.broker.log.txn_index import Marker
from kohort.errors import ErrorCode
from kohort.lean import dataclass, field
from kohort.records import BatchHeader

MAX_PRODUCERS = 10_000
MAX_HELD_BACK = 1_000
WINDOW_BATCHES = 5
NO_TRANSACTION = -1
_SEQUENCES = 1 << 31
_SNAPSHOT_VERSION = 2
_HEAD = Struct(">hIi")
_PRODUCER = Struct(">qhqiiq")
_BATCH = Struct(">iiqq")


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """One batch of a producer, as stored in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


def _window() -> deque[AppendedBatch]:
    return deque(maxlen=WINDOW_BATCHES)


@dataclass(slots=True)
class Producer:
    """One producer id: its epoch, its last batches, when it wrote last, its open transaction."""

    epoch: int
    last_ms: int
    batches: deque[AppendedBatch] = field(default_factory=_window)
    coordinator_epoch: int = -1
    """Of the last marker; -1 before the first."""
    first_offset: int = NO_TRANSACTION
    """Where its open transaction begins, or `NO_TRANSACTION`."""


class Completed(NamedTuple):
    """A transaction that has just ended. `last_offset` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool


class Producers:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Producer] = OrderedDict()
        self._open: OrderedDict[int, int] = OrderedDict()  # first offsets, rising
        self._held_back: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def items(self) -> ItemsView[int, Producer]:
        """Every producer by its id, for DescribeProducers."""
        return self._by_id.items()

    @property
    def first_open(self) -> int | None:
        """Where the oldest open transaction begins; None when there is none."""
        for first_offset in self._open.values():
            return first_offset
        return None

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this producer and epoch is open here."""
        return producer_id in self._open and self._by_id[producer_id].epoch == epoch

    def check(self, batch: BatchHeader) -> AppendedBatch | ErrorCode | None:
        """None: append it. An AppendedBatch: it is a duplicate of that. A code: refuse it."""
        known = self._by_id.get(batch.producer_id)
        first, last = batch.base_sequence, batch.last_sequence
        if known is None:
            return self._check_held_back(batch)
        if batch.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if first < 0:
            return None
        if known.first_offset != NO_TRANSACTION and not batch.is_transactional:
            return ErrorCode.INVALID_TXN_STATE
        if batch.producer_epoch > known.epoch:
            return None if first == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for old in known.batches:
            if old.first_sequence == first and old.last_sequence == last:
                return old
        if not known.batches:
            return self._check_held_back(batch)
        follows = (known.batches[-1].last_sequence + 1) % _SEQUENCES
        return None if first == follows else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def hold_back(self, batch: BatchHeader) -> None:
        """A batch was refused for now: those behind it, which are on their way, may not pass it."""
        key = (batch.producer_id, batch.producer_epoch)
        lowest = self._held_back.pop(key, batch.base_sequence)
        self._held_back[key] = min(lowest, batch.base_sequence)
        if len(self._held_back) > MAX_HELD_BACK:
            self._held_back.popitem(last=False)

    def take_over(self, refused: Producers) -> None:
        """What was refused before there was a log."""
        self._held_back.update(refused._held_back)

    def _check_held_back(self, batch: BatchHeader) -> ErrorCode | None:
        lowest = self._held_back.get((batch.producer_id, batch.producer_epoch))
        passes = lowest is not None and batch.base_sequence > lowest
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if passes else None

    def check_marker(self, batch: BatchHeader, marker: Marker) -> ErrorCode | None:
        """A code when the marker comes from the past: of its producer, or of its coordinator."""
        known = self._by_id.get(batch.producer_id)
        if known is None:
            return None
        if batch.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < known.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return None

    def note(
        self, batch: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None = None
    ) -> Completed | None:
        """Take note of a batch that has been appended (or found in the log) at `base_offset`.

        `marker` is what a control batch says. Returns the transaction that it ended, if any.
        """
        producer_id = batch.producer_id
        if producer_id < 0 or (batch.is_control and marker is None):
            return None
        known = self._by_id.get(producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            before, known = known, Producer(batch.producer_epoch, now_ms)
            if before is not None:
                known.coordinator_epoch = before.coordinator_epoch
                known.first_offset = before.first_offset
            self._by_id[producer_id] = known
        known.last_ms = now_ms
        self._by_id.move_to_end(producer_id)
        completed = None
        if marker is not None:
            completed = self._end(producer_id, known, base_offset, marker)
        else:
            self._add(producer_id, known, batch, base_offset)
        if len(self._by_id) > MAX_PRODUCERS:
            self._forget_one()
        return completed

    def _add(self, producer_id: int, known: Producer, batch: BatchHeader, base_offset: int) -> None:
        if self._held_back:
            self._held_back.pop((producer_id, batch.producer_epoch), None)
        if batch.base_sequence >= 0:
            known.batches.append(
                AppendedBatch(
                    batch.base_sequence, batch.last_sequence, base_offset, batch.max_timestamp
                )
            )
        if batch.is_transactional and known.first_offset == NO_TRANSACTION:
            known.first_offset = self._open[producer_id] = base_offset

    def _end(
        self, producer_id: int, known: Producer, offset: int, marker: Marker
    ) -> Completed | None:
        known.coordinator_epoch = marker.coordinator_epoch
        known.first_offset = NO_TRANSACTION
        first_offset = self._open.pop(producer_id, None)
        if first_offset is None:
            return None
        return Completed(producer_id, first_offset, offset, marker.committed)

    def _forget_one(self) -> None:
        for producer_id in self._by_id:
            if producer_id not in self._open:
                del self._by_id[producer_id]
                return

    def expire(self, before_ms: int) -> None:
        """Forget the producers that wrote last before a time and have nothing open."""
        old = [i for i, p in self._by_id.items() if p.last_ms < before_ms and i not in self._open]
        for producer_id in old:
            del self._by_id[producer_id]

    def clear(self) -> None:
        """Forget everything (before the log is read again)."""
        self._by_id.clear()
        self._open.clear()

    def encode(self) -> bytes:
        """The snapshot."""
        parts: list[bytes] = []
        for producer_id, known in self._by_id.items():
            parts.append(
                _PRODUCER.pack(
                    producer_id,
                    known.epoch,
                    known.last_ms,
                    len(known.batches),
                    known.coordinator_epoch,
                    known.first_offset,
                )
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
        self.clear()
        at = _HEAD.size
        for _ in range(count):
            producer_id, epoch, last_ms, batches, coordinator_epoch, first_offset = (
                _PRODUCER.unpack_from(snapshot, at)
            )
            at += _PRODUCER.size
            producer = self._by_id[producer_id] = Producer(epoch, last_ms)
            producer.coordinator_epoch, producer.first_offset = coordinator_epoch, first_offset
            for _ in range(batches):
                producer.batches.append(AppendedBatch(*_BATCH.unpack_from(snapshot, at)))
                at += _BATCH.size
        opened = [(p.first_offset, i) for i, p in self._by_id.items() if p.first_offset >= 0]
        self._open.update((producer_id, first) for first, producer_id in sorted(opened))
        return True
