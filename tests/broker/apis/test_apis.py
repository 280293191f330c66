"""Every API in every version that is advertised, and what the administrative ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kohort.broker.apis import APIS
from kohort.errors import ErrorCode
from kohort.wire import ZERO_UUID, Message, decode_response, response_class
from kohort.wire.messages.alter_configs_request import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from kohort.wire.messages.alter_configs_response import AlterConfigsResponse
from kohort.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersionsResponse
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.create_acls_request import AclCreation, CreateAclsRequest
from kohort.wire.messages.create_partitions_request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kohort.wire.messages.create_partitions_response import CreatePartitionsResponse
from kohort.wire.messages.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kohort.wire.messages.create_topics_response import CreateTopicsResponse
from kohort.wire.messages.delete_acls_request import DeleteAclsFilter, DeleteAclsRequest
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.delete_groups_response import DeleteGroupsResponse
from kohort.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kohort.wire.messages.delete_records_response import DeleteRecordsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from kohort.wire.messages.describe_acls_request import DescribeAclsRequest
from kohort.wire.messages.describe_cluster_request import DescribeClusterRequest
from kohort.wire.messages.describe_cluster_response import DescribeClusterResponse
from kohort.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kohort.wire.messages.describe_configs_response import DescribeConfigsResponse
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse
from kohort.wire.messages.describe_user_scram_credentials_request import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from kohort.wire.messages.elect_leaders_request import ElectLeadersRequest
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterableConfig as IncrementalConfig,
)
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterConfigsResource as IncrementalResource,
)
from kohort.wire.messages.incremental_alter_configs_request import IncrementalAlterConfigsRequest
from kohort.wire.messages.incremental_alter_configs_response import (
    IncrementalAlterConfigsResponse,
)
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListGroupsResponse
from kohort.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kohort.wire.messages.list_offsets_response import ListOffsetsResponse
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import MetadataResponse
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kohort.wire.messages.offset_delete_response import OffsetDeleteResponse
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from kohort.wire.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kohort.wire.messages.offset_for_leader_epoch_response import OffsetForLeaderEpochResponse
from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from kohort.wire.messages.sasl_handshake_request import SaslHandshakeRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from tests.broker import cluster_requests, transacting
from tests.broker.harness import Harness, batch_of, fetch_request, produce_request

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TOPIC = 2


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.create("t", 2)
    made.produce("t", batch_of([b"a", b"b"], timestamps=[100, 200]))
    return made


def list_offsets(*timestamps: int, topic: str = "t") -> ListOffsetsRequest:
    parts = [ListOffsetsPartition(partition_index=i, timestamp=t) for i, t in enumerate(timestamps)]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=parts)]
    )


def commit_request(version: int, topic_id: bytes, topic: str = "t") -> OffsetCommitRequest:
    parts = [
        OffsetCommitRequestPartition(partition_index=i, committed_offset=5, committed_metadata="m")
        for i in (0, 9)
    ]
    named = OffsetCommitRequestTopic(name=topic, partitions=parts)
    if version >= 10:
        named.topic_id = topic_id
    return OffsetCommitRequest(group_id="g", topics=[named])


def offset_fetch(version: int, topic_id: bytes) -> OffsetFetchRequest:
    if version < 8:
        topic = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        return OffsetFetchRequest(group_id="g", topics=[topic])
    topics = OffsetFetchRequestTopics(partition_indexes=[0, 1])
    if version >= 10:
        topics.topic_id = topic_id
    else:
        topics.name = "t"
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id="g", topics=[topics]),
            OffsetFetchRequestGroup(group_id="other", topics=None),
        ]
    )


def join(version: int) -> JoinGroupRequest:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    if version >= 1:
        request.rebalance_timeout_ms = 10_000
    return request


def leave(version: int) -> LeaveGroupRequest:
    if version >= 3:
        return LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    return LeaveGroupRequest(group_id="g", member_id="m")


def metadata(version: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name="t")])


def delete_topics(version: int) -> DeleteTopicsRequest:
    if version >= 6:
        return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1)
    return DeleteTopicsRequest(topic_names=["t"], timeout_ms=1)


Make = Callable[[int, bytes], Message]
REQUESTS: dict[str, Make] = {
    "Produce": lambda v, tid: named(produce_request("t", batch_of([b"x"])), v, tid),
    "Fetch": lambda v, tid: named(fetch_request("t", 0), v, tid),
    "ListOffsets": lambda v, tid: list_offsets(-1, -2),
    "ElectLeaders": lambda v, tid: ElectLeadersRequest(topic_partitions=None),
    "Metadata": lambda v, tid: metadata(v),
    "OffsetCommit": commit_request,
    "OffsetFetch": offset_fetch,
    "FindCoordinator": lambda v, tid: (
        FindCoordinatorRequest(coordinator_keys=["g"])
        if v >= 4
        else FindCoordinatorRequest(key="g")
    ),
    "JoinGroup": lambda v, tid: join(v),
    "Heartbeat": lambda v, tid: HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
    "LeaveGroup": lambda v, tid: leave(v),
    "SyncGroup": lambda v, tid: SyncGroupRequest(group_id="g", generation_id=1, member_id="m"),
    "DescribeGroups": lambda v, tid: DescribeGroupsRequest(groups=["g", "h"]),
    "ListGroups": lambda v, tid: ListGroupsRequest(),
    "ApiVersions": lambda v, tid: (
        ApiVersionsRequest(client_software_name="a", client_software_version="1")
        if v >= 3
        else ApiVersionsRequest()
    ),
    "CreateTopics": lambda v, tid: CreateTopicsRequest(
        topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    ),
    "DeleteTopics": lambda v, tid: delete_topics(v),
    "DeleteRecords": lambda v, tid: DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)]
            )
        ]
    ),
    "InitProducerId": lambda v, tid: InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1_000
    ),
    "OffsetForLeaderEpoch": lambda v, tid: OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
            )
        ]
    ),
    "DescribeConfigs": lambda v, tid: DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None),
            DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None),
        ]
    ),
    "AlterConfigs": lambda v, tid: AlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=2,
                resource_name="t",
                configs=[AlterableConfig(name="retention.ms", value="5")],
            )
        ]
    ),
    "IncrementalAlterConfigs": lambda v, tid: incremental("retention.ms", 0, "5"),
    "CreatePartitions": lambda v, tid: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=3, assignments=None)]
    ),
    "DeleteGroups": lambda v, tid: DeleteGroupsRequest(groups_names=["g"]),
    "OffsetDelete": lambda v, tid: OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name="t",
                partitions=[OffsetDeleteRequestPartition(partition_index=i) for i in (0, 9)],
            )
        ],
    ),
    "DescribeCluster": lambda v, tid: DescribeClusterRequest(),
    "SaslHandshake": lambda v, tid: SaslHandshakeRequest(mechanism="PLAIN"),
    "SaslAuthenticate": lambda v, tid: SaslAuthenticateRequest(auth_bytes=b"x"),
    "AlterUserScramCredentials": lambda v, tid: AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="u", mechanism=1)],
        upsertions=[ScramCredentialUpsertion(name="v", mechanism=2, iterations=1)],
    ),
    "DescribeUserScramCredentials": lambda v, tid: DescribeUserScramCredentialsRequest(
        users=[UserName(name="u")]
    ),
    **transacting.REQUESTS,
    "CreateAcls": lambda v, tid: CreateAclsRequest(creations=[AclCreation(resource_name="t")]),
    "DescribeAcls": lambda v, tid: DescribeAclsRequest(),
    "DeleteAcls": lambda v, tid: DeleteAclsRequest(filters=[DeleteAclsFilter()]),
    **cluster_requests.REQUESTS,
    "ConsumerGroupHeartbeat": lambda v, tid: ConsumerGroupHeartbeatRequest(
        group_id="k848",
        member_id="m",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        subscribed_topic_regex="t.*" if v >= 1 else None,
        topic_partitions=[],
    ),
    "ConsumerGroupDescribe": lambda v, tid: ConsumerGroupDescribeRequest(group_ids=["g", "h"]),
}


def named(request: Any, version: int, topic_id: bytes) -> Message:
    """Topics by id where the version has no names."""
    if version >= 13:
        for topic in getattr(request, "topic_data", None) or request.topics:
            topic.topic_id = topic_id
    return request


def incremental(name: str, operation: int, value: str | None) -> IncrementalAlterConfigsRequest:
    config = IncrementalConfig(name=name, config_operation=operation, value=value)
    resource = IncrementalResource(resource_type=TOPIC, resource_name="t", configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource])


def cases() -> list[Any]:
    return [
        pytest.param(api.key, version, id=f"{api.request.NAME.removesuffix('Request')}-{version}")
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ]


@pytest.mark.parametrize(("key", "version"), cases())
def test_every_advertised_version_is_answered(harness: Harness, key: int, version: int) -> None:
    """What is listed is handled: each answer fits its version, field by field."""
    api = APIS[key]
    topic = harness.node.topics.get("t")
    assert topic is not None
    request = REQUESTS[api.request.NAME.removesuffix("Request")](version, topic.topic_id)
    answer = harness.send(request, version)
    harness.env.advance(1)  # a first join waits for the others, if only for 0 ms
    assert answer.frame is not None
    decode_response(response_class(key), version, answer.frame)


def test_api_versions_lists_exactly_what_is_handled(harness: Harness) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    answer = harness.ask(request, ApiVersionsResponse)
    listed = {a.api_key: (a.min_version, a.max_version) for a in answer.api_keys}
    served = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
    produce = 0
    assert listed.pop(produce)[0] == 0, "for librdkafka's sake (KAFKA-18659)"
    del served[produce]
    assert listed == served
    bad = ApiVersionsRequest(client_software_name="!", client_software_version="1")
    assert harness.ask(bad, ApiVersionsResponse).error_code == ErrorCode.INVALID_REQUEST


# -- topics


def test_metadata_makes_topics_when_it_may(harness: Harness) -> None:
    def code(name: str, allow: bool) -> int:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=allow
        )
        return harness.ask(request, MetadataResponse).topics[0].error_code

    assert code("made", False) == UNKNOWN
    assert code("made", True) == 0
    assert harness.node.topics.get("made") is not None
    assert code("no/slash", True) == ErrorCode.INVALID_TOPIC_EXCEPTION
    closed = Harness(auto_create_topics_enable=False)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="x")])
    assert closed.ask(request, MetadataResponse).topics[0].error_code == UNKNOWN


def test_metadata_of_all_topics_and_by_id(harness: Harness) -> None:
    everything = harness.ask(MetadataRequest(topics=None), MetadataResponse)
    assert [t.name for t in everything.topics] == ["t"]
    assert [p.partition_index for p in everything.topics[0].partitions] == [0, 1]
    for name in (None, ""):  # the Java client of a group with a pattern sends "" beside the id
        by_id = MetadataRequestTopic(name=name, topic_id=everything.topics[0].topic_id)
        answer = harness.ask(MetadataRequest(topics=[by_id]), MetadataResponse)
        assert answer.topics[0].name == "t"
    unknown = MetadataRequestTopic(name=None, topic_id=b"\1" * 16)
    answer = harness.ask(MetadataRequest(topics=[unknown]), MetadataResponse)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (CreatableTopic(name="t", num_partitions=1, replication_factor=1), "TOPIC_ALREADY_EXISTS"),
        (CreatableTopic(name="", num_partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (CreatableTopic(name="..", num_partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (CreatableTopic(name="a" * 250, num_partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (CreatableTopic(name="../x", num_partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (CreatableTopic(name="__consumer_offsets", num_partitions=1), "INVALID_TOPIC_EXCEPTION"),
        (CreatableTopic(name="n", num_partitions=0), "INVALID_PARTITIONS"),
        (CreatableTopic(name="n", num_partitions=10**6), "POLICY_VIOLATION"),
        (
            CreatableTopic(name="n", num_partitions=1, replication_factor=3),
            "INVALID_REPLICATION_FACTOR",
        ),
        (
            CreatableTopic(
                name="n",
                num_partitions=1,
                replication_factor=-1,
                configs=[CreatableTopicConfig(name="retention.mss", value="1")],
            ),
            "INVALID_CONFIG",
        ),
        (
            CreatableTopic(
                name="n",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[7])],
            ),
            "INVALID_REPLICA_ASSIGNMENT",
        ),
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_topics_that_cannot_be_made(harness: Harness, topic: CreatableTopic, code: str) -> None:
    if topic.replication_factor == 0:
        topic.replication_factor = -1
    answer = harness.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
    assert ErrorCode(answer.topics[0].error_code).name == code
    assert answer.topics[0].error_message
    assert len(harness.node.topics) == 1


def test_creation_with_defaults_and_validation_only(harness: Harness) -> None:
    """KIP-464: -1 is the broker's default; validate_only makes nothing."""
    topic = CreatableTopic(name="n", num_partitions=-1, replication_factor=-1)
    dry = harness.ask(CreateTopicsRequest(topics=[topic], validate_only=True), CreateTopicsResponse)
    assert dry.topics[0].error_code == 0
    assert harness.node.topics.get("n") is None
    wet = harness.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
    assert (wet.topics[0].num_partitions, wet.topics[0].replication_factor) == (1, 1)
    twice = CreateTopicsRequest(
        topics=[CreatableTopic(name="d", num_partitions=1, replication_factor=1)] * 2
    )
    answer = harness.ask(twice, CreateTopicsResponse)
    assert [t.error_code for t in answer.topics] == [ErrorCode.INVALID_REQUEST]


