"""A client process whose program waits: a program without asyncio, as most users write them.

Rules:
- The program has a thread of its own, but one of all threads runs at any time: it runs from an
  event of the schedule until it waits, and continues in a later one. So a seed decides everything.
- It waits by virtual time (`completion.Driver`), and is looked at again after each event of its
  machine.
- A kill ends it where it waits: `Killed` is raised there, and again wherever it would wait on its
  way out. Its machine is dead by then, so that nothing of that is seen.
- A crash ends it at a step of its store (`store_crash`) in the same way.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from kohort.client.cluster.network_thread import NetworkThread
from kohort.client.common.completion import drive_by
from kohort.errors import UsageError
from kohort.simulator.machine import WALL_MS, Clock, Machine
from kohort.simulator.schedule import Handle, Schedule
from kohort.simulator.system.client_process import ClientThread
from kohort.simulator.system.network import Network, SystemLoop
from kohort.simulator.system.store_crash import stepping


class Killed(BaseException):
    """The process was killed; no error handler of its program may hear of it."""


class _Watched(Machine):
    """A machine that calls `watch` after each of its events."""

    watch: Callable[[], object] = staticmethod(lambda: None)
    surroundings: Callable[[], AbstractContextManager[object]] = nullcontext

    def run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.dead:
            with self.surroundings():
                super().run(fn, args)
        if not self.dead and self.schedule.now_ms >= self.stalled_until_ms:
            self.watch()


class SyncProcess:
    """Runs one program on a thread until it ends or is killed; a `completion.Driver`.

    Args:
        schedule: the world's.
        network: the world's.
        name: unique in the world.
        clock: what its clock shows.
        ended: called with the program's error, or None, when it ends by itself.
    """

    def __init__(
        self,
        schedule: Schedule,
        network: Network,
        name: str,
        clock: Clock,
        ended: Callable[[BaseException | None], object],
    ) -> None:
        self.name = name
        self.machine = _Watched(schedule, name, clock)
        self.machine.watch = self._look
        self.machine.surroundings = self._event
        self._in_event = False
        self._network = network
        self._ended = ended
        self._network_thread = ClientThread(
            SystemLoop(self.machine, network), schedule.split(name).random
        )
        self._thread: threading.Thread | None = None
        self._go, self._back = threading.Lock(), threading.Lock()
        """Each is released by one thread and taken by the other: a switch."""
        self._go.acquire()
        self._back.acquire()
        self._waits_for: Callable[[], bool] | None = None
        self._timer: Handle | None = None
        self._is_over = False
        """Whether the time of the present wait is over."""
        self._killed = False
        self._steps_left = 0
        """Until it dies; 0: it does not."""
        self._crashed: Callable[[], object] = int
        self._outcome: list[BaseException | None] = []

    # -- the world's side

    def run(self, program: Callable[[], None]) -> None:
        """Begin with the program."""
        self.machine.soon(self._begin, program)

    def _begin(self, program: Callable[[], None]) -> None:
        self._thread = threading.Thread(
            target=self._work, args=(program,), name=f"sim {self.name}", daemon=True
        )
        self._thread.start()
        self._resume()

    def _resume(self) -> None:
        """Let the program run until it waits again, or ends."""
        before = NetworkThread.replace(self._network_thread)
        drive_by(self)
        try:
            with stepping(self._step):
                self._go.release()
                self._back.acquire()
        finally:
            drive_by(None)
            NetworkThread.replace(before)
        if self._outcome and not self._killed:
            self._ended(self._outcome[0])

    def _look(self) -> None:
        done = self._waits_for
        if done is not None and (self._is_over or done()):
            self._waits_for = None
            self._resume()

    def _time_over(self) -> None:
        self._is_over = True

    def kill(self) -> None:
        """`kill -9`."""
        self.machine.die()
        self._network.process_died(self.machine)
        self.dispose()

    def crash_at(self, step: int, crashed: Callable[[], object]) -> None:
        """Die at this step of a store, counted from now on, and call `crashed`; 0: at none."""
        self._steps_left, self._crashed = step, crashed

    def _step(self) -> None:
        if self._killed:
            raise Killed
        if self._steps_left == 0:
            return
        self._steps_left -= 1
        if self._steps_left == 0:
            self._killed = True
            self.machine.die()
            self._network.process_died(self.machine)
            self._crashed()
            raise Killed

    def dispose(self) -> None:
        """End the thread."""
        self.machine.die()
        if not self._killed:
            self._killed = True
            if self._thread is not None and not self._outcome:
                self._waits_for = None
                self._resume()

    def make(self, client: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """Make a client whose network thread is this process's, as all that the program makes."""
        return client(*args, **settings)

    # -- the program's side

    def _work(self, program: Callable[[], None]) -> None:
        self._go.acquire()
        error: BaseException | None = None
        try:
            program()
        except BaseException as raised:  # any error ends the program
            error = raised
        self._outcome.append(error)
        self._back.release()

    @contextmanager
    def _event(self) -> Generator[None]:
        """What runs inside is the work of this process's network."""
        drive_by(self)
        self._in_event = True
        try:
            yield
        finally:
            self._in_event = False
            drive_by(None)

    def drives(self) -> bool:
        """Whether the calling thread is the program's, or does the work of its network."""
        return self._in_event or threading.current_thread() is self._thread

    def run_until(self, done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let the world continue until `done()`, or the time is over; what `done` says then."""
        if threading.current_thread() is not self._thread:
            raise UsageError("a callback of the network may not wait: it would wait for itself")
        if self._killed:
            raise Killed
        if done():
            return True
        self._is_over = False
        if timeout_s is not None:
            due_ms = self.machine.now_ms() + max(0, -int(-timeout_s * 1_000 // 1))
            self._timer = self.machine.at(due_ms, self._time_over)
        self._waits_for = done
        self._back.release()
        self._go.acquire()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._killed:
            raise Killed
        return not self._is_over or done()

    def wall_ms(self) -> int:
        """The process's idea of the time of day."""
        return WALL_MS + self.machine.now_ms()
