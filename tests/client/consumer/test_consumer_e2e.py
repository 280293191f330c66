"""The consumer against the embedded broker: reading, seeking, committing (spec 4.1-4.7, 4.9)."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kohort import Admin, Consumer, OffsetAndMetadata, Producer, RebalanceListener, TopicPartition
from kohort.client.consumer import calls as consumer_calls
from kohort.client.consumer import exchange as consumer_exchange
from kohort.client.consumer.plan.positions import OffsetReset
from kohort.errors import (
    BrokerError,
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    ConnectionFailedError,
    ForkedError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    UsageError,
    WakeupError,
)
from kohort.testing import VirtualClock
from tests.client.consumer_world import World, take, until, values
from tests.clusters import APACHE, Cluster
from tests.known import fake, known
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        yield cluster


def parts(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in range(count)]


# -- reading -------------------------------------------------------------------------------------


def test_smallest_consumer(world: World) -> None:
    """Spec 4.1, 4.2: every record once, in order a partition; at most max_poll_records a poll."""
    topic = world.topic(4, records=1_200)
    consumer = world.consumer(group_id=world.group())
    consumer.subscribe([topic])
    seen: dict[int, list[int]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, seen.values())) < 1_200:
        assert time.monotonic() < deadline
        records = consumer.poll(1.0)
        assert len(records) <= 500
        for record in records:
            assert record.topic == topic
            assert record.timestamp == int(known(record.value))
            seen.setdefault(record.partition, []).append(int(known(record.value)))
    assert seen == {p: list(range(p, 1_200, 4)) for p in range(4)}
    assert consumer.assignment() == frozenset(parts(topic, 4))
    assert consumer.subscription() == {topic}


def test_empty_after_the_timeout(world: World) -> None:
    """CL1: poll(t) takes no longer than t, and poll(0) does not wait."""
    topic = world.topic(1)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    asked, plain = list[float](), consumer._bell.wait

    def wait(timeout_s: float) -> bool:
        asked.append(timeout_s)
        return plain(timeout_s)

    consumer._bell = fake(SimpleNamespace(wait=wait, ring=consumer._bell.ring))
    started = time.monotonic()
    assert consumer.poll(0.05) == []
    assert time.monotonic() - started > 0.04
    assert asked
    assert max(asked) <= 0.05
    asked.clear()
    assert consumer.poll(0) == []
    assert not any(asked)


def test_subscribe_and_assign_exclude_each_other(world: World) -> None:
    """Spec 4.1."""
    topic = world.topic(1)
    consumer = world.consumer(group_id=world.group())
    consumer.subscribe([topic])
    with pytest.raises(UsageError, match="exclude each other"):
        consumer.assign(parts(topic, 1))
    consumer.unsubscribe()
    consumer.assign(parts(topic, 1))
    with pytest.raises(UsageError, match="exclude each other"):
        consumer.subscribe([topic])
    with pytest.raises(UsageError, match=r"subscribe\(\['orders'\]\)"):
        world.consumer(group_id="g").subscribe("orders")
    with pytest.raises(ConfigError, match="group_id"):
        world.consumer().subscribe([topic])


def test_reading_nothing_is_an_error(world: World) -> None:
    """Spec 1.11: not an endless empty result; also when everything was given up."""
    consumer = world.consumer(group_id=world.group())
    for call in (consumer.poll, consumer.poll_arrow, lambda: next(iter(consumer))):
        with pytest.raises(UsageError, match=r"nothing to read.*subscribe\(\) or assign\(\)"):
            call()
    consumer.subscribe([world.topic()])
    consumer.poll(0)
    consumer.unsubscribe()
    with pytest.raises(UsageError, match="nothing to read"):
        consumer.poll(0)


def test_assign_replaces_and_keeps_what_stays(world: World) -> None:
    topic = world.topic(2, records=20)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    assert take(consumer, 4) == values([0, 2, 4, 6])
    consumer.assign(parts(topic, 2))
    assert consumer.position((topic, 0)) == 4
    assert sorted(take(consumer, 16), key=int) == values([*range(1, 8, 2), *range(8, 20)])
    consumer.assign([])
    assert consumer.assignment() == frozenset()
    with pytest.raises(UsageError, match="nothing to read"):
        consumer.poll(0.05)


def test_the_last_of_two_assignments_counts(world: World) -> None:
    """Spec 4.1: the network thread learns of the first when the caller has made the second."""
    topic = world.topic(1, records=3)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    core = consumer._core
    entered, first, second = threading.Event(), threading.Event(), threading.Event()
    core.post(first.wait, PATIENCE_S)
    consumer.assign([])
    core.post(entered.set)
    core.post(second.wait, PATIENCE_S)
    try:
        consumer.assign(parts(topic, 1))
        first.set()
        assert entered.wait(PATIENCE_S)
        assert consumer.poll(0) == []
    finally:
        second.set()
    assert take(consumer, 3) == values(range(3))


def test_pattern(world: World) -> None:
    """Spec 1.9, 4.1: the whole name matches; a topic made later is found."""
    stem = f"pattern{time.monotonic_ns()}"
    first = world.topic(1, records=3, stem=stem)
    other = world.topic(1, records=3, stem=f"not-{stem}")
    consumer = world.consumer(group_id=world.group(), metadata_max_age_ms=100)
    consumer.subscribe(re.compile(stem + r"-\d+"))
    assert take(consumer, 3) == values(range(3))
    assert consumer.subscription() == {first}
    later = world.topic(1, records=2, stem=stem)
    assert take(consumer, 2) == values(range(2))
    assert consumer.subscription() == {first, later}
    assert other not in consumer.subscription()


def test_unknown_topic_is_read_as_soon_as_it_exists(world: World, caplog) -> None:
    name = f"later-{time.monotonic_ns()}"
    consumer = world.consumer(allow_auto_create_topics=False, retry_backoff_max_ms=50)
    consumer.assign(parts(name, 1))
    deadline = time.monotonic() + PATIENCE_S
    while "does not exist" not in caplog.text:
        assert time.monotonic() < deadline
        assert consumer.poll(0.05) == []
    world.cluster.create_topic(name)
    world.produce(name, 1, range(3))
    assert take(consumer, 3) == values(range(3))


def test_iteration_hands_out_one_by_one(world: World) -> None:
    """C3, C9: leaving the loop loses nothing; the position is that of the present record."""
    topic = world.topic(2, records=40)
    consumer = world.consumer(group_id=world.group())
    consumer.assign(parts(topic, 1))
    for record in consumer:
        assert consumer.position((topic, 0)) == record.offset + 1
        if record.offset == 6:
            consumer.commit()
            break
    assert consumer.committed(parts(topic, 1)) == {
        TopicPartition(topic, 0): OffsetAndMetadata(7)._replace(leader_epoch=0)
    }
    assert next(iter(consumer)).offset == 7
    assert consumer.poll(PATIENCE_S, max_records=2)[0].offset == 8
    for record in consumer:
        assert record.offset == 10
        assert consumer.poll(PATIENCE_S, max_records=1)[0].offset == 11
        break
    for record in consumer:
        assert record.offset == 12
        consumer.seek((topic, 0), 3)
        break
    offsets = []
    for record in consumer:
        offsets.append(record.offset)
        if record.offset == 5:
            consumer.seek((topic, 0), 18)
        if record.offset == 19:
            break
    assert offsets == [3, 4, 5, 18, 19]


def test_arrow_and_records_agree(world: World) -> None:
    """C13: the same rows, whichever way; a batch may span partitions."""
    topic = world.topic(3, records=300)
    consumer = world.consumer()
    consumer.assign(parts(topic, 3))
    rows: list[dict] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(rows) < 300:
        assert time.monotonic() < deadline
        batch = consumer.poll_arrow(1.0, max_rows=70)
        assert batch.num_rows <= 70
        rows += batch.to_pylist()
    for p in range(3):
        of_p = [row for row in rows if row["partition"] == p]
        assert [int(row["value"]) for row in of_p] == list(range(p, 300, 3))
        assert [row["offset"] for row in of_p] == list(range(100))
    assert {row["topic"] for row in rows} == {topic}
    assert consumer.poll_arrow(0.01, columns=["value"]).schema.names == ["value"]
    consumer.seek_to_beginning()
    record = next(iter(consumer))
    rest = consumer.poll_arrow(PATIENCE_S, columns=["offset", "partition"]).to_pylist()
    assert {"partition": record.partition, "offset": 1} in rest


# -- positions -----------------------------------------------------------------------------------


def test_what_arrow_lacks_is_said_before_a_row_is_taken(world: World, monkeypatch) -> None:
    """Else the rows of the refused call would count as handed out."""
    topic = world.topic(1, records=30)
    consumer = world.consumer()
    consumer.assign([(topic, 0)])
    seen = take(consumer, 5)
    with pytest.raises(UsageError, match="no column 'valeu'; choose from topic, partition, offset"):
        consumer.poll_arrow(5, columns=["key", "valeu"])
    with monkeypatch.context() as patched, world.producer() as producer:
        patched.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UsageError, match=r"poll_arrow\(\) needs pyarrow.*'kohort\[arrow\]'"):
            consumer.poll_arrow(5)
        with pytest.raises(UsageError, match=r"produce_arrow\(\) needs pyarrow"):
            producer.produce_arrow(topic, None)
    with world.producer() as producer, pytest.raises(UsageError, match=r"not a builtins\.list"):
        producer.produce_arrow(topic, [1])
    assert seen + take(consumer, 25) == values(range(30))


def test_seeking(world: World) -> None:
    """Spec 4.6."""
    topic = world.topic(2, records=20)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    take(consumer, 5)
    consumer.seek((topic, 0), 8)
    assert consumer.position((topic, 0)) == 8
    assert take(consumer, 2) == values([16, 18])
    consumer.seek_to_beginning((topic, 0))
    assert consumer.position((topic, 0)) == 0
    assert take(consumer, 1) == values([0])
    consumer.seek_to_end()
    assert consumer.position((topic, 0)) == 10
    assert consumer.poll(0.05) == []
    assert consumer.current_lag((topic, 0)) == 0
    consumer.seek((topic, 0), 4)
    assert take(consumer, 1) == values([8])
    assert consumer.current_lag((topic, 0)) == 5
    with pytest.raises(UsageError, match="not assigned"):
        consumer.seek((topic, 1), 0)
    assert consumer.resets()[0].cause.startswith("the group has no committed offset")


def test_offsets_by_time(world: World) -> None:
    """Spec 4.6: many partitions in one call; -1 becomes None."""
    topic = world.topic(3, records=30)
    consumer = world.consumer()
    tps = parts(topic, 3)
    assert consumer.beginning_offsets(tps) == dict.fromkeys(tps, 0)
    assert consumer.end_offsets(tps) == dict.fromkeys(tps, 10)
    found = consumer.offsets_for_times({tps[0]: 15, tps[1]: 16, tps[2]: 1_000})
    assert (known(found[tps[0]]).offset, known(found[tps[0]]).timestamp_ms) == (5, 15)
    assert (known(found[tps[1]]).offset, known(found[tps[1]]).timestamp_ms) == (5, 16)
    assert found[tps[2]] is None
    assert consumer.end_offsets([]) == {}
    missing = TopicPartition("no-such-topic-here", 0)
    quiet = world.consumer(allow_auto_create_topics=False)

    def named() -> bool:
        """Unless the machine stood still, so that the caller's time was over before the call's."""
        with pytest.raises(KafkaTimeoutError) as caught:
            quiet.end_offsets([missing], timeout=0.2)
        return "no-such-topic-here-0" in str(caught.value)

    until(named)


def test_pause_keeps_what_was_fetched(world: World) -> None:
    """Spec 4.4, C10: a paused partition's data is kept, not handed out, and not lost."""
    topic = world.topic(2, records=2_000)
    consumer = world.consumer()
    consumer.assign(parts(topic, 2))
    first = take(consumer, 10)
    consumer.pause(*parts(topic, 2))
    assert consumer.paused() == frozenset(parts(topic, 2))
    held = consumer._core.positions.buffered_bytes
    assert held > 0
    assert consumer.poll(0.05) == []
    consumer.resume((topic, 1))
    assert all(int(value) % 2 == 1 for value in take(consumer, 100))
    consumer.resume((topic, 0))
    seen = [*first, *until(lambda: consumer.position((topic, 0)) == 1_000, consumer)]
    evens = [int(value) for value in seen if int(value) % 2 == 0]
    assert evens == sorted(evens)
    assert evens[-1] == 1_998
    assert len(evens) == 1_000


