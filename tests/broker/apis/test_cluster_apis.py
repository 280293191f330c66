"""What tools ask a broker about itself: log directories, quorum, features, quotas, replicas,
telemetry, pages of topics.
"""

from __future__ import annotations

from typing import Any

import pytest

from kohort.broker.log.directory import Registry
from kohort.broker.log.files import MemoryFiles
from kohort.broker.state.client_quotas import ENTITIES_MAX, Component
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages import (
    alter_partition_reassignments_request as reassign,
)
from kohort.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
)
from kohort.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kohort.wire.messages.describe_configs_response import DescribeConfigsResponse
from kohort.wire.messages.describe_log_dirs_request import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from kohort.wire.messages.describe_log_dirs_response import DescribeLogDirsResponse
from kohort.wire.messages.describe_topic_partitions_request import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from kohort.wire.messages.describe_topic_partitions_response import (
    DescribeTopicPartitionsResponse,
)
from kohort.wire.messages.get_telemetry_subscriptions_request import (
    GetTelemetrySubscriptionsRequest,
)
from kohort.wire.messages.get_telemetry_subscriptions_response import (
    GetTelemetrySubscriptionsResponse,
)
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kohort.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)
from kohort.wire.messages.list_config_resources_request import ListConfigResourcesRequest
from kohort.wire.messages.list_config_resources_response import ListConfigResourcesResponse
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.list_transactions_response import ListTransactionsResponse
from kohort.wire.messages.push_telemetry_request import PushTelemetryRequest
from kohort.wire.messages.push_telemetry_response import PushTelemetryResponse
from tests.broker.harness import Harness, batch_of, produce_request
from tests.broker.transacting import Tx

E = ErrorCode


def pages(harness: Harness, limit: int, *topics: str) -> list[list[tuple[str, list[int]]]]:
    found: list[list[tuple[str, list[int]]]] = []
    cursor: Any = None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in topics],
            response_partition_limit=limit,
            cursor=cursor,
        )
        answer = harness.ask(request, DescribeTopicPartitionsResponse)
        found.append(
            [(t.name or "", [p.partition_index for p in t.partitions]) for t in answer.topics]
        )
        if answer.next_cursor is None:
            return found
        cursor = Cursor(
            topic_name=answer.next_cursor.topic_name,
            partition_index=answer.next_cursor.partition_index,
        )


def test_topics_come_in_pages() -> None:
    """KIP-966: by name, each partition once, in pages of at most so many partitions."""
    harness = Harness()
    harness.create("b", 3)
    harness.create("a", 2)
    assert pages(harness, 2_000) == [[("a", [0, 1]), ("b", [0, 1, 2])]]
    assert pages(harness, 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2])]]
    assert pages(harness, 3, "b", "a") == [[("a", [0, 1]), ("b", [0])], [("b", [1, 2])]]
    assert pages(harness, 0, "a") == [[("a", [0])], [("a", [1])]]


def test_log_directories_have_sizes(tmp_path: Any) -> None:
    harness = Harness()
    harness.create("t", 2)
    sent = batch_of([b"x" * 1_000])
    harness.send(produce_request("t", sent, partition=1), 12)

    def sizes(request: DescribeLogDirsRequest) -> dict[tuple[str, int], int]:
        [found] = harness.ask(request, DescribeLogDirsResponse).results
        assert (found.log_dir, found.total_bytes, found.usable_bytes) == ("memory", -1, -1)
        return {
            (t.name, p.partition_index): p.partition_size
            for t in found.topics
            for p in t.partitions
        }

    assert sizes(DescribeLogDirsRequest(topics=None)) == {("t", 0): 0, ("t", 1): len(sent)}
    one = DescribableLogDirTopic(topic="t", partitions=[1, 1, 7])
    assert sizes(DescribeLogDirsRequest(topics=[one])) == {("t", 1): len(sent)}
    assert sizes(DescribeLogDirsRequest(topics=[])) == {}


def place(harness: Harness, replicas: list[int] | None, partition: int = 0, **more: Any) -> int:
    part = reassign.ReassignablePartition(partition_index=partition, replicas=replicas)
    topic = reassign.ReassignableTopic(name="t", partitions=[part])
    request = reassign.AlterPartitionReassignmentsRequest(topics=[topic], **more)
    answer = harness.ask(request, AlterPartitionReassignmentsResponse)
    return answer.responses[0].partitions[0].error_code


