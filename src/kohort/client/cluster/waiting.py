"""How a consumer's call waits: the same steps for a thread and for an asyncio task.

Rules:
- A call that may have to wait is a generator of `Wait` and `Call` steps; the face (thread or task)
  carries them out. What has been done is kept in the core's objects and never in the generator, so
  a call may be given up at any step (time-out, wakeup, cancel) without losing anything (C9).
- `Doorbell` may be rung from any thread and from a signal handler: ringing takes no lock that the
  waiter could hold.
- No wait is longer than `LONGEST_WAIT_S`: a signal that comes after Python looked for one and just
  before the thread sleeps does not wake it, and its handler (Ctrl-C's too) runs when the wait ends.

Shell: threads.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeVar

from kohort.client.common import completion

T = TypeVar("T")
LONGEST_WAIT_S: Final = completion.LONGEST_WAIT_S


class CloseReport(NamedTuple):
    """What `close` managed within its time."""

    committed: bool
    left_group: bool
    problems: tuple[str, ...]


class Wait(NamedTuple):
    """Wait until the doorbell rings, at most so many seconds."""

    timeout_s: float


class Call(NamedTuple):
    """Call a user's function (a listener, a callback); in a task it may be a coroutine function."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


Steps = Generator["Wait | Call", None, T]


class Doorbell:
    """Wakes one waiting thread. A ring without a waiter is kept, once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the waiter, or let its next wait return at once."""
        try:
            self._lock.release()
        except RuntimeError:
            return  # it has rung already

    def wait(self, timeout_s: float) -> bool:
        """True when it rang within the time. Signal handlers run meanwhile."""
        driver = completion.driver
        if driver is not None and driver.drives():
            return driver.run_until(lambda: self._lock.acquire(blocking=False), timeout_s)
        return self._lock.acquire(timeout=max(0.0, timeout_s))


def run_steps(steps: Steps[T], bell: Doorbell) -> T:
    """Carry out a call on this thread."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Wait):
                bell.wait(step.timeout_s)
                step = next(steps)
                continue
            try:
                step.fn(*step.args)
            except BaseException as error:  # the call decides what a listener's error means
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration as done:
        return done.value
    finally:
        # A Ctrl-C between two steps: end the call now, not when the collector comes upon it, inside
        # or after a later call that has taken its work over (C9).
        steps.close()
