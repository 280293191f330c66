"""What waits in memory: records for their next try or their due time, refused publications.

Rules:
- What is due at the same time comes in the order in which it was added.
- When the time of day is set, waits become no longer and no shorter. Only what is due by a broker's
  timestamp keeps its time.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.partition_state import Item, Partition


class _Wait(NamedTuple):
    due_ms: int
    serial: int
    what: Item | Publication

    @property
    def by_timestamp(self) -> bool:
        """Whether it waits for a time that a broker has written down; else for an interval."""
        return not isinstance(self.what, Publication) and not self.what.tries


class DueQueue:
    """By due time. One thread; any other may ask for `items`."""

    def __init__(self) -> None:
        self._waits: list[_Wait] = []
        self._serial = count()

    @property
    def items(self) -> int:
        """How many records wait for their next try."""
        return sum(not isinstance(wait.what, Publication) for wait in list(self._waits))

    @property
    def next_ms(self) -> int | None:
        """When the first is due."""
        return self._waits[0].due_ms if self._waits else None

    @property
    def next_publication_ms(self) -> int | None:
        """When the first publication is due."""
        due_times = (wait.due_ms for wait in self._waits if isinstance(wait.what, Publication))
        return min(due_times, default=None)

    def add(self, what: Item | Publication, due_ms: int) -> None:
        """Let something wait."""
        heappush(self._waits, _Wait(due_ms, next(self._serial), what))

    def pop(self, now_ms: int) -> Item | Publication | None:
        """The next that is due; None when nothing is."""
        if self._waits and self._waits[0].due_ms <= now_ms:
            return heappop(self._waits).what
        return None

    def pop_publications(self, now_ms: int) -> list[Publication]:
        """Every publication that is due; the records stay."""
        waits = sorted(self._waits)
        self._waits = [
            wait for wait in waits if wait.due_ms > now_ms or not isinstance(wait.what, Publication)
        ]
        return [
            wait.what
            for wait in waits
            if wait.due_ms <= now_ms and isinstance(wait.what, Publication)
        ]

    def withdraw(self, partition: Partition) -> list[Item]:
        """Take the records of a partition out."""
        gone = [w.what for w in self._waits if _is_record_of(partition, w.what)]
        if gone:
            self._waits = [w for w in self._waits if not _is_record_of(partition, w.what)]
            heapify(self._waits)
        return [what for what in gone if not isinstance(what, Publication)]

    def hurry(self, now_ms: int) -> None:
        """Records wait no longer."""
        self._waits = [
            wait
            if isinstance(wait.what, Publication)
            else wait._replace(due_ms=min(wait.due_ms, now_ms))
            for wait in self._waits
        ]
        heapify(self._waits)

    def clock_stepped(self, step_ms: int) -> None:
        """The time of day was set by so much."""
        self._waits = [
            wait if wait.by_timestamp else wait._replace(due_ms=wait.due_ms + step_ms)
            for wait in self._waits
        ]
        heapify(self._waits)


def _is_record_of(partition: Partition, what: Item | Publication) -> bool:
    return not isinstance(what, Publication) and what.partition is partition
