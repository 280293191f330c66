"""What simulated broker code has of the outside: clocks, timers, a flusher, chance (`Env`).

A flush covers what had been appended when it began, and is durable when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.broker.log.files import Syncable
from kohort.simulator.files import SimFile
from kohort.simulator.machine import WALL_MS, Machine
from kohort.simulator.schedule import Handle, Random

FlushDone = Callable[[OSError | None], None]


class SimEnv:
    """`Env` on a machine: virtual time, a flusher that takes its time, chance from the seed."""

    def __init__(self, machine: Machine, chance: Random, flush_ms: Callable[[], int]) -> None:
        self._machine = machine
        self._chance = chance
        self._flush_ms = flush_ms
        self._waiting: list[tuple[Syncable, FlushDone]] = []
        self._busy = False
        self.wall_offset_ms = WALL_MS
        self.now_ms = machine.now_ms

    def wall_ms(self) -> int:
        """The time of day; `wall_offset_ms` may be set while it runs."""
        return self.wall_offset_ms + self._machine.now_ms()

    def call_at(self, when_ms: int, fn: Callable[..., object], *args: Any) -> Handle:
        """Call at a time of `now_ms`."""
        return self._machine.at(when_ms, fn, *args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        """Call as the next event."""
        self._machine.soon(fn, *args)

    def flush(self, file: Syncable, done: FlushDone) -> None:
        """Make a file durable; answers come in the order of the calls."""
        self._waiting.append((file, done))
        if not self._busy:
            self._busy = True
            self._machine.soon(self._begin)

    def _begin(self) -> None:
        taken, self._waiting = self._waiting, []
        sizes = [file.size if isinstance(file, SimFile) else 0 for file, _ in taken]
        due_ms = self._machine.now_ms() + self._flush_ms()
        self._machine.at(due_ms, self._end, taken, sizes)

    def _end(self, taken: list[tuple[Syncable, FlushDone]], sizes: list[int]) -> None:
        for (file, done), size in zip(taken, sizes, strict=True):
            try:
                if isinstance(file, SimFile):
                    file.sync_to(size)
                else:
                    file.sync()
            except OSError as error:
                done(error)
            else:
                done(None)
        self._busy = bool(self._waiting)
        if self._busy:
            self._machine.soon(self._begin)

    def after_flushes(self, fn: Callable[[], None]) -> None:
        """Call when what waits for a flush has been answered; see `LoopEnv.after_flushes`."""
        nothing = _Nothing()

        def again(_error: OSError | None) -> None:
            self.flush(nothing, flushed)

        def flushed(_error: OSError | None) -> None:
            fn()

        self.call_soon(self.flush, nothing, again)

    def new_uuid(self) -> bytes:
        """16 bytes from the seed."""
        return self._chance.randbytes(16)


class _Nothing:
    """Nothing to sync."""

    path = ""

    def sync(self) -> None: ...
