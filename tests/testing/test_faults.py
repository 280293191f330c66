"""`cluster.faults` and `cluster.requests`, as clients meet them (issue 5, coordinator ref. 5.5)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.errors import (
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    StorageError,
    UsageError,
)
from kohort.testing import Cluster
from kohort.wire import Message
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import FetchResponse
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import FindCoordinatorResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListGroupsResponse
from tests.known import known
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster(nodes=2) as cluster:
        cluster.create_topic("orders", partitions=2)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    running.requests.clear()
    yield running
    running.faults.clear()


def heartbeat(cluster: Cluster, group: str = "g", node: int | None = None) -> int:
    request = HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
    return cluster.request(request, HeartbeatResponse, node=node).error_code


UNKNOWN = 25  # UNKNOWN_MEMBER_ID, what the coordinator says as usual


def usual(cluster: Cluster) -> int:
    return cluster.coordinator_of("g")


def test_a_stack_of_errors_then_as_usual(cluster: Cluster):
    """One code for each request, NONE lets one pass, after the last all is as it was."""
    node = usual(cluster)
    fault = cluster.faults.fail("heartbeat", ["NOT_COORDINATOR", "NONE", 27])
    assert [heartbeat(cluster, node=node) for _ in range(5)] == [16, UNKNOWN, 27, UNKNOWN, UNKNOWN]
    assert fault.hits == 3


def test_faults_are_narrowed(cluster: Cluster):
    node = usual(cluster)
    cluster.faults.fail("Heartbeat", "REBALANCE_IN_PROGRESS", group="other", times=9)
    cluster.faults.fail("Heartbeat", "ILLEGAL_GENERATION", node=3 - node, times=9)
    cluster.faults.fail("Heartbeat", "UNSTABLE_OFFSET_COMMIT", client_id="somebody")
    assert heartbeat(cluster, node=node) == UNKNOWN
    assert heartbeat(cluster, "other") == 27
    assert heartbeat(cluster, node=3 - node) == 22


def test_skip_and_times(cluster: Cluster):
    node = usual(cluster)
    cluster.faults.fail("Heartbeat", 27, skip=1, times=2)
    assert [heartbeat(cluster, node=node) for _ in range(4)] == [UNKNOWN, 27, 27, UNKNOWN]


def test_the_first_fault_that_meets_is_carried_out(cluster: Cluster):
    node = usual(cluster)
    cluster.faults.fail("Heartbeat", [14])
    cluster.faults.fail("Heartbeat", [15])
    assert [heartbeat(cluster, node=node) for _ in range(3)] == [14, 15, UNKNOWN]


def test_one_partition_of_a_produce_fails_and_the_producer_goes_on(cluster: Cluster):
    """The other partition is stored at once; the refused one by a retry."""
    fault = cluster.faults.fail(
        "Produce", ["NOT_LEADER_OR_FOLLOWER"] * 2, topic="orders", partition=1
    )
    with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=5) as producer:
        sent = [producer.send("orders", b"v", partition=p) for p in (0, 1)]
        assert [future.result(PATIENCE_S).partition for future in sent] == [0, 1]
    assert fault.hits == 2
    refused = cluster.requests.of("Produce", error="NOT_LEADER_OR_FOLLOWER")
    assert [entry.fault for entry in refused] == [fault.number] * 2


def test_a_commit_that_was_done_and_is_told_otherwise(cluster: Cluster):
    """`handled`: the consumer commits again, and both commits are in the log of requests."""
    tp = TopicPartition("orders", 0)
    cluster.faults.fail("OffsetCommit", "REQUEST_TIMED_OUT", handled=True, group="twice")
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="twice") as consumer:
        consumer.assign([tp])
        consumer.commit({tp: 0})
    first, second = cluster.requests.wait("OffsetCommit", count=2, group="twice")
    assert (first.errors, second.errors) == ((7,), ())
    assert first.partitions == (("orders", 0),)


def test_a_delay_adds_up_and_keeps_order(cluster: Cluster):
    cluster.faults.delay(30, "Heartbeat")
    cluster.faults.delay(20, times=1)
    began = time.monotonic()
    assert heartbeat(cluster) in (16, UNKNOWN)
    assert time.monotonic() - began >= 0.05


def test_a_cut_before_and_after(cluster: Cluster):
    for handled in (False, True):
        with cluster.faults.cut("ListGroups", handled=handled) as fault:
            with pytest.raises(ConnectionFailedError):
                cluster.request(ListGroupsRequest(), ListGroupsResponse, node=1)
            fault.wait()
    cluster.request(ListGroupsRequest(), ListGroupsResponse)


def test_silence_ends_with_the_connection(cluster: Cluster):
    """A client whose request is not answered gives up on that connection and makes another."""
    fault = cluster.faults.silence("ListOffsets")
    with Consumer(
        bootstrap_servers=cluster.bootstrap, request_timeout_ms=200, fetch_max_wait_ms=100
    ) as consumer:
        assert consumer.beginning_offsets([TopicPartition("orders", 0)])
    assert fault.hits == 1
    first, *others = (e.answered_ms is None for e in cluster.requests.of("ListOffsets"))
    assert first
    assert others
    assert not any(others)


def test_held_answers_leave_when_the_fault_goes(cluster: Cluster):
    answers: list[int] = []
    with cluster.faults.hold("Heartbeat") as fault:
        thread = threading.Thread(target=lambda: answers.append(heartbeat(cluster)))
        thread.start()
        fault.wait()
        assert not answers
    thread.join(PATIENCE_S)
    assert answers


def test_a_function_answers(cluster: Cluster):
    def fn(request: Message, version: int) -> Message | None:
        assert isinstance(request, FindCoordinatorRequest)
        return None if version < 4 else FindCoordinatorResponse(throttle_time_ms=77)

    cluster.faults.answer("FindCoordinator", fn)
    answer = cluster.request(
        FindCoordinatorRequest(coordinator_keys=["g"]), FindCoordinatorResponse
    )
    assert answer.throttle_time_ms == 77

    def bad(request: Message, version: int) -> Message | None:
        raise ValueError("a defect of the test")

    cluster.faults.clear()
    cluster.faults.answer("Heartbeat", bad)
    assert heartbeat(cluster) in (16, UNKNOWN)
    with pytest.raises(ValueError, match="of the test"):
        cluster.faults.clear()


def test_an_older_broker(cluster: Cluster):
    """Clients use what is offered; who does not ask is cut off."""
    cluster.faults.limit("Produce", 7)
    cluster.faults.limit("ConsumerGroupHeartbeat", -1)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("orders", b"v").result(PATIENCE_S)
    assert {entry.version for entry in cluster.requests.of("Produce")} == {7}
    answer = cluster.request(
        ApiVersionsRequest(client_software_name="t", client_software_version="1"),
        ApiVersionsResponse,
    )
    offered = {api.api_key: api.max_version for api in answer.api_keys}
    assert offered[0] == 7
    assert 68 not in offered
    cluster.faults.limit("Heartbeat", 3)
    with pytest.raises(ConnectionFailedError):
        heartbeat(cluster)
    cluster.faults.clear()
    assert heartbeat(cluster) in (16, UNKNOWN)
    with pytest.raises(UsageError, match="ApiVersions"):
        cluster.faults.limit("ApiVersions", 1)


def test_metadata_without_a_leader_for_a_while(cluster: Cluster):
    cluster.faults.fail("Metadata", ["LEADER_NOT_AVAILABLE"] * 3, topic="orders")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        assert producer.send("orders", b"v").result(PATIENCE_S).offset >= 0


def test_a_fetch_fails_for_one_partition(cluster: Cluster):
    """The consumer looks for the leader again, and reads everything once."""
    cluster.create_topic("fetched", partitions=2)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(10):
            producer.send("fetched", str(n).encode(), partition=n % 2)
    fault = cluster.faults.fail(
        "Fetch", ["NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH"], topic="fetched", partition=1
    )
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([("fetched", 0), ("fetched", 1)])
        read: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(read) < 10 and time.monotonic() < deadline:
            read += [record.value or b"" for record in consumer.poll(0.5)]
    assert sorted(read) == [str(n).encode() for n in range(10)]
    assert fault.hits == 2


def fetch(cluster: Cluster, session: tuple[int, int], topic: str, *partitions: int) -> Any:
    """Partitions from their beginning; `session` is id and epoch."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        topic_id = admin.describe_topics([topic])[topic].topic_id
    named = FetchTopic(
        topic_id=topic_id, partitions=[FetchPartition(partition=p) for p in partitions]
    )
    for part in named.partitions:
        part.partition_max_bytes = 1 << 20
    request = FetchRequest(max_bytes=1 << 20, topics=[named])
    request.session_id, request.session_epoch = session
    return cluster.request(request, FetchResponse)


