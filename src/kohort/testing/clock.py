"""`VirtualClock`: an embedded cluster and Kohort's clients in one thread, on a clock of their own.

    with VirtualClock() as clock, Cluster(clock=clock) as cluster:
        consumer = Consumer(bootstrap_servers=cluster.bootstrap, group_id="g")
        ...
        clock.advance(45)      # heartbeats, session timeouts, back-offs: done in milliseconds

Rules:
- Inside `with`, clients of Kohort that this thread makes have no network thread: a waiting call
  does the network's work, and the broker's. When nothing is left to do, the clock jumps to the next
  timer at once. So a wait takes as long as the work in it, not its time-out.
- Time passes only in `advance` and in calls that wait. Between them everything is frozen: a
  process that does not heartbeat is one whose requests are cut (`cluster.faults.cut`).
- Sockets are real: other clients could connect, but would wait in real time for a broker that works
  only while a call waits on this thread. They need a `Cluster` without a clock.
- The timestamps of `Producer.send` are by the real clock.

Shell: the clock, threads (which one this is), the kernel's readiness calls.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kohort.broker.faults.notices import Notices
from kohort.broker.log.files import Syncable
from kohort.broker.log.flusher import FlushDone
from kohort.broker.server.server import Broker, LoopEnv
from kohort.client.cluster.network_thread import NetworkThread
from kohort.client.common.completion import drive_by
from kohort.errors import ConfigError, KafkaTimeoutError, UsageError
from kohort.net import Loop, monotonic_ms
from kohort.net.poller import Poller, new_poller

if TYPE_CHECKING:
    from kohort.processing.app import App, Ended

T = TypeVar("T")
DAY_S: Final = 86_400
"""The longest that `run_app` runs an app by default."""
QUIET: Final = {
    "fetch_max_wait_ms": 25_000,
    "session_timeout_ms": 1_200_000,
    "heartbeat_interval_ms": 300_000,  # it has to be shorter
    "max_poll_interval_ms": 1_200_000,
}
"""Of an app in virtual time: most of its work is what it does when nothing happens."""
LOOK_MS: Final = 1_000
"""How often `run_app` asks `until`, in virtual time."""
MAX_WAIT_MS: Final = 86_400_000
"""A wait without end that has not ended after a day never will."""
_QUIET_TURNS: Final = 3
_LAST_LOOK_S: Final = 0.0005  # for what the kernel has not handed over yet, before time jumps


class _Patient:
    """A poller that never waits for a timer: time is not its business."""

    def __init__(self) -> None:
        self._inner: Poller = new_poller()
        self.register = self._inner.register
        self.modify = self._inner.modify
        self.unregister = self._inner.unregister
        self.close = self._inner.close
        self.patience_s = 0.0
        self.found = False

    def poll(self, timeout_s: float, /) -> list[tuple[int, int]]:
        records = self._inner.poll(self.patience_s)
        self.found = bool(records)
        return records


class _VirtualLoop(Loop):
    """A loop whose turns are made by a clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._patient = _Patient()
        super().__init__(clock_ms=clock.now_ms, poller=self._patient)
        self._clock = clock
        self._turning = False

    def wall_ms(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._clock.wall_ms()

    @property
    def on_loop_thread(self) -> bool:
        return self._turning

    def stop(self) -> None:
        self._clock.forget(self)
        super().stop()

    def turn(self, patience_s: float = 0.0) -> bool:
        """One turn; whether there was anything to do."""
        due_ms = self.next_ms()
        busy = bool(self._calls or self._to_flush)
        busy = busy or (due_ms is not None and due_ms <= self.now_ms())
        self._patient.patience_s = patience_s
        self._turning = True
        try:
            self._turn()
        finally:
            self._turning = False
        return busy or self._patient.found

    def next_ms(self) -> int | None:
        """When its next timer is due."""
        return min((when for when, _, timer in self._timers if timer.active), default=None)


class _VirtualThread(NetworkThread):
    """What clients take for the network thread of their process."""

    def __init__(self, clock: VirtualClock) -> None:
        self.loop = clock.new_loop()
        self.uniform = random.Random(0).random
        self._users = 0
        self._abandoned = []
        self._stopped = False

    @property
    def alive(self) -> bool:
        return not self._stopped

    def release(self) -> None:
        """It runs until the clock's end."""

    def end(self) -> None:
        """Close what is open."""
        self._stopped = True
        self.loop.stop()


class _VirtualEnv(LoopEnv):
    """The broker's surroundings: no flusher, the clock's time."""

    def __init__(self, loop: Loop, clock: VirtualClock) -> None:
        self._loop = loop
        self.now_ms = loop.now_ms
        self.call_soon = loop.call_soon
        self.wall_ms = clock.wall_ms

    def flush(self, file: Syncable, done: FlushDone) -> None:
        self._loop.call_soon(done, None)

    @property
    def flushes(self) -> int:
        return 0

    def stop(self) -> None:
        """There is no thread."""


class JumpingBroker(Broker):
    """A broker on its own thread, in real time that a test may let jump."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._jumped_ms = 0

    @property
    def has_jumped(self) -> bool:
        """Whether its time is ahead of real time."""
        return self._jumped_ms != 0

    def jump(self, ms: int) -> None:
        """Let time pass at once; actions due then happen before the next request."""
        self.call(self._jump, ms)

    def _jump(self, ms: int) -> None:
        self._jumped_ms += ms

    def _now_ms(self) -> int:
        return monotonic_ms() + self._jumped_ms

    def _new_loop(self) -> Loop:
        return Loop(clock_ms=self._now_ms)

    def _new_env(self, loop: Loop) -> LoopEnv:
        env = super()._new_env(loop)
        env.wall_ms = self._wall_ms
        return env

    def _wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._jumped_ms


class VirtualBroker(Broker):
    """A broker in memory, whose work is done by those who wait."""

    def __init__(self, clock: VirtualClock, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._clock = clock

    def _new_loop(self) -> Loop:
        return self._clock.new_loop()

    def _new_env(self, loop: Loop) -> LoopEnv:
        return _VirtualEnv(loop, self._clock)

    def _spawn(self, loop: Loop) -> threading.Thread:
        return threading.Thread(target=int, name="kohort-no-broker")  # ends as soon as it begins

    def _await(self, closed: threading.Event) -> None:
        self._clock.run_until(closed.is_set, 30.0)

    def call(self, fn: Callable[..., T], *args: Any) -> T:
        """Call `fn(*args)` here: this is the broker's thread."""
        return fn(*args)


class _VirtualNotices(Notices):
    """Waits by the clock for what the broker sees."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def notify(self) -> None:
        """There is no sleeper to wake."""

    def until(self, look: Callable[[], T | None], timeout_s: float) -> T | None:
        results: list[T] = []

        def done() -> bool:
            seen = look()
            if seen is not None:
                results.append(seen)
            return bool(results)

        self._clock.run_until(done, timeout_s)
        return results[0] if results else None


class VirtualClock:
    """A clock for one thread's clients and clusters. It runs inside `with`, one at a time."""

    def __init__(self) -> None:
        self._now_ms = time.monotonic_ns() // 1_000_000
        self._wall_offset_ms = time.time_ns() // 1_000_000 - self._now_ms
        self._began_ms = self._now_ms
        self._loops: list[_VirtualLoop] = []
        self._thread_id = 0
        self._network: _VirtualThread | None = None
        self._before: NetworkThread | None = None
        self._driving = False

    def __enter__(self) -> VirtualClock:
        if self._thread_id:
            raise UsageError("this clock has been used; make a new one")
        self._thread_id = threading.get_ident()
        self._network = _VirtualThread(self)
        self._before = NetworkThread.replace(self._network)
        drive_by(self)
        return self

    def __exit__(self, *_: object) -> None:
        drive_by(None)
        NetworkThread.replace(self._before)
        assert self._network is not None
        self._network.end()

    # -- time

    def now_ms(self) -> int:
        """The time, for deadlines; as the machine's monotonic clock when the clock was made."""
        return self._now_ms

    def wall_ms(self) -> int:
        """The time of day, milliseconds since 1970."""
        return self._now_ms + self._wall_offset_ms

    @property
    def elapsed_s(self) -> float:
        """How many seconds have passed since the clock was made."""
        return (self._now_ms - self._began_ms) / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass: everything that is due happens, in its order."""
        self.run_until(lambda: False, seconds)

    def run_app(
        self, app: App, *, until: Callable[[], bool] | None = None, seconds: float = DAY_S
    ) -> Ended:
        """Run an `App` in virtual time, then end it; its handlers run on this thread.

        Args:
            until: end it when this is so; looked at once in each second of virtual time.
            seconds: end it after so many seconds at the latest.

        Returns how it ended, as `App.run`. Raises UsageError for an app that has been stopped.
        """
        assert self._network is not None, "inside `with`"
        _make_quiet(app)
        loop, until_ms = self._network.loop, self._now_ms + round(seconds * 1_000)

        def look() -> None:
            nonlocal next_look
            if self._now_ms >= until_ms or (until is not None and until()):
                app.stop()
            else:
                next_look = loop.call_at(min(self._now_ms + LOOK_MS, until_ms), look)

        next_look = loop.call_at(self._now_ms, look)
        try:
            return app.run(signals=False)
        finally:
            next_look.cancel()  # an app that an error has ended is not to be stopped

    # -- work

    def drives(self) -> bool:
        """Whether this thread is the clock's."""
        return threading.get_ident() == self._thread_id

    def run_until(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Work, and let time pass, until `done()` or the time is over; what `done` says then.

        Without a time-out it raises KafkaTimeoutError after a day.
        """
        if self._driving:
            raise UsageError("a callback of the network may not wait: it would wait for itself")
        wait_ms = MAX_WAIT_MS if timeout_s is None else max(0, int(timeout_s * 1000))
        deadline_ms = self._now_ms + wait_ms
        while True:
            if self._settle(done):
                return True
            due = [when for loop in self._loops if (when := loop.next_ms()) is not None]
            next_ms = min(due, default=deadline_ms)
            if next_ms > deadline_ms or self._now_ms >= deadline_ms:
                self._now_ms = max(self._now_ms, deadline_ms)
                break
            self._now_ms = max(self._now_ms, next_ms)
        if timeout_s is None:
            raise KafkaTimeoutError("what is waited for has not come within a day of virtual time")
        return done()

    def run_beside(self, thread: threading.Thread) -> None:
        """Work until another thread has ended, while no time passes."""
        thread.start()
        while thread.is_alive():
            self._turn_all(_LAST_LOOK_S)

    def _settle(self, done: Callable[[], bool]) -> bool:
        """Work while there is something to do at this moment; whether `done()`."""
        quiet = 0
        while not done():
            last = quiet == _QUIET_TURNS - 1
            if self._turn_all(_LAST_LOOK_S if last else 0.0):
                quiet = 0
            elif last:
                return False
            else:
                quiet += 1
        return True

    def _turn_all(self, patience_s: float) -> bool:
        self._driving = True
        try:
            busy = False
            for loop in list(self._loops):
                busy = loop.turn(patience_s) or busy
            return busy
        finally:
            self._driving = False

    def notices(self) -> Notices:
        """What tests of a cluster on this clock wait with."""
        return _VirtualNotices(self)

    def new_loop(self) -> _VirtualLoop:
        """A loop on this clock."""
        loop = _VirtualLoop(self)
        self._loops.append(loop)
        return loop

    def forget(self, loop: Loop) -> None:
        """A loop was stopped."""
        self._loops = [other for other in self._loops if other is not loop]


def _make_quiet(app: App) -> None:
    """What the app names stays, and what does not go with it is left out.

    `session_timeout_ms=10_000` allows no long heartbeats, and by `group_protocol="consumer"` the
    broker decides on both.
    """
    for name, value in QUIET.items():
        if name not in app.client_settings.client:
            with contextlib.suppress(ConfigError):
                app.configure(client={name: value})