def test_topics_outlive_the_node(harness: Harness) -> None:
    harness.create("kept", 3, retention_ms="1234")
    before = harness.ask(MetadataRequest(topics=None), MetadataResponse)
    for clean in (True, False):
        harness = harness.restarted(clean=clean)
        after = harness.ask(MetadataRequest(topics=None), MetadataResponse)
        assert [(t.name, t.topic_id, len(t.partitions)) for t in after.topics] == [
            (t.name, t.topic_id, len(t.partitions)) for t in before.topics
        ]
        assert after.cluster_id == before.cluster_id
    kept = harness.node.topics.get("kept")
    assert kept is not None
    assert kept.config.retention_ms == 1234


def test_delete_topics_by_name_and_id(harness: Harness) -> None:
    topic = harness.node.topics.get("t")
    assert topic is not None
    states = [
        DeleteTopicState(name=None, topic_id=topic.topic_id),
        DeleteTopicState(name="nope", topic_id=ZERO_UUID),
        DeleteTopicState(name=None, topic_id=b"\1" * 16),
    ]
    answer = harness.ask(DeleteTopicsRequest(topics=states), DeleteTopicsResponse)
    codes = [r.error_code for r in answer.responses]
    assert codes == [0, UNKNOWN, ErrorCode.UNKNOWN_TOPIC_ID]
    assert answer.responses[0].name == "t"
    assert "t-0" not in harness.files.list("")


