"""Hosting shards on several nodes: elections in order, loads, what a closed shard says."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.coordinator.group_shard_host import GroupHost
from kohort.broker.state.failpoints import Event, Failpoint, Failpoints, Moment, Verdict
from kohort.broker.state.leadership import Led
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode, KafkaTimeoutError
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.harness import Answer, Harness, batch_of, produce_request
from tests.broker.transacting import markers_request

E = ErrorCode
GROUP = "g"
DELETE_VERSION = 6


class Nodes(Harness):
    """Three nodes with a topic, and a simple consumer that commits."""

    def __init__(self, **config: Any) -> None:
        super().__init__(nodes=3, broker_session_timeout_ms=100, **config)
        self.create("t")

    @property
    def coordinator(self) -> int:
        return self.nodes.coordinators.partition_of(GROUP).leader

    def host(self) -> GroupHost:
        return self.at(self.coordinator).groups.host_of(GROUP)

    def begin_commit(self, offset: int, node: int | None = None) -> Answer:
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name="t", partitions=[part])
        request = OffsetCommitRequest(group_id=GROUP, topics=[topic])
        return self.send(request, 8, node or self.coordinator)

    def code(self, answer: Answer) -> int:
        topic = self.read(answer, OffsetCommitResponse, 8).topics[0]
        return topic.partitions[0].error_code

    def commit(self, offset: int, node: int | None = None) -> int:
        return self.code(self.begin_commit(offset, node))

    def fetch_request(self) -> OffsetFetchRequest:
        topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        asked = OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
        return OffsetFetchRequest(groups=[asked])

    def committed(self, node: int | None = None) -> int:
        """The offset, or an error below zero."""
        request = self.fetch_request()
        group = self.ask(request, OffsetFetchResponse, 9, node or self.coordinator).groups[0]
        return -group.error_code or group.topics[0].partitions[0].committed_offset

    def heartbeat(self, node: int) -> int:
        request = HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m")
        return self.ask(request, HeartbeatResponse, None, node).error_code

    def move(self, to: int | None = None) -> int:
        return self.nodes.leaders.move_coordinator(GROUP, to)

    @contextmanager
    def one_turn(self) -> Iterator[None]:
        """What is sent inside comes in one turn of the loop."""
        settle = self.env.settle
        self.env.settle = lambda: None  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.env.settle = settle  # type: ignore[method-assign]
            settle()

    def begin_marker(self) -> None:
        """Write the end of somebody's transaction into the group's partition."""
        markers = markers_request(7, 0, commit=True)
        markers.markers[0].topics[0].name = OFFSETS_TOPIC
        markers.markers[0].topics[0].partition_indexes = [self.host().partition.index]
        self.send(markers, 1, self.coordinator)

    def flush(self, error: OSError | None) -> None:
        """What is held is flushed now, or fails."""
        self.env.hold_flushes, self.env.flush_error = False, error
        self.env.run_flushes()
        self.env.settle()

    def batches(self) -> list[int]:
        """How many records each batch of the group's partition has."""
        log = self.host().partition.log
        return [] if log is None else [header.record_count for header, _ in log.batches()]


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_commits_go_with_the_coordinator(nodes: Nodes) -> None:
    """Spec 2.12: the new coordinator has the offsets; the old one says that it is not it."""
    assert nodes.commit(5) == 0
    old, new = nodes.coordinator, nodes.move()
    assert nodes.committed() == 5
    assert nodes.commit(6, old) == E.NOT_COORDINATOR
    assert nodes.commit(7) == 0
    nodes.nodes.kill(new)
    nodes.env.advance(100)
    assert nodes.coordinator != new
    assert nodes.committed() == 7


def test_elections_count_only_forward(nodes: Nodes) -> None:
    """G11, B23: an election or a resignation of an epoch that is over changes nothing."""
    host = nodes.host()
    node, partition = nodes.at(nodes.coordinator), host.partition
    node.elected(partition)
    node.resigned(partition)
    assert nodes.host() is host
    nodes.move(nodes.coordinator)  # the same node, in a new epoch
    assert nodes.host() is not host
    assert nodes.host().epoch == host.epoch + 1


