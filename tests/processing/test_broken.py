"""What was found by trying to break the engine and its shell: it stood still, or lost records."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
    UsageError,
)
from kohort.processing.engine.circuit_breaker import CircuitConfig
from kohort.processing.engine.dispatcher import Order
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.exactly_once_engine import ExactEngine, Verdict
from kohort.processing.engine.in_place_retries import Blocking
from kohort.processing.engine.key_holds import Scanned
from kohort.processing.engine.partition_state import Item, OnFailure
from kohort.processing.engine.state import Limits
from kohort.processing.engine.tracker import PartitionTracker
from kohort.processing.runtime import retry_topic_poller as poller_module
from kohort.processing.runtime import runner as shell
from kohort.processing.runtime.clock_steps import ClockSteps
from kohort.processing.runtime.exactly_once_runner import ExactRunner
from kohort.processing.runtime.retry_topic_poller import RetryTopicPoller
from kohort.processing.runtime.transactor import Transactor
from kohort.processing.workers.handlers import HandlerSpec, Invoker, Kind
from kohort.processing.workers.task_pool import run_async
from kohort.processing.workers.worker_pools import Finished, ProcessPool
from kohort.records import Record
from kohort.retry.classify import Failure, Temporary, stated
from kohort.retry.offset_queries import Stamped, TopicView
from kohort.retry.policy import RetryPolicy, RetryTopics
from kohort.retry.preparing import ensure_topics
from tests.known import fake
from tests.patience import PATIENCE_S
from tests.processing.world import World, route

TP = ("orders", 0)


HOUR_MS = 3_600_000
EPOCH_MS = 10**12


def nothing(record, attempt):
    pass


def records(*offsets: int, topic: str = "orders") -> list[Record]:
    return [Record(topic, 0, n, key=b"k%d" % n, value=b"%d" % n) for n in offsets]


def started(engine: Engine, offset: int = 0, metadata: str = "") -> None:
    """Partition 0, whose first commit is safe."""
    engine.assigned(TP, engine.counts["epoch"], offset, metadata)
    engine.counts["epoch"] += 1
    engine.committed(engine.commits(), 0)


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
def test_a_stopped_partition_that_comes_back_is_worked_on(order: Order) -> None:
    """C7: the lane of the record that stopped it (tried once only) is not held for ever."""
    engine = Engine([route(order=order, on_failure=OnFailure.STOP_PARTITION)])
    for _ in range(2):
        started(engine)
        engine.polled(TP, records(0), 1, 0)
        items = engine.take("threads", 10, 0)
        assert [item.offset for item in items] == [0]
        engine.finished(items, [stated("down", permanent=False)], 0)
        assert engine.partitions[TP].stopped
        engine.removed([TP])
    assert engine.idle


def test_every_record_that_fails_while_a_partition_stops_is_tried_again() -> None:
    """Others were with workers at that time: only the last one was, and its commit stood still."""
    engine = Engine([route(on_failure=OnFailure.STOP_PARTITION)])
    down = [stated("down", permanent=False)]
    for _ in range(2):
        started(engine)
        batch = [Record("orders", 0, n, key=b"k%d" % n, value=b"v") for n in range(2)]
        engine.polled(TP, batch, 2, 0)
        for _ in range(2):
            taken = [engine.take("threads", 1, 0) for _ in range(2)]
            assert [[item.offset for item in items] for items in taken] == [[0], [1]]
            for items in taken:
                engine.finished(items, down, 0)
            assert "offset 0 failed" in engine.partitions[TP].stopped
            assert engine.resume(TP, 0)
            assert not engine.resume(TP, 0)
        for items in [engine.take("threads", 1, 0) for _ in range(2)]:
            engine.finished(items, down, 0)
        engine.removed([TP])  # and comes back: no lane is held for ever
    assert engine.idle


def test_a_probe_that_follows_its_key_into_a_retry_topic_does_not_end_probing() -> None:
    """W6: half-open, the record let through goes behind its key (`hold_key`); the next is let
    through, or the partition would stand still for ever."""
    config = CircuitConfig(tokens=1, pause_ms=1_000)
    engine = Engine([route(on_failure=OnFailure.HOLD_KEY, circuit=config)], crash_guard=False)
    started(engine)
    for number, retry_topic in enumerate(engine.delays_ms):
        engine.assigned((retry_topic, 0), 100 + number, 0)
    for retry_topic, _, epoch in engine.scans():
        engine.scanned(Scanned(retry_topic, epoch, (), True), 0)
    batch = [Record("orders", 0, n, key=b"k", value=b"v") for n in range(3)]
    batch.append(Record("orders", 0, 3, key=b"other", value=b"v"))
    engine.polled(TP, batch, 4, 0)
    items = engine.take("threads", 1, 0)
    engine.finished(items, [stated("down", permanent=False)], 0)
    assert engine.counts["circuit_opened"] == 1
    taken: list[int] = []
    for now_ms in range(1_000, 4_000, 100):
        engine.tick(now_ms)
        if items := engine.take("threads", 1, now_ms):
            taken += [item.offset for item in items]
            engine.finished(items, None, now_ms)
        for publication in engine.publications():
            engine.published(publication, now_ms)
    assert taken == [3]
    assert engine.idle


def test_a_probe_that_a_worker_gives_back_does_not_end_probing() -> None:
    """W6: it follows a record of its key from a retry topic, which failed in place; the partition
    waited for its result, and nothing of it was in flight."""
    config = CircuitConfig(tokens=1, pause_ms=1_100)
    blocking = Blocking.parse("100ms")
    recovers_ms = 4_500

    def handler(record, attempt) -> None:
        if world.now_ms < begun_ms + recovers_ms:
            raise Temporary("down")

    world = World([route(retries="1s", blocking=blocking, circuit=config)], handler, partitions=1)
    begun_ms = world.now_ms
    for n in range(3):
        world.produce("orders", 0, b"k", b"%d" % n)
    for _ in range(300):
        world.engine.tick(world.now_ms)
        world.poll()
        if items := world.engine.take("threads", 10, world.now_ms):
            world.engine.finished(items, world.outcomes(items), world.now_ms)
        world.publish()
        world.commit()
        world.now_ms += 100
    assert world.engine.partitions[TP].tracker.base == 3


def test_a_probe_that_a_rebalance_withdraws_does_not_end_probing() -> None:
    """W6: a retry topic's partition is taken away and comes back while the probe waits for a
    worker (`hold_key`)."""
    config = CircuitConfig(tokens=1, pause_ms=1_000)
    engine = Engine([route(on_failure=OnFailure.HOLD_KEY, circuit=config)], crash_guard=False)
    started(engine)

    def scan(now_ms: int) -> None:
        for retry_topic, _, epoch in engine.scans():
            engine.scanned(Scanned(retry_topic, epoch, (), True), now_ms)

    for number, retry_topic in enumerate(engine.delays_ms):
        engine.assigned((retry_topic, 0), 100 + number, 0)
    scan(0)
    engine.polled(TP, records(*range(4)), 4, 0)
    engine.finished(engine.take("threads", 1, 0), [stated("down", permanent=False)], 0)
    for publication in engine.publications():
        engine.published(publication, 0)
    engine.tick(1_000)
    assert engine.partitions[TP].probing
    retry_topic = list(engine.delays_ms)[1]
    engine.removed([(retry_topic, 0)])
    engine.assigned((retry_topic, 0), 500, 0)
    scan(1_100)
    taken: list[int] = []
    for now_ms in range(1_100, 4_000, 100):
        engine.tick(now_ms)
        if items := engine.take("threads", 1, now_ms):
            taken += [item.offset for item in items]
            engine.finished(items, None, now_ms)
    assert taken == [1, 2, 3]


def test_being_moved_about_is_not_dying() -> None:
    """A2: partitions that are given up in order were not left by a crash; else a
    quiet one becomes careful, and then its suspect goes to the dead-letter topic untried."""
    world = World([route()], nothing)
    for _ in range(5):
        world.commit()
        world.engine.draining([TP])
        world.engine.given_up([TP])
        world.commit()
        world.engine.removed([TP])
        world.assign(TP)
    assert world.engine.counts["careful_starts"] == 0
    assert world.engine.partitions[TP].tracker.crashes == 1


def test_metadata_refused_shrinks_only_what_was_long() -> None:
    """What says next to nothing was not what the broker refused."""
    engine = Engine([route()])
    other = ("orders", 1)
    for key in (TP, other):
        engine.assigned(key, 1, 0)
    engine.committed(engine.commits(), 0)
    engine.polled(TP, records(*range(4_000)), 4_000, 0)
    items = engine.take("threads", 4_000, 0)
    chance = random.Random(1)
    odd = [None if chance.random() < 0.5 else stated("down", permanent=False) for _ in items]
    engine.finished(items, odd, 0)
    engine.partitions[other].tracker.guard(0)
    engine.polled(other, records(*range(50)), 50, 0)  # as many as a small window cannot tell
    commits = engine.commits()
    assert len(commits[TP].metadata) > 100 > len(commits[other].metadata)
    engine.metadata_refused(commits)
    assert engine.partitions[other].tracker.may_begin(20_000)
    assert not engine.partitions[TP].tracker.may_begin(20_000)


def test_a_reader_that_was_set_back_does_everything_again() -> None:
    """R1: the log was cut or created again under the same name; its records have changed."""
    engine = Engine([route()])
    started(engine)
    engine.polled(TP, records(*range(10)), 10, 0)
    held = engine.take("threads", 4, 0)
    rest = engine.take("threads", 100, 0)
    engine.finished(rest, None, 0)
    engine.polled(TP, records(*range(3)), 3, 0)
    engine.finished(held, None, 0)  # of the former log
    engine.committed(engine.commits(), 0)
    again = engine.take("threads", 100, 0)
    assert [item.offset for item in again] == [0, 1, 2]
    engine.finished(again, None, 0)
    assert engine.commits()[TP].offset == 3
    assert engine.idle


def test_one_partition_that_stands_still_does_not_stop_the_others() -> None:
    """Spec 5.4: it may have filled the cap when it was alone; others are read all the same."""
    stopping = route(order=Order.PARTITION, on_failure=OnFailure.STOP_PARTITION)
    engine = Engine([stopping], Limits(records=100))
    other = ("orders", 1)
    for key in (TP, other):
        engine.assigned(key, 1, 0)
    engine.committed(engine.commits(), 0)
    engine.polled(TP, records(*range(150)), 150, 0)
    assert engine.paused(0) == {TP, other}
    items = engine.take("threads", 1, 0)
    engine.finished(items, [stated("down", permanent=False)], 0)
    assert engine.paused(0) == {TP}


def test_a_cancelled_call_inside_a_coroutine_is_that_records_failure() -> None:
    """Nobody cancelled the worker: it goes on, and gives its records back."""

    async def handle(record):
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    invoker = Invoker({"orders": HandlerSpec("orders", handle, Kind.ASYNC)})
    engine = Engine([route(pool="tasks")])
    started(engine)
    engine.polled(TP, records(0, 1), 2, 0)
    items: list[Item] = engine.take("tasks", 10, 0)
    outcomes = asyncio.run(run_async(invoker, items))
    assert outcomes is not None
    assert all(isinstance(o, Failure) and not o.permanent for o in outcomes)


class Port:
    """A cluster with nothing in it."""

    def __init__(self) -> None:
        self.asked = 0

    def latest(self, wanted, timeout_s=None, *, partial=False):
        self.asked += 1
        return dict.fromkeys(wanted, 0)

    def by_time(self, wanted, timeout_s=None):
        return dict.fromkeys(wanted, Stamped(-1, -1))

    max_timestamp = by_time

    def scan(self, at, start, end, target_ms):
        raise AssertionError("nothing to scan")


def test_the_poller_does_not_wait_for_what_is_no_longer_ours() -> None:
    """A revoked retry topic is asked for no more; its old answer must not keep us awake."""
    now = 1_000_000
    keeper = RetryTopicPoller(
        {"retry_topic": 60_000}, 0, fake(Port()), lambda: now, lambda ends: None
    )
    assert keeper._ask({("retry_topic", 0): 0, ("retry_topic", 1): 0}) > 1_000
    now += 29_000
    assert keeper._ask({("retry_topic", 1): 0}) == 1_000
    now += 1_000
    assert keeper._ask({("retry_topic", 1): 0}) > 1_000


def test_a_clock_that_is_set_back_does_not_keep_the_poller_from_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asked again when the clock was where it had been: in an hour."""
    now = [EPOCH_MS]
    keeper = RetryTopicPoller(
        {"retry_topic": 300_000}, 0, fake(Port()), lambda: now[0], lambda ends: None
    )
    at = ("retry_topic", 0)
    keeper._ask({at: 0})
    now[0] -= HOUR_MS
    assert keeper._ask({at: 0}) == 30_000
    opened = keeper._gate.opened(at)
    assert opened is not None
    assert opened.next_check_ms == now[0] + 30_000, "asked at the new time"
    monkeypatch.setattr(poller_module, "DEPTH_WAIT_S", 0)
    keeper._asked_ms = now[0] + HOUR_MS
    with keeper._changed:
        keeper._look_again()
    assert keeper._ask_anew, "the last depths are not of the future"


