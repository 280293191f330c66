"""The readiness loop: one thread, one epoll, shared by client and broker.

Rules:
- One turn: wait for readiness; run what is ready; run due timers; run posted calls; write out what
  was sent. Sends of one turn leave together, so pipelined answers share a system call.
- Everything runs on the loop's thread except `call_soon_threadsafe` and `stop`.
- A callback that raises never ends the loop: the error is reported (`on_error`, by default the log
  `kohort.net`), and when it came from a connection that connection is closed.
- In the child of a fork the loop is dead: its descriptors are closed there without a word to the
  peers (the parent still talks to them), and every use raises ForkedError.
- When `run` ends, by `stop` or by an exception that is not an `Exception` (Ctrl-C), every listener
  and connection is closed with one call of its handler, before `run` returns.

Shell: the clock, threads, a pipe.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kohort.errors import ClosedError, ForkedError, UsageError
from kohort.net.connection import ClientTls, Connection, ConnectionHandler, ServerTls
from kohort.net.listener import Listener
from kohort.net.movers import Movers
from kohort.net.poller import READ, Poller, new_poller
from kohort.net.ports import Closable, Flushable
from kohort.net.resolver import Resolver

_TIMERS_CANCELLED_MAX: Final = 512
_CONNECT_TIMEOUT_MS: Final = 10_000
_EARLY_SHIFT: Final = 7
"""Waits are shorter by this power of two, 0.8 %."""


def monotonic_ms() -> int:
    """Milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000


def log_error(what: str, error: BaseException) -> None:
    """The default `on_error`: one log record with the traceback."""
    import logging  # here, because `import kohort` must not pay for it

    logging.getLogger("kohort.net").error(
        "%s raised %r", what, error, exc_info=(type(error), error, error.__traceback__)
    )


_loops: set[Loop] = set()
"""Those that have not ended. Not a WeakSet: Ctrl-C while one collects what is dead gets lost."""


def _abandon_loops() -> None:
    for loop in list(_loops):
        loop.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_loops)


class Timer:
    """A call to come; `cancel()` is cheap and may be repeated."""

    __slots__ = ("_loop", "args", "fn", "when_ms")

    def __init__(self, loop: Loop, when_ms: int, fn: Callable[..., object], args: tuple[Any, ...]):
        self._loop: Loop | None = loop
        self.when_ms = when_ms
        self.fn: Callable[..., object] | None = fn
        self.args = args

    def cancel(self) -> None:
        """Do not call. After the call, or a second time, this does nothing."""
        if self.fn is not None and self._loop is not None:
            self.fn, self.args = None, ()
            self._loop.timer_cancelled()
        self._loop = None

    @property
    def active(self) -> bool:
        """True until the call is made or cancelled."""
        return self._loop is not None


