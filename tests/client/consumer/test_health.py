"""`health()`: a reason in words for every way of standing still, and a watchdog (issue C)."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

import kohort.client.cluster.client as cluster_module
import kohort.client.cluster.refusal_log as refusals_module
import kohort.client.consumer.health as health_module
from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.cluster.refusal_log import Refusals
from kohort.client.consumer.health import Surroundings, examine, raise_stalled
from kohort.client.consumer.plan.missing_topics import missing_topic
from kohort.client.consumer.plan.positions import Phase, Position, Stamp
from kohort.errors import ConsumerStalledError, ErrorCode, KohortError
from kohort.metrics import RefusalEnded, Refused
from kohort.testing import VirtualClock
from kohort.testing.faults import SetFault
from tests.client.consumer_world import World, until
from tests.clusters import APACHE, Cluster, Embedded
from tests.patience import PATIENCE_S

TP = TopicPartition("orders", 3)
HELD = {"last_stable": 40, "held_ms": 1_000}
"""Read up to where a transaction has been open for a minute."""


def position(**fields) -> Position:
    at = Position(TP, Stamp(1, 1), Phase.FETCHING, 1_000, offset=40, high_watermark=50)
    for name, value in fields.items():
        setattr(at, name, value)
    return at


def around(**fields) -> Surroundings:
    usual = {
        "now_ms": 61_000,
        "wall_ms": 1_000_000,
        "polled_ms": 0,
        "committed_only": False,
        "budget_bytes": 100,
        "buffered_bytes": 0,
        "coordinator": 1,
        "has_group": True,
        "leader_of": lambda tp: 2,
        "reachable": lambda node: True,
        "refusals": Refusals(),
    }
    return Surroundings(**{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "surroundings", "why"),
    [
        ({}, {}, ""),
        ({"offset": 50}, {}, ""),
        ({"paused": True}, {}, "paused; resume"),
        ({"phase": Phase.FAILED, "error": KohortError("gone")}, {}, "stopped: gone"),
        ({"error": KohortError("denied")}, {}, "refused, retrying: denied"),
        ({"end": 40}, {}, "read up to its bound 40"),
        ({"buffer": object(), "buffered_bytes": 9}, {"polled_ms": 5_000}, "poll.. was called last"),
        ({"buffer": object()}, {}, ""),
        ({"phase": Phase.AWAITING_OFFSET}, {"coordinator": None}, "coordinator is not known"),
        ({"phase": Phase.AWAITING_OFFSET}, {}, "looking up the committed offset"),
        ({}, {"leader_of": lambda tp: None}, "no leader"),
        ({}, {"reachable": lambda node: False}, "node 2, cannot be reached"),
        ({"retry_at_ms": 61_500}, {}, "made again in 500ms"),
        ({}, {"buffered_bytes": 100}, "byte budget is full"),
        ({"in_flight": 1}, {}, "node 2 has not answered a fetch of it for up to 1m"),
        ({"in_flight": 1, "moved_ms": 60_500}, {}, ""),
        ({"in_flight": 1, "offset": 50}, {}, ""),
        ({**HELD}, {"committed_only": True}, "open transaction has held back 10 offsets from 40"),
        ({**HELD, "offset": 39}, {"committed_only": True}, ""),
        ({**HELD, "held_ms": 60_500}, {"committed_only": True}, ""),
        ({**HELD}, {}, ""),
    ],
)
def test_every_reason(fields, surroundings, why: str) -> None:
    health = examine(position(**fields), around(**surroundings))
    assert health.moving == (not why)
    assert re.search(why or "^$", health.why), health.why


def test_lag_in_records_and_in_time() -> None:
    behind = examine(position(timestamp_ms=940_000), around())
    assert (behind.lag, behind.lag_ms, behind.still_ms) == (10, 60_000, 60_000)
    assert examine(position(offset=50), around()).lag_ms == 0
    assert examine(position(moved_ms=60_000), around()).still_ms == 1_000


def test_the_watchdog_names_partition_time_and_reason() -> None:
    silent = around(leader_of=lambda tp: None)
    with pytest.raises(ConsumerStalledError, match="orders-3 has not moved from offset 40 for 1m"):
        raise_stalled([position()], silent, 60_000)
    with pytest.raises(ConsumerStalledError, match="lag unknown"):
        raise_stalled([position(high_watermark=-1)], silent, 60_000)
    for quiet in (
        position(moved_ms=30_000),
        position(offset=50),
        position(paused=True),
        position(end=40),
        position(buffer=object()),
    ):
        raise_stalled([quiet], silent, 60_000)


def test_the_watchdog_sees_an_open_transaction() -> None:
    """To who reads what is committed the lag is 0 there, and would be for ever."""
    committed = around(committed_only=True)
    with pytest.raises(ConsumerStalledError, match=r"orders-3 .* lag 0: an open transaction"):
        raise_stalled([position(**HELD)], committed, 60_000)
    raise_stalled([position(**HELD)], committed, 61_000)
    raise_stalled([position(**{**HELD, "held_ms": 30_000})], committed, 60_000)


def test_an_open_transaction_is_named() -> None:
    """`health()` and the watchdog of a read_committed consumer; both are over with it."""
    with VirtualClock() as clock, Embedded(clock=clock) as cluster:
        world = World(cluster)
        topic = world.topic(1, records=4)
        producer = Producer(bootstrap_servers=cluster.bootstrap, transactional_id="billing")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0)
        producer.flush()
        config = {"isolation_level": "read_committed", "watchdog_ms": 30_000}
        consumer = world.consumer(**config)
        consumer.assign([(topic, 0)])
        until(lambda: consumer.position((topic, 0)) == 4, consumer)
        consumer.poll(5)
        (held,) = consumer.health().stuck
        assert "an open transaction has held back 1 offsets from 4 on for 5s" in held.why
        assert f"`kohort transaction open {topic}`" in held.why
        with pytest.raises(ConsumerStalledError, match="lag 0: an open transaction"):
            consumer.poll(40)
        producer.commit_transaction()
        until(lambda: consumer.position((topic, 0)) > 4, consumer)
        assert not consumer.health().stuck
        producer.close()
        world.close()


def test_a_consumer_shows_itself() -> None:
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        world = World(cluster)
        topic = world.topic(2, records=10)
        consumer = world.consumer(group_id=world.group())
        consumer.subscribe([topic])
        until(lambda: [p.lag for p in consumer.health().partitions] == [0, 0], consumer)
        health = consumer.health()
        assert not health.stuck
        assert health.budget_bytes == consumer.config.fetch_buffer_bytes
        consumer.pause((topic, 1))
        assert [each.partition.partition for each in consumer.health().stuck] == [1]
        assert f"{topic}-1 at 5, lag 0: paused" in str(consumer.health())
        world.close()


def test_the_watchdog_ends_a_silent_poll() -> None:
    with VirtualClock() as clock, Embedded(clock=clock) as cluster:
        world = World(cluster)
        topic = world.topic(1, records=10)
        consumer = world.consumer(watchdog_ms=30_000)
        consumer.assign([(topic, 0)])
        until(lambda: consumer.position((topic, 0)) == 10, consumer)
        consumer.poll(0.1)
        cluster.kill()
        consumer.seek((topic, 0), 2)
        sought_s = clock.elapsed_s

        def go_on() -> None:
            while clock.elapsed_s < sought_s + 60:
                consumer.poll(1)

        with pytest.raises(ConsumerStalledError, match="has not moved from offset 2"):
            go_on()
        assert 30 <= clock.elapsed_s - sought_s < 32
        world.close()


@pytest.mark.skipif(APACHE, reason="tells the broker to be silent")
def test_a_broker_that_hangs_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections stand, so that nothing fails before the request's time is over."""
    monkeypatch.setattr(health_module, "UNANSWERED_MS", 50)
    with Cluster() as cluster:
        world = World(cluster)
        topic = world.topic(1, records=10)
        consumer = world.consumer()
        consumer.assign([(topic, 0)])
        until(lambda: consumer.position((topic, 0)) == 10, consumer)
        with cluster.faults.silence("Fetch", times=1_000):  # of which one may be a long poll
            consumer.seek((topic, 0), 2)
            until(lambda: "has not answered a fetch" in str(consumer.health()), consumer)
        world.close()