def test_an_idle_entry_topic_is_not_asked_for_without_a_pause() -> None:
    """It was asked for a thousand times a second, since it has no due time to wait for."""
    gate = RetryTopicPoller(
        {"orders.billing.retry.0s": 0}, 0, fake(Port()), lambda: 5_000, lambda ends: None
    )
    gate.watch({("orders.billing.retry.0s", 0): 0})
    assert gate._ask({("orders.billing.retry.0s", 0): 0}) == 1_000


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks waits for the gate's thread, however late it comes to run."""
    monkeypatch.setattr(poller_module, "DEPTH_WAIT_S", PATIENCE_S)


def test_whoever_looks_at_the_depths_hears_what_is_so_now(patient: None) -> None:
    """They were up to half a minute old: what the gate had been told when it asked for itself."""
    now, latest = [1_000_000], [0]

    class Growing(Port):
        def latest(self, wanted, timeout_s=None, *, partial=False):
            return dict.fromkeys(wanted, latest[0])

    at = ("orders.billing.retry.1h", 0)
    gate = RetryTopicPoller(
        {at[0]: 3_600_000}, 0, fake(Growing()), lambda: now[0], lambda ends: None
    )
    gate.watch({at: 0})
    gate.start()
    try:
        assert gate.depths() == {at: (0, 0)}
        latest[0] = 3
        assert gate.depths() == {at: (0, 0)}, "told within this second"
        now[0] += 1_000
        assert gate.depths() == {at: (3, 3)}
    finally:
        gate.stop()


