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
    from kohort.processing.workers.inline_tasks import InlineTasks
    from kohort.processing.workers.task_pool import Lifespan


class InlinePool:
    """Runs what it gets at once.

    Args:
        name: the pool that it replaces: "threads", "tasks" or "processes".
        lifespans: what is open while coroutine handlers run.
    """

    workers = 1

    def __init__(self, name: str, invoker: Invoker, lifespans: Sequence[Lifespan] = ()) -> None:
        self.name = name
        self._invoker = invoker
        self._lifespans = lifespans
        self._report: Report = lambda _: None
        self._coroutines: InlineTasks | None = None

    def start(self, report: Report) -> None:
        """Open the lifespans. `report` is called by `submit`, and with what they raise."""
        self._report = report
        if self.name == "tasks" and self._lifespans:
            try:
                self._tasks().open()
            except Exception as error:  # of a lifespan: it ends the program
                self._report(Finished(self.name, [], None, 0.0, error))

    def submit(self, items: list[Item]) -> None:
        """Run the handlers."""
        try:
            outcomes = self.run(items)
        except Exception as error:  # what ends a worker ends the program
            self._report(Finished(self.name, items, None, 0.0, error))
        else:
            self._report(Finished(self.name, items, outcomes, 0.0))

    def run(self, items: list[Item]) -> Sequence[Outcome] | None:
        """The outcomes of the handlers. Raises what ends a worker, and UsageError for coroutine
        handlers within a coroutine: their loop cannot run inside another."""
        if self.name != "tasks":
            return self._invoker.run(items)
        return self._tasks().run(self._invoker, items)

    def stop(self, timeout_s: float) -> bool:
        """Close the lifespans; False when that took too long. Else nothing is at work."""
        if self._coroutines is None:
            return True
        try:
            return self._tasks().close(timeout_s)
        except Exception as error:  # of a lifespan: it ends the program
            self._report(Finished(self.name, [], None, 0.0, error))
            return True

    def kill(self) -> None:
        """End as a program that dies: what is open is cancelled. It may be started again."""
        coroutines, self._coroutines = self._coroutines, None
        if coroutines is not None:
            coroutines.kill()

    def _tasks(self) -> InlineTasks:
        from kohort.processing.workers.inline_tasks import (  # asyncio, for those who use it
            InlineTasks,
            refuse_running_loop,
        )

        refuse_running_loop()
        self._coroutines = self._coroutines or InlineTasks(self._lifespans)
        return self._coroutines