def test_nothing_is_appended_for_an_epoch_that_is_over(nodes: Nodes) -> None:
    """L11: not even when the resignation has not come yet."""
    assert nodes.commit(5) == 0
    host = nodes.host()
    assert host.partition.log is not None
    end = host.partition.log.end.offset
    host.partition.follow(Led(host.partition.leader, host.epoch + 1, (1, 2, 3)))
    assert nodes.commit(6) == E.NOT_COORDINATOR
    assert host.partition.log.end.offset == end


def test_a_load_that_is_held_is_answered_as_loading(nodes: Nodes) -> None:
    """Spec 2.12: 14 while loading, but a heartbeat NONE; 16 at the old one."""
    nodes.commit(5)
    nodes.nodes.loading.hold()
    old, new = nodes.coordinator, nodes.move()
    assert nodes.heartbeat(new) == 0
    assert nodes.committed(new) == -E.COORDINATOR_LOAD_IN_PROGRESS
    assert nodes.commit(6, new) == E.COORDINATOR_LOAD_IN_PROGRESS
    assert nodes.heartbeat(old) == E.NOT_COORDINATOR
    third = nodes.move()  # on, while it is still being loaded
    assert nodes.heartbeat(new) == E.NOT_COORDINATOR
    assert nodes.heartbeat(third) == 0
    nodes.nodes.loading.release()
    nodes.env.settle()
    assert nodes.heartbeat(third) == E.UNKNOWN_MEMBER_ID
    assert nodes.committed(third) == 5


def deletion(nodes: Nodes, timeout_ms: int = 60_000, node: int | None = None) -> Answer:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=timeout_ms)
    return nodes.send(request, DELETE_VERSION, node)


def deletion_code(nodes: Nodes, answer: Answer) -> int:
    return nodes.read(answer, DeleteTopicsResponse, DELETE_VERSION).responses[0].error_code


def test_offsets_of_a_topic_that_is_deleted_during_a_load_go(nodes: Nodes) -> None:
    """SY17: the answer waits for the shard, and so does a new topic of that name."""
    nodes.commit(5)
    nodes.nodes.loading.hold()
    nodes.move()
    answer = deletion(nodes)
    assert not answer.done
    with pytest.raises(BrokerError, match="marked for deletion"):
        nodes.node.topics.create("t", 1, {})
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        nodes.node.auto_create("t")
    nodes.nodes.loading.release()
    nodes.env.advance(1_000)
    assert deletion_code(nodes, answer) == 0
    nodes.create("t")
    assert nodes.committed() == -1


def test_offsets_of_a_topic_that_is_deleted_without_a_coordinator_go(nodes: Nodes) -> None:
    """SY17: its node has died, which has not been noticed yet."""
    nodes.commit(5)
    dead = nodes.coordinator
    nodes.nodes.kill(dead)
    other = next(node.node_id for node in nodes.nodes)
    answer = deletion(nodes, node=other)
    assert not answer.done
    nodes.env.advance(1_000)
    assert deletion_code(nodes, answer) == 0
    nodes.at(other).topics.create("t", 1, {})
    assert nodes.committed() == -1


def test_a_deletion_waits_no_longer_than_it_may(nodes: Nodes) -> None:
    nodes.commit(5)
    nodes.nodes.loading.hold()
    nodes.move()
    answer = deletion(nodes, timeout_ms=500)
    nodes.env.advance(1_000)
    assert deletion_code(nodes, answer) == E.REQUEST_TIMED_OUT
    nodes.nodes.loading.release()
    nodes.env.advance(1_000)
    nodes.create("t")
    assert nodes.committed() == -1


def test_a_topic_is_not_made_again_before_its_offsets_are_durably_gone() -> None:
    """SY17: a power cut would bring them back."""
    nodes = Nodes(durability="fsync")
    nodes.commit(5)
    nodes.env.hold_flushes = True
    answer = deletion(nodes)
    assert not answer.done
    assert nodes.node.topics.marked_for_deletion == {"t"}
    nodes.env.hold_flushes = False
    nodes.env.run_flushes()
    nodes.env.settle()
    assert deletion_code(nodes, answer) == 0
    assert nodes.node.topics.marked_for_deletion == set()


