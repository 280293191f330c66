"""The admin client's calls about brokers: disks, producers, transactions, quotas, leaders."""

from __future__ import annotations

import pytest

from kohort import Admin, NewTopic, Producer, TopicPartition
from kohort.client.admin import cluster as admin_cluster
from kohort.errors import BrokerError, ErrorCode, UsageError
from kohort.wire.messages.describe_topic_partitions_request import (
    DescribeTopicPartitionsRequest,
)
from kohort.wire.messages.elect_leaders_response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from tests.clusters import Cluster
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        yield cluster


def test_log_directories(admin, cluster):
    admin.create_topics([NewTopic("disk", 2, 1)])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send("disk", b"x" * 500, partition=1).result(PATIENCE_S)
    [node] = admin.describe_cluster().nodes
    found = admin.describe_log_dirs()
    assert list(found) == [node.node_id]
    [directory] = found[node.node_id]
    assert directory.error == 0
    assert directory.replicas[TopicPartition("disk", 1)].size_bytes > 500
    assert not directory.replicas[TopicPartition("disk", 1)].is_future
    assert admin.describe_log_dirs([node.node_id]).keys() == found.keys()
    with pytest.raises(UsageError, match="no brokers \\[99\\]"):
        admin.describe_log_dirs([99])


def test_what_brokers_understand_and_what_this_user_may_do(admin, cluster):
    [node] = admin.describe_cluster().nodes
    [features] = admin.broker_features().values()
    assert features.apis[3][1] >= 12, "Metadata"
    assert admin.broker_features([node.node_id]) == {node.node_id: features}
    assert {"create", "describe"} <= admin.allowed_operations()


def test_producers_and_transactions(admin, cluster):
    """KIP-664: an open transaction is seen in its partitions and at its coordinator."""
    admin.create_topics([NewTopic("tx", 1, 1)])
    tp = TopicPartition("tx", 0)
    assert admin.describe_producers([tp]) == {tp: []}
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id="app one") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("tx", b"v").result(PATIENCE_S)
        [seen] = admin.describe_producers([tp])[tp]
        described = admin.describe_transactions(["app one"])["app one"]
        assert (described.state, described.partitions) == ("Ongoing", (tp,))
        assert (seen.producer_id, seen.producer_epoch, seen.transaction_start_offset) == (
            described.producer_id,
            described.producer_epoch,
            0,
        )
        assert described.started_ms > 0
        [listed] = admin.list_transactions(states=["Ongoing"], pattern="app.*")
        assert (listed.transactional_id, listed.producer_id) == ("app one", seen.producer_id)
        assert admin.list_transactions(pattern="other") == []
        assert admin.list_transactions(longer_than_ms=3_600_000, producer_ids=[-5]) == []
        last = admin.list_offsets({tp: "latest"}, isolation_level="read_committed")
        assert last[tp].offset == 0
        assert admin.list_offsets({tp: "latest"})[tp].offset == 1
        assert admin.list_offsets({tp: "earliest_local"})[tp].offset == 0
        producer.abort_transaction()
    with pytest.raises(BrokerError) as unknown:
        admin.describe_transactions(["nobody"])
    assert unknown.value.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_quotas(admin):
    """KIP-546."""
    ann = frozenset({("user", "ann")})
    admin.alter_quotas({"user": "ann"}, {"producer_byte_rate": 1_000})
    admin.alter_quotas({"client-id": None}, {"request_percentage": 50.5})
    admin.alter_quotas({"user": "bob"}, {"producer_byte_rate": 1}, validate_only=True)
    assert admin.describe_quotas({"user": "ann"}) == {ann: {"producer_byte_rate": 1_000}}
    assert admin.describe_quotas({"client-id": None}, strict=True) == {
        frozenset({("client-id", None)}): {"request_percentage": 50.5}
    }
    assert len(admin.describe_quotas()) == 2
    with pytest.raises(BrokerError) as refused:
        admin.alter_quotas({"user": "ann"}, {"no_such": 1})
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    admin.alter_quotas({"user": "ann"}, {"producer_byte_rate": None})
    while admin.describe_quotas({"user": "ann"}):
        pass  # Apache Kafka's brokers hear of it a little later


def test_leaders_are_elected_where_that_is_needed(admin):
    """KIP-460."""
    admin.create_topics([NewTopic("led", 1, 1)])
    assert admin.elect_leaders([TopicPartition("led", 0)]) == []
    assert admin.elect_leaders() == []
    with pytest.raises(BrokerError):
        admin.elect_leaders([TopicPartition("nope", 0)], timeout_s=0.2)


def test_what_was_elected_is_kept_while_the_others_are_asked_for_again(broker):
    """Asked for again, it would be ELECTION_NOT_NEEDED, and be no part of the result."""
    broker.cluster.topics["t"] = dict.fromkeys(range(3), (0, 1))
    first = {0: 0, 1: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, 2: ErrorCode.ELECTION_NOT_NEEDED}
    asked: list[list[int] | None] = []

    def answer(request, call):
        topics = request.topic_partitions
        asked.append(None if topics is None else [p for t in topics for p in t.partitions])
        again = dict.fromkeys(first, ErrorCode.ELECTION_NOT_NEEDED) | {1: ErrorCode.NONE}
        codes = again if len(asked) % 2 == 0 else first
        wanted = first if asked[-1] is None else asked[-1]
        results = [PartitionResult(partition_id=p, error_code=codes[p]) for p in wanted]
        return ElectLeadersResponse(
            replica_election_results=[ReplicaElectionResult(topic="t", partition_result=results)]
        )

    broker.answers["ElectLeadersRequest"] = answer
    tps = [TopicPartition("t", n) for n in range(3)]
    with Admin(bootstrap_servers=broker.address, retry_backoff_ms=1) as admin:
        assert admin.elect_leaders(tps, timeout_s=PATIENCE_S) == tps[:2]
        assert admin.elect_leaders(timeout_s=PATIENCE_S) == tps[:2]
    assert asked == [[0, 1, 2], [1], None, None]


def test_topics_are_described_in_pages(admin, monkeypatch):
    """KIP-966: a topic larger than a page is put together again."""

    def small(**fields):
        return DescribeTopicPartitionsRequest(response_partition_limit=2, **fields)

    admin.create_topics([NewTopic("p1", 5, 1), NewTopic("p2", 1, 1)])
    monkeypatch.setattr(admin_cluster, "DescribeTopicPartitionsRequest", small)
    found = admin.describe_topics(["p2", "p1"])
    assert list(found) == ["p2", "p1"]
    assert [p.partition for p in found["p1"].partitions] == [0, 1, 2, 3, 4]
    assert [p.elr for p in found["p2"].partitions] == [()]
    with pytest.raises(BrokerError, match="nope"):
        admin.describe_topics(["p1", "nope"])
    assert admin.describe_topics([]) == {}