def test_create_partitions(harness: Harness) -> None:
    def code(count: int, **more: Any) -> int:
        topic = CreatePartitionsTopic(name=more.pop("name", "t"), count=count, assignments=None)
        topic.assignments = more.pop("assignments", None)
        request = CreatePartitionsRequest(topics=[topic], **more)
        return harness.ask(request, CreatePartitionsResponse).results[0].error_code

    assert code(2) == ErrorCode.INVALID_PARTITIONS
    assert code(3, name="nope") == UNKNOWN
    assert code(3, validate_only=True) == 0
    wrong = [CreatePartitionsAssignment(broker_ids=[9])]
    assert code(3, assignments=wrong) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert code(3) == 0
    assert harness.produce("t", batch_of([b"x"]), 2).error_code == 0


# -- configurations


def config_of(harness: Harness, name: str) -> tuple[str | None, int]:
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=[name]
    )
    answer = harness.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
    (found,) = answer.results[0].configs
    return found.value, found.config_source


def alter(harness: Harness, name: str, operation: int, value: str | None) -> int:
    request = incremental(name, operation, value)
    return harness.ask(request, IncrementalAlterConfigsResponse).responses[0].error_code


def test_configurations_are_changed_and_shown(harness: Harness) -> None:
    """KIP-339, KIP-226."""
    assert config_of(harness, "retention.ms") == ("604800000", 5)
    assert alter(harness, "retention.ms", 0, "1000") == 0
    assert config_of(harness, "retention.ms") == ("1000", 1)
    assert alter(harness, "cleanup.policy", 2, "compact") == 0
    assert config_of(harness, "cleanup.policy")[0] == "delete,compact"
    assert alter(harness, "cleanup.policy", 3, "delete") == 0
    assert config_of(harness, "cleanup.policy")[0] == "compact"
    assert alter(harness, "retention.ms", 1, None) == 0
    assert config_of(harness, "retention.ms") == ("604800000", 5)
    assert alter(harness, "retention.ms", 0, "soon") == ErrorCode.INVALID_CONFIG
    assert alter(harness, "retention.sm", 0, "1") == ErrorCode.INVALID_CONFIG
    assert alter(harness, "retention.ms", 2, "1") == ErrorCode.INVALID_CONFIG
    assert config_of(harness.restarted(clean=True), "cleanup.policy")[0] == "compact"