def test_a_held_load_of_a_node_that_dies_is_forgotten(nodes: Nodes) -> None:
    nodes.commit(5)
    nodes.nodes.loading.hold()
    dead = nodes.move()
    nodes.nodes.kill(dead)
    nodes.env.advance(100)
    nodes.nodes.loading.release()
    nodes.env.settle()
    assert nodes.committed() == 5
    log = nodes.host().partition.log
    assert log is not None
    assert log.pins == 0


def test_what_is_durable_is_acknowledged_though_the_coordinator_has_moved() -> None:
    """G10 the other way round: the record is in the log, which is the new coordinator's too."""
    nodes = Nodes(durability="fsync")
    assert nodes.commit(5) == 0
    nodes.env.hold_flushes = True
    waiting = nodes.begin_commit(6)
    nodes.move()
    assert not waiting.done
    nodes.env.hold_flushes = False
    nodes.env.run_flushes()
    nodes.env.settle()
    assert nodes.code(waiting) == 0
    assert nodes.committed() == 6


def test_a_new_coordinator_begins_when_the_last_flush_of_the_old_one_is_over() -> None:
    """The flush is told to the old one alone: what waited for it in the new one waited for ever,
    a transaction's markers too.
    """
    nodes = Nodes(durability="fsync")
    assert nodes.commit(5) == 0
    nodes.env.hold_flushes = True
    nodes.begin_commit(6)
    nodes.move()
    assert nodes.committed() == -E.COORDINATOR_LOAD_IN_PROGRESS
    assert not nodes.host().loaded
    nodes.env.hold_flushes = False
    nodes.env.run_flushes()
    nodes.env.settle()
    assert nodes.host().loaded
    assert nodes.committed() == 6


def test_what_is_not_durable_is_refused_though_the_coordinator_has_moved() -> None:
    """G10: the flush failed, so nobody is told that it is committed."""
    nodes = Nodes(durability="fsync")
    nodes.env.hold_flushes = True
    waiting = nodes.begin_commit(6)
    nodes.move()
    nodes.env.flush_error = OSError(5, "Input/output error")
    nodes.env.run_flushes()
    nodes.env.settle()
    assert nodes.code(waiting) == E.NOT_COORDINATOR


def test_a_dead_nodes_shards_acknowledge_nothing() -> None:
    """G10: what waited for the disk when the node died is no success, whoever still hears it."""
    nodes = Nodes(durability="fsync")
    nodes.env.hold_flushes = True
    waiting = nodes.begin_commit(6)
    dead = nodes.at(nodes.coordinator)
    nodes.nodes.kill(dead.node_id)
    nodes.env.hold_flushes = False
    nodes.env.run_flushes()
    nodes.env.settle()
    assert nodes.code(waiting) == E.NOT_COORDINATOR
    with pytest.raises(Exception, match="NOT_COORDINATOR"):
        dead.groups.host_of(GROUP)


def test_no_marker_is_written_while_a_shard_is_loaded(nodes: Nodes) -> None:
    """It might be replayed twice, or never."""
    nodes.commit(5)
    nodes.nodes.loading.hold()
    nodes.move()
    partition = nodes.nodes.coordinators.partition_of(GROUP)
    assert not nodes.nodes.coordinators.takes_markers(partition)
    nodes.nodes.loading.release()
    nodes.env.settle()
    assert nodes.nodes.coordinators.takes_markers(partition)
    assert nodes.committed() == 5


# -- what comes in one turn of the loop


def test_what_comes_in_one_turn_is_written_as_one_batch(nodes: Nodes) -> None:
    """Group commit; each reply waits for its record, and a reader for what it was shown."""
    nodes.commit(1)
    with nodes.one_turn():
        commits = [nodes.begin_commit(offset) for offset in (2, 3, 4)]
        assert nodes.batches() == [1]
        assert not any(commit.done for commit in commits)
    assert [nodes.code(commit) for commit in commits] == [0, 0, 0]
    assert nodes.batches() == [1, 3]
    assert nodes.committed() == 4
    nodes.move()
    assert nodes.committed() == 4


def test_a_batch_is_bounded(nodes: Nodes) -> None:
    with nodes.one_turn():
        commits = [nodes.begin_commit(offset) for offset in range(1_001)]
        assert nodes.batches() == [1_000]
        assert [commit.done for commit in commits] == [True] * 1_000 + [False]
    assert nodes.batches() == [1_000, 1]


