"""Something that is done once, by the network thread: waiters, callbacks, and suspended tasks.

Rules:
- Making one costs no lock: a waiter brings its own. `done` is set before the waiters are looked at,
  and a waiter looks at `done` after it has put itself in the list, so no waiter sleeps for ever.
  The lists are there from the beginning: two threads that each made one would not find each other.
- A waiter whose time is over takes itself out of the list, so that asking often costs nothing.
- Callbacks run on the thread that completes it, or at once when it is done already. What one raises
  is logged: the thread that completes it has others to serve.
- A wait sleeps at most `LONGEST_WAIT_S` at a time, so that no signal is overlooked (`waiting`).

Shell: threads, the clock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

LONGEST_WAIT_S: Final = 1.0


class Driver(Protocol):
    """Does the network's work itself while a caller waits, in one thread with it (virtual time)."""

    def drives(self) -> bool:
        """Whether the calling thread is that one."""
        ...

    def run_until(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Work until `done()`, or, by its own clock, the time is over; what `done` says then."""
        ...

    def wall_ms(self) -> int:
        """The time of day by its own clock, milliseconds since 1970."""
        ...


driver: Driver | None = None
"""None: the network has a thread of its own, as ever outside of `kohort.testing.VirtualClock`."""


def drive_by(new: Driver | None) -> None:
    """Let waits be carried out by a driver, or by the network thread again."""
    global driver
    driver = new


def driven() -> Driver | None:
    """What carries the waits of this thread out in virtual time; None in real time."""
    return driver if driver is not None and driver.drives() else None


def wall_ms() -> int:
    """The time of day, milliseconds since 1970; virtual where this thread's waits are."""
    if driver is not None and driver.drives():
        return driver.wall_ms()
    return time.time_ns() // 1_000_000


def steady_s() -> float:
    """A clock for what is waited for, in seconds; virtual where this thread's waits are."""
    if driver is not None and driver.drives():
        return driver.wall_ms() / 1_000
    return time.monotonic()


def steady_ms() -> int:
    """As `steady_s`, in whole milliseconds."""
    if driver is not None and driver.drives():
        return driver.wall_ms()
    return time.monotonic_ns() // 1_000_000


def pause(seconds: float) -> None:
    """Let time pass; virtual time where this thread's waits are virtual."""
    clock = driven()
    if clock is None:
        time.sleep(seconds)
    else:
        clock.run_until(lambda: False, seconds)


class Completion:
    """The base of what is waited for; a subclass sets its outcome, then calls `_finish`."""

    __slots__ = ("_callbacks", "_waiters", "done")

    def __init__(self) -> None:
        self.done = False
        """True when there is an outcome."""
        self._waiters: list[threading.Lock] = []
        self._callbacks: list[Callable[[], object]] = []

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the outcome (None: for ever); False when the time ran out first."""
        if self.done:
            return True
        if driver is not None and driver.drives():
            return driver.run_until(lambda: self.done, timeout_s)
        lock = threading.Lock()
        lock.acquire()
        self._waiters.append(lock)
        if self.done:
            return True
        left_s = math.inf if timeout_s is None else max(0.0, timeout_s)
        while not lock.acquire(timeout=min(left_s, LONGEST_WAIT_S)):
            left_s -= LONGEST_WAIT_S
            if left_s <= 0:
                with suppress(ValueError):  # it is done just now
                    self._waiters.remove(lock)
                return self.done
        return True

    def add_callback(self, fn: Callable[[], object]) -> None:
        """Call `fn()` when it is done: on the network thread, or at once."""
        self._callbacks.append(fn)
        if self.done:
            self._run_callbacks()

    def suspend(self) -> Generator[Any, None, None]:
        """Suspend the running task until it is done."""
        if self.done:
            return
        import asyncio  # only tasks need it, and they have it

        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake_soon() -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                return  # the task's loop is closed: there is no waiter

        self.add_callback(wake_soon)
        yield from waiter.__await__()

    def _finish(self) -> None:
        self.done = True
        for lock in _taken(self._waiters):
            lock.release()
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        for fn in _taken(self._callbacks):
            try:
                fn()
            except Exception:  # any error of a callback stays with the callback
                import logging  # costs start-up time, and is hardly ever needed here

                logging.getLogger("kohort.client").exception("a done callback failed")


def _taken(those: list[T]) -> Iterator[T]:
    """Each item once, in order, even while other threads take or add some."""
    while those:
        try:
            one = those.pop(0)
        except IndexError:  # the other thread took the last one
            return
        yield one
