"""Consumers of the consumer protocol (KIP-848) on the embedded broker, over real sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, AsyncConsumer, SubscriptionPattern, TopicPartition
from kohort.errors import GroupError
from tests.client.consumer_world import Listener, World, shared, take, until, values
from tests.clusters import APACHE, Cluster
from tests.known import known
from tests.patience import PATIENCE_S

CONSUMER = {"group_protocol": "consumer"}
SETTINGS = {
    "group_consumer_heartbeat_interval_ms": 50,
    "group_consumer_min_heartbeat_interval_ms": 50,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 100,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(**SETTINGS) as cluster:
        yield cluster


def test_a_second_member_takes_half_and_gives_it_back(world: World) -> None:
    """C1, C6: exact differences, no overlap, and everything is read once."""
    topic, group = world.topic(4, records=400), world.group()
    first, second = (world.consumer(group_id=group, **CONSUMER) for _ in range(2))
    one, two = Listener(), Listener()
    first.subscribe([topic], one)
    seen = take(first, 400)
    every = frozenset(TopicPartition(topic, n) for n in range(4))
    assert one.calls == [("assigned", every)]
    second.subscribe([topic], two)
    seen += until(lambda: shared(first, second), first, second)
    kept = first.assignment()
    assert [call for call in one.calls[1:] if call[1]] == [("revoked", every - kept)]
    assert [call for call in two.calls if call[1]] == [("assigned", every - kept)]
    world.produce(topic, 4, range(400, 480))
    seen += until(
        lambda: all(c.position(tp) == 120 for c in (first, second) for tp in c.assignment()),
        first,
        second,
    )
    second.close()
    assert two.calls[-1] == ("revoked", every - kept)
    seen += until(lambda: first.assignment() == every, first)
    world.produce(topic, 4, range(480, 500))
    seen += take(first, 20)
    assert sorted(seen, key=int) == values(range(500))


def test_commit_inside_revoked(world: World) -> None:
    """Spec 4.8: positions are still there; what is committed there counts, whatever the epoch."""
    topic, group = world.topic(4, records=40), world.group()
    config = {"group_id": group, "enable_auto_commit": False, **CONSUMER}
    first, second = world.consumer(**config), world.consumer(**config)
    where, threads = [], set()

    def revoked(tps: list[TopicPartition]) -> None:
        threads.add(threading.get_ident())
        where.extend(first.position(tp) for tp in tps)
        first.commit()

    first.subscribe([topic], Listener(revoked))
    assert len(take(first, 40)) == 40
    second.subscribe([topic])
    again = until(lambda: shared(first, second), first, second)
    assert set(where) == {10}
    assert threads == {threading.get_ident()}
    assert again == []


def test_automatic_commit_before_giving_up(world: World) -> None:
    """Spec 4.5: nothing is read twice when members come and go between two automatic commits."""
    topic, group = world.topic(4, records=100), world.group()
    config = {"group_id": group, **CONSUMER}
    first, second = world.consumer(**config), world.consumer(**config)
    first.subscribe([topic])
    seen = take(first, 100)
    second.subscribe([topic])
    seen += until(lambda: shared(first, second), first, second)
    second.close()
    seen += until(lambda: len(first.assignment()) == 4, first)
    world.produce(topic, 4, range(100, 140))
    seen += take(first, 40)
    assert sorted(seen, key=int) == values(range(140))


def test_an_overdue_member_is_told_lost_and_comes_back(world: World) -> None:
    """Spec 1.3, B10: others get its partitions; with the next poll it is in again."""
    topic, group = world.topic(4), world.group()
    slow = world.consumer(group_id=group, max_poll_interval_ms=400, **CONSUMER)
    other = world.consumer(group_id=group, **CONSUMER)
    listener = Listener()
    slow.subscribe([topic], listener)
    until(lambda: len(slow.assignment()) == 4, slow)
    other.subscribe([topic])
    until(lambda: len(other.assignment()) == 4, other)
    until(lambda: shared(slow, other), slow, other)
    assert "lost" in [what for what, _ in listener.calls]


def test_static_members_keep_their_place(world: World) -> None:
    """KIP-848: closed and back within its session, the others notice nothing."""
    topic, group = world.topic(4), world.group()
    config = {"group_id": group, **CONSUMER}
    a = world.consumer(group_instance_id="a", **config)
    b = world.consumer(group_instance_id="b", **config)
    listener = Listener()
    a.subscribe([topic])
    b.subscribe([topic], listener)
    until(lambda: shared(a, b), a, b)
    had, call_count = a.assignment(), len(listener.calls)
    a.close()
    again = world.consumer(group_instance_id="a", **config)
    again.subscribe([topic])
    until(lambda: again.assignment() == had, again, b)
    assert listener.calls[call_count:] == []
    assert shared(again, b)


def test_an_instance_that_is_held_is_refused(world: World) -> None:
    """KIP-848: UNRELEASED_INSTANCE_ID, raised from poll: alive and silent it would be worse."""
    topic, group = world.topic(4), world.group()
    config = {"group_id": group, "group_instance_id": "one", **CONSUMER}
    holder, twin = world.consumer(**config), world.consumer(**config)
    holder.subscribe([topic])
    until(lambda: len(holder.assignment()) == 4, holder)
    twin.subscribe([topic])
    with pytest.raises(GroupError, match=r"group\.instance\.id 'one' is held"):
        until(lambda: False, twin)
    assert len(holder.assignment()) == 4


def test_a_pattern_of_the_broker(world: World) -> None:
    """RE2 at the broker: topics that come later are read too, others are not."""
    stem = world.group()
    first, group = world.topic(2, records=10, stem=f"{stem}-in"), world.group()
    world.topic(1, records=5, stem=f"{stem}-out")
    consumer = world.consumer(group_id=group, metadata_max_age_ms=60_000, **CONSUMER)
    consumer.subscribe(SubscriptionPattern(f"{stem}-in.*"))
    assert sorted(take(consumer, 10), key=int) == values(range(10))
    assert consumer.subscription() == {first}
    second = world.topic(2, records=4, stem=f"{stem}-in")
    assert sorted(take(consumer, 4), key=int) == values(range(4))
    assert consumer.subscription() == {first, second}
    consumer.subscribe([first])
    until(lambda: {tp.topic for tp in consumer.assignment()} == {first}, consumer)


def test_a_bad_pattern_is_raised(world: World) -> None:
    """INVALID_REGULAR_EXPRESSION names what the broker takes."""
    consumer = world.consumer(group_id=world.group(), **CONSUMER)
    consumer.subscribe(SubscriptionPattern("(unclosed"))
    with pytest.raises(GroupError, match="RE2"):
        until(lambda: False, consumer)


def test_an_assignor_that_the_broker_has_not_is_raised(world: World) -> None:
    """UNSUPPORTED_ASSIGNOR names the setting."""
    consumer = world.consumer(group_id=world.group(), group_remote_assignor="best", **CONSUMER)
    consumer.subscribe([world.topic(1)])
    with pytest.raises(GroupError, match="group_remote_assignor"):
        until(lambda: False, consumer)


def test_the_asked_assignor_assigns(world: World) -> None:
    """KIP-848: the members' choice; range gives each topic's first half to the first member."""
    one, other = world.topic(2), world.topic(2)
    group = world.group()
    config = {"group_id": group, "group_remote_assignor": "range", **CONSUMER}
    made = [world.consumer(**config) for _ in range(2)]
    for consumer in made:
        consumer.subscribe([one, other])
    until(lambda: shared(*made), *made)
    for consumer in made:
        numbers = dict(consumer.assignment())
        assert numbers[one] == numbers[other]
    with Admin(bootstrap_servers=world.cluster.bootstrap) as admin:

        def targets_reached() -> bool:
            members = admin.describe_groups([group])[group].members
            return all(member.assignment == member.target for member in members)

        until(targets_reached, *made)  # what they have is known with their next heartbeats
        described = admin.describe_groups([group])[group]
    assert (described.group_type, described.protocol) == ("consumer", "range")


def test_partitions_that_are_added_are_read(world: World) -> None:
    """B12: a topic that grows is assigned anew, and the new partitions are known here."""
    topic = world.topic(1, records=3)
    consumer = world.consumer(group_id=world.group(), **CONSUMER)
    consumer.subscribe([topic])
    take(consumer, 3)
    with Admin(bootstrap_servers=world.cluster.bootstrap) as admin:
        admin.create_partitions({topic: 3})
    until(lambda: len(consumer.assignment()) == 3, consumer)
    world.produce(topic, 3, range(3, 9))
    assert sorted(take(consumer, 6), key=int) == values(range(3, 9))


def test_unsubscribe_and_another_subscription(world: World) -> None:
    """Spec 1.9: leave, with everything given up; join again."""
    topic, group = world.topic(4, records=8), world.group()
    consumer, listener = world.consumer(group_id=group, **CONSUMER), Listener()
    consumer.subscribe([topic], listener)
    take(consumer, 8)
    consumer.unsubscribe()
    assert consumer.assignment() == frozenset()
    assert listener.calls[-1][0] == "revoked"
    with Admin(bootstrap_servers=world.cluster.bootstrap) as admin:
        assert admin.describe_groups([group])[group].members == ()
    consumer.subscribe([topic])
    until(lambda: len(consumer.assignment()) == 4, consumer)
    assert {consumer.position(tp) for tp in consumer.assignment()} == {2}


def test_the_asynchronous_consumer(world: World) -> None:
    """The same core under the other face."""
    topic, group = world.topic(4, records=40), world.group()

    async def read() -> list[bytes]:
        seen: list[bytes] = []
        config: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest", **CONSUMER}
        async with AsyncConsumer(bootstrap_servers=world.cluster.bootstrap, **config) as consumer:
            await consumer.subscribe([topic])
            deadline = time.monotonic() + PATIENCE_S
            while len(seen) < 40:
                assert time.monotonic() < deadline
                seen += [known(record.value) for record in await consumer.poll(0.2)]
        return seen

    assert sorted(asyncio.run(read()), key=int) == values(range(40))


@pytest.mark.parametrize("kill", [False, True])
def test_the_coordinator_restarts(kill: bool) -> None:
    """Spec 2.12: the same member, the same partitions; nothing is read twice, nothing is lost."""
    with Cluster(**SETTINGS) as cluster:
        world = World(cluster)
        topic, group = world.topic(4, records=40), world.group()
        consumer, listener = world.consumer(group_id=group, **CONSUMER), Listener()
        consumer.subscribe([topic], listener)
        seen = take(consumer, 40)
        consumer.commit()
        who = consumer.group_metadata()
        if kill:
            cluster.kill()
        cluster.restart()
        world.produce(topic, 4, range(40, 80))
        seen += take(consumer, 40)
        consumer.commit()
        assert consumer.group_metadata().member_id == who.member_id
        assert sorted(seen, key=int) == values(range(80))
        if not (APACHE and kill):  # Apache Kafka takes longer to start again than a session lasts
            assert [what for what, _ in listener.calls] == ["assigned"]
        world.close()
