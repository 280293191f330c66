"""A result to come, for a caller in another thread or in an asyncio task, without asyncio.

Rules:
- Set once, by the network thread; waited for by any number of threads.
- Making one costs no lock: a waiter brings its own. `_done` is set before the waiters are looked
  at, and a waiter looks at `_done` after it has put itself in the list, so nobody sleeps for ever.
- Callbacks run on the thread that sets the result, or at once when it is there already.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

from kohort.errors import KafkaTimeoutError

T = TypeVar("T")


class Future(Generic[T]):
    """A result to come. `result()` blocks; `await` suspends the task; both raise its error."""

    __slots__ = ("_callbacks", "_done", "_error", "_value", "_waiters")

    def __init__(self) -> None:
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[threading.Lock] | None = None
        self._callbacks: list[Callable[[Future[T]], object]] | None = None

    @property
    def done(self) -> bool:
        """True when there is a result or an error."""
        return self._done

    def result(self, timeout_s: float | None = None) -> T:
        """The result; waits up to `timeout_s` seconds (None: for ever).

        Raises the error it was set to, or KafkaTimeoutError when the time runs out.
        """
        if not self.wait(timeout_s):
            raise KafkaTimeoutError(f"no result within {timeout_s} s; it may still come")
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def error(self, timeout_s: float | None = None) -> BaseException | None:
        """The error, or None for a result; waits like `result`."""
        if not self.wait(timeout_s):
            raise KafkaTimeoutError(f"no result within {timeout_s} s; it may still come")
        return self._error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done; False when the time ran out first."""
        if self._done:
            return True
        lock = threading.Lock()
        lock.acquire()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(lock)
        if self._done:
            return True
        return lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)) or self._done

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call `fn(self)` when it is done: on the network thread, or at once if it is already."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(fn)
        if self._done:
            self._run_callbacks()

    def set_result(self, value: T) -> None:
        """Set the result; ignored when it is done already."""
        if not self._done:
            self._value = value
            self._finish()

    def set_error(self, error: BaseException) -> None:
        """Set the error; ignored when it is done already."""
        if not self._done:
            self._error = error
            self._finish()

    def _finish(self) -> None:
        self._done = True
        if self._waiters is not None:
            for lock in self._waiters:
                lock.release()
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                fn = callbacks.pop(0)
            except IndexError:  # the other thread took the last one
                return
            fn(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            import asyncio  # only tasks need it, and they have it

            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def done(_: Future[T]) -> None:
                try:
                    loop.call_soon_threadsafe(wake)
                except RuntimeError:
                    return  # the task's loop is closed: nobody waits any more

            self.add_done_callback(done)
            yield from waiter.__await__()
        return self.result()
