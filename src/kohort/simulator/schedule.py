"""Virtual time: what happens when, and the one source of chance.

Rules:
- Events run in order of time, and those of one time in the order in which they were given, so that
  nothing depends on hashes, addresses or the machine.
- Time jumps from event to event; it never goes back, and nothing waits.
- Everything random in a simulated world draws from `random`, or from a generator that was seeded
  from it (`split`), so that one integer decides a whole run.

Shell: randomness (seeded; never the machine's).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

__all__ = ["Handle", "Random", "Schedule"]

Action = Callable[..., object]

_DEAD_TO_COMPACT = 1_000


class Handle:
    """One event to come; `cancel` takes it back, as often as one likes, before and after."""

    __slots__ = ("_schedule", "args", "fn", "when_ms")

    def __init__(
        self, schedule: Schedule, when_ms: int, fn: Action | None, args: tuple[Any, ...]
    ) -> None:
        self._schedule = schedule
        self.when_ms = when_ms
        self.fn = fn
        self.args = args

    def cancel(self) -> None:
        """It will not happen."""
        if self.fn is not None:
            self.fn, self.args = None, ()
            self._schedule.one_died()


class Schedule:
    """A clock in whole milliseconds and the events to come.

    `seed` decides `random`. `limit` bounds how many events may wait (OverflowError beyond it: the
    world runs away).
    """

    def __init__(self, seed: int, *, start_ms: int = 0, limit: int = 5_000_000) -> None:
        self.seed = seed
        self.now_ms = start_ms
        self.random = Random(seed)
        self.events = 0
        """How many have happened."""
        self._heap: list[tuple[int, int, Handle]] = []
        self._serial = 0
        self._dead = 0
        self._limit = limit

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._heap) - self._dead

    @property
    def next_ms(self) -> int | None:
        """When the next event happens; None when there is none."""
        self._drop_dead()
        return self._heap[0][0] if self._heap else None

    def split(self, name: str) -> Random:
        """A generator of its own for one purpose: what it draws moves nobody else's numbers."""
        return Random(f"{self.seed}/{name}")

    def at(self, when_ms: int, fn: Action, *args: Any) -> Handle:
        """Let `fn(*args)` happen at `when_ms`, or at once when that is past."""
        if len(self._heap) >= self._limit:
            raise OverflowError(f"more than {self._limit} events wait at {self.now_ms} ms")
        when_ms = max(when_ms, self.now_ms)
        handle = Handle(self, when_ms, fn, args)
        self._serial += 1
        heappush(self._heap, (when_ms, self._serial, handle))
        return handle

    def after(self, delay_ms: int, fn: Action, *args: Any) -> Handle:
        """Let `fn(*args)` happen in `delay_ms`."""
        return self.at(self.now_ms + delay_ms, fn, *args)

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        self._drop_dead()
        if not self._heap:
            return False
        when_ms, _, handle = heappop(self._heap)
        fn, args = handle.fn, handle.args
        assert fn is not None, "dead events were dropped"
        handle.fn, handle.args = None, ()
        self.now_ms = when_ms
        self.events += 1
        fn(*args)
        return True

    def run_until(self, when_ms: int) -> None:
        """Let everything happen that is due up to `when_ms`, which then is the time."""
        while (due := self.next_ms) is not None and due <= when_ms:
            self.step()
        self.now_ms = max(self.now_ms, when_ms)

    def one_died(self) -> None:
        """For handles: one of the waiting events was cancelled."""
        self._dead += 1
        if self._dead > _DEAD_TO_COMPACT and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].fn is not None]
            heapify(self._heap)
            self._dead = 0

    def _drop_dead(self) -> None:
        while self._heap and self._heap[0][2].fn is None:
            heappop(self._heap)
            self._dead -= 1
