"""Exactly once: who works on a partition after rebalances that cross with a transaction (E3)."""

from __future__ import annotations

import threading
from collections.abc import Mapping

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