class _WakePipe:
    """Wakes the loop from another thread. Its descriptors close with the last reference to it.

    A thread that has begun to write holds one. If the loop closed them instead, that thread could
    write into another file that has taken the number meanwhile.
    """

    reading = _writing = -1  # also where Ctrl-C comes before the pipe is made

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self._writing, False)

    def wake(self) -> None:
        try:
            os.write(self._writing, b"\0")
        except BlockingIOError:
            return  # full: the loop is awake already

    def drain(self) -> None:
        try:
            while len(os.read(self.reading, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for fd in (self.reading, self._writing):
            if fd >= 0:
                close(fd)


class Loop:
    """One readiness loop. `run()` is the body of its thread."""

    def __init__(
        self,
        *,
        clock_ms: Callable[[], int] = monotonic_ms,
        on_error: Callable[[str, BaseException], None] = log_error,
        poller: Poller | None = None,
        movers: int = 0,
    ) -> None:
        """`movers`: how many threads send what is large; 0: the loop does it itself."""
        self.now_ms = clock_ms
        self.turn_ms = clock_ms()
        """The time at which the present turn began; cheap to read, a little old."""
        self._on_error = on_error
        self._poller = new_poller() if poller is None else poller
        self._watched: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[int, int, Timer]] = []
        self._timer_count = 0
        self._timers_cancelled = 0
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._last: list[Callable[[], object]] = []
        self._to_flush: list[Flushable] = []
        self._closables: dict[int, Closable] = {}
        self._closable_count = 0
        self._asleep = False
        self._stopping = False
        self._finished = False
        self._starting = threading.Lock()
        """Held while it is decided whether `run` or `stop` came first."""
        self._thread_id: int | None = None
        self.forked = False
        """True in a child of the process that made this loop."""
        self.movers = Movers(movers, self.call_soon_threadsafe) if movers else None
        self._resolver = Resolver(self.call_soon_threadsafe)
        self._wake_pipe: _WakePipe | None = _WakePipe()
        self.watch(self._wake_pipe.reading, READ, self._woken)
        _loops.add(self)

    @staticmethod
    def wall_ms() -> int:
        """Milliseconds since 1970 by the machine's clock."""
        return time.time_ns() // 1_000_000

    # -- calls and timers

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        """Call `fn(*args)` in this turn or the next one. On the loop's thread only."""
        self._calls.append((fn, args))

    def call_last(self, fn: Callable[[], object]) -> None:
        """Call `fn()` at the end of this turn (or the next one), after all other calls that are to
        be made by then. On the loop's thread only."""
        self._last.append(fn)

    def call_soon_threadsafe(self, fn: Callable[..., object], *args: Any) -> None:
        """Call `fn(*args)` soon, from any thread. After `run` has ended the call is never made."""
        if self.forked:
            raise ForkedError("this loop was made before the process forked; make a new one")
        # `_asleep` is set before the loop looks at `_calls` for the last time, and is read here
        # after the append: either the loop sees the call, or we see that it sleeps.
        self._calls.append((fn, args))
        if self._asleep:
            self._wake()

    def call_at(self, when_ms: int, fn: Callable[..., object], *args: Any) -> Timer:
        """Call `fn(*args)` when `now_ms()` has reached `when_ms`. On the loop's thread only."""
        timer = Timer(self, when_ms, fn, args)
        self._timer_count += 1
        heapq.heappush(self._timers, (when_ms, self._timer_count, timer))
        return timer

    def timer_cancelled(self) -> None:
        """Called by a timer; cancelled ones are swept out before they outnumber the live ones."""
        self._timers_cancelled += 1
        if self._timers_cancelled > _TIMERS_CANCELLED_MAX + len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if entry[2].fn is not None]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    @property
    def on_loop_thread(self) -> bool:
        """True when the caller runs on this loop's thread."""
        return self._thread_id == threading.get_ident()

    # -- sockets

    def connect(
        self,
        host: str,
        port: int,
        handler: ConnectionHandler,
        *,
        max_frame_bytes: int,
        timeout_ms: int = _CONNECT_TIMEOUT_MS,
        tls: ClientTls | None = None,
    ) -> Connection:
        """Begin to connect; the handler hears `connected`, or `closed` with ConnectionFailedError.

        The name is looked up on another thread, and each of its addresses is tried in turn within
        `timeout_ms` altogether (default 10 s), the handshake of `tls` included. A certificate that
        is not believed closes with AuthenticationError.
        """
        peer = f"{host}:{port}"
        connection = (
            Connection(self, handler, peer, max_frame_bytes)
            if tls is None
            else tls.connection(self, handler, peer, max_frame_bytes)
        )
        self._resolver.resolve(host, port, connection.begin_connect)
        connection.connect_deadline(timeout_ms)
        return connection

    def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[Connection], ConnectionHandler],
        *,
        max_frame_bytes: int,
        max_connections: int = 1_000,
        max_unfinished_bytes: int = 512 << 20,
        backlog: int = 512,
        tls: ServerTls | None = None,
    ) -> Listener:
        """Listen at once on `host:port` (0: any free port, see `Listener.port`).

        `max_unfinished_bytes`: of large frames that have begun and not ended. Raises ConfigError
        when the address is in use or not ours.
        """
        return Listener(
            self,
            host,
            port,
            accept,
            max_frame_bytes,
            max_connections,
            max_unfinished_bytes,
            backlog,
            tls,
        )

    # -- what connections and listeners use

    def watch(self, fd: int, mask: int, ready: Callable[[int], None]) -> None:
        self._watched[fd] = ready
        self._poller.register(fd, mask)

    def rewatch(self, fd: int, mask: int) -> None:
        self._poller.modify(fd, mask)

    def unwatch(self, fd: int) -> None:
        del self._watched[fd]
        self._poller.unregister(fd)

    def adopt(self, closable: Closable) -> int:
        """Remember what must be closed when the loop ends; gives it its id."""
        self._closable_count += 1
        self._closables[self._closable_count] = closable
        return self._closable_count

    def disown(self, ident: int) -> None:
        self._closables.pop(ident, None)

    def flush_soon(self, connection: Flushable) -> None:
        self._to_flush.append(connection)

    def report(self, what: str, error: BaseException) -> None:
        """Report an error that a callback raised."""
        self._on_error(what, error)

    # -- the body

    def run(self) -> None:
        """Serve until `stop()`; returns at once when that came first. May be called once."""
        with self._starting:
            if self._thread_id is not None:
                raise UsageError("this loop has already run; make a new one")
            self._thread_id = threading.get_ident()
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._tear_down()

    def stop(self) -> None:
        """End `run()` after the present turn, from any thread. A loop that never ran is closed."""
        with self._starting:
            self._stopping = True
            never_ran = self._thread_id is None
            if never_ran and not self.forked:
                self._tear_down()
        if not never_ran and self._asleep:
            self._wake()

    def _turn(self) -> None:
        self._asleep = True
        events = self._poller.poll(self._timeout_s())
        self._asleep = False
        now_ms = self.turn_ms = self.now_ms()
        watched = self._watched
        for fd, mask in events:
            ready = watched.get(fd)
            if ready is not None:  # else closed by an earlier event of this turn
                try:
                    ready(mask)
                except Exception as error:  # the loop continues after any error of a connection
                    self._ready_failed(ready, error)
        if self._timers and self._timers[0][0] <= now_ms:
            self._run_timers(now_ms)
        if self._calls:
            self._run_calls()
        if self._last:
            last, self._last = self._last, []
            for fn in last:
                self._call(fn, ())
        if self._to_flush:
            flushing, self._to_flush = self._to_flush, []
            for connection in flushing:
                connection.flush()

    def _ready_failed(self, ready: Callable[[int], None], error: Exception) -> None:
        owner = getattr(ready, "__self__", None)
        if isinstance(owner, Connection):
            owner.callback_failed(error)
        else:
            self.report(getattr(ready, "__qualname__", repr(ready)), error)

    def _timeout_s(self) -> float:
        if self._calls or self._last or self._to_flush or self._stopping:
            return 0
        while self._timers:
            when_ms, _, timer = self._timers[0]
            if timer.fn is not None:
                left_ms = max(0, when_ms - self.now_ms())
                # Linux lets a wait last up to 0.5 % longer (30 ms in a session timeout of 6 s), so
                # a long one ends early, and the short one that follows is exact.
                return (left_ms - (left_ms >> _EARLY_SHIFT)) / 1000
            heapq.heappop(self._timers)
            self._timers_cancelled -= 1
        return -1

    def _run_timers(self, now_ms: int) -> None:
        while self._timers and self._timers[0][0] <= now_ms:
            timer = heapq.heappop(self._timers)[2]
            fn, args = timer.fn, timer.args
            timer.fn, timer.args = None, ()
            if fn is None:
                self._timers_cancelled -= 1
                continue
            timer.cancel()
            self._call(fn, args)

    def _run_calls(self) -> None:
        calls = self._calls
        for _ in range(len(calls)):  # calls that calls make wait for the next turn
            fn, args = calls.popleft()
            self._call(fn, args)

    def _call(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            fn(*args)
        except Exception as error:  # one client's defect must not end the loop that all share
            self._on_error(getattr(fn, "__qualname__", repr(fn)), error)

    def _wake(self) -> None:
        pipe = self._wake_pipe  # held while it is written to
        if pipe is not None:
            pipe.wake()

    def _woken(self, mask: int) -> None:
        if self._wake_pipe is not None:
            self._wake_pipe.drain()

    def abandon_after_fork(self) -> None:
        """In the child: close the descriptors. The epoll set is the parent's too: leave it alone.

        Without this a peer would not see the parent close a connection while the child lives.
        """
        if self._finished:
            return
        self.forked = self._finished = True
        _loops.discard(self)
        for closable in self._closables.values():
            closable.abandon()
        self._poller.close()
        self._wake_pipe = None

    def _tear_down(self) -> None:
        if self._finished:
            return
        self._finished = True
        _loops.discard(self)
        for closable in list(self._closables.values()):
            closable.close(ClosedError("the network loop was stopped"))
        if self.movers is not None:
            self.movers.stop()
        self._run_calls()
        self._closables.clear()
        self._timers.clear()
        if self._wake_pipe is not None:
            self.unwatch(self._wake_pipe.reading)
        self._poller.close()
        self._wake_pipe = None