def test_limit_bounds_what_is_read(world: World) -> None:
    """Only offsets below the bound are fetched and handed out (retry topics)."""
    topic = world.topic(1, records=50)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    consumer.limit((topic, 0), 7)
    assert take(consumer, 7) == values(range(7))
    assert consumer.poll(0.05) == []
    assert consumer.position((topic, 0)) == 7
    consumer.limit((topic, 0), 9)
    assert take(consumer, 2) == values([7, 8])
    assert consumer.poll(0.05) == []
    consumer.limit((topic, 0), None)
    assert take(consumer, 41) == values(range(9, 50))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("arrow", [False, True])
def test_a_poll_does_not_wait_behind_the_markers_before_a_bound(world: World, arrow: bool) -> None:
    """A range of markers alone is read at once: no record can come any more."""
    topic = world.topic(2)
    with Producer(
        bootstrap_servers=world.cluster.bootstrap, transactional_id=world.group()
    ) as producer:
        producer.init_transactions()
        for partitions in ([0], [0, 1]):
            producer.begin_transaction()
            for partition in partitions:
                producer.send(topic, b"v", partition=partition)
            producer.commit_transaction()
    consumer = world.consumer()
    consumer.assign(parts(topic, 2))
    consumer.seek((topic, 0), 1)
    consumer.limit((topic, 0), 2)
    consumer.seek((topic, 1), 1)
    consumer.limit((topic, 1), 2)
    while any(consumer.position((topic, p)) < 2 for p in (0, 1)):
        assert not len(consumer.poll_arrow(1_000.0) if arrow else consumer.poll(1_000.0))
    consumer.limit((topic, 0), None)
    assert take(consumer, 1) == [b"v"]