def test_alter_configs_replaces_everything(harness: Harness) -> None:
    assert alter(harness, "retention.ms", 0, "1000") == 0
    resource = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="t",
        configs=[AlterableConfig(name="segment.bytes", value="5000")],
    )
    request = AlterConfigsRequest(resources=[resource])
    assert harness.ask(request, AlterConfigsResponse).responses[0].error_code == 0
    assert config_of(harness, "retention.ms") == ("604800000", 5)
    assert config_of(harness, "segment.bytes") == ("5000", 1)
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    assert partition.log.config.segment_bytes == 5000


def test_the_broker_shows_its_own_configuration(harness: Harness) -> None:
    resource = DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=["num.partitions"]
    )
    answer = harness.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
    assert [(c.name, c.value, c.read_only) for c in answer.results[0].configs] == [
        ("num.partitions", "1", True)
    ]


def broker_config(harness: Harness, name: str, broker: str = "1") -> tuple[str | None, int] | None:
    resource = DescribeConfigsResource(
        resource_type=4, resource_name=broker, configuration_keys=[name]
    )
    answer = harness.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
    found = [(c.value, c.config_source) for c in answer.results[0].configs if not c.read_only]
    return found[0] if found else None


def alter_broker(
    harness: Harness, name: str, operation: int, value: str | None, broker: str = "1"
) -> int:
    request = incremental(name, operation, value)
    request.resources[0].resource_type, request.resources[0].resource_name = 4, broker
    return harness.ask(request, IncrementalAlterConfigsResponse).responses[0].error_code