def test_replicas_are_changed_at_once_and_kept() -> None:
    """KIP-455: nothing is ever under way, since the nodes share their logs."""
    files = MemoryFiles()
    harness = Harness(files, nodes=3, durability="os")
    harness.create("t", 1)
    before = harness.state.leadership.at("t", 0)
    others = [n for n in before.replicas if n != before.leader]
    assert place(harness, others) == 0
    after = harness.state.leadership.at("t", 0)
    assert (after.leader, after.epoch) == (others[0], before.epoch + 1)
    partition = harness.state.topics.partition("t", 0)
    assert partition is not None
    assert partition.leader == others[0]
    assert place(harness, others) == 0
    assert harness.state.leadership.at("t", 0) == after, "nothing was to be done"
    assert place(harness, None) == E.NO_REASSIGNMENT_IN_PROGRESS
    assert place(harness, [1, 9]) == E.INVALID_REPLICA_ASSIGNMENT
    assert place(harness, [1], allow_replication_factor_change=False) == (
        E.INVALID_REPLICATION_FACTOR
    )
    harness.state.close()
    again = Harness(files, nodes=3, durability="os")
    assert again.state.leadership.at("t", 0).replicas == tuple(others)


def test_quotas_are_kept_and_shown() -> None:
    """KIP-546; they survive a restart."""
    files = MemoryFiles()
    harness = Harness(files, durability="os")
    quotas = harness.state.quotas
    quotas.alter([("user", "ann")], {"producer_byte_rate": 10.0, "request_percentage": 0.5})
    quotas.alter([("client-id", None), ("user", "ann")], {"consumer_byte_rate": 5.0})
    quotas.alter([("ip", None)], {"connection_creation_rate": 3.0})
    quotas.alter([("user", "ann")], {"producer_byte_rate": None})
    quotas.alter([("user", "bob")], {"producer_byte_rate": 1.0}, validate_only=True)
    harness.state.close()
    kept = Harness(files, durability="os").state.quotas
    ann = Component("user", 0, "ann")
    both = ((("client-id", None), ("user", "ann")), {"consumer_byte_rate": 5.0})
    alone = ((("user", "ann"),), {"request_percentage": 0.5})
    assert sorted(kept.matching([ann], strict=False)) == [both, alone]
    assert kept.matching([ann], strict=True) == [alone]
    assert kept.matching([Component("ip", 1, None)], strict=True) == [
        ((("ip", None),), {"connection_creation_rate": 3.0})
    ]
    assert len(kept.matching([], strict=False)) == 3


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        ([], {"producer_byte_rate": 1.0}),
        ([("planet", "x")], {"producer_byte_rate": 1.0}),
        ([("user", "")], {"producer_byte_rate": 1.0}),
        ([("user", "a"), ("ip", "10.0.0.1")], {"producer_byte_rate": 1.0}),
        ([("ip", "a host")], {"connection_creation_rate": 1.0}),
        ([("user", "a")], {"connection_creation_rate": 1.0}),
        ([("user", "a")], {"producer_byte_rate": 0.0}),
        ([("user", "a")], {"producer_byte_rate": 1.5}),
        ([("user", "a")], {"producer_byte_rate": float("nan")}),
        ([("user", "a")], {"producer_byte_rate": float("inf")}),
        ([("user", "a")], {"producer_byte_rate": float("-inf")}),
        ([("user", "a")], {"consumer_byte_rate": 1e300}),
        ([("ip", None)], {"connection_creation_rate": float("inf")}),
        ([("user", "a")], {"request_percentage": float("nan")}),
    ],
)
def test_senseless_quotas_are_refused(
    entity: list[tuple[str, str | None]], changes: dict[str, float | None]
) -> None:
    quotas = Harness().state.quotas
    with pytest.raises(BrokerError) as refused:
        quotas.alter(entity, changes)
    assert refused.value.code == E.INVALID_REQUEST
    assert quotas.matching([], strict=False) == []


def test_the_largest_whole_number_is_a_quota() -> None:
    """Long.MAX_VALUE, "no limit" of Apache Kafka, is 2^63 as a double."""
    quotas = Harness().state.quotas
    quotas.alter([("user", "a")], {"producer_byte_rate": 2.0**63})
    assert quotas.matching([], strict=False) == [
        ((("user", "a"),), {"producer_byte_rate": 2.0**63})
    ]


def test_quotas_are_bounded() -> None:
    harness = Harness()
    quotas = harness.state.quotas
    quotas._quotas = {(("user", str(n)),): {} for n in range(ENTITIES_MAX)}
    with pytest.raises(BrokerError):
        quotas.alter([("user", "one more")], {"producer_byte_rate": 1.0})


def test_a_registry_without_quotas_is_read() -> None:
    """Data directories of before."""
    document = Registry("c").encode().replace(b'"quotas": [],', b"")
    assert Registry.decode(document).quotas == []