@pytest.mark.parametrize(("policy", "first"), [("earliest", 0), ("latest", 10)])
def test_reset_when_out_of_range_is_visible(world: World, policy: str, first: int, caplog) -> None:
    """Spec 4.7: on the broker's word only, and as an event with its cause."""
    topic = world.topic(1, records=10)
    consumer = world.consumer(auto_offset_reset=policy)
    consumer.assign(parts(topic, 1))
    consumer.seek((topic, 0), 1_000)

    def out_of_range() -> list[OffsetReset]:
        # Between assign and seek the start may have been looked up: a reset with another cause.
        return [event for event in consumer.resets() if event.from_offset == 1_000]

    until(lambda: bool(out_of_range()), consumer)
    (event,) = out_of_range()
    assert (event.to_offset, event.policy) == (first, policy)
    assert "offset 1000 is out of range" in event.cause
    until(lambda: "out of range" in caplog.text, consumer)  # the line follows the event
    assert consumer.position((topic, 0)) in (first, 10)


def test_reset_policy_none(world: World) -> None:
    """Spec 4.7: an error that says what to do, from every poll, until a seek."""
    topic = world.topic(1, records=3)
    consumer = world.consumer(group_id=world.group(), auto_offset_reset="none")
    consumer.assign(parts(topic, 1))
    for _ in range(2):
        with pytest.raises(NoOffsetForPartitionError, match=r"seek\(\)"):
            until(lambda: False, consumer)
    consumer.seek((topic, 0), 1)
    assert take(consumer, 2) == values([1, 2])


