"""Commits batches, one at a time, on a thread of its own: polling does not wait for it.

Rules:
- One batch at a time, in order: a later one depends on the result of the earlier one.
- It never gives up by itself: a temporary error is in the verdict, and the batch comes again. A
  permanent one (fenced by another program, a restored store) ends the program.
- A synchronous request (`take_over`) waits behind the current batch, until the app is stopped.

Shell: threads.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from kohort.client.common.completion import driven
from kohort.client.common.types import GroupMetadata
from kohort.errors import KohortError
from kohort.processing.engine.exactly_once_engine import Batch, Verdict
from kohort.processing.engine.partition_state import Item
from kohort.processing.engine.state import TopicPartition
from kohort.processing.runtime.publishing import Sends
from kohort.processing.runtime.runner import Start, StoppedError

log = logging.getLogger("kohort.processing")
LOOK_S: Final = 0.5
"""How often who waits for the thread looks whether it still lives."""


class Judged(NamedTuple):
    """The ledger's word about records of retry topics: see `ExactEngine.judged`."""

    items: Sequence[Item]
    owed: frozenset[int]
    elsewhere: frozenset[int]


class Broken(NamedTuple):
    """What ends the program."""

    error: BaseException


TransactorEvent = Verdict | Judged | Broken


class Transactor(ABC):
    """The thread. `_commit_batch` handles a batch."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Callable[[], TransactorEvent | None] | None] = SimpleQueue()
        self._report: Callable[[TransactorEvent], None] = lambda event: None
        self._is_stopped: Callable[[], bool] = lambda: False
        self._sends: Sends | None = None
        self._thread = threading.Thread(target=self._run, name="kohort-transactions", daemon=True)
        self._at_once = False
        """In virtual time there is no thread: a job is done when it is given."""

    def start(
        self,
        report: Callable[[TransactorEvent], None],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Begin; `report` is called on the thread.

        Args:
            is_stopped: whether the app was stopped. It is asked, since a signal handler may set no
                event: it may have interrupted who holds the event's lock.
        """
        self._report, self._is_stopped = report, is_stopped
        self._at_once = driven() is not None
        if not self._at_once:
            self._thread.start()

    def submit(self, batch: Batch, member: GroupMetadata) -> None:
        """Commit a batch; the verdict is reported."""
        self._give(lambda: self._commit_batch(batch, member))

    def judge(self, items: Sequence[Item]) -> None:
        """Ask the ledger about records of retry topics; the answer is reported."""
        self._give(lambda: self._judge(items))

    def _give(self, job: Callable[[], TransactorEvent | None]) -> None:
        if not self._at_once:
            self._inbox.put(job)
        elif (event := job()) is not None:
            self._report(event)

    def take_over(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """Where newly assigned partitions continue. Waits.

        `starts` is what the group has committed. Raises DataLossError, StorageError, StoppedError.
        """
        if self._at_once:
            return self._take_over(starts)
        done, results = threading.Event(), list[Any]()

        def ask() -> None:
            try:
                results.append(self._take_over(starts))
            except KohortError as error:
                results.append(error)
            finally:
                done.set()

        self._inbox.put(ask)
        while not done.wait(LOOK_S) and self._thread.is_alive():
            if self._is_stopped():
                raise StoppedError(starts, "a transaction or the store does not answer")
        if not results:
            raise KohortError(
                "cannot read from the store where to continue: the transaction thread has ended; "
                "see the log for the reason"
            )
        if isinstance(results[0], KohortError):
            raise results[0]
        return results[0]

    @property
    def skew_ms(self) -> int | None:
        """As `Sends.skew_ms`."""
        return None if self._sends is None else self._sends.skew_ms

    def stop(self, timeout_s: float) -> None:
        """End the thread and close what it has open."""
        if self._at_once:
            self._close()
        elif self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (job := self._inbox.get()) is not None:
                event = job()
                if event is not None:
                    self._report(event)
        except BaseException as error:  # any error: the owner has to end with it
            self._report(Broken(error))
        finally:
            self._close()

    @abstractmethod
    def _commit_batch(self, batch: Batch, member: GroupMetadata) -> Verdict: ...

    @abstractmethod
    def _judge(self, items: Sequence[Item]) -> Judged: ...

    @abstractmethod
    def _take_over(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]: ...

    @abstractmethod
    def _close(self) -> None: ...
