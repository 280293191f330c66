"""Several nodes in one process, through sockets: who leads, deaths, moves, loading (spec 2.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from kohort.broker.state.failpoints import Moment, Verdict
from kohort.errors import ClosedError, ConfigError, ErrorCode, UsageError
from kohort.wire import decode_response
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.fetch_request import FetchRequest
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.metadata_response import MetadataResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestGroup
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.harness import batch_of, fetch_request, produce_request
from tests.broker.server.test_server import Wire
from tests.clusters import Embedded as Cluster
from tests.patience import until


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, broker_session_timeout_ms=20) as made:
        made.create_topic("t", 6)
        yield made


def produce(cluster: Cluster, node: int, partition: int = 0) -> int:
    request = produce_request("t", batch_of([b"x"]), partition)
    answer = cluster.request(request, ProduceResponse, 11, node=node)
    return answer.responses[0].partition_responses[0].error_code


def heartbeat(cluster: Cluster, group: str, node: int) -> int:
    request = HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
    return cluster.request(request, HeartbeatResponse, node=node).error_code


def committed(cluster: Cluster, group: str, node: int) -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    return cluster.request(request, OffsetFetchResponse, 9, node=node).groups[0].error_code


def test_every_node_is_told_of_and_leads_its_share(cluster: Cluster) -> None:
    assert len(cluster.bootstrap.split(",")) == 3
    answer = cluster.request(MetadataRequest(topics=None), MetadataResponse, 12)
    assert [b.node_id for b in answer.brokers] == [1, 2, 3]
    assert len({b.port for b in answer.brokers}) == 3
    partitions = next(t for t in answer.topics if t.name == "t").partitions
    assert sorted(p.leader_id for p in partitions) == [1, 1, 2, 2, 3, 3]
    assert all(sorted(p.replica_nodes) == [1, 2, 3] for p in partitions)


def test_only_the_leader_takes_records(cluster: Cluster) -> None:
    leader = cluster.leader_of("t", 0)
    codes = {node: produce(cluster, node) for node in cluster.nodes}
    assert codes.pop(leader) == 0
    assert set(codes.values()) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


def test_a_killed_node_loses_its_partitions_and_comes_back(cluster: Cluster) -> None:
    """Spec L11: each change of leader is a new epoch."""
    leader = cluster.leader_of("t", 0)
    cluster.kill_node(leader)
    with pytest.raises(OSError, match="refused"):
        produce(cluster, leader)
    until(lambda: cluster.leader_of("t", 0) != leader, "another leads")
    assert cluster.leader_epoch_of("t", 0) == 1
    assert produce(cluster, cluster.leader_of("t", 0)) == 0
    brokers = cluster.request(MetadataRequest(topics=[]), MetadataResponse, 12).brokers
    assert leader not in [b.node_id for b in brokers]
    cluster.restart_node(leader)
    assert cluster.running == sorted(cluster.nodes) or set(cluster.running) == set(cluster.nodes)
    assert produce(cluster, leader) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert cluster.elect_preferred() > 0
    assert (cluster.leader_of("t", 0), cluster.leader_epoch_of("t", 0)) == (leader, 2)
    assert produce(cluster, leader) == 0


def test_a_node_that_is_stopped_leaves_no_partition_without_a_leader(cluster: Cluster) -> None:
    leader = cluster.leader_of("t", 0)
    cluster.stop_node(leader)
    assert cluster.leader_of("t", 0) not in (leader, -1)
    assert leader not in cluster.running


def test_a_node_restarted_before_its_death_was_noticed_has_failed_all_the_same() -> None:
    with Cluster(nodes=3, broker_session_timeout_ms=60_000) as cluster:
        cluster.create_topic("t", 1)
        leader = cluster.leader_of("t", 0)
        cluster.kill_node(leader)
        assert cluster.leader_of("t", 0) == leader
        cluster.restart_node(leader)
        assert cluster.leader_of("t", 0) != leader
        assert cluster.leader_epoch_of("t", 0) == 1


def test_a_group_is_coordinated_by_the_leader_of_its_partition(cluster: Cluster) -> None:
    """Spec 2.1."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    found = {
        cluster.request(request, FindCoordinatorResponse, 4, node=node).coordinators[0].node_id
        for node in cluster.nodes
    }
    assert found == {cluster.coordinator_of("g")}
    for node in cluster.nodes:
        here = node in found
        expected = ErrorCode.UNKNOWN_MEMBER_ID if here else ErrorCode.NOT_COORDINATOR
        assert heartbeat(cluster, "g", node) == expected
        assert committed(cluster, "g", node) == (0 if here else ErrorCode.NOT_COORDINATOR)


