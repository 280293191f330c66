"""A simulated process: its clock, which drifts, its stalls, its death.

Rules:
- Everything that a process does runs through its `Machine`: while it is stalled nothing happens and
  what was due happens at the end, in order; after its death nothing happens any more.
- Logic sees the machine's own clock (`now_ms`), checks and stories see the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.simulator.schedule import Handle, Schedule

WALL_MS = 1_700_000_000_000
"""What the wall clocks of simulated machines show when time begins."""


class Clock:
    """A clock that began at `offset_ms` and runs at `permille` thousandths of true speed."""

    __slots__ = ("offset_ms", "permille")

    def __init__(self, offset_ms: int = 0, permille: int = 1_000) -> None:
        self.offset_ms = offset_ms
        self.permille = permille

    def shows(self, true_ms: int) -> int:
        """What it shows at a true time."""
        return self.offset_ms + true_ms * self.permille // 1_000

    def when(self, shown_ms: int) -> int:
        """The first true time at which it shows `shown_ms` or more."""
        return -((self.offset_ms - shown_ms) * 1_000 // self.permille)


class Machine:
    """One process of the simulated world."""

    def __init__(self, schedule: Schedule, name: str, clock: Clock) -> None:
        self.schedule = schedule
        self.name = name
        self.clock = clock
        self.dead = False
        self.stalled_until_ms = 0

    def now_ms(self) -> int:
        """What its monotonic clock shows."""
        return self.clock.shows(self.schedule.now_ms)

    def stall(self, duration_ms: int) -> None:
        """Nothing runs for this long (true time)."""
        until_ms = self.schedule.now_ms + duration_ms
        self.stalled_until_ms = max(self.stalled_until_ms, until_ms)

    def die(self) -> None:
        """Nothing runs ever again."""
        self.dead = True

    def soon(self, fn: Callable[..., object], *args: Any) -> Handle:
        """Run `fn(*args)` as its next event."""
        return self.schedule.at(self.schedule.now_ms, self.run, fn, args)

    def at(self, shown_ms: int, fn: Callable[..., object], *args: Any) -> Handle:
        """Run `fn(*args)` when its own clock shows `shown_ms`."""
        return self.schedule.at(self.clock.when(shown_ms), self.run, fn, args)

    def run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        """What the schedule calls: `fn(*args)`, now or when it runs again, unless it is dead."""
        if self.dead:
            return
        if self.schedule.now_ms < self.stalled_until_ms:
            self.schedule.at(self.stalled_until_ms, self.run, fn, args)
        else:
            fn(*args)