def test_the_depths_count_from_where_whoever_asks_has_read(patient: None) -> None:
    """Records that were read since the gate was told last are neither unread nor held up."""

    class Full(Port):
        def latest(self, wanted, timeout_s=None, *, partial=False):
            return dict.fromkeys(wanted, 4)

    at = ("orders.billing.retry.0s", 0)
    gate = RetryTopicPoller({at[0]: 0}, 0, fake(Full()), lambda: 1_000_000, lambda ends: None)
    gate.watch({at: 2})
    gate.start()
    try:
        assert gate.depths() == {at: (2, 2)}
        assert gate.depths({at: 4}) == {at: (0, 0)}
    finally:
        gate.stop()


def test_what_the_gate_asks_for_itself_makes_no_depth_young(patient: None) -> None:
    """The entry topic is asked for each second; a look at a retry topic brings no news."""
    now, latest = [1_000_000], [0]

    class Growing(Port):
        def latest(self, wanted, timeout_s=None, *, partial=False):
            return dict.fromkeys(wanted, latest[0])

    entry, retry_topic = ("orders.billing.retry.0s", 0), ("orders.billing.retry.1h", 0)
    delays = {entry[0]: 0, retry_topic[0]: 3_600_000}
    gate = RetryTopicPoller(delays, 0, fake(Growing()), lambda: now[0], lambda ends: None)
    gate.watch({entry: 0, retry_topic: 0})
    gate.start()
    try:
        assert gate.depths()[retry_topic] == (0, 0)
        latest[0] = 3
        now[0] += 1_000
        gate._ask({entry: 0, retry_topic: 0})
        assert gate.depths()[retry_topic] == (3, 3)
    finally:
        gate.stop()