def test_reset_by_duration(world: World) -> None:
    """KIP-1106: nothing is that young, so the end it is; else the first record that is."""
    topic = world.topic(1, records=5)
    young = world.topic(1)
    now = int(time.time() * 1000)
    with_now = [now - 7_200_000, now - 60_000, now]
    world.produce(young, 1, with_now)
    for name, first in ((topic, 5), (young, 1)):
        consumer = world.consumer(auto_offset_reset="by_duration:PT1H")
        consumer.assign(parts(name, 1))
        assert consumer.position((name, 0)) == first


# -- commits -------------------------------------------------------------------------------------


def test_commit_and_resume_elsewhere(world: World) -> None:
    """Spec 4.5: sync, with metadata, by offset; another consumer goes on where this one stood."""
    topic, group = world.topic(1, records=10), world.group()
    consumer = world.consumer(group_id=group, enable_auto_commit=False)
    consumer.assign(parts(topic, 1))
    take(consumer, 4)
    consumer.commit()
    tp = TopicPartition(topic, 0)
    assert known(consumer.committed([tp])[tp]).offset == 4
    consumer.commit({tp: OffsetAndMetadata(6, "note")})
    assert known(consumer.committed([tp])[tp])[:2] == (6, "note")
    consumer.commit({tp: 5})
    consumer.close()
    other = world.consumer(group_id=group)
    other.assign([tp])
    assert take(other, 5) == values(range(5, 10))
    assert world.consumer(group_id=world.group()).committed([tp]) == {tp: None}
    with pytest.raises(ConfigError, match="group_id"):
        world.consumer().commit()
    with pytest.raises(UsageError, match=">= 0"):
        other.commit({tp: -2})


