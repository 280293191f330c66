"""`health()`: a reason in words for every way of standing still, and a watchdog (issue C)."""

from __future__ import annotations

import re

import pytest

import kohort.client.cluster as cluster_module
import kohort.client.health as health_module
from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.client.health import Surroundings, examine, raise_stalled
from kohort.client.missing_topics import missing_topic
from kohort.client.positions import Phase, Position, Stamp
from kohort.errors import ConsumerStalledError, KohortError
from tests.clusters import APACHE, Cluster

from .consumer_world import World, until

TP = TopicPartition("orders", 3)


def position(**fields) -> Position:
    at = Position(TP, Stamp(1, 1), Phase.FETCHING, 1_000, offset=40, high_watermark=50)
    for name, value in fields.items():
        setattr(at, name, value)
    return at


def around(**fields) -> Surroundings:
    usual = {
        "now_ms": 61_000, "wall_ms": 1_000_000, "polled_ms": 0, "committed_only": False,
        "budget_bytes": 100, "buffered_bytes": 0, "coordinator": 1, "has_group": True,
        "leader_of": lambda tp: 2, "reachable": lambda node: True,
    }  # fmt: skip
    return Surroundings(**{**usual, **fields})


@pytest.mark.parametrize(
    ("fields", "surroundings", "why"),
    [
        ({}, {}, ""),
        ({"offset": 50}, {}, ""),
        ({"paused": True}, {}, "paused; resume"),
        ({"error": KohortError("gone")}, {}, "stopped: gone"),
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
        position(moved_ms=30_000), position(offset=50), position(paused=True), position(end=40),
        position(buffer=object()),
    ):  # fmt: skip
        raise_stalled([quiet], silent, 60_000)


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
    with Cluster(group_initial_rebalance_delay_ms=0) as cluster:
        world = World(cluster)
        topic = world.topic(1, records=10)
        consumer = world.consumer(watchdog_ms=1_000)  # a busy broker is silent for less
        consumer.assign([(topic, 0)])
        until(lambda: consumer.position((topic, 0)) == 10, consumer)
        consumer.poll(0.1)
        cluster.kill()
        consumer.seek((topic, 0), 2)
        with pytest.raises(ConsumerStalledError, match="has not moved from offset 2"):
            until(lambda: False, consumer)
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
        assert consumer.health().concerns == ()
        # Apache Kafka may still be making the group's topic when it is joined first
        assert re.match("joined, generation 1|coordinator lost", consumer.health().last_rebalance)
        cluster.kill()
        until(lambda: len(consumer.health().concerns) == 1, consumer)
        assert "no broker could be reached" in consumer.health().concerns[0]
        world.close()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"unknown": True, "exists": False, "creates": True}, "asked to create it"),
        ({"unknown": True, "exists": False, "creates": False}, "read as soon as it does"),
        ({"unknown": False, "exists": True, "creates": True, "before": "x"}, "did not exist when"),
        ({"unknown": False, "exists": False, "creates": True, "before": "x"}, "x"),
        ({"unknown": False, "exists": True, "creates": True}, None),
    ],
)
def test_what_is_said_of_a_missing_topic(state, said) -> None:
    found = missing_topic("ordrs", **{"before": None, **state})
    assert found is None if said is None else said in str(found)


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
    face: type, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it gives up: a newcomer who has started no broker reads why nothing happens."""
    monkeypatch.setattr(cluster_module, "UNREACHABLE_WARNING_MS", 50)
    patience = {"max_block_ms": 700} if face is Producer else {"default_api_timeout_ms": 700}
    client = face(bootstrap_servers="127.0.0.1:1", request_timeout_ms=700, **patience)
    with pytest.raises(KohortError):
        client.send("t", b"v") if face is Producer else client.list_topics()
    assert "no broker could be reached: 127.0.0.1:1" in caplog.text
    client.close()