def test_a_broker_is_configured_while_it_runs(harness: Harness) -> None:
    """KIP-226: what is set for one broker holds before what is set for all, and after a restart."""
    name = "background.threads"
    assert broker_config(harness, name) == ("10", 5)
    assert alter_broker(harness, name, 0, "8", broker="") == 0
    assert broker_config(harness, name) == broker_config(harness, name, "") == ("8", 3)
    assert alter_broker(harness, name, 0, "9") == 0
    assert broker_config(harness, name) == ("9", 2)
    assert broker_config(harness.restarted(clean=True), name) == ("9", 2)


def described(harness: Harness, broker: str = "1") -> dict[str, Any]:
    resource = DescribeConfigsResource(
        resource_type=4, resource_name=broker, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource])
    [found] = harness.ask(request, DescribeConfigsResponse).results
    assert len({entry.name for entry in found.configs}) == len(found.configs)
    return {entry.name: entry for entry in found.configs}


@pytest.mark.parametrize("durability", ["fsync", "os", "memory"])
def test_a_broker_shows_what_clients_look_at(durability: str) -> None:
    """Issue F.22: by Kafka's names, as it is here, and not to be changed."""
    harness = Harness(
        durability=durability,
        data_dir="d",
        nodes=3,
        security_protocol="SASL_PLAINTEXT",
        sasl_users=("a:b",),
        acls=True,
        super_users=("User:ANONYMOUS",),
        log_retention_ms=7_200_000,
        host="127.0.0.9",
        allow_open=True,
    )
    node = harness.at(2)
    node.host, node.port = "broker.example", 9_092
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=4, resource_name="2", configuration_keys=None)
        ]
    )
    [found] = harness.ask(request, DescribeConfigsResponse, node=2).results
    shown = {entry.name: entry.value for entry in found.configs if entry.read_only}
    flush = {"fsync": "1"}.get(durability, str((1 << 63) - 1))
    wanted = {
        "broker.id": "2",
        "node.id": "2",
        "default.replication.factor": "3",
        "listeners": "SASL_PLAINTEXT://127.0.0.9:9092",
        "advertised.listeners": "SASL_PLAINTEXT://broker.example:9092",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "log.dirs": "d",
        "log.dir": "d",
        "delete.topic.enable": "true",
        "log.flush.interval.messages": flush,
        "log.retention.hours": "2",
        "log.roll.hours": "168",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "1",
        "auto.create.topics.enable": "true",
        "num.partitions": "1",
        "authorizer.class.name": "kohort.Authorizer",
    }
    assert {name: shown.get(name) for name in wanted} == wanted
    for name in ("broker.id", "listeners", "log.dirs", "log.flush.interval.messages"):
        assert alter_broker(harness, name, 0, "1") == ErrorCode.INVALID_REQUEST