def test_async_commits_keep_their_order(world: World) -> None:
    """Spec 4.5, C5: callbacks run inside a later call, in the order of the commits."""
    topic = world.topic(1, records=100)
    consumer = world.consumer(group_id=world.group(), enable_auto_commit=False)
    consumer.assign(parts(topic, 1))
    tp, committed = TopicPartition(topic, 0), []
    threads = set()

    def callback(offsets, error) -> None:
        assert error is None
        threads.add(threading.get_ident())
        committed.append(offsets[tp].offset)

    for n in range(1, 51):
        consumer.commit_async({tp: n}, callback)
    until(lambda: len(committed) == 50, consumer)
    assert committed == list(range(1, 51))
    assert threads == {threading.get_ident()}
    assert known(consumer.committed([tp])[tp]).offset == 50


def test_auto_commit_covers_what_the_previous_poll_returned(world: World) -> None:
    """C4, B48: what has not been come back from is never committed, prefetched or not."""
    topic, group = world.topic(1, records=100), world.group()
    consumer = world.consumer(group_id=group, auto_commit_interval_ms=1)
    consumer.assign(parts(topic, 1))
    tp = TopicPartition(topic, 0)
    take(consumer, 10)
    watcher = world.consumer(group_id=group)
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        committed = watcher.committed([tp])[tp]
        assert committed is None or committed.offset < 10
    consumer.pause(tp)
    until(lambda: (watcher.committed([tp])[tp] or OffsetAndMetadata(0)).offset == 10, consumer)


def test_close_commits_and_an_exception_does_not(world: World) -> None:
    """Spec 4.5, 1.10: closing counts as coming back; leaving by an exception does not."""
    topic, group = world.topic(1, records=30), world.group()
    with world.consumer(group_id=group) as consumer:
        consumer.subscribe([topic])
        assert take(consumer, 10) == values(range(10))

    def fail() -> None:
        with world.consumer(group_id=group) as consumer:
            consumer.subscribe([topic])
            assert consumer.poll(PATIENCE_S, max_records=5)[0].value == b"10"
            assert consumer.poll(PATIENCE_S, max_records=5)[0].value == b"15"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with world.consumer(group_id=group) as consumer:
        consumer.subscribe([topic])
        assert take(consumer, 1) == values([15])


def test_committing_too_much_metadata_is_refused(world: World) -> None:
    topic = world.topic(1, records=1)
    consumer = world.consumer(group_id=world.group(), enable_auto_commit=False)
    tp = TopicPartition(topic, 0)
    with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
        consumer.commit({tp: OffsetAndMetadata(1, "x" * 10_000)})


# -- one thread, wakeup, fork, the end -----------------------------------------------------------


def test_wakeup_from_another_thread(world: World) -> None:
    """Spec 4.9, C9: ends a waiting call, or the next one; nothing is lost."""
    topic = world.topic(1)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    consumer.poll(0)
    threading.Timer(0.05, consumer.wakeup).start()
    with pytest.raises(WakeupError):
        consumer.poll(PATIENCE_S)
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.poll(0)
    world.produce(topic, 1, range(5))
    assert take(consumer, 5) == values(range(5))


