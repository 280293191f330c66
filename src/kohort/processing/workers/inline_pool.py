"""A pool without threads, for virtual time: the thread that polls runs the handlers itself.

Rules:
- Handlers run one after another and take no virtual time, unless they wait by Kohort's clients.

Shell: asyncio (for coroutine handlers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kohort.processing.engine.engine import Outcome
from kohort.processing.engine.partition_state import Item
from kohort.processing.workers.handlers import Invoker
from kohort.processing.workers.worker_pools import Finished, Report

if TYPE_CHECKING:
    import asyncio


class InlinePool:
    """Runs what it gets at once.

    Args:
        name: the pool that it replaces: "threads", "tasks" or "processes".
    """

    workers = 1

    def __init__(self, name: str, invoker: Invoker) -> None:
        self.name = name
        self._invoker = invoker
        self._report: Report = lambda _: None
        self._coroutines: asyncio.Runner | None = None

    def start(self, report: Report) -> None:
        """`report` is called by `submit`."""
        self._report = report

    def submit(self, items: list[Item]) -> None:
        """Run the handlers."""
        try:
            outcomes = self.run(items)
        except Exception as error:  # what ends a worker ends the program
            self._report(Finished(self.name, items, None, 0.0, error))
        else:
            self._report(Finished(self.name, items, outcomes, 0.0))

    def run(self, items: list[Item]) -> Sequence[Outcome] | None:
        """The outcomes of the handlers. Raises what ends a worker."""
        if self.name != "tasks":
            return self._invoker.run(items)
        import asyncio  # for those who use it

        from kohort.processing.workers.task_pool import run_async

        self._coroutines = self._coroutines or asyncio.Runner()
        return self._coroutines.run(run_async(self._invoker, items))

    def stop(self, timeout_s: float) -> bool:
        """Nothing is at work between two calls."""
        del timeout_s
        if self._coroutines is not None:
            self._coroutines.close()
        return True