def test_a_broker_that_is_down_is_a_concern() -> None:
    """Also before any has ever answered, and after all have gone; named with its cause."""
    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as nowhere:
        nowhere.subscribe(["t"])
        until(lambda: "127.0.0.1:1" in str(nowhere.health()), nowhere)
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        world = World(cluster)
        topic = world.topic(1, records=10)
        consumer = world.consumer(group_id=world.group())
        consumer.subscribe([topic])
        until(lambda: [p.lag for p in consumer.health().partitions] == [0], consumer)
        until(lambda: consumer.health().concerns == (), consumer)
        # Apache Kafka may still be making the group's topic when it is joined first
        assert re.match("joined, generation 1|coordinator lost", consumer.health().last_rebalance)
        cluster.kill()
        until(lambda: "no broker could be reached" in "".join(consumer.health().concerns), consumer)
        world.close()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"unknown": True, "exists": False, "creates": True}, "asked to create it"),
        ({"unknown": True, "exists": False, "creates": False}, "read as soon as it does"),
        ({"unknown": False, "exists": True, "creates": True, "before": "x"}, "did not exist when"),
        ({"unknown": False, "exists": False, "creates": True, "before": "x"}, "x"),
        ({"unknown": False, "exists": True, "creates": True}, None),
    ],
)
def test_what_is_said_of_a_missing_topic(state, message) -> None:
    found = missing_topic("ordrs", **{"before": None, **state})
    assert found is None if message is None else message in str(found)