def test_wakeup_from_a_signal_handler(world: World) -> None:
    """Spec 4.9."""
    topic = world.topic(1)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    before = signal.signal(signal.SIGALRM, lambda *_: consumer.wakeup())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(WakeupError):
            consumer.poll(PATIENCE_S)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_second_thread_is_refused_at_once(world: World) -> None:
    """Spec 4.9: and the first one is not disturbed."""
    topic = world.topic(1)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    inside, result = threading.Event(), []
    notify = consumer._bell.wait

    def wait(timeout_s: float) -> bool:
        inside.set()
        return notify(timeout_s)

    consumer._bell = fake(SimpleNamespace(wait=wait, ring=consumer._bell.ring))
    thread = threading.Thread(target=lambda: result.append(consumer.poll(PATIENCE_S)))
    thread.start()
    assert inside.wait(PATIENCE_S)
    for call in (consumer.poll, consumer.close, lambda: consumer.seek((topic, 0), 1)):
        with pytest.raises(ConcurrentUseError, match="one at a time"):
            call()
    world.produce(topic, 1, range(1))
    thread.join(PATIENCE_S)
    assert [record.value for record in result[0]] == values(range(1))


def test_closed_for_good(world: World) -> None:
    consumer = world.consumer(group_id=world.group())
    assert consumer.close().left_group
    assert consumer.close().committed
    for call in (consumer.poll, consumer.commit, lambda: consumer.subscribe(["t"])):
        with pytest.raises(ClosedError):
            call()
    assert list(consumer) == []


@pytest.mark.skipif(APACHE, reason="on a virtual clock")
def test_close_is_bounded_without_a_broker() -> None:
    """C11: the report says what was not done."""
    with VirtualClock() as clock:
        with Cluster(clock=clock, group_initial_rebalance_delay_ms=0) as cluster:
            alone = World(cluster)
            topic = alone.topic(1, records=5)
            consumer = alone.consumer(group_id="g")
            consumer.subscribe([topic])
            take(consumer, 5)
        started = clock.elapsed_s
        report = consumer.close(0.3)
        assert clock.elapsed_s - started == pytest.approx(0.3, abs=0.01)
    assert not report.committed
    assert report.problems


def test_fork_is_noticed(world: World) -> None:
    """C14: sockets do not survive a fork; the child is told, the parent goes on."""
    topic = world.topic(1, records=3)
    consumer = world.consumer()
    consumer.assign(parts(topic, 1))
    assert take(consumer, 1) == values([0])
    child = os.fork()
    if child == 0:
        try:
            consumer.poll(0)
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert take(consumer, 2) == values([1, 2])


def test_a_topic_recreated_is_read_on(world: World, caplog) -> None:
    """Another id is another topic: its epochs begin anew, and its offsets may be out of range."""
    topic = world.topic(1, records=10)
    consumer = world.consumer(retry_backoff_max_ms=50, allow_auto_create_topics=False)
    consumer.assign(parts(topic, 1))
    take(consumer, 10)
    with Admin(bootstrap_servers=world.cluster.bootstrap) as admin:
        admin.delete_topics([topic])
        until(lambda: consumer._cluster.metadata.topics.get(topic) is None, consumer)
        world.cluster.create_topic(topic)
    world.produce(topic, 1, range(100, 105))
    assert take(consumer, 5) == values(range(100, 105))
    assert "created again" in caplog.text
    assert "out of range" in consumer.resets()[-1].cause


def test_bad_numbers_are_refused(world: World) -> None:
    consumer = world.consumer()
    with pytest.raises(UsageError, match="1 or more"):
        consumer.poll(max_records=0)
    with pytest.raises(UsageError, match="1 or more"):
        consumer.poll_arrow(max_rows=-1)


def test_unreachable_brokers_are_named(world: World, caplog) -> None:
    """No broker has ever answered: polls and questions end, naming what was tried and why."""
    with socket.socket() as unused:  # nobody listens, and nobody else gets the port
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        consumer = Consumer(bootstrap_servers=address, default_api_timeout_ms=300)
        consumer.assign(parts("t", 1))
        with pytest.raises(ConnectionFailedError, match=address):
            until(lambda: False, consumer)
        with pytest.raises(KafkaTimeoutError):
            consumer.position(("t", 0))
        consumer.close(1)