def test_what_acts_while_the_broker_runs_acts(harness: Harness) -> None:
    """KIP-226, issue F.22."""
    configs = harness.state.broker_configs
    for name, default in (
        ("max.connections.per.ip", (1 << 31) - 1),
        ("producer.id.expiration.ms", 86_400_000),
        ("log.cleaner.backoff.ms", 15_000),
    ):
        assert configs.acting(name) == default
        assert alter_broker(harness, name, 0, "7000", broker="") == 0
        assert configs.acting(name) == 7_000
        assert alter_broker(harness, name, 0, "8000") == 0
        assert configs.acting(name, 1) == configs.acting(name) == 8_000
        assert broker_config(harness, name) == ("8000", 2)
        assert alter_broker(harness, name, 0, "0") == ErrorCode.INVALID_REQUEST
        assert not described(harness)[name].read_only


def test_producers_are_forgotten_after_the_time_that_was_set_while_it_runs(
    harness: Harness,
) -> None:
    batch = batch_of([b"x"], producer_id=7, producer_epoch=0, base_sequence=0)
    assert harness.produce("t", batch).error_code == 0
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    harness.env.advance(400_000)
    assert len(partition.open().producers) == 1
    assert alter_broker(harness, "producer.id.expiration.ms", 0, "1000") == 0
    harness.env.advance(400_000)
    assert len(partition.open().producers) == 0


def test_every_default_of_topics_that_kafka_can_change_is_taken(harness: Harness) -> None:
    """Also those without effect: they are kept, and shown where a topic sets none itself."""
    for name, topic_name, value in (
        ("log.preallocate", "preallocate", "true"),
        ("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio", "0.25"),
        ("log.segment.delete.delay.ms", "file.delete.delay.ms", "5"),
        ("compression.zstd.level", "compression.zstd.level", "9"),
        ("unclean.leader.election.enable", "unclean.leader.election.enable", "true"),
    ):
        assert alter_broker(harness, name, 0, value) == 0
        assert broker_config(harness, name) == (value, 2)
        assert config_of(harness, topic_name) == (value, 2)


def test_defaults_of_topics_are_changed_while_the_broker_runs(harness: Harness) -> None:
    """KIP-226: they act at once where a topic sets nothing itself, and stay after a restart."""
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert alter(harness, "segment.bytes", 0, "5000") == 0
    assert alter_broker(harness, "log.segment.bytes", 0, "7000") == 0
    assert alter_broker(harness, "log.cleanup.policy", 2, "compact") == 0
    assert alter_broker(harness, "log.retention.ms", 0, "9000", broker="") == 0
    assert partition.topic.config.segment_bytes == 5000
    assert (partition.topic.config.compact, partition.topic.config.delete) == (True, True)
    assert partition.topic.config.retention_ms == 9000
    assert partition.log is None or partition.log.config is partition.topic.config
    assert config_of(harness, "cleanup.policy") == ("delete,compact", 2)
    assert config_of(harness, "retention.ms") == ("9000", 3)
    again = harness.restarted(clean=True)
    assert config_of(again, "retention.ms") == ("9000", 3)
    assert alter_broker(again, "log.cleanup.policy", 3, "compact") == 0
    assert config_of(again, "cleanup.policy") == ("delete", 2)
    assert alter_broker(again, "log.cleanup.policy", 1, None) == 0
    assert config_of(again, "cleanup.policy") == ("delete", 5)


@pytest.mark.parametrize(
    ("name", "value", "broker"),
    [
        ("node.id", "2", "1"),
        ("no.such", "2", "1"),
        ("background.threads", "2", "9"),
        ("background.threads", "0", "1"),
        ("log.retention.ms", "soon", ""),
    ],
)
def test_what_a_broker_cannot_be_set_to(
    harness: Harness, name: str, value: str, broker: str
) -> None:
    assert alter_broker(harness, name, 0, value, broker) == ErrorCode.INVALID_REQUEST


