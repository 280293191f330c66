"""Consumers in groups on the embedded broker: rebalances, listeners, loss (spec 1, 4.8)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from kohort import Admin, OffsetAndMetadata, RebalanceListener, TopicPartition
from kohort.errors import (
    BrokerError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    FencedError,
    KohortError,
    UsageError,
)
from kohort.group.member.classic import ClassicMember
from tests.client.consumer_world import Listener, World, shared, take, until, values
from tests.clusters import APACHE, Cluster
from tests.known import known
from tests.patience import PATIENCE_S

BOTH = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100) as cluster:
        yield cluster


@BOTH
def test_a_second_member_takes_half_and_gives_it_back(world: World, strategy: str) -> None:
    """Spec 1.9, 4.8; C6: exact differences, no overlap, and everything is read once."""
    topic, group = world.topic(4, records=400), world.group()
    config = {"group_id": group, "partition_assignment_strategy": strategy}
    first, second = world.consumer(**config), world.consumer(**config)
    one, two = Listener(), Listener()
    first.subscribe([topic], one)
    seen = take(first, 400)
    every = frozenset(TopicPartition(topic, n) for n in range(4))
    assert one.calls == [("assigned", every)]
    second.subscribe([topic], two)
    seen += until(lambda: shared(first, second), first, second)
    kept = first.assignment()
    if strategy == "range":
        assert one.calls[1:] == [("revoked", every), ("assigned", kept)]
    else:
        assert ("revoked", every - kept) in one.calls
        assert not any(what == "revoked" and tps & kept for what, tps in one.calls)
    assert {tps for what, tps in two.calls if what == "assigned" and tps} == {every - kept}
    world.produce(topic, 4, range(400, 480))
    ends = dict.fromkeys(every, 120)
    seen += until(
        lambda: all(c.position(tp) == ends[tp] for c in (first, second) for tp in c.assignment()),
        first,
        second,
    )
    second.close()
    assert two.calls[-1] == ("revoked", every - kept)
    seen += until(lambda: first.assignment() == every, first)
    world.produce(topic, 4, range(480, 500))
    seen += take(first, 20)
    assert sorted(seen, key=int) == values(range(500))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_is_deleted_stops_nothing(world: World, protocol: str) -> None:
    """The commit of its partitions blocked all others, and the rebalance that revokes them, for
    `default_api_timeout_ms`.
    """
    gone, kept = world.topic(1, records=5, stem="gone"), world.topic(1, records=5, stem="kept")
    left = TopicPartition(kept, 0)
    consumer = world.consumer(
        group_id=world.group(),
        group_protocol=protocol,
        default_api_timeout_ms=600_000,
        allow_auto_create_topics=False,
    )
    consumer.subscribe([gone, kept])
    take(consumer, 10)
    with Admin(bootstrap_servers=world.cluster.bootstrap) as admin:
        admin.delete_topics([gone])
    until(lambda: gone in consumer._cluster.metadata.errors, consumer)
    consumer.commit({left: 3})
    until(lambda: consumer.assignment() == {left}, consumer)
    world.produce(kept, 1, range(5, 10))
    assert take(consumer, 5) == values(range(5, 10))
    consumer.commit()
    assert known(consumer.committed([left])[left]).offset == 10


def test_a_commit_for_a_deleted_topic_fails_and_others_do_not(world: World) -> None:
    """It was sent again for `default_api_timeout_ms`, and the others behind it waited."""
    gone, kept = world.topic(1, stem="gone"), world.topic(1, stem="kept")
    lost, left = TopicPartition(gone, 0), TopicPartition(kept, 0)
    consumer = world.consumer(
        group_id=world.group(),
        enable_auto_commit=False,
        default_api_timeout_ms=600_000,
        allow_auto_create_topics=False,
    )
    consumer.assign([lost, left])
    until(lambda: consumer.position(lost) == 0, consumer)
    with Admin(bootstrap_servers=world.cluster.bootstrap) as admin:
        admin.delete_topics([gone])
    until(lambda: gone in consumer._cluster.metadata.errors, consumer)
    with pytest.raises(BrokerError, match=gone) as refused:
        consumer.commit({lost: 1, left: 2})
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert consumer.committed([left])[left] == OffsetAndMetadata(2)


@BOTH
def test_commit_inside_revoked(world: World, strategy: str) -> None:
    """Spec 4.8: positions are still there, and what is committed there counts."""
    topic, group = world.topic(4, records=40), world.group()
    config = {
        "group_id": group,
        "enable_auto_commit": False,
        "partition_assignment_strategy": strategy,
    }
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
    world.produce(topic, 4, range(40, 60))
    seen = until(
        lambda: (
            sum(first.position(tp) for tp in first.assignment()) == 30
            and sum(second.position(tp) for tp in second.assignment()) == 30
        ),
        first,
        second,
    )
    assert sorted(seen, key=int) == values(range(40, 60))


@pytest.mark.skipif(APACHE, reason="tells the broker to be slow")
@BOTH
def test_what_a_listener_commits_without_waiting_is_waited_for(world: World, strategy: str) -> None:
    """Spec 4.8, C15: *revoked* is the last chance to commit, also with `commit_async`.

    The second commit waits for the first, which the broker is slow with; given up before, the
    partitions would be another's, and the commit refused.
    """
    topic, group = world.topic(4, records=40), world.group()
    config = {
        "group_id": group,
        "enable_auto_commit": False,
        "partition_assignment_strategy": strategy,
    }
    first, second = world.consumer(**config), world.consumer(**config)
    outcomes: list[tuple[Mapping[TopicPartition, OffsetAndMetadata], KohortError | None]] = []

    def revoked(tps: list[TopicPartition]) -> None:
        if not outcomes and tps:
            for offset in (7, 8):
                first.commit_async(
                    dict.fromkeys(tps, offset), lambda *outcome: outcomes.append(outcome)
                )

    first.subscribe([topic], Listener(revoked))
    assert len(take(first, 40)) == 40
    with world.cluster.faults.delay(300, "OffsetCommit", times=1, group=group):
        second.subscribe([topic])
        until(lambda: len(outcomes) == 2 and shared(first, second), first, second)
    assert [error for _, error in outcomes] == [None, None]
    committed = first.committed(list(outcomes[1][0]))
    assert {known(at).offset for at in committed.values()} == {8}


@BOTH
def test_who_has_nothing_gives_up_nothing(world: World, strategy: str) -> None:
    """Spec 4.8: *revoked* comes with partitions, or not at all; *assigned* always."""
    topic, group = world.topic(1), world.group()
    config = {"group_id": group, "partition_assignment_strategy": strategy}
    made, listeners = [], []
    for _ in range(3):
        made.append(world.consumer(**config))
        listeners.append(Listener())
        made[-1].subscribe([topic], listeners[-1])
        until(lambda: all(listener.calls for listener in listeners), *made)
    for consumer in made:
        consumer.close()
    calls = [call for listener in listeners for call in listener.calls]
    assert {what for what, tps in calls if not tps} == {"assigned"}


class OnlyRevoked(RebalanceListener):
    """Tells what it loses by the one method that it has."""

    def __init__(self) -> None:
        self.revoked: list[list[TopicPartition]] = []

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.revoked.append(list(partitions))


@pytest.mark.skipif(APACHE, reason="tells the broker to forget a member")
@BOTH
def test_what_is_lost_is_told_and_not_committed(strategy: str) -> None:
    """Spec 1.5, 4.8: ownership is gone already: *lost* (here as *revoked*, its default), and no
    commit is sent of what was read, though it is read again then."""
    with Cluster(
        group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=100, request_log=10_000
    ) as cluster:
        world = World(cluster)
        topic, group = world.topic(2, records=10), world.group()
        consumer, listener = (
            world.consumer(
                group_id=group,
                partition_assignment_strategy=strategy,
                auto_commit_interval_ms=3_600_000,
                # the group waits as long for the member that the broker still has
                session_timeout_ms=3_000,
                heartbeat_interval_ms=500,
            ),
            OnlyRevoked(),
        )
        consumer.subscribe([topic], listener)
        assert len(take(consumer, 10)) == 10
        assert consumer.poll(0) == []  # what was handed out counts as dealt with
        first = cluster.requests.of("OffsetCommit", group=group)
        with cluster.faults.fail("Heartbeat", "UNKNOWN_MEMBER_ID", group=group) as fault:
            fault.wait()
            again = take(consumer, 10)
        assert len(again) == 10
        assert [sorted(tps) for tps in listener.revoked] == [[(topic, 0), (topic, 1)]]
        assert cluster.requests.of("OffsetCommit", group=group) == first
        world.close()


def test_a_seek_touches_one_consumer_alone(world: World) -> None:
    """Spec 4.6: neither another member nor what its group has committed, until it commits."""
    topic, group = world.topic(4, records=40), world.group()
    config = {"group_id": group, "enable_auto_commit": False}
    first, second = world.consumer(**config), world.consumer(**config)
    first.subscribe([topic])
    second.subscribe([topic])
    seen = until(lambda: shared(first, second), first, second)
    seen += until(
        lambda: all(c.position(tp) == 10 for c in (first, second) for tp in c.assignment()),
        first,
        second,
    )
    assert set(seen) == set(values(range(40)))
    first.commit()
    second.commit()
    ours, theirs = min(first.assignment()), min(second.assignment())
    kept = first.assignment()
    first.seek(ours, 4)
    with pytest.raises(UsageError, match="not assigned"):
        first.seek(theirs, 4)
    assert (first.position(ours), second.position(theirs)) == (4, 10)
    assert second.poll(0.05) == []
    committed = world.consumer(**config).committed([ours, theirs])
    assert [known(found).offset for found in committed.values()] == [10, 10]
    again = take(first, 6)
    assert len(again) == 6
    assert first.assignment() == kept, "no rebalance came of it"


@BOTH
def test_automatic_commit_before_giving_up(world: World, strategy: str) -> None:
    """Spec 4.5: nothing is read twice when a rebalance comes between two automatic commits."""
    topic, group = world.topic(4, records=100), world.group()
    config = {"group_id": group, "partition_assignment_strategy": strategy}
    first, second = world.consumer(**config), world.consumer(**config)
    first.subscribe([topic])
    seen = take(first, 100)
    second.subscribe([topic])
    seen += until(lambda: shared(first, second), first, second)
    world.produce(topic, 4, range(100, 140))
    seen += until(
        lambda: sum(c.position(tp) for c in (first, second) for tp in c.assignment()) == 140,
        first,
        second,
    )
    assert sorted(seen, key=int) == values(range(140))


def test_pause_ends_with_the_ownership_and_outlives_a_rebalance_that_keeps_it(world: World) -> None:
    """C10, B45."""
    topic, group = world.topic(4, records=400), world.group()
    config = {"group_id": group, "partition_assignment_strategy": "cooperative-sticky"}
    first, second = world.consumer(**config), world.consumer(**config)
    first.subscribe([topic])
    take(first, 10)
    first.pause(*first.assignment())
    second.subscribe([topic])
    until(lambda: shared(first, second), first, second)
    assert first.paused() == first.assignment()
    second.close()
    until(lambda: len(first.assignment()) == 4, first)
    assert len(first.paused()) == 2


def test_short_polls_finish_a_rebalance(world: World) -> None:
    """B39: a step goes on where it stood; each commit is sent once, each listener called once."""
    topic, group = world.topic(2, records=20), world.group()
    config = {"group_id": group, "partition_assignment_strategy": "range"}
    first, second = world.consumer(**config), world.consumer(**config)
    listener = Listener()
    first.subscribe([topic], listener)
    take(first, 20)
    second.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    while not (len(first.assignment()) == len(second.assignment()) == 1):
        assert time.monotonic() < deadline
        first.poll(0)
        second.poll(0)
    assert [what for what, _ in listener.calls] == ["assigned", "revoked", "assigned"]


def test_a_listener_that_raises_is_heard_and_the_group_goes_on(world: World) -> None:
    topic, group = world.topic(4, records=40), world.group()
    config = {"group_id": group, "partition_assignment_strategy": "range"}
    first, second = world.consumer(**config), world.consumer(**config)

    def revoked(tps: list[TopicPartition]) -> None:
        raise ZeroDivisionError("of the listener")

    first.subscribe([topic], Listener(revoked))
    take(first, 40)
    second.subscribe([topic])

    def both() -> None:
        until(lambda: False, first, second)

    with pytest.raises(ZeroDivisionError, match="of the listener"):
        both()
    until(lambda: shared(first, second), first, second)
    with pytest.raises(ZeroDivisionError, match="of the listener"):
        first.close()
    until(lambda: len(second.assignment()) == 4, second)


@BOTH
def test_a_listener_that_raises_when_it_is_assigned(world: World, strategy: str) -> None:
    """Spec 4.8: it is heard once; the partitions are taken, and it is not called again for them."""
    topic = world.topic(2, records=10)
    consumer = world.consumer(group_id=world.group(), partition_assignment_strategy=strategy)

    class Raising(Listener):
        def on_partitions_assigned(self, partitions):
            super().on_partitions_assigned(partitions)
            raise ZeroDivisionError("of the listener")

    consumer.subscribe([topic], listener := Raising())
    with pytest.raises(ZeroDivisionError, match="of the listener"):
        take(consumer, 1)
    assert sorted(take(consumer, 10), key=int) == values(range(10))
    assert listener.calls == [("assigned", {(topic, 0), (topic, 1)})]


def test_subscribing_anew_without_a_listener_takes_the_old_one_away(world: World) -> None:
    """Spec 4.8, as `subscribe` says: it replaces the earlier subscription, listener and all."""
    a, b = world.topic(1, records=3), world.topic(1, records=4)
    consumer = world.consumer(group_id=world.group())
    consumer.subscribe([a], listener := Listener())
    take(consumer, 3)
    calls = list(listener.calls)
    consumer.subscribe([b])
    take(consumer, 4)
    consumer.close()
    assert listener.calls == calls == [("assigned", {(a, 0)})]


def test_seek_inside_assigned(world: World) -> None:
    """Spec 4.8: the place to seek; nothing has been handed out by then."""
    topic = world.topic(1, records=10)
    consumer = world.consumer(group_id=world.group())

    class Seeking(Listener):
        def on_partitions_assigned(self, partitions):
            consumer.seek(partitions[0], 7)

    consumer.subscribe([topic], Seeking())
    assert take(consumer, 3) == values([7, 8, 9])


def test_subscribing_to_something_else(world: World) -> None:
    """Spec 1.9, B38: what belongs to the old subscription is given up, what is new is read."""
    old, new = world.topic(1, records=5), world.topic(1, records=3)
    consumer = world.consumer(group_id=world.group())
    listener = Listener()
    consumer.subscribe([old], listener)
    take(consumer, 5)
    consumer.subscribe([new], listener)
    assert take(consumer, 3) == values(range(3))
    assert consumer.assignment() == {TopicPartition(new, 0)}
    assert ("revoked", frozenset({TopicPartition(old, 0)})) in listener.calls
    consumer.unsubscribe()
    assert consumer.assignment() == frozenset()
    assert listener.calls[-1] == ("revoked", frozenset({TopicPartition(new, 0)}))
    consumer.subscribe([old], listener)
    world.produce(old, 1, range(5, 7))
    assert take(consumer, 2) == values([5, 6])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pattern_that_matches_nothing_ends_the_subscription_before(world, protocol) -> None:
    """Spec 1.9: the member kept the old partitions, and nobody else was assigned them."""
    topic = world.topic(2, records=10)
    consumer = world.consumer(group_id=world.group(), group_protocol=protocol)
    listener = Listener()
    consumer.subscribe([topic], listener)
    take(consumer, 10)
    consumer.subscribe(re.compile("no-such-topic-.*"), listener)
    until(lambda: not consumer.assignment(), consumer)
    both = frozenset(TopicPartition(topic, n) for n in range(2))
    assert ("revoked", both) in listener.calls


def test_committed_offsets_are_answered_while_a_join_waits(world: World) -> None:
    """They were asked for on the connection where the join waits for the others' next poll, and
    their timeout closed it: the join was lost."""
    config = {"group_id": world.group(), "partition_assignment_strategy": "range"}
    first, second, third = (world.consumer(**config) for _ in range(3))
    topic = world.topic(4, records=4)
    for consumer in (first, second):
        consumer.subscribe([topic])
    until(lambda: shared(first, second), first, second)
    (partition, *_) = sorted(first.assignment())
    third.subscribe([topic])
    session = known(first._core.session)
    # The second one gives its partitions up at its next poll, and joins then.
    until(lambda: session.free_connection == "general", first, third)
    assert partition in first.committed([partition], timeout=PATIENCE_S / 2)
    every = (first, second, third)
    until(lambda: all(each.assignment() for each in every), *every)
    assert "lost" not in str(session.member and session.member.last_reason)


def test_new_partitions_and_quick_resubscription(world: World) -> None:
    """B38: subscribe(A), then subscribe(B) while the join for A is under way."""
    a, b = world.topic(1, records=3), world.topic(1, records=4)
    consumer = world.consumer(group_id=world.group())
    consumer.subscribe([a])
    consumer.poll(0)
    consumer.subscribe([b])
    assert take(consumer, 4) == values(range(4))
    assert consumer.assignment() == {TopicPartition(b, 0)}


@BOTH
def test_too_slow_between_polls(world: World, strategy: str) -> None:
    """Spec 1.3, C1, B10, B40: out of the group, told so, back with the next poll; no zombie."""
    topic, group = world.topic(2, records=20), world.group()
    config = {
        "group_id": group,
        "enable_auto_commit": False,
        "partition_assignment_strategy": strategy,
    }
    slow = world.consumer(**config, max_poll_interval_ms=300)
    quick = world.consumer(**config)
    listener = Listener()
    slow.subscribe([topic], listener)
    assert len(take(slow, 20)) == 20
    quick.subscribe([topic])
    seen = until(lambda: len(quick.assignment()) == 2, quick)
    seen += take(quick, 20 - len(seen))
    with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
        slow.commit()
    until(lambda: len(slow.assignment()) == 1 == len(quick.assignment()), slow, quick)
    assert listener.calls[1][0] == "lost"


def test_a_silent_member_is_replaced(world: World) -> None:
    """Spec 1.3, 2.3: a member whose process is gone is found out by its session timeout."""
    topic, group = world.topic(2, records=20), world.group()
    config = {
        "group_id": group,
        "session_timeout_ms": 400,
        "partition_assignment_strategy": "range",
    }
    first, second = world.consumer(**config), world.consumer(**config)
    first.subscribe([topic])
    second.subscribe([topic])
    until(lambda: len(first.assignment()) == 1 == len(second.assignment()), first, second)
    first._network.call(first._cluster.close).result(PATIENCE_S)
    until(lambda: len(second.assignment()) == 2, second)


def test_heartbeats_go_on_while_the_caller_computes(world: World) -> None:
    """C12: a caller that is busy stays a member, however long."""
    topic, group = world.topic(1, records=10), world.group()
    consumer = world.consumer(group_id=group, partition_assignment_strategy="range")
    consumer.subscribe([topic])
    take(consumer, 5)
    before = consumer.group_metadata()
    member = known(known(consumer._core.session).member)
    assert isinstance(member, ClassicMember)
    last_answer_ms, deadline = member._last_answer_ms, time.monotonic() + PATIENCE_S
    # Ten heartbeats later, or fewer on a slow machine.
    while member._last_answer_ms < last_answer_ms + 500:
        assert time.monotonic() < deadline
        sum(range(10_000))
    take(consumer, 5)
    consumer.commit()
    assert consumer.group_metadata() == before


def test_static_member(world: World) -> None:
    """Spec 2.13, KIP-345: closing leaves no gap; the same instance elsewhere fences the first."""
    topic, group = world.topic(1, records=10), world.group()
    config = {
        "group_id": group,
        "group_instance_id": "i1",
        "partition_assignment_strategy": "range",
    }
    first = world.consumer(**config)
    first.subscribe([topic])
    take(first, 5)
    generation = first.group_metadata().generation
    first.close()
    second = world.consumer(**config)
    second.subscribe([topic])
    take(second, 5)
    assert second.group_metadata().generation == generation
    third = world.consumer(**config)
    third.subscribe([topic])
    until(lambda: len(third.assignment()) == 1, third)

    def fenced() -> None:
        until(lambda: False, second)

    with pytest.raises(FencedError):
        fenced()
    with pytest.raises(FencedError):
        second.poll(0)


def test_group_metadata(world: World) -> None:
    topic, group = world.topic(1), world.group()
    consumer = world.consumer(group_id=group)
    assert consumer.group_metadata() == (group, -1, "", None)
    consumer.subscribe([topic])
    until(lambda: bool(consumer.assignment()), consumer)
    who = consumer.group_metadata()
    assert who.generation >= 1
    assert who.member_id.startswith("kohort-")
    with pytest.raises(ConfigError):
        world.consumer().group_metadata()


def test_wakeup_inside_a_rebalance_is_harmless(world: World) -> None:
    """B44, C9: woken at every poll, the group comes to rest; nothing is lost or doubled."""
    from kohort.errors import WakeupError

    topic, group = world.topic(4, records=200), world.group()
    config = {"group_id": group, "partition_assignment_strategy": "range"}
    first, second = world.consumer(**config), world.consumer(**config)
    seen: list[bytes] = []
    first.subscribe([topic])
    second.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    turn = 0
    while len(seen) < 200 or not shared(first, second):
        assert time.monotonic() < deadline
        turn += 1
        for consumer in (first, second):
            if turn % 2:
                consumer.wakeup()
            try:
                seen += [known(record.value) for record in consumer.poll(0.02)]
            except WakeupError:
                continue
    assert sorted(seen, key=int) == values(range(200))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_after_unsubscribing_it_commits_as_nobody(world: World, protocol: str) -> None:
    """Spec 4.1: a consumer that left its group and chose partitions itself still commits to it."""
    topic, group = world.topic(1, records=4), world.group()
    consumer = world.consumer(group_id=group, group_protocol=protocol, enable_auto_commit=False)
    consumer.subscribe([topic])
    take(consumer, 4)
    consumer.unsubscribe()
    consumer.assign([(topic, 0)])
    consumer.commit({(topic, 0): 3})
    assert known(consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]).offset == 3
    assert consumer.group_metadata().generation == -1