def errors(answer: Any) -> dict[int, int]:
    parts = [part for topic in answer.responses for part in topic.partitions]
    return {part.partition_index: part.error_code for part in parts}


def test_a_fault_about_a_partition_meets_fetches_that_read_it_unnamed() -> None:
    """An incremental fetch reads what its session has; it is refused, and a full one is met."""
    with Cluster() as cluster:
        cluster.create_topic("damaged", partitions=2)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for partition in (0, 1):
                producer.send("damaged", b"v", partition=partition)
        full = fetch(cluster, (0, 0), "damaged", 0, 1)
        assert full.session_id > 0
        with cluster.faults.fail("Fetch", "CORRUPT_MESSAGE", times=9, topic="damaged", partition=1):
            refused = fetch(cluster, (full.session_id, 1), "damaged", 0)
            assert errors(refused) == {}
            assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            again = fetch(cluster, (0, 0), "damaged", 0, 1)
            assert errors(again) == {0: 0, 1: ErrorCode.CORRUPT_MESSAGE}
            assert again.session_id == 0
        assert fetch(cluster, (0, 0), "damaged", 0, 1).session_id > 0


def test_the_requests_are_told(cluster: Cluster):
    heartbeat(cluster, "seen")
    (entry,) = cluster.requests.wait("Heartbeat", group="seen")
    assert (entry.client_id, entry.version, entry.groups) == ("kohort-testing", 4, ("seen",))
    assert "Heartbeat v4 of 'kohort-testing'" in str(entry)
    with pytest.raises(KafkaTimeoutError, match="Heartbeat v4"):
        cluster.requests.wait("JoinGroup", timeout_s=0.01)
    cluster.requests.clear()
    assert not list(cluster.requests)


