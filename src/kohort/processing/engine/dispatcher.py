"""In which order records may be worked on: who is next, and what has to wait behind whom.

Rules:
- A *lane* is what keeps its order: a partition, or a key within its topic. Of one lane at most one
  worker holds records at a time; records without a lane (order `none`, null keys) do not wait.
- Work-conserving: a ready record goes to the first worker that asks. A slow lane delays only
  itself.
- A worker may be given several records of one lane at once, in order. It gives back what it did not
  begin, and that goes to the lane's head again.
- A record that waits in memory for its next try keeps its lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Any

from kohort.processing.engine.items_choice import Item, enter_lanes, leave_lanes


class Order(StrEnum):
    """What keeps its order while records are worked on at the same time."""

    PARTITION = "partition"
    KEY = "key"
    NONE = "none"


class Dispatcher:
    """Everything that was read and is not finished, by lane."""

    __slots__ = ("_in_flight", "_lanes", "_ready", "batch_sizes", "waiting")

    def __init__(self) -> None:
        self._ready: deque[Item[Any]] = deque()
        # A lane is here while one of its records is ready, in flight or waiting for a retry.
        # Its followers are made a deque only when there are any: most lanes never have one.
        self._lanes: dict[Hashable, deque[Item[Any]] | None] = {}
        self._in_flight = 0
        self.waiting = 0
        """Records behind another one of their lane."""
        self.batch_sizes: set[int] = set()
        """The `max_batch` of each route whose records these are."""

    # -- what it shows -------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many records may be begun now."""
        return len(self._ready)

    @property
    def chained(self) -> int:
        """At most so many more could go to the same worker, behind the ready ones."""
        return self.waiting if self._ready else 0

    @property
    def in_flight(self) -> int:
        """How many records workers hold."""
        return self._in_flight

    @property
    def batch_size(self) -> int:
        """How many records a worker can handle in one call; 0 where not all routes can."""
        return min(self.batch_sizes, default=0)

    # -- in and out ------------------------------------------------------------------------------

    def add(self, items: Iterable[Item[Any]]) -> None:
        """Records that were read, in log order within each lane."""
        self.waiting += enter_lanes(self._lanes, items, self._ready)

    def take(self, most: int) -> list[Item[Any]]:
        """Up to `most` records for one worker; records of one lane are in order."""
        ready = self._ready
        if len(ready) >= most:
            items = [ready.popleft() for _ in range(most)]
        else:
            items = list(ready)
            ready.clear()
            if self.waiting:
                self._take_followers(items, most)
        self._in_flight += len(items)
        return items

    def take_alike(self, most: int) -> list[Item[Any]]:
        """As `take`, where handlers of single records and of batches share a pool.

        Of a batch handler's topic: up to its `max_batch`, and records of no other topic.
        """
        ready = self._ready
        if not ready:
            return []
        route = ready[0].partition.route
        most = max(most, route.max_batch)
        items: list[Item[Any]] = []
        while ready and len(items) < most:
            other = ready[0].partition.route
            if other is not route and (other.max_batch or route.max_batch):
                break
            items.append(ready.popleft())
        if self.waiting:
            self._take_followers(items, most)
        self._in_flight += len(items)
        return items

    def _take_followers(self, items: list[Item[Any]], most: int) -> None:
        for lane in [item.lane for item in items if item.lane is not None]:
            followers = self._lanes[lane]
            while followers and len(items) < most:
                items.append(followers.popleft())
                self.waiting -= 1
            if len(items) >= most:
                return

    def put_back(self, items: Sequence[Item[Any]]) -> None:
        """A worker did not begin these: they go to the head of their lanes, which are still its."""
        for item in reversed(items):
            if item.lane is None:
                self._ready.appendleft(item)
                continue
            followers = self._lanes.get(item.lane)
            if followers is None:
                followers = self._lanes[item.lane] = deque()
            followers.appendleft(item)
            self.waiting += 1

    def finished(self, items: Sequence[Item[Any]], kept: Container[Hashable] = ()) -> None:
        """A worker holds none of these any more; their lanes continue, but for the `kept` ones."""
        self._in_flight -= len(items)
        self.waiting -= leave_lanes(self._lanes, items, kept, self._ready)

    def release(self, lane: Hashable | None) -> None:
        """The record that kept this lane has gone its way: the next one may begin."""
        if lane is None:
            return
        followers = self._lanes[lane]
        if followers:
            self._ready.append(followers.popleft())
            self.waiting -= 1
        else:
            del self._lanes[lane]

    def ready_now(self, item: Item[Any]) -> None:
        """A record that kept its lane while it waited may be tried now, before all others."""
        self._ready.appendleft(item)

    def withdraw(self, gone: object) -> list[Item[Any]]:
        """Take out what was not begun of one partition, in log order."""
        taken: list[Item[Any]] = []
        for lane, followers in self._lanes.items():
            if followers:
                taken += [item for item in followers if item.partition is gone]
                self._lanes[lane] = deque(i for i in followers if i.partition is not gone)
        self.waiting -= len(taken)
        first = [item for item in self._ready if item.partition is gone]
        if first:
            self._ready = deque(item for item in self._ready if item.partition is not gone)
            for item in first:
                self.release(item.lane)
        return sorted([*taken, *first], key=lambda item: item.offset)
