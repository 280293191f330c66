"""What each API answers on a node that leads, that does not, and that no longer does."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ConfigError, ErrorCode
from kohort.wire.messages.create_partitions_request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kohort.wire.messages.create_partitions_response import CreatePartitionsResponse
from kohort.wire.messages.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from kohort.wire.messages.create_topics_response import CreatableTopicResult, CreateTopicsResponse
from kohort.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kohort.wire.messages.delete_records_response import DeleteRecordsResponse
from kohort.wire.messages.describe_cluster_request import DescribeClusterRequest
from kohort.wire.messages.describe_cluster_response import DescribeClusterResponse
from kohort.wire.messages.elect_leaders_request import ElectLeadersRequest, TopicPartitions
from kohort.wire.messages.elect_leaders_response import ElectLeadersResponse
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import FetchResponse, PartitionData
from kohort.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import MetadataResponse, MetadataResponsePartition
from kohort.wire.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kohort.wire.messages.offset_for_leader_epoch_response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
)
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.harness import Harness, batch_of, fetch_request, produce_request, records_of

E = ErrorCode


class Nodes(Harness):
    """Three nodes, and one topic of one partition."""

    def __init__(self, **config: Any) -> None:
        super().__init__(nodes=3, broker_session_timeout_ms=100, **config)
        self.create("t")

    @property
    def leader(self) -> int:
        return self.state.leadership.at("t", 0).leader

    @property
    def others(self) -> list[int]:
        return [n for n in self.config.node_ids() if n != self.leader]

    def put(self, value: bytes, node: int | None = None, version: int = 11) -> ProduceResponse:
        request = produce_request("t", batch_of([value]))
        return self.ask(request, ProduceResponse, version, node or self.leader)

    def get(self, node: int, epoch: int = -1, version: int = 12, offset: int = 0) -> FetchResponse:
        request = fetch_request("t", offset, epoch=epoch)
        if version >= 13:
            topic_id = self.state.topics.get("t").topic_id  # type: ignore[union-attr]
            part = FetchPartition(
                partition=0,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                partition_max_bytes=1 << 20,
            )
            request = FetchRequest(
                max_bytes=1 << 20, topics=[FetchTopic(topic_id=topic_id, partitions=[part])]
            )
        return self.ask(request, FetchResponse, version, node)

    def end_of(self, epoch: int, node: int, current: int = -1) -> EpochEndOffset:
        part = OffsetForLeaderPartition(
            partition=0, leader_epoch=epoch, current_leader_epoch=current
        )
        topic = OffsetForLeaderTopic(topic="t", partitions=[part])
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
        answer = self.ask(request, OffsetForLeaderEpochResponse, 4, node)
        return answer.topics[0].partitions[0]

    def latest(self, node: int, current: int = -1) -> tuple[int, int]:
        part = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=current)
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[part])])
        found = self.ask(request, ListOffsetsResponse, 9, node).topics[0].partitions[0]
        return found.error_code, found.offset

    def metadata(self, node: int) -> MetadataResponsePartition:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
        return self.ask(request, MetadataResponse, 12, node).topics[0].partitions[0]

    def move(self, to: int | None = None) -> int:
        return self.nodes.leaders.move("t", 0, to)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


# -- records


def test_produce_elsewhere_is_refused_with_a_hint(nodes: Nodes) -> None:
    """KIP-951: the answer names the leader, its epoch and where it listens."""
    assert nodes.put(b"a").responses[0].partition_responses[0].error_code == 0
    answer = nodes.put(b"b", nodes.others[0])
    refused = answer.responses[0].partition_responses[0]
    assert (refused.error_code, refused.base_offset) == (E.NOT_LEADER_OR_FOLLOWER, -1)
    assert refused.current_leader.leader_id == nodes.leader
    assert refused.current_leader.leader_epoch == 0
    assert [e.node_id for e in answer.node_endpoints] == [nodes.leader]
    older = nodes.put(b"b", nodes.others[0], version=9)
    assert older.responses[0].partition_responses[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    assert nodes.latest(nodes.leader) == (0, 1)


def test_fetch_by_leader_and_epoch(nodes: Nodes) -> None:
    """KIP-320: an old epoch is fenced, one from the future unknown, on replicas too."""
    nodes.put(b"a")
    old = nodes.leader
    new = nodes.move()
    data = nodes.get(new, epoch=1).responses[0].partitions[0]
    assert [value for _, value in records_of(data)] == [b"a"]
    codes = {
        (node, epoch): nodes.get(node, epoch).responses[0].partitions[0].error_code
        for node in (old, new)
        for epoch in (-1, 0, 1, 2)
    }
    assert codes == {
        (new, -1): 0,
        (new, 0): E.FENCED_LEADER_EPOCH,
        (new, 1): 0,
        (new, 2): E.UNKNOWN_LEADER_EPOCH,
        (old, -1): E.NOT_LEADER_OR_FOLLOWER,
        (old, 0): E.FENCED_LEADER_EPOCH,
        (old, 1): E.NOT_LEADER_OR_FOLLOWER,
        (old, 2): E.UNKNOWN_LEADER_EPOCH,
    }


def test_fetch_names_the_leader_from_v16_on(nodes: Nodes) -> None:
    """KIP-951."""
    old = nodes.leader
    new = nodes.move()
    answer = nodes.get(old, version=16)
    data = answer.responses[0].partitions[0]
    assert data.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (new, 1)
    assert [e.node_id for e in answer.node_endpoints] == [new]
    fenced = nodes.get(new, epoch=0, version=17).responses[0].partitions[0]
    assert fenced.current_leader.leader_epoch == 1


def test_a_parked_fetch_hears_of_the_move(nodes: Nodes) -> None:
    waiting = nodes.send(fetch_request("t", 0, max_wait_ms=60_000), 12, nodes.leader)
    assert not waiting.done
    nodes.move()
    nodes.env.settle()
    answer = nodes.read(waiting, FetchResponse, 12)
    assert answer.responses[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER


def test_list_offsets_by_leader_and_epoch(nodes: Nodes) -> None:
    """Spec L8, B58: the end never falls when the leader changes."""
    nodes.put(b"a")
    old, new = nodes.leader, nodes.move()
    assert nodes.latest(new) == (0, 1)
    assert nodes.latest(new, 1) == (0, 1)
    assert nodes.latest(new, 0)[0] == E.FENCED_LEADER_EPOCH
    assert nodes.latest(new, 2)[0] == E.UNKNOWN_LEADER_EPOCH
    assert nodes.latest(old)[0] == E.NOT_LEADER_OR_FOLLOWER


def test_leader_epochs_end_where_the_next_begins(nodes: Nodes) -> None:
    """KIP-101, KIP-320, through OffsetForLeaderEpoch."""
    nodes.put(b"a")
    nodes.put(b"b")
    new = nodes.move()
    nodes.put(b"c")
    first, second = nodes.end_of(0, new), nodes.end_of(1, new)
    assert (first.leader_epoch, first.end_offset) == (0, 2)
    assert (second.leader_epoch, second.end_offset) == (1, 3)
    assert nodes.end_of(2, new).end_offset == -1
    assert nodes.end_of(0, new, current=0).error_code == E.FENCED_LEADER_EPOCH
    assert nodes.end_of(0, nodes.others[0]).error_code == E.NOT_LEADER_OR_FOLLOWER


def test_an_empty_partition_knows_its_epoch_too(nodes: Nodes) -> None:
    new = nodes.move()
    found = nodes.end_of(1, new)
    assert (found.leader_epoch, found.end_offset) == (1, 0)
    assert nodes.get(new, epoch=1).responses[0].partitions[0].error_code == 0
    nodes.put(b"a")
    assert nodes.end_of(1, new).end_offset == 1


def test_an_epoch_without_records_ended_where_the_next_began(nodes: Nodes) -> None:
    """KIP-320: a consumer takes the epoch of LATEST from an empty partition; were it undefined
    later, it would reset, and skip what was written meanwhile."""
    nodes.move()
    new = nodes.move()
    ends = [nodes.end_of(epoch, new) for epoch in (-1, 0, 1, 2, 3)]
    assert [(e.leader_epoch, e.end_offset) for e in ends] == [
        (-1, -1),
        (0, 0),
        (1, 0),
        (2, 0),
        (-1, -1),
    ]
    for _ in range(5):
        nodes.put(b"a")
    ends = [nodes.end_of(epoch, new) for epoch in (-1, 0, 1, 2, 3)]
    assert [(e.leader_epoch, e.end_offset) for e in ends] == [
        (-1, -1),
        (0, 0),
        (1, 0),
        (2, 5),
        (-1, -1),
    ]


def test_an_epoch_ends_at_the_end_before_its_first_record(nodes: Nodes) -> None:
    """A leader knows its epoch as soon as it leads, as well as those that wrote nothing."""
    nodes.put(b"a")
    nodes.move()
    new = nodes.move()
    ends = [nodes.end_of(epoch, new) for epoch in (-1, 0, 1, 2, 3)]
    assert [(e.leader_epoch, e.end_offset) for e in ends] == [
        (-1, -1),
        (0, 1),
        (0, 1),
        (2, 1),
        (-1, -1),
    ]


def test_only_the_leader_deletes_records(nodes: Nodes) -> None:
    nodes.put(b"a")
    part = DeleteRecordsPartition(partition_index=0, offset=1)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[part])])
    codes = [
        nodes.ask(request, DeleteRecordsResponse, 2, node).topics[0].partitions[0].error_code
        for node in (nodes.others[0], nodes.leader)
    ]
    assert codes == [E.NOT_LEADER_OR_FOLLOWER, 0]


# -- the cluster


def test_metadata_by_death_noticed_and_not(nodes: Nodes) -> None:
    """LEADER_NOT_AVAILABLE only while nobody leads; a death counts when it is noticed."""
    dead = nodes.leader
    alive = nodes.others
    nodes.nodes.kill(dead)
    before = nodes.metadata(alive[0])
    assert (before.error_code, before.leader_id, before.offline_replicas) == (0, dead, [])
    nodes.env.advance(100)
    after = nodes.metadata(alive[0])
    assert after.leader_id in alive
    assert (after.error_code, after.leader_epoch, after.offline_replicas) == (0, 1, [dead])
    assert sorted(after.isr_nodes) == alive
    assert sorted(after.replica_nodes) == [1, 2, 3]
    cluster = nodes.ask(DescribeClusterRequest(), DescribeClusterResponse, None, alive[0])
    assert [b.broker_id for b in cluster.brokers] == alive
    assert cluster.controller_id == alive[0]


def test_nobody_leads_a_partition_whose_replicas_are_dead() -> None:
    nodes = Nodes()
    topic = CreatableTopic(
        name="lone",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[2])],
    )
    made = nodes.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse).topics[0]
    assert (made.error_code, made.replication_factor) == (0, 1)
    nodes.nodes.kill(2)
    nodes.env.advance(100)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="lone")])
    found = nodes.ask(request, MetadataResponse, 12, 1).topics[0].partitions[0]
    assert (found.error_code, found.leader_id) == (E.LEADER_NOT_AVAILABLE, -1)
    produced = nodes.ask(produce_request("lone", batch_of([b"x"])), ProduceResponse, 11, 1)
    refused = produced.responses[0].partition_responses[0]
    assert refused.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert produced.node_endpoints == []
    nodes.nodes.restart(2)
    found = nodes.ask(request, MetadataResponse, 12, 1).topics[0].partitions[0]
    assert (found.error_code, found.leader_id, found.leader_epoch) == (0, 2, 2)


def create(nodes: Nodes, name: str, factor: int) -> CreatableTopicResult:
    topic = CreatableTopic(name=name, num_partitions=3, replication_factor=factor)
    return nodes.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse).topics[0]


def test_replication_factors_up_to_the_number_of_nodes(nodes: Nodes) -> None:
    found = {factor: create(nodes, f"r{factor}", factor) for factor in (-1, 0, 1, 2, 3, 4)}
    assert {f: r.error_code for f, r in found.items()} == {
        -1: 0,
        1: 0,
        2: 0,
        3: 0,
        0: E.INVALID_REPLICATION_FACTOR,
        4: E.INVALID_REPLICATION_FACTOR,
    }
    assert [found[f].replication_factor for f in (-1, 1, 2, 3)] == [3, 1, 2, 3]
    assert all(len(led.replicas) == 2 for led in nodes.state.leadership.of("r2"))


def test_replica_assignments_are_checked_and_grow_with_the_topic(nodes: Nodes) -> None:
    def grow(count: int, assigned: list[list[int]] | None) -> int:
        assignments = None
        if assigned is not None:
            assignments = [CreatePartitionsAssignment(broker_ids=a) for a in assigned]
        topic = CreatePartitionsTopic(name="r1", count=count, assignments=assignments)
        request = CreatePartitionsRequest(topics=[topic])
        return nodes.ask(request, CreatePartitionsResponse).results[0].error_code

    create(nodes, "r1", 1)
    for wrong in ([[9]], [[1, 1]], [[]], [[1], [2]]):
        assert grow(4, wrong) == E.INVALID_REPLICA_ASSIGNMENT
    assert grow(4, [[3]]) == 0
    assert grow(5, None) == 0
    replicas = [led.replicas for led in nodes.state.leadership.of("r1")]
    assert replicas[3] == (3,)
    assert [len(r) for r in replicas] == [1] * 5
    again = nodes.restarted(clean=True)
    assert [led.replicas for led in again.state.leadership.of("r1")] == replicas


def test_racks_are_told(nodes: Nodes) -> None:
    """broker.rack, for KIP-392 and KIP-881."""
    racked = Nodes(broker_rack=("a", "b", "c"))
    answer = racked.ask(MetadataRequest(topics=[]), MetadataResponse, 12)
    assert [b.rack for b in answer.brokers] == ["a", "b", "c"]
    image = racked.state.topics.image.by_name["t"]
    assert image.racks == (frozenset("abc"),)
    assert nodes.state.topics.image.by_name["t"].racks == ()


def rack_fetch(nodes: Nodes, node: int, rack: str, version: int = 12) -> PartitionData:
    request = fetch_request("t", 0, max_wait_ms=60_000)
    request.rack_id = rack
    answer = nodes.send(request, version, node)
    return nodes.read(answer, FetchResponse, version).responses[0].partitions[0]


def test_a_consumer_is_sent_to_the_replica_of_its_rack() -> None:
    """KIP-392, with RackAwareReplicaSelector: the leader sends it there, and there it is served."""
    nodes = Nodes(
        broker_rack=("a", "b", "c"),
        replica_selector_class="org.apache.kafka.common.replica.RackAwareReplicaSelector",
    )
    racks = nodes.config.racks()
    nodes.put(b"a")
    near = nodes.others[0]
    sent = rack_fetch(nodes, nodes.leader, racks[near])
    assert (sent.error_code, sent.preferred_read_replica, sent.records) == (0, near, b"")
    assert sent.high_watermark == 1
    served = rack_fetch(nodes, near, racks[near])
    assert (served.preferred_read_replica, records_of(served)) == (-1, [(0, b"a")])
    for rack in (racks[nodes.leader], "elsewhere", ""):
        assert records_of(rack_fetch(nodes, nodes.leader, rack)) == [(0, b"a")]
    assert nodes.get(near, version=10).responses[0].partitions[0].error_code == (
        E.NOT_LEADER_OR_FOLLOWER
    )
    nodes.nodes.kill(near)
    nodes.env.advance(100)
    assert records_of(rack_fetch(nodes, nodes.leader, racks[near])) == [(0, b"a")]
    with pytest.raises(ConfigError, match="RackAware"):
        Nodes(replica_selector_class="Nearest")


def elect(
    nodes: Nodes, partitions: list[int] | None, kind: int = 0, node: int | None = None
) -> dict[int, int] | int:
    topics = None
    if partitions is not None:
        topics = [TopicPartitions(topic="t", partitions=partitions)]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics)
    answer = nodes.ask(request, ElectLeadersResponse, None, node)
    found = {
        result.partition_id: result.error_code
        for topic in answer.replica_election_results
        for result in topic.partition_result
    }
    return answer.error_code or found


def test_elections_on_demand(nodes: Nodes) -> None:
    """ElectLeaders, KIP-183 and KIP-460."""
    assert elect(nodes, [0, 7]) == {0: E.ELECTION_NOT_NEEDED, 7: E.UNKNOWN_TOPIC_OR_PARTITION}
    assert elect(nodes, None) == {}
    first = nodes.leader
    nodes.move()
    assert elect(nodes, [0]) == {0: 0}
    assert nodes.leader == first
    nodes.move()
    assert elect(nodes, None) == {0: 0}
    assert elect(nodes, [0], kind=1) == {0: E.ELECTION_NOT_NEEDED}
    assert elect(nodes, [0], kind=2) == E.INVALID_REQUEST


def test_an_election_needs_somebody_alive(nodes: Nodes) -> None:
    preferred, *others = nodes.state.leadership.at("t", 0).replicas
    nodes.nodes.stop(preferred)
    assert elect(nodes, [0], node=others[0]) == {0: E.PREFERRED_LEADER_NOT_AVAILABLE}


# -- deaths and restarts


def test_a_topic_made_while_its_preferred_leader_was_dead_keeps_its_leader(nodes: Nodes) -> None:
    """Spec L11: after a restart nobody else leads in epoch 0."""
    preferred = nodes.state.leadership.replicas("u", 0)[0]
    nodes.nodes.stop(preferred)
    asked = next(n for n in nodes.config.node_ids() if n != preferred)
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name="u", num_partitions=1, replication_factor=-1)]
    )
    assert nodes.ask(request, CreateTopicsResponse, None, asked).topics[0].error_code == 0
    led = nodes.state.leadership.at("u", 0)
    assert (led.leader != preferred, led.epoch) == (True, 0)
    again = nodes.restarted(clean=True)
    assert again.state.leadership.at("u", 0) == led


def test_epochs_are_in_the_log_and_survive(nodes: Nodes) -> None:
    """Kafka's leader-epoch-checkpoint, and the registry for what was never written to."""
    nodes.create("u", 2)
    nodes.put(b"a")
    nodes.move()
    nodes.nodes.leaders.move("u", 1, None)
    assert nodes.files.read_all("t-0/leader-epoch-checkpoint") == b"0\n2\n0 0\n1 1\n"
    leader = nodes.leader
    for clean in (True, False):
        again = nodes.restarted(clean=clean)
        led = again.state.leadership.at("t", 0)
        assert led.leader == leader
        assert led.epoch == (1 if clean else 2)  # a crash begins an epoch of its own
        assert again.state.leadership.at("u", 1).epoch == 1
        found = again.state.topics.partition("t", 0)
        assert found is not None
        assert found.leader_epoch == led.epoch