# -- offsets


def found(harness: Harness, timestamp: int, version: int = 11) -> tuple[int, int, int]:
    answer = harness.ask(list_offsets(timestamp), ListOffsetsResponse, version)
    part = answer.topics[0].partitions[0]
    return part.error_code, part.offset, part.timestamp


def test_list_offsets(harness: Harness) -> None:
    """KIP-79, KIP-734, KIP-1005; D1."""
    assert found(harness, -1) == (0, 2, -1)
    assert found(harness, -2) == (0, 0, -1)
    assert found(harness, -3) == (0, 1, 200)
    assert found(harness, -4) == (0, 0, -1)
    assert found(harness, -5) == (0, -1, -1)
    assert found(harness, 0) == (0, 0, 100)
    assert found(harness, 100) == (0, 0, 100)
    assert found(harness, 101) == (0, 1, 200)
    assert found(harness, 201) == (0, -1, -1)
    assert found(harness, -3, 6)[0] == ErrorCode.UNSUPPORTED_VERSION
    assert found(harness, -7)[0] == ErrorCode.UNSUPPORTED_VERSION
    unknown = harness.ask(list_offsets(-1, topic="nope"), ListOffsetsResponse)
    assert unknown.topics[0].partitions[0].error_code == UNKNOWN
    twice = list_offsets(-1)
    twice.topics[0].partitions *= 2
    answer = harness.ask(twice, ListOffsetsResponse)
    codes = [p.error_code for p in answer.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST], "answered once"


def test_time_lookup_inside_a_batch_of_append_time(harness: Harness) -> None:
    harness.create("a", message_timestamp_type="LogAppendTime")
    harness.produce("a", batch_of([b"x", b"y"]))
    now = harness.env.wall_ms()
    request = list_offsets(now, topic="a")
    part = harness.ask(request, ListOffsetsResponse).topics[0].partitions[0]
    assert (part.offset, part.timestamp) == (0, now)


