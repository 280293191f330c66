"""Exactly once: who works on a partition after rebalances that cross with a transaction (E3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

import pytest

from kohort.client.common.types import TopicPartition
from kohort.errors import KafkaTimeoutError, KohortError
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.exactly_once_engine import Batch, ExactEngine, Verdict
from kohort.processing.runtime import transactor as transactions
from kohort.processing.runtime.exactly_once_runner import ExactRunner
from kohort.processing.runtime.kafka_transactor import KafkaTransactor
from kohort.processing.runtime.runner import Runner, Start, StoppedError, Timing
from kohort.processing.runtime.store_transactor import StoreTransactor
from kohort.retry.store import StoreBusyError
from tests.known import fake
from tests.patience import PATIENCE_S
from tests.processing.test_broken import Idle, Keeps, records
from tests.processing.world import route

TP = TopicPartition("orders", 0)


def done_batch(engine: ExactEngine, offset: int) -> Batch:
    """The next transaction, after one more record has succeeded."""
    engine.polled(TP, records(offset), offset + 1, 0)
    engine.finished(engine.take("threads", 1, 0), [None], 0)
    batch = engine.batch(0)
    assert batch is not None
    return batch


def test_a_late_fence_leaves_a_partition_that_has_come_back() -> None:
    """The fence was about the former assignment; it removed the new one, which nobody read then."""
    engine = ExactEngine([route()], crash_guard=False)
    engine.assigned(TP, 1, 0)
    late = done_batch(engine, 0)
    engine.removed([TP])
    engine.assigned(TP, 2, 0)
    fence = KohortError("another program was faster")
    engine.transaction_aborted(Verdict(late, fence, fenced=[TP]), 0)
    assert TP in engine.partitions
    again = done_batch(engine, 0)
    engine.transaction_aborted(Verdict(again, fence, fenced=[TP]), 0)
    assert TP not in engine.partitions


class Silent(Idle):
    """A store that answers nothing until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.closing = threading.Event(), threading.Event()

    def _take_over(self, starts: Mapping[tuple[str, int], Start]) -> dict[tuple[str, int], Start]:
        self.asked.set()
        assert self.closing.wait(PATIENCE_S)
        return dict(starts)

    def stop(self, timeout_s: float) -> None:
        self.closing.set()
        super().stop(timeout_s)


class Ends(threading.Thread):
    """A runner at work, with the error that ended it."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(daemon=True)
        self.runner, self.error = runner, None
        self.start()

    def run(self) -> None:
        try:
            self.runner.run(fake(Keeps()), None)
        except KohortError as error:
            self.error = error


@pytest.mark.parametrize("at_once", [False, True])
def test_whoever_waits_for_a_silent_store_can_be_stopped(at_once, monkeypatch) -> None:
    """Partitions were assigned while the store was locked: only kill -9 ended the program."""
    monkeypatch.setattr(transactions, "LOOK_S", 0.01)
    runner = ExactRunner(ExactEngine([route()], crash_guard=False), fake(Keeps()), [])
    runner.transactor = store = Silent()
    running = Ends(runner)
    assert store.asked.wait(PATIENCE_S)
    runner.stop(at_once=at_once)
    try:
        assert store.closing.wait(10), "nobody has stopped waiting"
    finally:
        store.closing.set()
        running.join(PATIENCE_S)
    assert running.error is None
    assert not runner.engine.partitions


def test_a_stop_at_once_does_not_wait_for_a_transaction(monkeypatch) -> None:
    """It waited for as long as `drain` lasts."""
    monkeypatch.setattr(transactions, "LOOK_S", 0.01)
    waited: list[float] = []
    for at_once in (False, True):
        runner = ExactRunner(
            ExactEngine([route()], crash_guard=False), fake(Keeps()), [], Timing(drain_ms=600_000)
        )
        runner.transactor = store = Silent()
        monkeypatch.setattr(store, "stop", waited.append)
        running = Ends(runner)
        assert store.asked.wait(PATIENCE_S)
        runner.stop(at_once=at_once)
        running.join(10)
        store.closing.set()
        assert not running.is_alive()
    assert waited == [600, 0.5]


def test_a_store_that_is_away_is_waited_for_until_the_app_is_stopped(monkeypatch) -> None:
    """The thread of transactions, too, is free again, for the last commit of other partitions."""
    asked: list[object] = []

    class Away:
        def take_over(self, *row: object) -> None:
            asked.append(row)
            assert len(asked) <= 3
            raise StoreBusyError("locked")

    nobody = fake(None)
    transactor = StoreTransactor("g", fake(Away()), nobody, nobody, {}, lambda: 0)
    transactor._is_stopped = lambda: len(asked) == 3
    monkeypatch.setattr(transactor._stopping, "wait", lambda seconds: False)
    with pytest.raises(StoppedError, match=r"being stopped \(locked\): orders-0"):
        transactor._take_over({TP: Start(None, "")})


def test_into_kafka_no_take_over_waits_for_a_transaction() -> None:
    """The group's commits, read before, say where to continue: the thread knows no better."""
    nobody = fake(None)
    transactor = KafkaTransactor(nobody, nobody, nobody)
    starts: dict[tuple[str, int], Start] = {TP: Start(7, "")}
    assert transactor.take_over(starts) == starts


