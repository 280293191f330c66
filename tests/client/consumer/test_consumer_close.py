"""`close` is bounded whatever the coordinator does, and says what was not done (spec 1.10, C11).

On a virtual clock: what is answered is answered in no time, and a limit is a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, Consumer, TopicPartition
from kohort.group.member.classic_table import State
from kohort.testing import VirtualClock
from tests.client.consumer_world import World, take, until
from tests.clusters import APACHE, Cluster
from tests.known import known

pytestmark = pytest.mark.skipif(APACHE, reason="tells the broker to be silent")
LIMIT_S = 0.3


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def cluster(clock: VirtualClock) -> Iterator[Cluster]:
    with Cluster(clock=clock, group_initial_rebalance_delay_ms=0) as cluster:
        yield cluster


def member(world: World, **config: Any) -> tuple[Consumer, str]:
    """A member that has read something it has not committed."""
    topic, group = world.topic(1, records=10), world.group()
    consumer = world.consumer(group_id=group, auto_commit_interval_ms=3_600_000, **config)
    consumer.subscribe([topic])
    take(consumer, 10)
    return consumer, group


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(
    ("silent", "committed", "left", "message"),
    [
        ("OffsetCommit", False, None, "the last automatic commit"),
        ("leaving", True, False, "did not confirm that this member left in time"),
    ],
)
def test_a_silent_coordinator(
    world: World,
    clock: VirtualClock,
    protocol: str,
    silent: str,
    committed: bool,
    left: bool | None,
    message: str,
) -> None:
    consumer, group = member(world, group_protocol=protocol)
    leaving = "LeaveGroup" if protocol == "classic" else "ConsumerGroupHeartbeat"
    api = leaving if silent == "leaving" else silent
    with world.cluster.faults.silence(api, group=group):
        begun_s = clock.elapsed_s
        report = consumer.close(LIMIT_S)
        assert clock.elapsed_s - begun_s == pytest.approx(LIMIT_S, abs=0.01)
    if protocol == "classic":  # else the commit waits behind the silent heartbeat
        assert report.committed is committed
    assert left is None or report.left_group is left
    assert any(message in problem for problem in report.problems), report


@pytest.mark.parametrize("way", ["assign", "subscribe"])
def test_what_was_committed_without_waiting_is_waited_for(world: World, way: str) -> None:
    """Spec 4.5: the last `commit_async` before `close` counts, and its callback is called."""
    topic, group = world.topic(1, records=10), world.group()
    consumer = world.consumer(group_id=group, enable_auto_commit=False)
    if way == "assign":
        consumer.assign([(topic, 0)])
    else:
        consumer.subscribe([topic])
    take(consumer, 10)
    outcomes: list[object] = []
    with world.cluster.faults.fail("OffsetCommit", "NOT_COORDINATOR", times=3, group=group):
        for offset in (3, 7):
            consumer.commit_async({(topic, 0): offset}, lambda _, error: outcomes.append(error))
        assert consumer.close(60) == (True, True, ())
    assert outcomes == [None, None]
    with world.consumer(group_id=group) as reader:
        assert known(reader.committed([(topic, 0)])[TopicPartition(topic, 0)]).offset == 7


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_nothing_is_handed_out_while_partitions_are_given_up(world: World, protocol: str) -> None:
    """C1, B47: the commit before giving up is not answered, so each poll comes back empty."""
    topic, group = world.topic(2, records=40), world.group()
    config = {"group_id": group, "group_protocol": protocol, "auto_commit_interval_ms": 3_600_000}
    first, second = world.consumer(**config), world.consumer(**config)
    first.subscribe([topic])
    take(first, 3)
    second.subscribe([topic])
    with world.cluster.faults.silence("OffsetCommit", group=group):
        until(lambda: first.rebalance_pending, second)
        assert [first.poll(0.05, max_records=1) for _ in range(5)] == [[]] * 5


def test_what_was_committed_without_waiting_and_is_not_answered(
    world: World, clock: VirtualClock
) -> None:
    consumer, group = member(world, enable_auto_commit=False)
    consumer.commit_async()
    with world.cluster.faults.silence("OffsetCommit", group=group):
        consumer.commit_async()
        begun_s = clock.elapsed_s
        report = consumer.close(LIMIT_S)
        assert clock.elapsed_s - begun_s == pytest.approx(LIMIT_S, abs=0.01)
    assert not report.committed
    assert "the last asynchronous commit was not confirmed in time" in report.problems


@pytest.mark.parametrize("then", ["unsubscribe", "assign others", "seek"])
def test_whoever_chose_its_partitions_itself_commits_what_it_likes(world: World, then: str) -> None:
    """Spec 4.1: no group takes them away, so nothing that comes after makes a commit void."""
    topic, group = world.topic(2, records=10), world.group()
    consumer = world.consumer(group_id=group, enable_auto_commit=False)
    consumer.assign([(topic, 0)])
    take(consumer, 5)
    outcomes: list[object] = []
    with world.cluster.faults.fail("OffsetCommit", "NOT_COORDINATOR", times=2, group=group):
        consumer.commit_async(callback=lambda _, error: outcomes.append(error))
        if then == "unsubscribe":
            consumer.unsubscribe()
        elif then == "seek":
            consumer.seek((topic, 0), 1)
        else:
            consumer.assign([(topic, 1)])
        assert consumer.committed([(topic, 0)]).keys() == {(topic, 0)}
        consumer.close(60)
    assert outcomes == [None]
    with world.consumer(group_id=group) as reader:
        assert known(reader.committed([(topic, 0)])[TopicPartition(topic, 0)]).offset == 5


def test_a_commit_that_is_refused_is_reported(world: World) -> None:
    consumer, group = member(world)
    with world.cluster.faults.fail("OffsetCommit", "UNKNOWN_MEMBER_ID", group=group):
        report = consumer.close(LIMIT_S)
    assert not report.committed
    assert any("the last automatic commit failed" in problem for problem in report.problems)


def test_what_was_done_is_reported_too(world: World) -> None:
    consumer, _ = member(world)
    assert consumer.close(10) == (True, True, ())


DEAD = "dead"


def parked(world: World, clock: VirtualClock, **config: Any) -> tuple[Consumer, str, str]:
    """A member whose join waits for another one that has died."""
    topic, group = world.topic(2, records=10), world.group()
    consumer = world.consumer(group_id=group, auto_commit_interval_ms=3_600_000, **config)
    dead = world.consumer(
        group_id=group,
        client_id=DEAD,
        reconnect_backoff_ms=5_000,
        reconnect_backoff_max_ms=5_000,
        **config,
    )
    for each in (consumer, dead):
        each.subscribe([topic])
    until(lambda: len(consumer.assignment()) == len(dead.assignment()) == 1, consumer, dead)
    until(lambda: sum(consumer.positions().values()) >= 5, consumer)
    world.cluster.faults.cut(client_id=DEAD)
    consumer.subscribe([topic, world.topic(1)])  # a rebalance, to which the dead one does not come
    until(lambda: consumer.health().group == State.JOINING.value, consumer)
    return consumer, group, topic


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("auto", [True, False], ids=["automatic commit", "no commit"])
def test_a_leave_does_not_wait_for_a_dead_member(
    world: World, clock: VirtualClock, assignor: str, auto: bool
) -> None:
    """Its session ends after 45 s; the one that closes has left at once, with its last commit."""
    consumer, group, topic = parked(
        world, clock, partition_assignment_strategy=(assignor,), enable_auto_commit=auto
    )
    began_s = clock.elapsed_s
    report = consumer.close(60)
    assert clock.elapsed_s - began_s < 2
    assert report == (True, True, ())
    with Admin(bootstrap_servers=world.cluster.bootstrap) as admin:
        (found,) = admin.describe_groups([group]).values()
        assert [member.client_id for member in found.members] == [DEAD]
        if auto:
            committed = admin.list_group_offsets(group)
            assert [at.offset for tp, at in committed.items() if tp.topic == topic] == [5]


def test_a_commit_does_not_wait_for_a_dead_member(world: World, clock: VirtualClock) -> None:
    """KIP-429: who reads on through a rebalance commits what it has read, in its generation."""
    consumer, _, _ = parked(
        world,
        clock,
        partition_assignment_strategy=("cooperative-sticky",),
        enable_auto_commit=False,
    )
    began_s = clock.elapsed_s
    consumer.commit(timeout=20)
    assert clock.elapsed_s - began_s < 2


def test_waiting_for_a_dead_member_is_no_secret(
    world: World, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After 5 s it is in the log, once, and in `health()`, with the cure."""
    consumer, group, _ = parked(world, clock, session_timeout_ms=12_000)
    assert consumer.health().concerns == ()
    consumer.poll(6)
    (concern,) = consumer.health().concerns
    for text in (concern, caplog.text):
        assert f"group {group!r}" in text
        assert "session_timeout_ms=12000" in text
        assert "group_instance_id (static membership)" in text
    consumer.poll(2)
    assert caplog.text.count("static membership") == 1