def test_delete_records(harness: Harness) -> None:
    """KIP-107; the new start outlives a crash."""

    def delete(offset: int, partition: int = 0) -> tuple[int, int]:
        part = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[part])])
        answer = harness.ask(request, DeleteRecordsResponse).topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    assert delete(3)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(1) == (0, 1)
    assert harness.fetch("t", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert found(harness, -2) == (0, 1, -1)
    assert delete(-1) == (0, 2)
    assert delete(0) == (0, 2)
    assert delete(0, 9)[0] == UNKNOWN
    again = harness.restarted(clean=False)
    assert found(again, -2) == (0, 2, -1)


def test_offset_for_leader_epoch(harness: Harness) -> None:
    """KIP-320: where epochs ended, over restarts."""
    second = harness.restarted(clean=False)

    def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
        part = OffsetForLeaderPartition(
            partition=0, leader_epoch=epoch, current_leader_epoch=current
        )
        topics = [OffsetForLeaderTopic(topic="t", partitions=[part])]
        request = OffsetForLeaderEpochRequest(topics=topics)
        answer = second.ask(request, OffsetForLeaderEpochResponse).topics[0].partitions[0]
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert end(0) == (0, 0, 2)
    assert end(1) == (0, 1, 2)  # as LATEST says
    second.produce("t", batch_of([b"c"]))
    assert end(0) == (0, 0, 2)
    assert end(1) == (0, 1, 3)
    assert end(5) == (0, -1, -1)
    assert end(0, current=0)[0] == ErrorCode.FENCED_LEADER_EPOCH


def test_producer_ids_are_never_given_twice(harness: Harness) -> None:
    producer_ids: set[int] = set()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    for clean in (True, False, False):
        for _ in range(3):
            answer = harness.ask(request, InitProducerIdResponse)
            assert answer.producer_epoch == 0
            assert answer.producer_id not in producer_ids
            producer_ids.add(answer.producer_id)
        harness = harness.restarted(clean=clean)


# -- groups through the shards


def test_commits_are_split_between_what_exists_and_what_does_not(harness: Harness) -> None:
    topic = harness.node.topics.get("t")
    assert topic is not None
    answer = harness.ask(commit_request(9, b""), OffsetCommitResponse, 9)
    codes = {p.partition_index: p.error_code for t in answer.topics for p in t.partitions}
    assert codes == {0: 0, 9: UNKNOWN}
    answer = harness.ask(commit_request(10, b"\1" * 16), OffsetCommitResponse, 10)
    codes = {p.partition_index: p.error_code for t in answer.topics for p in t.partitions}
    assert set(codes.values()) == {ErrorCode.UNKNOWN_TOPIC_ID}
    for version in (7, 9, 10):
        request = offset_fetch(version, topic.topic_id)
        read = harness.ask(request, OffsetFetchResponse, version)
        topics = read.topics if version < 8 else read.groups[0].topics
        offsets = {p.partition_index: p.committed_offset for p in topics[0].partitions}
        assert offsets == {0: 5, 1: -1}


def test_groups_of_all_shards_in_the_order_asked(harness: Harness) -> None:
    names = [f"group-{i}" for i in range(12)]
    for name in names:
        request = commit_request(9, b"")
        request.group_id = name
        harness.ask(request, OffsetCommitResponse, 9)
    assert len(harness.node.groups.hosts()) == harness.config.offsets_topic_num_partitions
    listed = harness.ask(ListGroupsRequest(), ListGroupsResponse)
    assert [g.group_id for g in listed.groups] == sorted(names)
    described = harness.ask(DescribeGroupsRequest(groups=names[::-1]), DescribeGroupsResponse)
    assert [g.group_id for g in described.groups] == names[::-1]
    groups = [OffsetFetchRequestGroup(group_id=n, topics=None) for n in names[::-1]]
    offsets = harness.ask(OffsetFetchRequest(groups=groups), OffsetFetchResponse)
    assert [g.group_id for g in offsets.groups] == names[::-1]
    deleted = harness.ask(DeleteGroupsRequest(groups_names=names), DeleteGroupsResponse)
    assert [(r.group_id, r.error_code) for r in deleted.results] == [(n, 0) for n in names]
    assert harness.ask(ListGroupsRequest(), ListGroupsResponse).groups == []


def test_offsets_of_a_deleted_topic_go(harness: Harness) -> None:
    harness.ask(commit_request(9, b""), OffsetCommitResponse, 9)
    harness.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]), DeleteTopicsResponse)
    harness.create("t")
    topic = harness.node.topics.get("t")
    assert topic is not None
    read = harness.ask(offset_fetch(9, b""), OffsetFetchResponse, 9)
    assert {p.committed_offset for p in read.groups[0].topics[0].partitions} == {-1}


def test_offset_delete(harness: Harness) -> None:
    """KIP-496."""
    harness.ask(commit_request(9, b""), OffsetCommitResponse, 9)
    request = REQUESTS["OffsetDelete"](0, b"")
    answer = harness.ask(request, OffsetDeleteResponse)
    codes = {p.partition_index: p.error_code for t in answer.topics for p in t.partitions}
    assert codes == {0: 0, 9: UNKNOWN}
    read = harness.ask(offset_fetch(9, b""), OffsetFetchResponse, 9)
    assert {p.committed_offset for p in read.groups[0].topics[0].partitions} == {-1}


def test_describe_cluster(harness: Harness) -> None:
    answer = harness.ask(DescribeClusterRequest(), DescribeClusterResponse)
    assert [b.broker_id for b in answer.brokers] == [1]
    assert answer.cluster_id == harness.node.cluster_id
    controllers = DescribeClusterRequest(endpoint_type=2)
    code = harness.ask(controllers, DescribeClusterResponse).error_code
    assert code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_nobody_writes_to_the_groups_topic(harness: Harness) -> None:
    harness.ask(commit_request(9, b""), OffsetCommitResponse, 9)
    answer = harness.produce("__consumer_offsets", batch_of([b"x"], keys=[b"k"]))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_id_is_refused_where_answers_need_names(harness: Harness, version: int) -> None:
    """KIP-516: the id has a place in versions 10 and 11, and is not supported in them."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t", topic_id=b"x" * 16)])
    (topic,) = harness.ask(request, MetadataResponse, version).topics
    assert (topic.name, topic.error_code) == ("t", ErrorCode.INVALID_REQUEST)
