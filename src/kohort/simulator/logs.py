"""The simulated logs of topics; those of groups are the broker's own (`group_log`).

Rules:
- A `TopicLog` holds real record batches, all of them durable: what the simulator tries are groups,
  commits and positions. It has batches that no reader sees (markers), and leader epochs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchBuilder


@dataclass
class Batch:
    """Stored bytes and the offsets they cover."""

    first: int
    last: int
    data: bytes
    visible: bool


class TopicLog:
    """One partition of a topic."""

    def __init__(self, topic: str, partition: int, leader: int) -> None:
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.epoch = 0
        self.epochs: list[tuple[int, int]] = [(0, 0)]
        """(leader epoch, its first offset), oldest first."""
        self.batches: list[Batch] = []
        self._firsts: list[int] = []
        self.start = 0
        self.visible: list[int] = []
        """Offsets of the records that readers see."""

    @property
    def name(self) -> str:
        """`topic-partition`."""
        return f"{self.topic}-{self.partition}"

    @property
    def end(self) -> int:
        """The offset of the next record (and the high watermark)."""
        return self.batches[-1].last + 1 if self.batches else 0

    def lead(self, node: int) -> None:
        """Another leader, another epoch."""
        self.leader = node
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))

    def append(self, count: int, at_ms: int) -> None:
        """Records whose values are their offsets."""
        builder, first = BatchBuilder(), self.end
        for offset in range(first, first + count):
            builder.append(at_ms, None, b"%d" % offset)
        data = builder.build(base_offset=first, leader_epoch=self.epoch)
        self._add(Batch(first, first + count - 1, data, True))
        self.visible.extend(range(first, first + count))

    def append_marker(self, at_ms: int) -> None:
        """A control batch: one offset that no reader sees (CL3)."""
        builder, first = BatchBuilder(), self.end
        builder.append(at_ms, b"\0\0\0\1", b"\0\0\0\0\0\0")
        data = builder.build(
            base_offset=first,
            leader_epoch=self.epoch,
            producer_id=1,
            producer_epoch=0,
            control=True,
            transactional=True,
        )
        self._add(Batch(first, first, data, False))

    def _add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._firsts.append(batch.first)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`; at least one if there is any."""
        if not self.start <= offset <= self.end:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset == self.end:
            return b""
        batches: list[bytes] = []
        size = 0
        for batch in self.batches[bisect_right(self._firsts, offset) - 1 :]:
            if batches and size + len(batch.data) > max_bytes:
                break
            batches.append(batch.data)
            size += len(batch.data)
        return b"".join(batches)

    def trim(self, start: int) -> None:
        """Retention: everything below `start` is gone."""
        self.start = max(self.start, min(start, self.end))

    def next_visible(self, offset: int) -> int:
        """The first offset from `offset` on that readers see, deleted or not, or the end."""
        at = bisect_right(self.visible, offset - 1)
        return self.visible[at] if at < len(self.visible) else self.end

    def epoch_at(self, offset: int) -> int:
        """The leader epoch under which an offset was written."""
        return self.epochs[bisect_right([first for _, first in self.epochs], offset) - 1][0]

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Where an epoch (or the last one before it) ended (KIP-101)."""
        known = [at for at, (number, _) in enumerate(self.epochs) if number <= epoch]
        if not known:
            return -1, -1
        at = known[-1]
        end = self.epochs[at + 1][1] if at + 1 < len(self.epochs) else self.end
        return self.epochs[at][0], end