@pytest.mark.parametrize("creates", [True, False])
def test_a_mistyped_topic_is_not_silent(creates: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka creates it (allow.auto.create.topics); that is logged, and stays a concern."""
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        world = World(cluster)
        consumer = world.consumer(group_id=world.group(), allow_auto_create_topics=creates)
        consumer.subscribe(["ordrs"])
        until(lambda: bool(consumer.health().concerns), consumer)
        until(lambda: "topic 'ordrs' does not exist" in caplog.text, consumer)
        if creates:
            until(lambda: bool(consumer.assignment()), consumer)
            assert "did not exist when it was subscribed to" in str(consumer.health())
        else:
            consumer.poll(0.2)
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                assert "ordrs" not in {t.name for t in admin.list_topics()}
        consumer.subscribe([world.topic()])
        until(lambda: not consumer.health().concerns, consumer)
        world.close()


@pytest.mark.parametrize("face", [Admin, Producer])
def test_a_call_that_waits_for_a_cluster_that_is_down_says_so(
    face: type[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it gives up: a newcomer who has started no broker reads why nothing happens."""
    monkeypatch.setattr(cluster_module, "UNREACHABLE_WARNING_MS", 50)
    patience: dict[str, Any] = (
        {"max_block_ms": 700} if face is Producer else {"default_api_timeout_ms": 700}
    )
    client: Any = face(bootstrap_servers="127.0.0.1:1", request_timeout_ms=700, **patience)
    while "no broker could be reached: 127.0.0.1:1" not in caplog.text:
        with pytest.raises(KohortError):  # on a slow machine it may give up before its second try
            client.send("t", b"v") if face is Producer else client.list_topics()
    client.close()


@pytest.mark.parametrize("phase", [Phase.FETCHING, Phase.AWAITING_RESET, Phase.AWAITING_VALIDATION])
def test_what_is_refused_says_so(phase: Phase) -> None:
    """Also between two tries, when one is under way."""
    refusals = Refusals()
    refusals.note(TP, ErrorCode.KAFKA_STORAGE_ERROR, 49_000)
    for fields in ({"retry_at_ms": 61_500}, {"in_flight": 1}, {}):
        why = examine(position(phase=phase, **fields), around(refusals=refusals)).why
        assert re.search("refused with KAFKA_STORAGE_ERROR for 12s .its broker cannot use its", why)
    assert examine(position(phase=phase, paused=True), around(refusals=refusals)).paused


def test_a_refusal_is_told_once_and_its_end_too() -> None:
    refusals, storage = Refusals(), int(ErrorCode.KAFKA_STORAGE_ERROR)
    for number in range(7):
        refusals.note(("t", number), ErrorCode.NOT_LEADER_OR_FOLLOWER, 1_000)
        refusals.note(("t", number), storage, 1_500)
    refusals.note("group 'g'", ErrorCode.NOT_COORDINATOR, 2_000)
    assert refusals.look(3_999) is None
    report = refusals.look(4_000)
    assert report is not None
    (text,) = report.warnings
    assert text.startswith("t-0, t-1, t-2, t-3, t-4 and 2 more: refused with KAFKA_STORAGE_ERROR")
    assert report.events == [Refused(("t", number), storage, 3_000) for number in range(7)]
    assert refusals.look(4_999) is None
    report = refusals.look(5_000)
    assert report is not None
    assert report.warnings == [
        "group 'g': refused with NOT_COORDINATOR for 3s (its coordinator moves, or cannot write to "
        "its disk; see the broker's log); retrying"
    ]
    refusals.note(("t", 0), storage, 9_000)
    assert refusals.look(9_000) is None
    refusals.served(("t", 0))
    refusals.forget(("t", 1))
    report = refusals.look(9_100)
    assert report is not None
    assert report.warnings == ["t-0: not refused any more"]
    assert report.events == [RefusalEnded(("t", 0), storage, 8_100)]
    refusals.note(("t", 8), storage, 9_200)
    refusals.served(("t", 8))
    assert refusals.look(20_000) is None  # what passed by itself was no trouble


def storage_error(cluster: Cluster, api: str, **where) -> SetFault:
    return cluster.faults.fail(api, "KAFKA_STORAGE_ERROR", times=100_000, **where)


@pytest.mark.skipif(APACHE, reason="tells the broker to fail")
@pytest.mark.parametrize("api", ["Fetch", "ListOffsets", "OffsetFetch", "JoinGroup"])
def test_a_broker_that_refuses_for_ever_is_no_secret(
    api: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """KAFKA_STORAGE_ERROR is retriable: it was tried on in silence for as long as it took."""
    monkeypatch.setattr(refusals_module, "WARNED_MS", 50)
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        world = World(cluster)
        topic, group = world.topic(2, records=10), world.group()
        seen: list[Refused | RefusalEnded] = []
        consumer = world.consumer(group_id=group)
        consumer.events.subscribe(Refused, seen.append)
        consumer.events.subscribe(RefusalEnded, seen.append)
        coordinator = api in ("OffsetFetch", "JoinGroup")
        name = f"group '{group}'" if api == "JoinGroup" else f"{topic}-1"
        with storage_error(cluster, api, **{"group": group} if coordinator else {"topic": topic}):
            consumer.subscribe([topic])
            until(lambda: "refused with KAFKA_STORAGE_ERROR" in str(consumer.health()), consumer)
            until(lambda: "refused with KAFKA_STORAGE_ERROR" in caplog.text, consumer)
            until(lambda: name in caplog.text, consumer)
            assert 56 in {int(e.code) for e in seen}
        until(lambda: [p.lag for p in consumer.health().partitions] == [0, 0], consumer)
        until(lambda: "not refused any more" in caplog.text, consumer)
        until(lambda: not consumer.health().stuck and not consumer.health().concerns, consumer)
        until(lambda: isinstance(seen[-1], RefusalEnded), consumer)
        world.close()


@pytest.mark.skipif(APACHE, reason="tells the broker to fail")
@pytest.mark.parametrize("api", ["Produce", "InitProducerId"])
def test_a_producer_that_is_refused_for_ever_says_so(
    api: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refusals_module, "WARNED_MS", 50)
    begun, over = threading.Event(), threading.Event()
    what = "t-0" if api == "Produce" else "the producer id"
    with Cluster() as cluster:
        cluster.create_topic("t", partitions=1)
        with Producer(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=20) as producer:
            for kind, flag in ((Refused, begun), (RefusalEnded, over)):
                producer.events.subscribe(kind, lambda e, flag=flag: e.code == 56 and flag.set())
            with storage_error(cluster, api):
                future = producer.send("t", b"v")
                assert begun.wait(PATIENCE_S)
            assert future.result(PATIENCE_S).offset == 0
            assert over.wait(PATIENCE_S)
    assert f"{what}: refused with KAFKA_STORAGE_ERROR" in caplog.text
    assert f"{what}: not refused any more" in caplog.text
