"""`close` is bounded whatever the coordinator does, and says what was not done (spec 1.10, C11).

On a virtual clock: what is answered is answered in no time, and a limit is a limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kohort import Consumer
from kohort.testing import VirtualClock
from tests.clusters import APACHE, Cluster

from .consumer_world import World, take

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


def member(world: World, **config: object) -> tuple[Consumer, str]:
    """A member that has read something it has not committed."""
    topic, group = world.topic(1, records=10), world.group()
    consumer = world.consumer(group_id=group, auto_commit_interval_ms=3_600_000, **config)
    consumer.subscribe([topic])
    take(consumer, 10)
    return consumer, group


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(
    ("silent", "committed", "left", "said"),
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
    said: str,
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
    assert any(said in problem for problem in report.problems), report


def test_a_commit_that_is_refused_is_reported(world: World) -> None:
    consumer, group = member(world)
    with world.cluster.faults.fail("OffsetCommit", "UNKNOWN_MEMBER_ID", group=group):
        report = consumer.close(LIMIT_S)
    assert not report.committed
    assert any("the last automatic commit failed" in problem for problem in report.problems)


def test_what_was_done_is_reported_too(world: World) -> None:
    consumer, _ = member(world)
    assert consumer.close(10) == (True, True, ())
