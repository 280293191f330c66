"""Batch linger: records of a batch handler wait for a fuller batch (spec 4.12, issue 18)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kohort import App
from kohort.errors import ConfigError
from kohort.processing.engine.dispatcher import Order
from kohort.processing.engine.engine import Engine, Outcome
from kohort.processing.engine.partition_state import OnFailure, Status
from kohort.processing.engine.state import Limits
from kohort.records import Record
from kohort.retry.classify import Classifier, Permanent, Temporary
from kohort.testing import AppHarness
from tests.processing.world import World, route

NOW = 1_000_000
TOPIC = "orders"


def started(limits: Limits | None = None, **more) -> Engine:
    """An engine of two partitions that may begin at once."""
    engine = Engine(
        [route(TOPIC, max_batch=10, linger_ms=200, order=Order.NONE, **more)],
        limits,
        crash_guard=False,
    )
    for number in (0, 1):
        engine.assigned((TOPIC, number), number + 1, 0, now_ms=NOW)
    return engine


def read(engine: Engine, number: int, start: int, count: int, now_ms: int = NOW) -> None:
    records = [
        Record(TOPIC, number, at, timestamp=0, key=None, value=b"v")
        for at in range(start, start + count)
    ]
    engine.polled((TOPIC, number), records, start + count, now_ms)


def test_whole_batches_begin_at_once_and_the_rest_waits() -> None:
    """Over all partitions of the topic together; the deadline of the oldest is kept."""
    engine = started()
    read(engine, 0, 0, 4)
    assert engine.ready("threads") == 0
    assert engine.next_deadline() == NOW + 200
    read(engine, 1, 0, 5, NOW + 150)
    assert engine.ready("threads") == 0
    assert engine.next_deadline() == NOW + 200, "the oldest record waits no longer for the others"
    read(engine, 1, 5, 13, NOW + 160)
    assert engine.ready("threads") == 20
    assert [len(engine.take("threads", 10, NOW)) for _ in range(2)] == [10, 10]
    assert engine.next_deadline() == NOW + 160 + 200, "what is left of the last poll"
    engine.tick(NOW + 359)
    assert engine.ready("threads") == 0
    engine.tick(NOW + 360)
    assert engine.ready("threads") == 2
    assert engine.next_deadline() is None


def test_a_partition_that_lingers_is_read_on_and_says_so() -> None:
    """A paused partition could never fill its batch."""
    engine = started()
    read(engine, 0, 0, 4)
    partition = engine.partitions[TOPIC, 0]
    assert engine.paused(NOW) == frozenset()
    assert partition.why_stopped(NOW) == ""
    assert partition.present_status() is Status.LINGERING


def test_what_may_be_read_at_most_is_not_waited_for() -> None:
    """A batch that is larger than `max_records` never becomes full."""
    engine = started(Limits(records=6))
    read(engine, 0, 0, 6)
    assert engine.paused(NOW) == {(TOPIC, 0), (TOPIC, 1)}
    read(engine, 0, 6, 1)
    assert engine.ready("threads") == 7


def test_a_partition_that_goes_away_takes_what_waits_along() -> None:
    engine = started()
    read(engine, 0, 0, 4)
    read(engine, 1, 0, 4)
    engine.draining([(TOPIC, 0)])
    engine.removed([(TOPIC, 0)])
    assert engine.outstanding == 4
    read(engine, 1, 4, 2)
    assert engine.ready("threads") == 0, "six, not ten"
    engine.removed([(TOPIC, 1)])
    assert engine.next_deadline() is None
    assert engine.outstanding == 0


def test_a_stopped_partition_does_not_linger() -> None:
    """What waits behind a failure waits for that, and not for its linger."""
    engine = started(on_failure=OnFailure.STOP_PARTITION)
    read(engine, 0, 0, 10)
    items = engine.take("threads", 10, NOW)
    read(engine, 0, 10, 3)
    failure = Temporary("down")
    outcomes: list[Outcome] = [*[None] * 9, Classifier().classify(failure)]
    engine.finished(items, outcomes, NOW)
    engine.tick(NOW + 1_000)
    partition = engine.partitions[TOPIC, 0]
    assert engine.ready("threads") == 0
    assert partition.present_status() is Status.STOPPED
    assert len(partition.aside) == 3
    assert engine.resume((TOPIC, 0), NOW + 1_001)
    assert engine.ready("threads") == 1, "the failed record; the others linger again"
    engine.tick(NOW + 1_201)
    assert engine.ready("threads") == 4


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_repeated_whatever_happens(seed: int) -> None:
    """R2: rebalances, crashes and failures between the records that wait for a batch."""

    def handler(record: Record, attempt: int) -> None:
        number = int(record.value or b"")
        if number % 7 == 3 and attempt < 2:
            raise Temporary("down")
        if number % 11 == 5:
            raise Permanent("bad")

    orders = [Order.KEY, Order.NONE, Order.PARTITION]
    lines = {"max_batch": 10, "linger_ms": 5_000, "order": orders[seed % 3]}
    world = World([route(**lines)], handler, seed=seed, crash_guard=False)
    chance = random.Random(seed)
    for number in range(300):
        world.produce(TOPIC, number % 3, b"k%d" % (number % 5), b"%d" % number)
        if number % 30 == 0:
            world.live(chance, 20)
    world.run_out()
    done, failed = world.done(), Counter(int(r.value or b"-1") for r in world.failed())
    assert set(failed) == set(range(5, 300, 11))
    assert len(done) == 300 - len(failed)
    assert all(
        world.commits[key][0] == len(log) for key, log in world.logs.items() if key in world.commits
    )


def test_singles_and_batches_in_one_pool_do_not_cut_each_other() -> None:
    """A list for a worker is a whole batch, though the other handler's lists are short."""
    engine = Engine(
        [route(TOPIC, max_batch=10, order=Order.NONE), route("single", order=Order.NONE)],
        crash_guard=False,
    )
    for topic in (TOPIC, "single"):
        engine.assigned((topic, 0), 1, 0, now_ms=NOW)
        records = [Record(topic, 0, n, timestamp=0, key=None, value=b"v") for n in range(25)]
        engine.polled((topic, 0), records, 25, NOW)
    taken = []
    while items := engine.take("threads", 4, NOW):
        assert len({item.record.topic for item in items}) == 1
        taken.append((items[0].record.topic, len(items)))
    assert taken[:3] == [(TOPIC, 10), (TOPIC, 10), (TOPIC, 5)]
    assert taken[3:] == [("single", 4)] * 6 + [("single", 1)]


def test_a_harness_lingers_in_its_own_time() -> None:
    app, sizes = App("bulk", retries="none"), list[int]()

    @app.handler("rows", batch=True, max_batch=100, linger="200ms")
    def store(batch) -> None:
        sizes.append(len(batch))

    with AppHarness(app) as harness:
        for n in range(30):
            harness.send("rows", b"%d" % n)
        harness.run()
        assert sizes == []
        harness.advance("100ms")
        for n in range(30):
            harness.send("rows", b"%d" % n)
        harness.advance("99ms")
        assert sizes == []
        harness.advance("1ms")
        assert sizes == [60]
        for n in range(250):
            harness.send("rows", b"%d" % n)
        harness.run()
        assert sizes == [60, 100, 100]
        harness.advance("1s")
        assert sizes == [60, 100, 100, 50]
        assert harness.committed("rows") == {0: 310}


def test_a_linger_without_batches_is_refused() -> None:
    app = App("bulk")
    with pytest.raises(ConfigError, match=r"'rows' takes one record at a time.*batch=True"):
        app.handler("rows", linger="1s")(lambda record: None)
    with pytest.raises(ConfigError, match="-1"):
        app.handler("rows", batch=True, linger=-1)(lambda batch: None)
