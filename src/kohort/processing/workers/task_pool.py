"""Tasks of one asyncio loop, in a thread of its own, for async handlers.

Rules:
- As many tasks as workers, each with a list of records of its own; never a task for each record.
- A handler that takes longer than its time is cancelled, and its record is tried again later.
- What handlers share, a session for example, is opened on the loop before the first record, and
  closed on it at the end, before what they have started is cancelled. What that raises ends the
  program.

Shell: threads, asyncio, the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from kohort.processing.engine.engine import NOT_BEGUN, Outcome
from kohort.processing.engine.partition_state import Item
from kohort.processing.workers.handlers import (
    TIMED_OUT,
    HandlerSpec,
    Invoker,
    all_done,
    done,
    note_lane,
)
from kohort.processing.workers.precise_timers import new_loop
from kohort.processing.workers.timer_slack import wake_on_time
from kohort.processing.workers.worker_pools import Finished, Report
from kohort.retry.classify import Failure, describe, stated

Lifespan = Callable[[], contextlib.AbstractAsyncContextManager[Any]]
CANCELLED_INSIDE: Final = "cancelled_inside"


async def run_async(invoker: Invoker, items: Sequence[Item]) -> list[Outcome] | None:
    """All of them, in order, in this task; None when every one succeeded."""
    outcomes: list[Outcome] | None = None
    failed: set[Hashable] = set()
    for index, item in enumerate(items):
        spec = invoker.specs[item.partition.route.handler]
        if failed and item.lane in failed:
            outcome: Outcome = NOT_BEGUN
        elif spec.decode is not None or spec.timeout_ms:
            outcome = await _run_one(invoker, spec, item)
        else:  # as `_run_one`: a call less for each record
            received = invoker.undecoded(item)
            try:
                returned = await spec.function(received)
            except (Exception, asyncio.CancelledError) as error:
                outcome = _failure(spec, error)
            else:
                if spec.rows is None and received.outputs is None and returned is None:
                    continue
                outcome = done(spec, received, returned)
        if outcome is not None:
            outcomes = outcomes or all_done(items)
            outcomes[index] = outcome
            note_lane(item, outcome, failed)
    return outcomes


async def _run_one(invoker: Invoker, spec: HandlerSpec, item: Item) -> Outcome:
    if invoker.decoding_waits(spec, item):  # for a schema: the other tasks run meanwhile
        received = await asyncio.to_thread(invoker.received, spec, item)
    else:
        received = invoker.received(spec, item)
    if isinstance(received, Failure):
        return received
    try:
        async with asyncio.timeout(spec.timeout_ms / 1_000 if spec.timeout_ms else None):
            returned = await spec.function(received)
    except (Exception, asyncio.CancelledError) as error:
        return _failure(spec, error)
    return done(spec, received, returned)


def _failure(spec: HandlerSpec, error: Exception | asyncio.CancelledError) -> Failure:
    """What a handler raised, which may be anything. Raises when it is the pool that ends."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
        text = "something that the handler waited for was cancelled"
        return stated(CANCELLED_INSIDE, permanent=False, message=text)
    if isinstance(error, TimeoutError) and spec.timeout_ms:
        return describe(error, permanent=False, reason=TIMED_OUT)
    return spec.classify(error)


class TaskPool:
    """Tasks of one asyncio loop in a thread of its own: for async handlers."""

    name = "tasks"

    def __init__(self, invoker: Invoker, workers: int, lifespans: Sequence[Lifespan] = ()) -> None:
        self.workers = workers
        self._lifespans = lifespans
        self._invoker = invoker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: asyncio.Queue[list[Item]] = asyncio.Queue()
        self._submitted: deque[list[Item]] = deque()
        """Submitted items that are not in the inbox yet; the loop is woken once for all of them."""
        self._woken = False
        self._thread: threading.Thread | None = None
        self._whole: asyncio.Task[None] | None = None

    def start(self, report: Report) -> None:
        """Start the loop; `report` is called on its thread."""
        loop = self._loop = new_loop()  # only now: a pool that never starts closes none

        def run() -> None:
            wake_on_time()
            asyncio.set_event_loop(loop)
            try:
                self._whole = loop.create_task(self._main(report))
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(self._whole)
                loop.run_until_complete(_cancel_rest(loop))
            finally:
                loop.close()

        self._thread = threading.Thread(target=run, name="kohort-tasks", daemon=True)
        self._thread.start()

    async def _main(self, report: Report) -> None:
        try:
            async with contextlib.AsyncExitStack() as opened:
                for lifespan in self._lifespans:
                    await opened.enter_async_context(lifespan())
                with contextlib.suppress(asyncio.CancelledError):  # the pool's end, no lifespan's
                    async with asyncio.TaskGroup() as group:
                        for _ in range(self.workers):
                            group.create_task(self._work(report))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of a lifespan: tasks report what they raise themselves
            report(Finished(self.name, [], None, 0.0, error))

    async def _work(self, report: Report) -> None:
        while True:
            items = await self._inbox.get()
            started = time.perf_counter()
            try:
                outcomes = await run_async(self._invoker, items)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # SystemExit and the like: the program is to end
                report(Finished(self.name, items, None, 0.0, error))
                return
            report(Finished(self.name, items, outcomes, time.perf_counter() - started))

    def submit(self, items: list[Item]) -> None:
        """Give some task something to do."""
        loop = self._loop
        assert loop is not None, "submit() before start()"
        self._submitted.append(items)
        if not self._woken:
            self._woken = True
            loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._woken = False  # first: what is given from now on wakes the loop again
        while self._submitted:
            self._inbox.put_nowait(self._submitted.popleft())

    def stop(self, timeout_s: float) -> bool:
        """Cancel the tasks and end the loop; False when that took too long."""
        loop = self._loop
        if self._thread is None or loop is None:
            return True
        with contextlib.suppress(RuntimeError):  # it may have ended by itself
            loop.call_soon_threadsafe(self._cancel)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _cancel(self) -> None:
        """End the workers, then the lifespans; what those started works until they are closed."""
        if self._whole is not None:
            self._whole.cancel()


async def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what the user's code has left on the loop."""
    left = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()
