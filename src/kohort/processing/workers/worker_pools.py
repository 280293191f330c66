"""Workers: threads for handlers that wait, tasks for async ones, processes for those that compute.

Rules (W2):
- A worker gets a list of records, runs the handlers over it, and gives the list back with its
  outcomes. It never touches a tracker, a lane or a commit.
- How many records a worker gets at once follows from how long a record takes: small lists for slow
  handlers, so that all workers have something; large ones for fast handlers, so that handing over
  costs little.
- A process that dies is replaced. Its records are retried one by one, and the one that kills a
  process twice, alone, fails permanently (`crash`).

Shell: threads, subprocesses, the clock.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, Protocol

from kohort.errors import UsageError
from kohort.processing.engine.engine import NOT_BEGUN, Outcome
from kohort.processing.engine.partition_state import Item
from kohort.processing.workers.handlers import TIMED_OUT, HandlerSpec, Invoker
from kohort.processing.workers.process_worker import Call, Task, child_main, pack, unpack
from kohort.processing.workers.timer_slack import wake_on_time
from kohort.retry.classify import Disposition, Failure, stated

MOST_AT_ONCE: Final = 256
AIM_S: Final = 0.016
"""How long one list should keep a worker busy, about."""
MOST_LISTS_PER_S: Final = 5_000
"""What all workers of a pool together may hand in, about: each list costs its owner some 20 us."""
QUEUED_PER_WORKER: Final = 2
SHORT_LIST_S: Final = 0.05
"""What takes longer is heard of at once: the next list may take as long."""
STARTS: Final = 2
"""So often a process is started before its program is taken to be at fault."""


class Finished(NamedTuple):
    """A list that comes back. `error` is what ended the worker itself, and ends the program."""

    pool: str
    items: list[Item]
    outcomes: Sequence[Outcome] | None
    seconds: float
    error: BaseException | None = None


Report = Callable[[Finished], None]


class Pool(Protocol):
    """Workers of one kind."""

    name: str
    workers: int

    def start(self, report: Report) -> None: ...
    def submit(self, items: list[Item]) -> None: ...
    def stop(self, timeout_s: float) -> bool: ...


class Portions:
    """How many records a worker of one pool is given at once. Pure."""

    def __init__(self, workers: int, most: int = MOST_AT_ONCE) -> None:
        self._workers = workers
        self._most = most
        self._per_record_s = AIM_S

    def learn(self, records: int, seconds: float) -> None:
        """The time that a list of this many records took."""
        each = seconds / max(1, records)
        self._per_record_s += (each - self._per_record_s) * 0.2

    def size(self, ready: int) -> int:
        """How many of `ready` records the next worker gets."""
        each_s = max(self._per_record_s, 1e-7)
        by_time = int(max(AIM_S, self._workers / MOST_LISTS_PER_S) / each_s)
        by_share = -(-ready // self._workers)
        return max(1, min(self._most, by_time, by_share))


@dataclass
class Feed:
    """A pool, how much its workers get at once, and how many lists they have."""

    pool: Pool
    portions: Portions
    lists: int = 0
    """What its workers have been given and the owner has not heard of since."""

    def can_wait(self, finished: Finished, queued: int) -> bool:
        """Whether the owner may hear of this list together with a later one.

        It is woken while half of what lies ready is left, so that no worker waits for it; what ends
        last always wakes it. What failed, or has something to send, wakes it at once.
        """
        if (
            finished.outcomes is not None
            or finished.error is not None
            or finished.seconds > SHORT_LIST_S
        ):
            return False
        return 2 * (self.lists - queued) >= 3 * self.pool.workers


class _Crew:
    """Threads that all take lists from one queue; what each does with them is `_work`."""

    name = ""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._inbox: SimpleQueue[list[Item] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, report: Report) -> None:
        """Start the threads; `report` is called on them."""
        for number in range(self.workers):
            name = f"kohort-{self.name}-{number}"
            thread = threading.Thread(target=self._work, args=(report,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, items: list[Item]) -> None:
        """Give some worker something to do."""
        self._inbox.put(items)

    def stop(self, timeout_s: float) -> bool:
        """Let the workers end; False when one was still at work after the time."""
        for _ in self._threads:
            self._inbox.put(None)
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, report: Report) -> None:
        raise TypeError(f"{type(self).__name__} does not say what its workers do")


class ThreadPool(_Crew):
    """Threads of this process: for handlers that wait for something, or are quick."""

    name = "threads"

    def __init__(self, invoker: Invoker, workers: int) -> None:
        super().__init__(workers)
        self._invoker = invoker

    def _work(self, report: Report) -> None:
        wake_on_time()
        while (items := self._inbox.get()) is not None:
            started = time.perf_counter()
            try:
                outcomes = self._invoker.run(items)
            except BaseException as error:  # SystemExit and the like: the program is to end
                report(Finished(self.name, items, None, 0.0, error))
                return
            report(Finished(self.name, items, outcomes, time.perf_counter() - started))


class ProcessPool(_Crew):
    """Processes: for handlers that compute. Each has a thread here that feeds it."""

    name = "processes"

    def __init__(
        self, specs: Mapping[str, HandlerSpec], workers: int, store_url: str | None = None
    ) -> None:
        super().__init__(workers)
        self._specs = dict(specs)
        self._store_url = store_url
        self._context = multiprocessing.get_context("spawn")

    def _work(self, report: Report) -> None:
        child = _Child(self._context, self._specs, self._store_url)
        try:
            while (items := self._inbox.get()) is not None:
                started = time.perf_counter()
                try:
                    outcomes = self._run(child, items)
                except BaseException as error:  # the program is to end
                    report(Finished(self.name, items, None, 0.0, error))
                    return
                report(Finished(self.name, items, outcomes, time.perf_counter() - started))
        finally:
            child.end()

    def _run(self, child: _Child, items: list[Item]) -> list[Outcome] | None:
        """All at once; after a death one by one, to find the record that kills."""
        answer = child.ask(items)
        if not isinstance(answer, Failure):
            return answer
        if len(items) == 1:
            return self._alone(child, items[0], answer)
        outcomes: list[Outcome] = []
        failed: set[object] = set()
        for item in items:
            if item.lane is not None and item.lane in failed:
                outcomes.append(NOT_BEGUN)
                continue
            one = child.ask([item])
            outcome = (
                self._alone(child, item, one)[0]
                if isinstance(one, Failure)
                else (one[0] if one else None)
            )
            if isinstance(outcome, Failure) and item.partition.route.stops_lane:
                failed.add(item.lane)
            outcomes.append(outcome)
        return outcomes

    def _alone(self, child: _Child, item: Item, death: Failure) -> list[Outcome]:
        """It killed its process alone: once may be chance, twice is the record."""
        if death.reason == TIMED_OUT:
            return [death]
        again = child.ask([item])
        if isinstance(again, Failure):
            return [again]
        return again or [None]


class _Child:
    """One process and the pipe to it; made again when it has died."""

    def __init__(
        self, context: Any, specs: Mapping[str, HandlerSpec], store_url: str | None
    ) -> None:
        self._context = context
        self._arguments = (specs, store_url)
        self._process: Any = None
        self._pipe: Any = None

    def ask(self, items: Sequence[Item]) -> list[Outcome] | Failure | None:
        """The outcomes; a Failure when the process died or a call took too long."""
        if self._process is None:
            self._start()
        timeout_s = 0.0
        try:
            self._pipe.send([pack(item) for item in items])
            while True:
                if timeout_s and not self._pipe.poll(timeout_s):
                    self.kill()
                    return stated(
                        TIMED_OUT, permanent=False, message=f"it took longer than {timeout_s:g} s"
                    )
                answer: Call | list[Task] | UsageError | None = self._pipe.recv()
                if not isinstance(answer, Call):
                    return unpack(answer)
                timeout_s = answer.timeout_s
        except (EOFError, OSError):
            code = self._code()
            self.kill()
            return stated(
                "process_crashed",
                permanent=True,
                disposition=Disposition.CRASH,
                message=f"the worker process ended with {code} at work on this record",
            )

    def _code(self) -> str:
        self._process.join(1)
        code: int | None = self._process.exitcode
        return "an unknown code" if code is None else f"signal {-code}" if code < 0 else f"{code}"

    def _start(self) -> None:
        """Returns when it is ready to work. What dies before that dies of no record."""
        code = ""
        for _ in range(STARTS):
            self._spawn()
            try:
                self._pipe.recv()
            except (EOFError, OSError):
                code = self._code()
                self.kill()
            else:
                return
        raise UsageError(
            f"a worker process ended with {code} before it could begin; nothing is wrong with the "
            "records. Its own message is above: the program's module must be importable, and "
            'call app.run() only under `if __name__ == "__main__":`'
        )

    def _spawn(self) -> None:
        ours, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=child_main, args=(theirs, *self._arguments), daemon=True
        )
        self._process.start()
        theirs.close()
        self._pipe = ours

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

    def end(self) -> None:
        """Let the process end by itself, and make sure of it."""
        if self._process is not None:
            self._pipe.close()
            self._process.join(2)
            self.kill()
