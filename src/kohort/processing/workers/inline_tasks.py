"""Coroutine handlers of virtual time: on an asyncio loop that the thread that polls runs itself.

Rules:
- As in a pool of tasks, one task opens the lifespans before the first record and closes them at the
  end, and handlers see its context. What it has started works while the loop runs: in the calls of
  handlers, and while lifespans open and close.
- Asyncio's own waits (`asyncio.sleep`) take real time.

Shell: asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Sequence

from kohort.errors import UsageError
from kohort.processing.engine.engine import Outcome
from kohort.processing.engine.partition_state import Item
from kohort.processing.workers.handlers import Invoker
from kohort.processing.workers.task_pool import Lifespan, run_async


class InlineTasks:
    """A loop, and what is open on it."""

    def __init__(self, lifespans: Sequence[Lifespan] = ()) -> None:
        self._runner = asyncio.Runner()
        self._lifespans = lifespans
        self._context: contextvars.Context | None = None
        """The task's that opened the lifespans; None: nothing was to be opened."""
        self._opened = asyncio.Event()
        self._over = asyncio.Event()
        self._whole: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Open the lifespans. Raises what they raise."""
        self._runner.run(self._open())

    def run(self, invoker: Invoker, items: Sequence[Item]) -> list[Outcome] | None:
        """The outcomes of coroutine handlers. Raises what ends a worker."""
        return self._runner.run(run_async(invoker, items), context=self._context)

    def close(self, timeout_s: float) -> bool:
        """Close the lifespans, then the loop; False when that took longer.

        Raises what the lifespans raise.
        """
        try:
            return self._runner.run(self._close(timeout_s))
        finally:
            self._runner.close()

    def kill(self) -> None:
        """Cancel what is open and what it has started, then close the loop."""
        self._runner.close()

    async def _open(self) -> None:
        whole = self._whole = asyncio.create_task(self._hold())
        opened = asyncio.create_task(self._opened.wait())
        await asyncio.wait([whole, opened], return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if whole.done():
            self._whole = None
            whole.result()

    async def _hold(self) -> None:
        """The lifespans from their beginning to their end: one task, as their scopes demand."""
        async with contextlib.AsyncExitStack() as stack:
            for lifespan in self._lifespans:
                await stack.enter_async_context(lifespan())
            self._context = contextvars.copy_context()
            self._opened.set()
            await self._over.wait()

    async def _close(self, timeout_s: float) -> bool:
        whole = self._whole
        if whole is None:
            return True
        self._over.set()
        done, _ = await asyncio.wait([whole], timeout=timeout_s)
        if done:
            whole.result()
        return bool(done)


def refuse_running_loop() -> None:
    """Raise UsageError within a coroutine: a loop cannot run inside another."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "coroutine handlers run on an event loop of their own here, which cannot run inside the "
        "loop of this coroutine; write the test as a plain `def`, not as `async def`"
    )