def test_a_crash_that_loses_the_checkpoint_repeats_no_epoch(nodes: Nodes) -> None:
    """Spec L11: the registry knows the epochs that no batch carries."""
    nodes.put(b"a")
    for _ in range(3):
        nodes.move()
    nodes.files.remove("t-0/leader-epoch-checkpoint")
    again = nodes.restarted(clean=False)
    assert again.state.leadership.at("t", 0).epoch == 4


def test_other_nodes_than_before_lead_in_new_epochs(nodes: Nodes) -> None:
    nodes.put(b"a")
    nodes.state.close()
    alone = Harness(nodes.files, nodes.env)
    assert alone.state.leadership.at("t", 0)[:2] == (1, 1)
    alone.state.close()
    again = Harness(nodes.files, nodes.env)
    assert again.state.leadership.at("t", 0)[:2] == (1, 1)
    again.state.close()
    three = Harness(nodes.files, nodes.env, nodes=3)
    assert three.state.leadership.at("t", 0).epoch == 2


def test_one_node_writes_nothing_new_into_its_registry() -> None:
    """A directory of one node is what it was before there could be several."""
    harness = Harness()
    harness.create("t", 3)
    text = harness.files.read_all("topics.json") or b""
    assert b"leaders" not in text
    assert b"replicas" not in text
