"""The one network thread of a process, and the ways to and from it.

Rules:
- All clients of a process share one daemon thread with one loop. It starts with the first client
  and ends with the last one.
- Sockets do not survive a fork. In the child the parent's clients raise ForkedError from every
  call, and a new client gets a new thread.
- At interpreter exit the thread is ended, so that nothing runs while modules are torn down; clients
  that were not closed get `LAST_MS` for what they had begun (`kohort.client.cluster.finalizers`).

Shell: threads, the clock, fork, exit, randomness.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kohort.client.common.future import Future
from kohort.errors import ClosedError, ForkedError
from kohort.net import Loop

if TYPE_CHECKING:  # few clients have them
    from kohort.client.common.compression_pool import CompressionPool

T = TypeVar("T")
LAST_MS: Final = 5_000
"""The most that is spent on a client that was dropped without `close()`."""
_JOIN_S: Final = 5.0


class NetworkThread:
    """A loop on a thread of its own, counted by its users."""

    _shared: NetworkThread | None = None
    _guard = threading.Lock()
    _real = False
    """False where threads and time are only played (simulator, virtual clock)."""
    _compression_pool: CompressionPool | None = None

    def __init__(self) -> None:
        self.loop = Loop()
        self._real = True
        self.uniform: Callable[[], float] = random.SystemRandom().random
        """The chance of what clients do at random (back-off, the choice among equals, member ids).

        The system's, so that processes which seed `random` alike are not alike here."""
        self._users = 0
        self._abandoned: list[object] = []
        self._stopped = False
        self._thread = threading.Thread(target=self.loop.run, name="kohort-network", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> NetworkThread:
        """The process's thread, started if need be. Pair every call with one `release()`."""
        with cls._guard:
            thread = cls._shared
            if thread is None or not thread.alive:
                thread = cls._shared = cls()
            thread._users += 1
            return thread

    @classmethod
    def replace(cls, thread: NetworkThread | None) -> NetworkThread | None:
        """Let clients to come share another thread; returns the one that was shared."""
        with cls._guard:
            before, cls._shared = cls._shared, thread
            return before

    @property
    def alive(self) -> bool:
        """True while calls are carried out."""
        return not self._stopped and not self.loop.forked and self._thread.is_alive()

    def compression_pool(self) -> CompressionPool | None:
        """The threads that compress what clients send, made when first asked for.

        On the network thread only. None where this one is not real, or is about to end.
        """
        if self._compression_pool is None and self._real and not self._stopped:
            from kohort.client.common.compression_pool import CompressionPool

            self._compression_pool = CompressionPool(self.loop.call_soon_threadsafe)
        return self._compression_pool

    def release(self) -> None:
        """One user less; with the last one the thread ends. Does not wait on the thread itself."""
        cls = type(self)
        with cls._guard:
            self._users -= 1
            if self._users > 0 or self._stopped or self.loop.forked:
                return
            self._stopped = True
            if cls._shared is self:
                cls._shared = None
        self._stop()

    def abandon(self, end: Callable[[Callable[[], None]], object]) -> None:
        """Run `end(done)` for a client without references; `done` releases the thread.

        May be called by a finalizer, on any thread and inside any lock: it only posts a call.
        """
        self._abandoned.append(end)

        def done() -> None:
            self._abandoned.remove(end)
            self.release()

        self.loop.call_soon_threadsafe(end, done)

    def call(self, fn: Callable[..., T], *args: Any) -> Future[T]:
        """Run `fn(*args)` on the network thread; the future has what it returns or raises.

        Raises ForkedError in a child of the process that made the client, ClosedError when the
        thread has ended.
        """
        self.check()
        future: Future[T] = Future()
        self.loop.call_soon_threadsafe(_run_into, future, fn, args)
        return future

    def check(self) -> None:
        """Raise ForkedError or ClosedError when calls would never be carried out."""
        if self.loop.forked:
            raise ForkedError(
                "this client was made before the process forked, and sockets do not survive a "
                "fork; make a new client in the child process"
            )
        if self._stopped:
            raise ClosedError("this client was closed; make a new one")

    def _stop(self) -> None:
        self.loop.stop()
        away = not self.loop.on_loop_thread
        if away:
            self._thread.join(_JOIN_S)
        if self._compression_pool is not None:
            self._compression_pool.stop(wait=away)

    @classmethod
    def stop_at_exit(cls) -> None:
        """End the thread because the interpreter ends."""
        with cls._guard:
            thread, cls._shared = cls._shared, None
        if thread is not None and thread.alive:
            until_s = time.monotonic() + LAST_MS / 1_000
            while thread._abandoned and thread._thread.is_alive() and time.monotonic() < until_s:
                thread._thread.join(0.01)
            thread._stopped = True
            thread._stop()

    @classmethod
    def forget_after_fork(cls) -> None:
        """In the child of a fork: the thread is not here, and no thread may release the lock."""
        cls._guard = threading.Lock()
        cls._shared = None


def warner(role: str) -> Callable[[str], None]:
    """Writes warnings to the log `kohort.client.ROLE`."""

    def warn(text: str) -> None:
        import logging  # here, because making a client must not pay for it

        logging.getLogger(f"kohort.client.{role}").warning("%s", text)

    return warn


def _run_into(future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        value = fn(*args)
    except Exception as error:  # carried to the caller, who raises it
        future.set_error(error)
    else:
        future.set_result(value)


atexit.register(NetworkThread.stop_at_exit)
os.register_at_fork(after_in_child=NetworkThread.forget_after_fork)
