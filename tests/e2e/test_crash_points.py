"""The coordinator dies at each step of a rebalance, with four makes of client in it (spec 2.12).

The five steps, and a sixth: the assignment is written, and some have been told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kohort.broker.state.failpoints import Event, Moment, Verdict
from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_records import GroupEntry, StoredGroup, decode_record
from kohort.wire import decode_versioned
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.sync_group_response import SyncGroupResponse
from tests.clusters import Embedded as Cluster
from tests.e2e.conftest import SESSIONS
from tests.e2e.group_run import GroupRun
from tests.e2e.makes import CONFLUENT, KOHORT, MAKES
from tests.effort import chiefly
from tests.patience import PATIENCE_S

PARTITIONS = 8
GROUP = "crashing"
JOINER = "joiner"
NOBODY_IS_GONE_MS = 20_000
"""A session longer than a busy machine keeps a member silent: no member is killed here."""


class Generations:
    """Every generation of the group as it was written, and who owns what in it (G4, spec 2.6)."""

    def __init__(self) -> None:
        self.latest = 0
        self._owners: dict[int, dict[str, frozenset[int]]] = {}
        self.wrong: list[str] = []

    def look(self, event: Event) -> bool:
        """Take in what a shard has appended; waits for nothing."""
        for group in written(event):
            if group.generation < self.latest:
                self.wrong.append(f"generation {group.generation} came after {self.latest}")
            self.latest = max(self.latest, group.generation)
            owned = {m.member_id: owned_by(m.assignment) for m in group.members.values()}
            if any(owned.values()):
                self._take(group.generation, owned)
        return False

    def _take(self, generation: int, owned: dict[str, frozenset[int]]) -> None:
        everything = sorted(p for partitions in owned.values() for p in partitions)
        if len(everything) != len(set(everything)):
            self.wrong.append(f"generation {generation} gives a partition twice: {owned}")
        before = self._owners.setdefault(generation, owned)
        for member, partitions in owned.items():
            others = [p for m, ps in before.items() if m != member for p in ps]
            if partitions & set(others):
                self.wrong.append(f"generation {generation} was given out twice")


def written(event: Event) -> list[StoredGroup]:
    """The group as it stands in what was appended."""
    decoded = [decode_record(record, 0) for record in event.records]
    return [
        entry.value
        for entry in decoded
        if isinstance(entry, GroupEntry) and entry.group_id == GROUP and entry.value is not None
    ]


def owned_by(assignment: bytes) -> frozenset[int]:
    if not assignment:
        return frozenset()
    topics = decode_versioned(ConsumerProtocolAssignment, assignment)[1].assigned_partitions
    return frozenset(p for topic in topics for p in topic.partitions)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with Cluster(nodes=3, broker_session_timeout_ms=100, **SESSIONS) as cluster:
        cluster.create_topic("t", PARTITIONS)
        yield cluster


@pytest.fixture(scope="module")
def run(nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupRun]:
    """A group of one member of each make, which lives through all of it."""
    directory = Path(tmp_path_factory.mktemp("members"))
    with GroupRun(
        nodes.bootstrap, "t", GROUP, "range", PARTITIONS, directory, NOBODY_IS_GONE_MS
    ) as run:
        for make in MAKES:
            run.start(make, make)
        run.await_stable()
        yield run


def noticed(event: Event) -> bool:
    """(1) The join that would begin the rebalance has come."""
    return is_join(event) and event.client_id == JOINER


def is_join(event: Event) -> bool:
    return isinstance(event.message, JoinGroupRequest) and event.message.member_id != ""


def rebalance_notice(event: Event) -> bool:
    """(2) A member is told by its heartbeat."""
    message = event.message
    rebalancing = ErrorCode.REBALANCE_IN_PROGRESS
    return isinstance(message, HeartbeatResponse) and message.error_code == rebalancing


def generation_written(event: Event) -> bool:
    """(4) The new generation stands in the log, without its assignment."""
    return any(group.lacks_assignment() for group in written(event))


def answered(event: Event) -> bool:
    """(5) A join is answered with the new generation."""
    return isinstance(event.message, JoinGroupResponse) and event.message.error_code == 0


def assigned(event: Event) -> bool:
    """(6) A member is told what it owns."""
    return isinstance(event.message, SyncGroupResponse) and event.message.error_code == 0


POINTS: dict[str, tuple[Moment, Callable[[Event], bool], int]] = {
    "1 trigger noticed, nothing done": (Moment.RECEIVED, noticed, 1),
    "2 some members told, not all": (Moment.ANSWERING, rebalance_notice, 2),
    "3 some joins received": (Moment.RECEIVED, is_join, 3),
    "4 generation written, nobody answered": (Moment.APPENDED, generation_written, 1),
    "5 some answered": (Moment.ANSWERING, answered, 2),
    "6 some told what they own": (Moment.ANSWERING, assigned, 2),
}


@pytest.mark.rows(1)
@pytest.mark.slow
@pytest.mark.parametrize("point", chiefly([p for p in POINTS if p[0] in "246"], POINTS))
def test_the_coordinator_dies(nodes: Cluster, run: GroupRun, point: str) -> None:
    """Spec 2.12: Stable again, one owner for each partition, no commit lost or back."""
    moment, matches, count = POINTS[point]
    run.produce(20)
    run.await_stable()
    run.await_consumed()
    generations = Generations()
    with (
        nodes.tap(Moment.APPENDED, generations.look),
        nodes.tap(moment, matches, count=count, verdict=Verdict.KILL) as tap,
    ):
        before = nodes.coordinator_of(GROUP)
        run.start(CONFLUENT, JOINER)
        run.produce(20)
        dead = tap.wait(PATIENCE_S).node_id
        assert dead == before
        run.produce(20)
        run.await_stable()
        assert nodes.coordinator_of(GROUP) != dead
        run.await_consumed()
        run.stop(JOINER)
        run.await_stable()
        nodes.restart_node(dead)
    assert generations.wrong == []
    assert generations.latest > 0


# -- the consumer protocol (KIP-848)


PROTOCOL = "consumer"
SETTINGS = {
    "group_consumer_session_timeout_ms": NOBODY_IS_GONE_MS,
    "group_consumer_min_session_timeout_ms": 3_000,
    "group_consumer_heartbeat_interval_ms": 100,
    "group_consumer_min_heartbeat_interval_ms": 100,
}


@pytest.fixture(scope="module")
def run_848(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, GroupRun]]:
    """A group of the makes that speak the consumer protocol, two members of each."""
    directory = Path(tmp_path_factory.mktemp("members-848"))
    with Cluster(nodes=3, broker_session_timeout_ms=100, **SETTINGS) as nodes:
        nodes.create_topic("t", PARTITIONS)
        with GroupRun(nodes.bootstrap, "t", GROUP, "", PARTITIONS, directory) as run:
            for n in range(2):
                for make in (CONFLUENT, KOHORT):
                    run.start(make, f"{make}-{n}", PROTOCOL)
            run.await_stable()
            yield nodes, run


def beat(event: Event) -> ConsumerGroupHeartbeatRequest | None:
    return event.message if isinstance(event.message, ConsumerGroupHeartbeatRequest) else None


def joining(event: Event) -> bool:
    """A new member has come."""
    return beat(event) is not None and event.client_id == JOINER


def target_written(event: Event) -> bool:
    """The new target assignment stands in the log."""
    return any(record.key[:2] == TARGET_MEMBER for record in event.records)


def assignment_sent(event: Event) -> bool:
    """A member is told what to have, or to give up."""
    message = event.message
    return isinstance(message, ConsumerGroupHeartbeatResponse) and message.assignment is not None


def release_reported(event: Event) -> bool:
    """A member reports what it owns now, having given something up."""
    request = beat(event)
    return (
        request is not None
        and event.client_id != JOINER
        and request.member_epoch > 0
        and request.topic_partitions is not None
    )


TARGET_MEMBER = (7).to_bytes(2, "big")
POINTS_848: dict[str, tuple[Moment, Callable[[Event], bool], int]] = {
    "join received": (Moment.RECEIVED, joining, 1),
    "target written, nobody told": (Moment.APPENDED, target_written, 1),
    "some told": (Moment.ANSWERING, assignment_sent, 2),
    "something given up": (Moment.RECEIVED, release_reported, 1),
}


@pytest.mark.rows(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "point", chiefly(["target written, nobody told", "something given up"], POINTS_848)
)
def test_the_coordinator_of_a_consumer_group_dies(
    run_848: tuple[Cluster, GroupRun], point: str
) -> None:
    """Spec 2.12 and 2.14: epochs and targets are in the log, so reconciliation goes on."""
    moment, matches, count = POINTS_848[point]
    nodes, run = run_848
    run.produce(20)
    run.await_stable()
    run.await_consumed()
    with nodes.tap(moment, matches, count=count, verdict=Verdict.KILL) as tap:
        before = nodes.coordinator_of(GROUP)
        run.start(KOHORT, JOINER, PROTOCOL)
        run.produce(20)
        assert tap.wait(PATIENCE_S).node_id == before
        run.produce(20)
        run.await_stable()
        run.await_consumed()
        run.stop(JOINER)
        run.await_stable()
        nodes.restart_node(before)


# -- loading


class HeartbeatCodes:
    """What heartbeats are answered, by member."""

    def __init__(self) -> None:
        self.codes: dict[str, set[int]] = {}

    def look(self, event: Event) -> bool:
        """Take in an answer; true once every member has had one."""
        if isinstance(event.message, HeartbeatResponse):
            self.codes.setdefault(event.client_id, set()).add(event.message.error_code)
        return set(MAKES) <= set(self.codes)


@pytest.mark.slow
def test_members_that_come_before_the_load_is_done_are_told_to_wait(
    nodes: Cluster, run: GroupRun
) -> None:
    """Spec 2.12: heartbeats are answered without an error, and nobody's generation ends."""
    run.await_stable()
    generations, while_loading, later = Generations(), HeartbeatCodes(), HeartbeatCodes()
    dead = nodes.coordinator_of(GROUP)
    with nodes.tap(Moment.APPENDED, generations.look):
        with nodes.hold_loading():
            nodes.kill_node(dead)
            with nodes.tap(Moment.ANSWERING, while_loading.look) as everybody:
                everybody.wait(PATIENCE_S)
        with nodes.tap(Moment.ANSWERING, later.look) as everybody:
            everybody.wait(PATIENCE_S)
        run.produce(20)
        run.await_stable()
        run.await_consumed()
        nodes.restart_node(dead)
    assert while_loading.codes == {make: {0} for make in MAKES}
    assert later.codes == while_loading.codes
    assert generations.latest == 0