def test_loading_can_be_held_and_looked_at(cluster: Cluster) -> None:
    """Spec 2.12: who comes before the load is done is told to wait, a heartbeat all is well."""
    with cluster.hold_loading():
        before = cluster.coordinator_of("g")
        node = cluster.move_coordinator("g")
        assert node != before
        assert heartbeat(cluster, "g", node) == 0
        assert committed(cluster, "g", node) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert heartbeat(cluster, "g", before) == ErrorCode.NOT_COORDINATOR
    assert heartbeat(cluster, "g", node) == ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(cluster, "g", node) == 0


def test_leaders_and_epochs_survive_a_restart_of_the_process(cluster: Cluster) -> None:
    moved = cluster.move_leader("t", 0)
    cluster.move_leader("t", 0, moved)
    ports = cluster.bootstrap
    cluster.restart()
    assert cluster.bootstrap == ports
    assert (cluster.leader_of("t", 0), cluster.leader_epoch_of("t", 0)) == (moved, 2)


def test_other_nodes_than_before_begin_new_epochs(cluster: Cluster) -> None:
    cluster.restart(nodes=1)
    assert (cluster.leader_of("t", 4), cluster.leader_epoch_of("t", 4)) == (1, 1)


def test_what_cannot_be_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="no node 9"):
        cluster.kill_node(9)
    with pytest.raises(ConfigError, match="racks"):
        Cluster(nodes=3, broker_rack=("a",))
    with pytest.raises(ConfigError, match="nodes=0"):
        Cluster(nodes=0)
    with pytest.raises(ClosedError):
        _ = Cluster(nodes=3).bootstrap


# -- connections


def test_a_death_cuts_every_connection_at_once(cluster: Cluster) -> None:
    """What it had not answered stays unanswered (G10)."""
    leader = cluster.leader_of("t", 0)
    with Wire(cluster.address_of(leader)) as parked, Wire(cluster.address_of(leader)) as idle:
        parked.send(fetch_request("t", 0, max_wait_ms=5 * 60_000), 12)
        idle.send(ApiVersionsRequest(), 0)
        assert idle.receive()
        cluster.kill_node(leader)
        for wire in (parked, idle):
            with pytest.raises((EOFError, ConnectionError)):
                wire.receive()


def test_a_node_that_is_stopped_answers_what_waits(cluster: Cluster) -> None:
    """A parked fetch hears that the leader has moved, then the connection ends."""
    leader = cluster.leader_of("t", 0)
    with Wire(cluster.address_of(leader)) as wire:
        with cluster.tap(Moment.RECEIVED, lambda e: isinstance(e.message, FetchRequest)) as tap:
            wire.send(fetch_request("t", 0, max_wait_ms=5 * 60_000), 12)
            tap.wait()
        cluster.stop_node(leader)
        data = decode_response(FetchResponse, 12, wire.receive())[1].responses[0].partitions[0]
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(EOFError):
            wire.receive()


def test_a_node_that_is_stopped_answers_what_waits_for_the_disk() -> None:
    with Cluster(nodes=3, durability="fsync") as cluster:
        cluster.create_topic("t")
        leader = cluster.leader_of("t", 0)
        with Wire(cluster.address_of(leader)) as wire:
            with cluster.tap(Moment.RECEIVED) as tap:
                wire.send(produce_request("t", batch_of([b"x"])), 11)
                tap.wait()
            cluster.stop_node(leader)
            answer = decode_response(ProduceResponse, 11, wire.receive())[1]
            assert answer.responses[0].partition_responses[0].error_code == 0
            with pytest.raises(EOFError):
                wire.receive()


def test_a_tap_sees_each_moment_of_a_request(cluster: Cluster) -> None:
    """And a node can be killed at any of them: here before it answers."""
    node = cluster.nodes[0]
    with (
        cluster.tap(Moment.ANSWERING, verdict=Verdict.KILL) as tap,
        Wire(cluster.address_of(node)) as wire,
    ):
        wire.send(ApiVersionsRequest(), 0)
        with pytest.raises(EOFError):
            wire.receive()
        event = tap.wait()
    assert (event.node_id, event.client_id) == (node, "raw")
    assert node not in cluster.running


def test_what_a_taps_condition_raises_is_raised_at_its_end(cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError), cluster.tap(Moment.RECEIVED, lambda e: bool(1 // 0)):
        heartbeat(cluster, "g", 1)


def test_ports_in_a_row() -> None:
    """With a fixed port the nodes take it and those after it."""
    for _ in range(20):
        with Cluster() as free:
            first = free.broker.port
        cluster = Cluster(nodes=2, port=first)
        with contextlib.suppress(ConfigError):  # somebody else has the second one
            cluster.start()
            try:
                assert cluster.bootstrap == f"127.0.0.1:{first},127.0.0.1:{first + 1}"
            finally:
                cluster.stop()
            return
    pytest.fail("no two ports in a row were free")