def test_a_batch_that_cannot_be_written_refuses_all_of_its_turn(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O7, G10: nobody is told of what is not in the log, and it is not what is read afterwards."""
    assert nodes.commit(1) == 0

    def fails(*args: object) -> None:
        raise BrokerError(E.KAFKA_STORAGE_ERROR, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "open", fails)
        with nodes.one_turn():
            commits = [nodes.begin_commit(offset) for offset in (2, 3)]
            read = nodes.send(nodes.fetch_request(), 9, nodes.coordinator)
    assert {nodes.code(commit) for commit in commits} == {E.NOT_COORDINATOR}
    assert nodes.read(read, OffsetFetchResponse, 9).groups[0].error_code == E.NOT_COORDINATOR
    nodes.env.advance(1_000)
    assert nodes.committed() == 1


@pytest.mark.parametrize("end", ["move", "kill"])
def test_a_batch_of_a_lost_leadership_is_refused(nodes: Nodes, end: str) -> None:
    """L11, G10: it was not written in time, so it never is."""
    assert nodes.commit(1) == 0
    with nodes.one_turn():
        waiting = nodes.begin_commit(2)
        if end == "move":
            nodes.move()
        else:
            nodes.nodes.kill(nodes.coordinator)
    assert nodes.code(waiting) == E.NOT_COORDINATOR
    nodes.env.advance(100)
    assert nodes.committed() == 1


def test_a_marker_stands_behind_what_was_replayed_before_it(nodes: Nodes) -> None:
    """Else the records would get other offsets than they were replayed with."""
    with nodes.one_turn():
        nodes.begin_commit(1)
        partition = nodes.nodes.coordinators.partition_of(GROUP)
        assert nodes.batches() == []
        assert nodes.nodes.coordinators.takes_markers(partition)
        assert nodes.batches() == [1]


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "the disk is broken")])
def test_what_is_answered_behind_a_marker_waits_for_its_flush(error: OSError | None) -> None:
    """G10: the flush is not of the coordinator's own append; when it fails, the answer says so."""
    nodes = Nodes(durability="fsync")
    nodes.commit(1)
    nodes.env.hold_flushes = True
    nodes.begin_marker()
    waiting = nodes.send(nodes.fetch_request(), 9, nodes.coordinator)
    assert not waiting.done
    nodes.flush(error)
    group = nodes.read(waiting, OffsetFetchResponse, 9).groups[0]
    assert group.error_code == (0 if error is None else E.NOT_COORDINATOR)
    for _ in range(2):
        assert nodes.committed() == (1 if error is None else -E.NOT_COORDINATOR)
        assert nodes.heartbeat(nodes.coordinator) == (
            E.UNKNOWN_MEMBER_ID if error is None else E.NOT_COORDINATOR
        )
        nodes.env.advance(10_000)
    assert not nodes.host()._held


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "the disk is broken")])
def test_so_does_what_waits_in_a_host_that_resigns(error: OSError | None) -> None:
    """It heard of flushes of its own appends only, and never answered the request."""
    nodes = Nodes(durability="fsync")
    nodes.commit(1)
    nodes.env.hold_flushes = True
    nodes.begin_marker()
    host = nodes.host()
    waiting = nodes.send(nodes.fetch_request(), 9, nodes.coordinator)
    nodes.move()
    assert not waiting.done
    nodes.flush(error)
    group = nodes.read(waiting, OffsetFetchResponse, 9).groups[0]
    assert group.error_code == (0 if error is None else E.NOT_COORDINATOR)
    assert host not in host.partition.waiters


@pytest.mark.parametrize("moved", ["before", "after"])
def test_a_shard_whose_log_will_never_be_durable_is_not_loaded(moved: str) -> None:
    """The flush of the leader before fails: COORDINATOR_LOAD_IN_PROGRESS would never end, and
    heartbeats were answered without an error."""
    nodes = Nodes(durability="fsync")
    nodes.commit(1)
    nodes.env.hold_flushes = True
    nodes.begin_commit(2)
    if moved == "before":
        nodes.move()
    nodes.flush(OSError(errno.EIO, "the disk is broken"))
    if moved == "after":
        nodes.move()
    for _ in range(2):
        assert nodes.committed() == -E.NOT_COORDINATOR
        assert nodes.heartbeat(nodes.coordinator) == E.NOT_COORDINATOR
        nodes.env.advance(10_000)


