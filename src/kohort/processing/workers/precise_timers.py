"""Timers of an asyncio loop that are late by microseconds instead of by a millisecond.

Rules:
- asyncio waits with `epoll_wait`, which counts in milliseconds, and rounds up: a handler that waits
  1 ms takes 1.2. `select` on the epoll's own descriptor counts in microseconds.
- The system wakes a thread 50 to 100 us late. So a wait is cut short by as much as waits have been
  late, at most `LONGEST_LEAD_S`, and for the rest asyncio looks again and again. Nothing is early:
  asyncio runs no timer before it is due.
- Only the loop of `App`'s own thread; a loop that the user's policy makes is left as it is.

Shell: the clock.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
import time
from collections.abc import Callable
from typing import Final

LONGEST_LEAD_S: Final = 100e-6
LEARNT_OF_EACH: Final = 0.1
NOTHING: Final = -1.0
SELECTABLE: Final = 1_024
"""`select` knows no descriptor from here on (FD_SETSIZE)."""


def _readable(number: int, timeout_s: float) -> bool:
    return bool(select.select((number,), (), (), timeout_s)[0])


class FineWait:
    """Waits for a selector whose own timeouts are coarse.

    Args:
        readable: waits for a descriptor, at most so many seconds; whether it is readable.
        now_s: a clock that never goes back.
    """

    def __init__(
        self,
        readable: Callable[[int, float], bool] = _readable,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._readable = readable
        self._now_s = now_s
        self.lead_s = 0.0
        """By how much a wait is cut short: as much as waits have been late lately."""

    def wait(self, number: int, timeout_s: float | None) -> float | None:
        """Wait for the selector with this descriptor; how long it is to wait itself after that.

        `NOTHING` when the time has passed and nothing came: then it need not look at all.
        """
        if timeout_s is None or timeout_s <= 0 or number >= SELECTABLE:
            return timeout_s
        wait_s = timeout_s - self.lead_s
        if wait_s > 0:
            started = self._now_s()
            if not self._readable(number, wait_s):
                late_s = self._now_s() - started - wait_s
                late_s = min(max(late_s, 0.0), LONGEST_LEAD_S)
                self.lead_s += (late_s - self.lead_s) * LEARNT_OF_EACH
                return NOTHING
        return 0


def new_loop() -> asyncio.AbstractEventLoop:
    """As `asyncio.new_event_loop`; with fine timers when that is asyncio's own loop over epoll."""
    loop = asyncio.new_event_loop()
    if sys.platform == "linux" and type(loop) is asyncio.SelectorEventLoop:
        loop.close()
        return asyncio.SelectorEventLoop(FineEpoll())
    return loop


if sys.platform == "linux":

    class FineEpoll(selectors.EpollSelector):
        """epoll for what happens, `select` for the time."""

        def __init__(self) -> None:
            super().__init__()
            self._fine = FineWait()

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            left = self._fine.wait(self.fileno(), timeout) if timeout else timeout
            return [] if left == NOTHING else super().select(left)