def test_a_stop_while_no_broker_answers_is_no_error() -> None:
    """Its last question for the group's commits was raised by `run`."""

    class Away(Keeps):
        def committed(self, partitions: object) -> dict[TopicPartition, object]:
            runner.stop()
            raise KafkaTimeoutError("no broker answers")

    runner = Runner(Engine([route()], crash_guard=False), fake(Away()), [])
    runner.run(fake(Keeps()), None)
    assert not runner.engine.partitions


class Moves(Keeps):
    """A consumer that reads on, though there are no records. A poll takes 250 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.mine = {TP}
        self.sought: list[int] = []

    def poll(self, timeout_s: float) -> tuple[()]:
        self.now_ms += 250
        self.position += 1
        return super().poll(timeout_s)

    def assignment(self) -> set[TopicPartition]:
        return self.mine

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.sought.append(offset)
        self.position = offset


class Fences:
    """A store that another member takes a partition over from, just before these batches.

    Args:
        row: where it says that the partition continues, once it was taken over by the other.
    """

    def __init__(self, consumer: Moves, fenced: Collection[int], row: int | None = None) -> None:
        self.consumer, self.fenced, self.row = consumer, fenced, row
        self.taken_ms: list[int] = []
        self.ends: list[int] = []

    def start(self, report: Callable[[Verdict], None], is_stopped: object) -> None:
        self.report = report

    def take_over(self, starts: Mapping[tuple[str, int], Start]) -> dict[tuple[str, int], Start]:
        self.taken_ms.append(self.consumer.now_ms)
        return dict.fromkeys(starts, Start(self.row if self.ends else None, ""))

    def submit(self, batch: Batch, member: object) -> None:
        self.ends += [commit.offset for commit in batch.commits.values()]
        if len(self.ends) in self.fenced:
            self.report(Verdict(batch, KohortError("was faster"), fenced=list(batch.commits)))
        else:
            self.report(Verdict(batch))

    def stop(self, timeout_s: float) -> None:
        pass


def run_fenced(store: Fences, seconds: int) -> ExactRunner:
    """A runner on such a store, after so many seconds."""
    consumer = store.consumer
    runner = ExactRunner(
        ExactEngine([route()], crash_guard=False),
        fake(consumer),
        [],
        now_ms=lambda: consumer.now_ms,
        steady_ms=lambda: consumer.now_ms,
    )
    polled = consumer.polled

    def stop_in_time() -> None:
        polled()
        if consumer.now_ms >= seconds * 1_000:
            runner.stop()

    consumer.polled = stop_in_time
    runner.transactor = fake(store)
    runner.run(fake(Keeps()), None)
    return runner


@pytest.mark.parametrize(
    ("row", "begins"), [(None, 2), (7, 7)], ids=["nobody-committed", "the-other-went-on"]
)
def test_a_member_that_keeps_a_fenced_partition_takes_it_over_again(row, begins) -> None:
    """A former owner's take-over came last, and the group's owner never worked on it again."""
    store = Fences(Moves(), {1}, row)
    run_fenced(store, 8)
    first_ms, again_ms = store.taken_ms
    assert again_ms - first_ms >= 1_000, "not at once: the other may not know it yet"
    assert store.consumer.sought[-1] == begins, "what was read and not committed is read again"
    assert len(store.ends) > 3
    assert begins < store.ends[1] <= begins + 8


def test_a_fenced_partition_that_is_no_longer_ours_is_left_to_its_owner() -> None:
    store = Fences(Moves(), {1})

    def lost() -> None:
        if store.ends:
            store.consumer.mine = set()

    store.consumer.polled = lost
    run_fenced(store, 8)
    assert len(store.taken_ms) == 1
    assert store.consumer.sought == []


def test_two_members_that_both_hold_a_partition_take_it_over_once_a_second_at_most() -> None:
    """One of them is a zombie and will hear of it; until then, neither only fences the other."""
    store = Fences(Moves(), range(1_000))
    run_fenced(store, 20)
    assert 5 <= len(store.taken_ms) <= 20
