"""An asyncio event loop for one simulated process: tasks run as events of its machine.

Rules:
- Time is the machine's clock. A stalled machine's tasks wait, and a dead machine's never run again.
- An exception that no task handles goes to `failed`: it is a defect of a program or of a client.

Shell: asyncio.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, TypeVar

from kohort.simulator.machine import Machine

T = TypeVar("T")
_AWAITS_MAX: Final = 100


class TaskLoop(asyncio.AbstractEventLoop):
    """What asyncio asks of a loop, carried out by a `Machine`."""

    def __init__(self, machine: Machine, failed: Callable[[BaseException], object]) -> None:
        self._machine = machine
        self._failed = failed

    def time(self) -> float:
        """Seconds on the machine's clock."""
        return self._machine.now_ms() / 1_000

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback as the next event."""
        handle = asyncio.Handle(callback, args, self, context)
        self._machine.soon(self._run, handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after a time."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a time of `time`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._machine.at(-int(-when * 1_000 // 1), self._run, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled handle does nothing when its time comes."""

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(outer)

    def close_coroutine(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """End a suspended coroutine, even if it awaits on its way out."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(_AWAITS_MAX):
                with suppress(Exception):
                    coroutine.close()
                    return
        finally:
            events._set_running_loop(outer)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_kwargs: Any,
    ) -> asyncio.Task[T]:
        """A task of this loop."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Always: its events come from the schedule."""
        return True

    def is_closed(self) -> bool:
        """Never; a dead machine just runs nothing."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report what nobody handled; what a dead process leaves pending is no defect."""
        error = context.get("exception")
        if isinstance(error, BaseException) and not self._machine.dead:
            self._failed(error)
