"""How many records the next micro-batch takes, and from which topics. Pure functions and one plain
object.

Rules (spec 6.7):
- A limit is split in proportion to what waits, rounded up, so that no partition is starved; but a
  topic always gets its floor first, so that a large one does not starve a small one
  (reference data). By default a tenth of the limit is floors, in equal parts.
- Topics of a higher priority go first; the others get their floors, and what is left.
- A target duration sets the limit from how long batches took: at most doubled from one batch to
  the next, and only as far as a full batch proves.
- Aligned reading ends a batch at one point in time in every partition, within `window_ms` of the
  oldest record that is next: watermarks do not run ahead of slow partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TopicPartition = tuple[str, int]
Offsets = Mapping[TopicPartition, int]
FIRST_RECORDS: Final = 100_000
"""Of the first batch, before any has been timed."""
_FLOORS_PART: Final = 10
_FULL: Final = 0.9


def limited(
    start: Offsets,
    end: Offsets,
    max_records: int | None,
    *,
    floor: int | None = None,
    priorities: Mapping[str, int] | None = None,
) -> dict[TopicPartition, int]:
    """`end`, brought nearer so that about `max_records` records lie between.

    Args:
        max_records: None for no limit.
        floor: records that each topic may always deliver; None for an equal part of a
            tenth of the limit.
        priorities: a number for each topic, 0 where there is none; higher goes first.
    """
    sizes = {at: stop - start.get(at, stop) for at, stop in end.items()}
    waiting = {at: size for at, size in sizes.items() if size > 0}
    if max_records is None or sum(waiting.values()) <= max_records:
        return dict(end)
    by_topic: dict[str, int] = {}
    for (topic, _), size in waiting.items():
        by_topic[topic] = by_topic.get(topic, 0) + size
    if floor is None:
        floor = max_records // (_FLOORS_PART * len(by_topic))
    shares = _shares(by_topic, max_records, floor, priorities or {})
    return {
        at: start[at] + -(-size * shares[at[0]] // by_topic[at[0]]) if at in waiting else end[at]
        for at, size in sizes.items()
    }


def _shares(
    waiting: Mapping[str, int], max_records: int, floor: int, priorities: Mapping[str, int]
) -> dict[str, int]:
    """The records of each topic: its floor, then in proportion, by priority."""
    if len(waiting) == 1:
        return dict.fromkeys(waiting, max_records)
    shares = {topic: min(size, floor) for topic, size in waiting.items()}
    left = max(0, max_records - sum(shares.values()))
    for priority in sorted({priorities.get(topic, 0) for topic in waiting}, reverse=True):
        rest = {t: n - shares[t] for t, n in waiting.items() if priorities.get(t, 0) == priority}
        total = sum(rest.values())
        granted = min(left, total)
        for topic, size in rest.items():
            shares[topic] += -(-size * granted // total) if total else 0
        left -= granted
    return shares


def within_bytes(
    start: Offsets, end: Offsets, sizes: Mapping[str, float], max_bytes: int
) -> int | None:
    """How many records are about so many bytes, of what waits; None when all of it is.

    Args:
        sizes: the mean size of a record of each topic, in bytes.
    """
    records, size = 0, 0.0
    for at, stop in end.items():
        waiting = max(0, stop - start.get(at, stop))
        records += waiting
        size += waiting * sizes.get(at[0], 0.0)
    return None if size <= max_bytes else max(1, int(records * max_bytes / size))


def aligned(
    start: Offsets, end: Offsets, next_ms: Mapping[TopicPartition, int], caps: Offsets
) -> dict[TopicPartition, int]:
    """`end`, brought nearer to one point in time.

    Args:
        next_ms: the timestamp of the next record of each partition that has one.
        caps: the first offset at or past that time; -1 where all records are before it.

    Returns `end` itself when no partition would continue (timestamps within one are out of order).
    """
    near = {
        at: min(stop, max(start[at], caps[at])) if caps.get(at, -1) >= 0 and at in next_ms else stop
        for at, stop in end.items()
    }
    return near if any(near[at] > start.get(at, near[at]) for at in near) else dict(end)


@dataclass
class Pace:
    """The limit that makes a batch take about as long as wanted, by how long the last ones took.

    Args:
        target_ms: how long a batch shall take.
        limit: the records of the first batch.
        least: slow batches do not bring the limit below this.
    """

    target_ms: int
    limit: int = FIRST_RECORDS
    least: int = 1
    _planned: tuple[int, int] | None = field(default=None, init=False)
    """Records of the batch that runs, and when it was planned (ms)."""

    def finished(self, now_ms: int) -> None:
        """The batch that was planned last is done, or there was none."""
        if self._planned is None:
            return
        records, since_ms = self._planned
        self._planned = None
        took_ms = max(1, now_ms - since_ms)
        fitting = records * self.target_ms // took_ms
        if took_ms > self.target_ms or records >= self.limit * _FULL:
            self.limit = max(self.least, min(fitting, self.limit * 2))

    def planned(self, records: int, now_ms: int) -> None:
        """A batch of so many records begins."""
        if records:
            self._planned = (records, now_ms)