def test_a_cluster_that_does_not_answer_leaves_the_last_depths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever looks waits a quarter of a second, and not for ever."""
    now, away = [1_000_000], [False]

    class Leaving(Port):
        def latest(self, wanted, timeout_s=None, *, partial=False):
            if away[0]:
                raise KafkaTimeoutError("nobody answers")
            return dict.fromkeys(wanted, 3)

    at = ("orders.billing.retry.1h", 0)
    gate = RetryTopicPoller(
        {at[0]: 3_600_000}, 0, fake(Leaving()), lambda: now[0], lambda ends: None
    )
    gate.watch({at: 0})
    gate.start()
    try:
        with monkeypatch.context() as patient:
            patient.setattr(poller_module, "DEPTH_WAIT_S", PATIENCE_S)
            assert gate.depths() == {at: (3, 3)}
        away[0] = True
        now[0] += 1_000
        assert gate.depths() == {at: (3, 3)}
    finally:
        gate.stop()


def test_set_back_is_known_by_the_fetch_position_alone() -> None:
    """What a former owner did beyond the commit is passed over, and is no step back."""
    engine = Engine([route()])
    started(engine)
    engine.polled(TP, records(0, 1, 2), 3, 0)
    engine.finished(engine.take("threads", 2, 0), None, 0)
    items = engine.take("threads", 1, 0)
    engine.polled(TP, records(3, 4), 5, 0)
    assert engine.partitions[TP].tracker.unfinished == 3
    assert len(items) == 1


def test_rewound_nothing_counts_as_read_that_was_not() -> None:
    """R2: after a first read below the commit, the old commit says nothing about the new log."""
    tracker = PartitionTracker(1, 100)
    tracker.complete_all(1, tracker.polled([0, 1, 2], 3))
    assert tracker.snapshot().offset == 3


class Topics:
    """A cluster in which another process creates the retry topics at the same time."""

    def __init__(self) -> None:
        self.there = {"orders"}
        self.others = {"orders.billing.dlt"}

    def topics(self):
        return {name: TopicView("", 3) for name in self.there}

    def describe(self, names):
        return {}

    def create(self, specs):
        names = {spec.name for spec in specs}
        self.there |= self.others
        taken = names & self.there
        self.there |= names
        if taken:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"{taken}")


def test_several_processes_may_create_the_retry_topics_at_once() -> None:
    """Spec 5.2: a program is started on several machines at the same time."""
    cluster, topics = Topics(), RetryTopics("orders", "billing", RetryPolicy.parse("1s"))
    ensure_topics("app", {"orders": topics}, cluster, bootstrap="x")
    assert cluster.there == {"orders", topics.dead_letter, *topics.delays_ms}


class Unloadable:
    """A handler whose module ends the process that imports it."""

    def __reduce__(self):
        return os._exit, (3,)

    def __call__(self, record):
        pass


def test_a_process_that_cannot_even_start_is_not_its_records_fault() -> None:
    """W2: else a program that cannot be imported dead-letters its whole topic."""
    reports: SimpleQueue[Finished] = SimpleQueue()
    pool = ProcessPool({"orders": HandlerSpec("orders", Unloadable())}, 1)
    engine = Engine([route(pool="processes")])
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    pool.start(reports.put)
    pool.submit(engine.take("processes", 1, 0))
    finished = reports.get(timeout=PATIENCE_S)
    assert pool.stop(PATIENCE_S)
    assert isinstance(finished.error, UsageError)
    assert "__main__" in str(finished.error)


def test_commits_that_cannot_be_read_are_asked_for_again(monkeypatch) -> None:
    """A cluster that is away while partitions come does not end the app, and is named."""
    monkeypatch.setattr(shell, "PAUSE_S", 0)
    answers = [
        KafkaTimeoutError("no answer"),
        BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the group"),
        {TopicPartition("orders", 0): OffsetAndMetadata(7, "")},
    ]
    seen: list[str] = []

    class Away:
        def committed(self, partitions):
            seen.append(runner.trouble)
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    runner = shell.Runner(Engine([route()]), fake(Away()), [])
    runner.on_partitions_assigned([TopicPartition("orders", 0)])
    assert runner.engine.partitions["orders", 0].tracker.base == 7
    assert "no answer" in seen[1]
    assert "the group" in seen[2]
    assert not runner.trouble


def test_commits_that_may_not_be_read_end_the_app() -> None:
    class Refused:
        def committed(self, partitions):
            raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "the group")

    runner = shell.Runner(Engine([route()]), fake(Refused()), [])
    with pytest.raises(BrokerError):
        runner.on_partitions_assigned([TopicPartition("orders", 0)])


def test_partitions_that_come_while_the_consumer_is_being_closed_are_left_alone() -> None:
    """A member that was about to be given some is closed: nobody works any more, nobody is asked.

    The app waited for ever, in its close, for the thread of transactions that had ended before.
    """

    class Closing:
        def subscribe(self, topics, listener):
            pass

        def nudge(self):
            pass

        def committed(self, partitions):
            raise AssertionError("asked")

    runner = shell.Runner(Engine([route()]), fake(Closing()), [])
    runner.stop()
    runner.run(fake(None), None)
    partitions = [TopicPartition("orders", 0)]
    runner.on_partitions_assigned(partitions)
    runner.on_partitions_revoked(partitions)
    assert not runner.engine.partitions


def test_of_what_is_lost_nothing_is_committed_and_nobody_waits_for_it() -> None:
    """Spec 1.5: others may own it already; what workers still do of it is not listened to."""

    class Lost:
        def commit(self, offsets):
            raise AssertionError("committed")

    engine = Engine([route()], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0, 1), 2, 0)
    runner = shell.Runner(engine, fake(Lost()), [])
    items = engine.take("threads", 1, 0)
    engine.finished(items, None, 0)
    held = engine.take("threads", 1, 0)
    runner.on_partitions_lost([TopicPartition(*TP)])
    assert not engine.partitions
    engine.finished(held, None, 0)
    assert not engine.commits()


def test_a_commit_that_is_refused_in_a_rebalance_ends_nobody() -> None:
    """PC#857: what was done is done again by the next owner, and this one polls on."""

    class Refusing:
        def commit(self, offsets):
            raise CommitFailedError(ErrorCode.ILLEGAL_GENERATION, "the group has gone on")

    engine = Engine([route()], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    engine.finished(engine.take("threads", 1, 0), None, 0)
    runner = shell.Runner(engine, fake(Refusing()), [])
    runner.on_partitions_revoked([TopicPartition(*TP)])
    assert not engine.partitions
    started(engine)
    engine.polled(TP, records(0), 1, 0)
    assert engine.ready("threads") == 1


def test_what_is_paused_follows_from_what_is_true_now() -> None:
    """W4: no flag outlives a rebalance, and what is not assigned is never paused."""

    class Flags:
        def __init__(self):
            self.paused_now = {TopicPartition("orders", 7)}  # from before, by whatever way

        def paused(self):
            return set(self.paused_now)

        def assignment(self):
            return {TopicPartition(*TP), TopicPartition("orders", 7)}

        def pause(self, *tps):
            self.paused_now |= set(tps)

        def resume(self, *tps):
            self.paused_now -= set(tps)

    engine = Engine([route()], Limits(records=2), crash_guard=False)
    started(engine)
    runner = shell.Runner(engine, fake(Flags()), [])
    runner._pause(0)
    assert runner.consumer.paused() == set()
    engine.assigned(("orders", 1), 5, 0)  # and not among the consumer's any more
    engine.polled(TP, records(0, 1, 2), 3, 0)
    runner._pause(0)
    assert runner.consumer.paused() == {TopicPartition(*TP)}
    engine.finished(engine.take("threads", 3, 0), None, 0)
    engine.tick(0)
    runner._pause(0)
    assert runner.consumer.paused() == set()


def test_nobody_reads_the_dead_letter_topic_by_itself() -> None:
    """W8: what has failed for good is no input of the program that it failed in."""
    made = route()
    assert made.topics.dead_letter not in Engine([made]).topics


def test_a_commits_answer_ends_the_poll_that_it_comes_in() -> None:
    """C7: records wait for their first commit (crash-loop guard). They began up to 1 s after it,
    when the poll had nothing else to return for.
    """

    class Acknowledges:
        nudges = 0

        def nudge(self):
            self.nudges += 1

        def assignment(self):
            return set()

        def commit_async(self, offsets, callback):
            self.callback = callback

        def committed(self, partitions):
            return {}

    consumer = Acknowledges()
    runner = shell.Runner(Engine([route()]), fake(consumer), [])
    key = ("orders", 0)
    runner.on_partitions_assigned([TopicPartition(*key)])
    runner.engine.polled(key, records(0), 1, 0)
    runner._commit()
    assert not consumer.nudges
    assert not runner.engine.ready("threads")
    consumer.callback(None, None)
    assert consumer.nudges == 1
    assert runner.engine.ready("threads") == 1


def test_a_deleted_topic_does_not_keep_the_others_from_their_first_commit() -> None:
    """Until a rebalance takes it away, which may be minutes, one commit for all failed as a whole:
    nothing of a newly assigned partition began.
    """
    gone, refused = TopicPartition("gone", 0), list[int]()

    class Deleted:
        def nudge(self):
            pass

        def assignment(self):
            return set()

        def committed(self, partitions):
            return {}

        def commit_async(self, offsets, on_done):
            error = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "gone-0 was not committed")
            refused.append(len(offsets))
            on_done(None, error if gone in offsets else None)

    runner = shell.Runner(Engine([route(), route("gone")]), fake(Deleted()), [])
    runner.on_partitions_assigned([gone, TopicPartition(*TP)])
    for key in (gone, TP):
        runner.engine.polled(key, records(0, topic=key[0]), 1, 0)
    runner._commit()
    assert not runner.engine.ready("threads")
    runner._commit()
    assert runner.engine.ready("threads") == 1
    runner._commit()
    assert refused == [2, 1, 1, 1]
    runner.engine.removed([gone])
    for number in (1, 2):
        new = [TopicPartition(topic, number) for topic in ("orders", "gone")]
        runner.on_partitions_assigned(new)
        for key in new:
            runner.engine.polled(key, (), 1, 0)
        runner._commit()
    assert refused[4:] == [1, 1, 2], "all in one again, once none was refused"