def test_an_outage_is_said_once_and_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for records learns that nobody answers, and when somebody does again."""
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        own = World(cluster)
        topic = own.topic(1, records=1)
        consumer = own.consumer(group_id="g")
        consumer.subscribe([topic])
        take(consumer, 1)
        # Not before: until it is connected first, a slow machine is an outage, too.
        monkeypatch.setattr("kohort.client.consumer.calls.UNREACHABLE_WARNING_MS", 50)

        def logged(text: str) -> bool:
            consumer.poll(0.05)
            return text in caplog.text

        address = cluster.bootstrap
        cluster.kill()
        until(lambda: logged(f"no broker could be reached: {address}"), consumer)
        for _ in range(5):
            consumer.poll(0.05)
        assert caplog.text.count("retrying") == 1
        cluster.start()
        until(lambda: logged("the cluster can be reached again"), consumer)
        own.close()


def test_a_restarted_broker_is_read_on(world: World) -> None:
    """C8, CL2: a lost connection resets nothing and loses nothing; commits go through again."""
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        own = World(cluster)
        topic = own.topic(2, records=100)
        consumer = own.consumer(group_id="g", enable_auto_commit=False)
        consumer.subscribe([topic])
        first = take(consumer, 60)
        cluster.restart()
        own.produce(topic, 2, range(100, 120))
        rest = take(consumer, 60)
        consumer.commit()
        assert sorted([*first, *rest], key=int) == values(range(120))
        causes = {event.cause for event in consumer.resets()}
        assert causes == {"the group has no committed offset"}
        own.close()


def test_default_listener_does_nothing(world: World) -> None:
    listener = RebalanceListener()
    assert listener.on_partitions_assigned([]) is None
    assert listener.on_partitions_lost([]) is None


@pytest.mark.skipif(APACHE, reason="counts the sessions inside the embedded broker")
def test_a_closed_consumer_leaves_no_fetch_session_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-227: a broker keeps a thousand; one of them is not to wait for its eviction. At the time
    of the close one connection waits in a long poll, and does not hold the word back.
    """
    for module in (consumer_exchange, consumer_calls):  # far less than the long poll
        monkeypatch.setattr(module, "SESSIONS_END_MS", 60_000)
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        broker, own = cluster.broker, World(cluster)

        def sessions() -> int:
            nodes = broker.nodes
            return broker.call(lambda: sum(len(n.fetch_sessions) for n in nodes))

        topic = own.topic(2, records=10)
        consumer = own.consumer(fetch_max_wait_ms=200_000, request_timeout_ms=300_000)
        consumer.assign(parts(topic, 2))
        consumer.seek_to_beginning()
        assert len(take(consumer, 10)) == 10
        assert sessions() > 0
        consumer.close(PATIENCE_S)
        assert sessions() == 0


def test_a_pause_within_an_iteration_holds_from_the_next_record_on(world: World) -> None:
    """Spec 4.4: what lies ready of the paused partition is kept, and comes after `resume`."""
    topic = world.topic(1, records=30)
    consumer = world.consumer()
    consumer.assign([(topic, 0)])
    records = iter(consumer)
    seen = [next(records).value for _ in range(10)]
    consumer.pause((topic, 0))
    waker = threading.Timer(0.1, consumer.wakeup)
    waker.start()
    with pytest.raises(WakeupError):
        next(records)
    waker.join()
    assert consumer.position((topic, 0)) == 10
    consumer.resume((topic, 0))
    assert seen + take(consumer, 20) == values(range(30))


def test_a_wakeup_comes_before_records_that_lie_ready(world: World) -> None:
    """Spec 4.9: as in Java; what lies ready is handed out by the next call, and nothing twice."""
    topic = world.topic(1, records=30)
    consumer = world.consumer()
    consumer.assign([(topic, 0)])
    seen = take(consumer, 5)
    consumer.wakeup()
    with pytest.raises(WakeupError):
        consumer.poll(5)
    records = iter(consumer)
    seen += [next(records).value for _ in range(5)]
    consumer.wakeup()
    with pytest.raises(WakeupError):
        next(records)
    assert seen + take(consumer, 20) == values(range(30))


def test_a_wakeup_rings_at_once(world: World) -> None:
    """Spec 4.9: whoever waits is not left to sleep until its next look, a second later."""
    consumer = world.consumer()
    while consumer._bell.wait(0):
        pass
    consumer.wakeup()
    assert consumer._bell.wait(0)