def test_clients_are_asked_for_no_metrics() -> None:
    """KIP-714: a client has an id and no subscription; what it pushes all the same is dropped."""
    harness = Harness()
    answer = harness.ask(GetTelemetrySubscriptionsRequest(), GetTelemetrySubscriptionsResponse)
    assert any(answer.client_instance_id)
    assert answer.requested_metrics == []
    known = GetTelemetrySubscriptionsRequest(client_instance_id=answer.client_instance_id)
    assert harness.ask(known, GetTelemetrySubscriptionsResponse) == answer

    def push(**changes: Any) -> int:
        values = {
            "client_instance_id": answer.client_instance_id,
            "subscription_id": answer.subscription_id,
            **changes,
        }
        return harness.ask(PushTelemetryRequest(**values), PushTelemetryResponse).error_code

    assert push(metrics=b"x") == 0
    assert push(subscription_id=9) == E.UNKNOWN_SUBSCRIPTION_ID
    assert push(client_instance_id=bytes(16)) == E.INVALID_REQUEST
    assert push(metrics=bytes(answer.telemetry_max_bytes + 1)) == E.TELEMETRY_TOO_LARGE


def test_config_resources_are_listed() -> None:
    harness = Harness()
    harness.create("t")
    harness.state.group_configs.configure("g", {"consumer.session.timeout.ms": "50000"})

    def listed(*kinds: int) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=list(kinds))
        answer = harness.ask(request, ListConfigResourcesResponse)
        return [(r.resource_type, r.resource_name) for r in answer.config_resources]

    assert listed() == [(2, "t"), (4, "1"), (32, "g")]
    assert listed(32, 16) == [(32, "g")]


def test_transactions_are_listed_by_pattern() -> None:
    """KIP-1152; the ids may have other characters than topics."""
    harness = Harness()
    harness.create("t")
    for name in ("app one", "app:two", "other"):
        Tx(harness, name).init()

    def listed(pattern: str | None) -> list[str]:
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        answer = harness.ask(request, ListTransactionsResponse)
        assert answer.error_code == 0
        return [state.transactional_id for state in answer.transaction_states]

    assert listed("app[ :].*") == ["app one", "app:two"]
    assert listed("app") == [], "the whole id has to match"
    assert listed(None) == listed("") == ["app one", "app:two", "other"]
    bad = ListTransactionsRequest(transactional_id_pattern="(")
    answer = harness.ask(bad, ListTransactionsResponse)
    assert answer.error_code == E.INVALID_REGULAR_EXPRESSION


def test_configurations_say_where_they_come_from() -> None:
    """KIP-226, KIP-569: synonyms, types and documentation, where they are asked for."""
    harness = Harness(log_retention_ms=5_000)
    harness.create("t", segment_ms="60000")
    resource = DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    [found] = harness.ask(request, DescribeConfigsResponse).results
    entries = {entry.name: entry for entry in found.configs}

    def chain(name: str) -> list[tuple[str, str | None, int]]:
        return [(s.name, s.value, s.source) for s in entries[name].synonyms]

    assert chain("segment.ms") == [("segment.ms", "60000", 1)]
    assert chain("retention.ms") == [("log.retention.ms", "5000", 4)]
    assert chain("max.message.bytes") == [("message.max.bytes", "1048588", 5)]
    assert entries["preallocate"].value == "false"
    assert all(entry.documentation for entry in found.configs)
    request.include_synonyms = request.include_documentation = False
    [bare] = harness.ask(request, DescribeConfigsResponse).results
    assert not any(entry.synonyms or entry.documentation for entry in bare.configs)


def test_secrets_of_the_broker_are_never_shown() -> None:
    """Passwords of users and keys: that they are there, and nothing more."""
    harness = Harness(sasl_enabled_mechanisms=("PLAIN",), sasl_users=("ann:hush-hush",))
    resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    answer = harness.ask(request, DescribeConfigsResponse)
    assert "hush" not in repr(answer)
    secret = {e.name for e in answer.results[0].configs if e.is_sensitive}
    assert {"sasl.users", "ssl.key.password"} <= secret


def test_throttles_of_replicas_are_taken_and_cleared() -> None:
    """As `kafka-reassign-partitions` sets them with `--throttle`, and clears with `--verify`."""

    def code(operation: int, value: str | None) -> int:
        names = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
        configs = [AlterableConfig(name=n, config_operation=operation, value=value) for n in names]
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = harness.ask(request, IncrementalAlterConfigsResponse)
        return answer.responses[0].error_code

    harness = Harness()
    assert (code(1, None), code(0, "1000"), code(1, None)) == (0, 0, 0)


def test_topics_that_differ_in_dots_alone_are_refused() -> None:
    """As in Kafka: their metrics would have the same name."""
    harness = Harness()
    harness.create("a.b_c")
    with pytest.raises(BrokerError) as refused:
        harness.state.topics.create("a_b.c", 1, {})
    assert refused.value.code == E.INVALID_TOPIC_EXCEPTION
    topic = harness.state.topics.get("a.b_c")
    assert topic is not None
    harness.state.topics.delete(topic)
    harness.state.topics.create("a_b.c", 1, {})