class Idle(Transactor):
    """Has nothing to do."""

    def _commit_batch(self, batch, member):
        raise AssertionError

    def _judge(self, items):
        raise AssertionError

    def _take_over(self, starts) -> dict[tuple[str, int], shell.Start]:
        raise AssertionError

    def _close(self):
        pass


def test_nobody_waits_for_a_thread_of_transactions_that_has_ended() -> None:
    transactor = Idle()
    transactor.start(lambda report: None)
    transactor.stop(10)
    with pytest.raises(KohortError, match="has ended"):
        transactor.take_over({})


class Keeps:
    """A consumer with one partition, which reads nothing and keeps what is committed."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.position = 1
        self.polled: Callable[[], None] = lambda: None

    def subscribe(self, topics, listener):
        listener.on_partitions_assigned([TopicPartition(*TP)])

    def poll(self, timeout_s):
        self.waited_s = timeout_s
        self.polled()
        return ()

    def assignment(self):
        return {TopicPartition(*TP)}

    def committed(self, partitions):
        return {}

    def commit_async(self, offsets, on_done):
        self.commits += [at.offset for at in offsets.values()]
        on_done(None, None)

    def commit(self, offsets):
        self.commits += [at.offset for at in offsets.values()]

    def positions(self):
        return {TopicPartition(*TP): self.position}

    def paused(self):
        return set()

    def health(self):
        return Healthy()

    def group_metadata(self):
        return None

    def nudge(self):
        pass


class Healthy:
    concerns = ()


class Commits:
    """A transactor that commits every batch, the second one at its second try."""

    def __init__(self, consumer: Keeps) -> None:
        self.consumer, self.batches = consumer, 0

    def start(self, report, is_stopped) -> None:
        self.report = report

    def take_over(self, starts):
        return starts

    def submit(self, batch, member) -> None:
        self.batches += 1
        if self.batches == 2:
            self.report(Verdict(batch, KafkaTimeoutError("busy")))
            return
        self.consumer.commits += [commit.offset for commit in batch.commits.values()]
        self.report(Verdict(batch))

    def stop(self, timeout_s: float) -> None:
        pass


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
@pytest.mark.parametrize("kind", [Engine, ExactEngine])
def test_a_clock_that_is_set_delays_no_commit(kind, step_ms: int) -> None:
    """Every commit, and what else is done at intervals, waited until a clock that was set back by
    an hour was where it had been.
    """
    consumer, time_ms, turns = Keeps(), [0], [0]
    shift_ms = [EPOCH_MS]
    engine = kind([route()], crash_guard=False)
    runner = (shell.Runner if kind is Engine else ExactRunner)(
        engine,
        fake(consumer),
        [],
        shell.Timing(progress_timeout_ms=60_000),
        now_ms=lambda: time_ms[0] + shift_ms[0],
        steady_ms=lambda: time_ms[0],
    )

    def polled() -> None:
        turns[0] += 1
        time_ms[0] += 1_000
        if turns[0] == 3:
            shift_ms[0] += step_ms
        consumer.position += 1
        if turns[0] == 8:
            runner.stop()

    consumer.polled = polled
    fake(runner).transactor = Commits(consumer)
    runner.run(fake(Keeps()), None)
    assert len(set(consumer.commits)) >= 6
    assert consumer.waited_s <= 1.0


def test_a_clock_that_is_set_lengthens_no_wait_of_the_engine() -> None:
    """Tries in place, refused copies and open circuits waited for the hour, too; only what is due
    by a broker's timestamp has to.
    """
    now = EPOCH_MS
    circuit = CircuitConfig(tokens=1, pause_ms=5_000)
    orders = route(retries="5m", blocking=Blocking.parse("1s"), circuit=circuit)
    engine = Engine([orders], crash_guard=False)
    started(engine)
    engine.assigned(("orders.billing.retry.5m", 0), 9, 0)
    engine.polled(TP, records(0), 1, now)
    engine.finished(engine.take("threads", 1, now), [stated("down", permanent=False)], now)
    assert engine.next_deadline() == now + 1_000
    now -= HOUR_MS
    engine.clock_stepped(-HOUR_MS)
    assert engine.next_deadline() == now + 1_000
    engine.tick(now + 1_000)
    engine.finished(engine.take("threads", 1, now), [stated("down", permanent=False)], now)
    assert engine.partitions[TP].circuit.reopens_ms == now + 5_000
    (copy,) = engine.publications()
    engine.published(copy, now, KafkaTimeoutError("no metadata"))
    now += HOUR_MS
    engine.clock_stepped(HOUR_MS)
    assert engine.partitions[TP].circuit.reopens_ms == now + 5_000
    assert not engine.publications()
    engine.tick(now + 500)
    assert engine.publications() == [copy]


def test_a_clock_that_is_set_delays_no_transaction() -> None:
    """Refused records of a transaction waited, too."""
    now = EPOCH_MS
    engine = ExactEngine([route()], crash_guard=False)
    started(engine)
    engine.polled(TP, records(0), 1, now)
    engine.finished(engine.take("threads", 1, now), [stated("bad", permanent=True)], now)
    for step_ms in (-HOUR_MS, HOUR_MS):
        batch = engine.batch(now)
        assert batch is not None
        verdict = Verdict(batch, KafkaTimeoutError("no metadata"), refused=[0])
        engine.transaction_aborted(verdict, now)
        wait_ms = (engine.next_try_ms or 0) - now
        assert wait_ms > 0
        now += step_ms
        engine.clock_stepped(step_ms)
        assert engine.next_try_ms == now + wait_ms
        now += wait_ms


def test_small_steps_of_a_clock_add_up_to_one() -> None:
    steps = ClockSteps()
    assert steps.step_ms(EPOCH_MS, 0) == 0, "the first look"
    assert steps.step_ms(EPOCH_MS + 5_000, 5_000) == 0
    assert steps.step_ms(EPOCH_MS + 5_400, 6_000) == 0
    assert steps.step_ms(EPOCH_MS + 5_800, 7_000) == -1_200
    assert steps.step_ms(EPOCH_MS + 6_800, 8_000) == 0
    assert steps.step_ms(EPOCH_MS + HOUR_MS, 8_000) == HOUR_MS - 6_800