def test_a_node_that_is_shut_down_writes_its_batch_first(nodes: Nodes) -> None:
    with nodes.one_turn():
        waiting = nodes.begin_commit(1)
        log = nodes.host().partition
        nodes.at(nodes.coordinator).close()
    assert nodes.code(waiting) == 0
    assert log.end_offset == 1


def test_every_node_has_the_image_of_the_topics(nodes: Nodes) -> None:
    """What was made after its shards, too: a group on any node may subscribe to it."""
    for _ in range(3):
        nodes.commit(5)
        nodes.create(f"made-{nodes.move()}")
        assert nodes.committed() == 5
    assert OFFSETS_TOPIC in nodes.state.topics.image.by_name


def test_a_batch_that_waits_for_its_transaction_dies_with_its_node() -> None:
    """G10: the coordinator's leave comes after the leader's death, and nothing is appended."""
    nodes = Nodes(durability="fsync")
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
    coordinator = nodes.ask(find, FindCoordinatorResponse, 4).coordinators[0].node_id
    nodes.nodes.leaders.move("t", 0, coordinator % 3 + 1)
    partition = nodes.state.topics.partition("t", 0)
    assert partition is not None
    init = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    answer = nodes.ask(init, InitProducerIdResponse, 4, coordinator)
    batch = batch_of(
        [b"x"],
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    request = produce_request("t", batch)
    request.transactional_id = "tx"
    nodes.env.hold_flushes = True
    waiting = nodes.send(request, 12, partition.leader)
    nodes.nodes.kill(partition.leader)
    nodes.env.hold_flushes = False
    nodes.env.run_flushes()
    nodes.env.settle()
    produced = nodes.read(waiting, ProduceResponse, 12).responses[0].partition_responses[0]
    assert produced.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert partition.log is None


# -- failpoints


def test_a_tap_waits_for_its_event_and_acts_once() -> None:
    failpoints, killed = Failpoints(), []
    failpoints.kill = killed.append
    tap = Failpoint(Moment.RECEIVED, lambda e: e.client_id == "c", count=2, verdict=Verdict.KILL)
    failpoints.add(tap)
    assert not failpoints.fatal(Event(Moment.RECEIVED, 1, client_id="other"))
    assert not failpoints.fatal(Event(Moment.ANSWERING, 1, client_id="c"))
    assert not failpoints.fatal(Event(Moment.RECEIVED, 1, client_id="c"))
    with pytest.raises(KafkaTimeoutError):
        tap.wait(0)
    assert failpoints.fatal(Event(Moment.RECEIVED, 2, client_id="c"))
    assert not failpoints.fatal(Event(Moment.RECEIVED, 3, client_id="c"))
    assert (killed, tap.wait(0).node_id) == ([2], 2)
    failpoints.remove(tap)
    failpoints.remove(tap)
    assert failpoints.set == []


def test_a_condition_that_raises_is_its_tests_defect() -> None:
    failpoints, tap = Failpoints(), Failpoint(Moment.RECEIVED, lambda e: bool(1 // 0))
    failpoints.add(tap)
    assert not failpoints.fatal(Event(Moment.RECEIVED, 1))
    assert not failpoints.fatal(Event(Moment.RECEIVED, 1))
    with pytest.raises(ZeroDivisionError):
        tap.wait(0)


def test_a_tap_at_an_append_kills_before_anybody_is_answered(nodes: Nodes) -> None:
    """The record stands, the node is gone, and the next coordinator has it."""
    tap = Failpoint(Moment.APPENDED, verdict=Verdict.KILL)
    nodes.state.failpoints.add(tap)
    dead = nodes.coordinator
    unanswered = nodes.begin_commit(9)
    event = tap.wait(0)
    assert (event.node_id, event.topic, len(event.records)) == (dead, OFFSETS_TOPIC, 1)
    assert not unanswered.done
    nodes.env.advance(100)
    assert nodes.committed() == 9