def test_names_are_checked(cluster: Cluster):
    with pytest.raises(UsageError, match="did you mean 'OffsetCommit'"):
        cluster.faults.fail("OffsetComit", 16)
    with pytest.raises(UsageError, match="NOT_COORDINATOR"):
        cluster.faults.fail("OffsetCommit", "NOT_CORDINATOR")
    with pytest.raises(UsageError, match="topic"):
        cluster.faults.cut("Fetch", partition=1)
    with pytest.raises(UsageError):
        cluster.faults.fail("OffsetCommit", [])


def test_faults_outlive_a_restart():
    with Cluster() as cluster:
        cluster.faults.fail("Heartbeat", "REBALANCE_IN_PROGRESS", times=2)
        assert heartbeat(cluster) == 27
        cluster.restart()
        assert heartbeat(cluster) == 27
        assert heartbeat(cluster) == UNKNOWN
        assert len(list(cluster.faults)) == 1


@pytest.mark.parametrize("durability", ["memory", "os"])
def test_the_disk_fails_at_the_nth_append(durability: str, tmp_path: Any):
    """EIO takes the partition offline, as Kafka's log directory failure does; others go on."""
    extra: dict[str, Any] = {} if durability == "memory" else {"data_dir": str(tmp_path)}
    with Cluster(durability=durability, **extra) as cluster:
        cluster.create_topic("bad")
        cluster.create_topic("good")
        fault = cluster.faults.fail_disk("append", "ENOSPC", path="bad-0/*.log", after=1)
        settings: dict[str, Any] = {"delivery_timeout_ms": 1_500, "request_timeout_ms": 1_000}
        with (
            Producer(bootstrap_servers=cluster.bootstrap) as producer,
            Producer(bootstrap_servers=cluster.bootstrap, **settings) as hasty,
        ):
            assert producer.send("bad", b"1").result(PATIENCE_S).offset == 0
            failed = hasty.send("bad", b"2").error(PATIENCE_S)
            assert producer.send("good", b"1").result(PATIENCE_S).offset == 0
        assert fault.hits == 1
        assert failed is not None or cluster.requests.of("Produce", error="KAFKA_STORAGE_ERROR")
        try:
            cluster.stop()
        except StorageError:
            return  # a broken log may make the end unclean


def test_a_full_disk_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture):
    """Clients try again in silence: whoever looks at the broker has to be told why."""
    with Cluster() as cluster:
        cluster.create_topic("full")
        cluster.faults.fail_disk("append", "ENOSPC", path="full-0/*.log", times=3)
        with Producer(bootstrap_servers=cluster.bootstrap, retry_backoff_ms=10) as producer:
            assert producer.send("full", b"1").result(PATIENCE_S).offset == 0
    messages = [r.getMessage() for r in caplog.records if "full-0" in r.getMessage()]
    assert len(messages) == 2
    assert "No space left on device; clients get KAFKA_STORAGE_ERROR" in messages[0]
    assert "free some space to continue" in messages[0]
    assert "can be written again" in messages[1]


def test_a_broker_without_faults_does_not_pass_the_gate():
    with Cluster(request_log=0) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert not cluster.broker.call(lambda: known(cluster.broker.state.gate).watching)
        admin.describe_cluster()
        assert not list(cluster.requests)
        gate = cluster.broker.state.gate
        for begin in (
            lambda: cluster.faults.delay(1),
            lambda: cluster.faults.limit("Fetch", 11),
        ):
            begin()
            assert known(gate).watching
            cluster.faults.clear()
            assert not known(gate).watching
