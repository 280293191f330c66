"""Every API asks who may do that, when the broker asks at all (issue D: ACLs enforced)."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest

from kohort.acl import Acl, Operation, Pattern, Permission, Resource
from kohort.broker.apis import APIS
from kohort.broker.authorization import AUTHORIZERS
from kohort.broker.authorization.request_check import Asking
from kohort.broker.base.request import Call
from kohort.broker.log.files import MemoryFiles
from kohort.errors import ErrorCode
from kohort.wire import Message, Struct, response_class
from kohort.wire.messages.create_acls_request import AclCreation, CreateAclsRequest
from kohort.wire.messages.fetch_response import FetchResponse
from tests.broker.harness import Answer, Harness, batch_of, produce_request

OP, R = Operation, Resource
ALICE, ROOT = "User:alice", "User:root"
TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TX_REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def module(name: str) -> Any:
    return importlib.import_module(f"kohort.wire.messages.{name}")


def grant(
    harness: Harness, operation: Operation, resource: Resource, name: str, principal: str = ALICE
) -> None:
    acl = Acl(resource, name, Pattern.LITERAL, principal, "*", operation, Permission.ALLOW)
    harness.state.acls.change(add=[acl])


def ask(harness: Harness, request: Message, version: int | None = None, who: str = ALICE) -> Any:
    used = APIS[request.API_KEY].max_version if version is None else version
    answer = harness.send(request, used, principal=who)
    harness.env.advance(5_000)
    return harness.read(answer, response_class(request.API_KEY), used)


@pytest.fixture
def harness() -> Harness:
    found = Harness(acls=True, super_users=(ROOT,))
    found.state.topics.create("t", 2, {})
    found.state.topics.create("u", 1, {})
    return found


def test_every_api_has_a_screen() -> None:
    names = {api.request.NAME.removesuffix("Request") for api in APIS.values()}
    login = {"SaslHandshake", "SaslAuthenticate"}
    assert names - login <= set(AUTHORIZERS)


def topic_id(harness: Harness, name: str) -> bytes:
    topic = harness.state.topics.get(name)
    assert topic is not None
    return topic.topic_id


def produce(h: Harness) -> Message:
    m = module("produce_request")
    data = [m.PartitionProduceData(index=0, records=b"")]
    topics = [m.TopicProduceData(topic_id=topic_id(h, "t"), partition_data=data)]
    return m.ProduceRequest(acks=1, timeout_ms=10, topic_data=topics)


def fetch(h: Harness) -> Message:
    m = module("fetch_request")
    topics = [m.FetchTopic(topic_id=topic_id(h, "t"), partitions=[m.FetchPartition(partition=0)])]
    return m.FetchRequest(max_wait_ms=0, topics=topics, session_epoch=-1)


def list_offsets(h: Harness) -> Message:
    m = module("list_offsets_request")
    parts = [m.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    return m.ListOffsetsRequest(topics=[m.ListOffsetsTopic(name="t", partitions=parts)])


def leader_epoch(h: Harness) -> Message:
    m = module("offset_for_leader_epoch_request")
    parts = [m.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    return m.OffsetForLeaderEpochRequest(
        topics=[m.OffsetForLeaderTopic(topic="t", partitions=parts)]
    )


def metadata(h: Harness) -> Message:
    m = module("metadata_request")
    return m.MetadataRequest(topics=[m.MetadataRequestTopic(name="t")])


def delete_topics(h: Harness) -> Message:
    m = module("delete_topics_request")
    return m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name="t")])


def delete_records(h: Harness) -> Message:
    m = module("delete_records_request")
    parts = [m.DeleteRecordsPartition(partition_index=0, offset=0)]
    return m.DeleteRecordsRequest(topics=[m.DeleteRecordsTopic(name="t", partitions=parts)])


def create_partitions(h: Harness) -> Message:
    m = module("create_partitions_request")
    return m.CreatePartitionsRequest(topics=[m.CreatePartitionsTopic(name="t", count=3)])


def describe_producers(h: Harness) -> Message:
    m = module("describe_producers_request")
    return m.DescribeProducersRequest(topics=[m.TopicRequest(name="t", partition_indexes=[0])])


def create_topics(h: Harness) -> Message:
    m = module("create_topics_request")
    return m.CreateTopicsRequest(
        topics=[m.CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    )


def describe_configs(h: Harness) -> Message:
    m = module("describe_configs_request")
    return m.DescribeConfigsRequest(
        resources=[m.DescribeConfigsResource(resource_type=2, resource_name="t")]
    )


def alter_configs(h: Harness) -> Message:
    m = module("incremental_alter_configs_request")
    return m.IncrementalAlterConfigsRequest(
        resources=[m.AlterConfigsResource(resource_type=2, resource_name="t")]
    )


def broker_configs(h: Harness) -> Message:
    m = module("describe_configs_request")
    return m.DescribeConfigsRequest(
        resources=[m.DescribeConfigsResource(resource_type=4, resource_name="1")]
    )


def join(h: Harness) -> Message:
    m = module("join_group_request")
    protocols = [m.JoinGroupRequestProtocol(name="range", metadata=b"")]
    return m.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols
    )


def heartbeat(h: Harness) -> Message:
    return module("heartbeat_request").HeartbeatRequest(group_id="g", member_id="m")


def sync(h: Harness) -> Message:
    return module("sync_group_request").SyncGroupRequest(group_id="g", member_id="m")


def leave(h: Harness) -> Message:
    m = module("leave_group_request")
    return m.LeaveGroupRequest(group_id="g", members=[m.MemberIdentity(member_id="m")])


def group_heartbeat(h: Harness) -> Message:
    return module("consumer_group_heartbeat_request").ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[],
        topic_partitions=[],
    )


def find_group(h: Harness) -> Message:
    return module("find_coordinator_request").FindCoordinatorRequest(coordinator_keys=["g"])


def find_transactions(h: Harness) -> Message:
    return module("find_coordinator_request").FindCoordinatorRequest(
        key_type=1, coordinator_keys=["x"]
    )


def simple_commit(h: Harness, group: str) -> Message:
    m = module("offset_commit_request")
    parts = [m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topics = [m.OffsetCommitRequestTopic(topic_id=topic_id(h, "t"), partitions=parts)]
    return m.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics)


def offset_commit(h: Harness) -> Message:
    m = module("offset_commit_request")
    parts = [m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topics = [m.OffsetCommitRequestTopic(topic_id=topic_id(h, "t"), partitions=parts)]
    return m.OffsetCommitRequest(group_id="g", topics=topics)


def offset_fetch(h: Harness) -> Message:
    m = module("offset_fetch_request")
    topics = [m.OffsetFetchRequestTopics(topic_id=topic_id(h, "t"), partition_indexes=[0])]
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=topics)])


def offset_delete(h: Harness) -> Message:
    ask(h, simple_commit(h, "g"), who=ROOT)  # what is wrong with the group is all that is told
    m = module("offset_delete_request")
    parts = [m.OffsetDeleteRequestPartition(partition_index=0)]
    topics = [m.OffsetDeleteRequestTopic(name="t", partitions=parts)]
    return m.OffsetDeleteRequest(group_id="g", topics=topics)


def describe_groups(h: Harness) -> Message:
    return module("describe_groups_request").DescribeGroupsRequest(groups=["g"])


def describe_consumer_groups(h: Harness) -> Message:
    return module("consumer_group_describe_request").ConsumerGroupDescribeRequest(group_ids=["g"])


def delete_groups(h: Harness) -> Message:
    return module("delete_groups_request").DeleteGroupsRequest(groups_names=["g"])


def init_transactional(h: Harness) -> Message:
    return module("init_producer_id_request").InitProducerIdRequest(
        transactional_id="x", transaction_timeout_ms=1_000
    )


def init_idempotent(h: Harness) -> Message:
    return module("init_producer_id_request").InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1_000
    )


def add_partitions(h: Harness) -> Message:
    m = module("add_partitions_to_txn_request")
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_topics=[m.AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )


def add_offsets(h: Harness) -> Message:
    return module("add_offsets_to_txn_request").AddOffsetsToTxnRequest(
        transactional_id="x", group_id="g"
    )


def end_txn(h: Harness) -> Message:
    return module("end_txn_request").EndTxnRequest(transactional_id="x")


def txn_offset_commit(h: Harness) -> Message:
    m = module("txn_offset_commit_request")
    parts = [m.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topics = [m.TxnOffsetCommitRequestTopic(name="t", partitions=parts)]
    return m.TxnOffsetCommitRequest(transactional_id="x", group_id="g", topics=topics)


def describe_transactions(h: Harness) -> Message:
    return module("describe_transactions_request").DescribeTransactionsRequest(
        transactional_ids=["x"]
    )


def markers(h: Harness) -> Message:
    m = module("write_txn_markers_request")
    topics = [m.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    marker = m.WritableTxnMarker(producer_id=1, topics=topics)
    return m.WriteTxnMarkersRequest(markers=[marker])


def elect(h: Harness) -> Message:
    return module("elect_leaders_request").ElectLeadersRequest(topic_partitions=[])


def describe_acls(h: Harness) -> Message:
    return module("describe_acls_request").DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def create_acls(h: Harness) -> CreateAclsRequest:
    creation = AclCreation(
        resource_type=2,
        resource_name="t",
        principal=ALICE,
        host="*",
        operation=3,
        permission_type=3,
    )
    return CreateAclsRequest(creations=[creation])


def delete_acls(h: Harness) -> Message:
    m = module("delete_acls_request")
    wanted = m.DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter="none",
        pattern_type_filter=1,
        operation=1,
        permission_type=1,
    )
    return m.DeleteAclsRequest(filters=[wanted])


T, G, C, X = (R.TOPIC, "t"), (R.GROUP, "g"), (R.CLUSTER, "kafka-cluster"), (R.TRANSACTIONAL_ID, "x")
Grant = tuple[Operation, tuple[Resource, str]]
CASES: list[tuple[Callable[[Harness], Message], list[tuple[Grant, ErrorCode]], int | None]] = [
    (produce, [((OP.WRITE, T), TOPIC_REFUSED)], None),
    (fetch, [((OP.READ, T), TOPIC_REFUSED)], None),
    (list_offsets, [((OP.DESCRIBE, T), TOPIC_REFUSED)], None),
    (leader_epoch, [((OP.DESCRIBE, T), TOPIC_REFUSED)], None),
    (metadata, [((OP.DESCRIBE, T), TOPIC_REFUSED)], None),
    (delete_topics, [((OP.DELETE, T), TOPIC_REFUSED)], None),
    (delete_records, [((OP.DELETE, T), TOPIC_REFUSED)], None),
    (create_partitions, [((OP.ALTER, T), TOPIC_REFUSED)], None),
    (describe_producers, [((OP.READ, T), TOPIC_REFUSED)], None),
    (create_topics, [((OP.CREATE, (R.TOPIC, "new")), TOPIC_REFUSED)], None),
    (create_topics, [((OP.CREATE, C), TOPIC_REFUSED)], None),
    (describe_configs, [((OP.DESCRIBE_CONFIGS, T), TOPIC_REFUSED)], None),
    (alter_configs, [((OP.ALTER_CONFIGS, T), TOPIC_REFUSED)], None),
    (broker_configs, [((OP.DESCRIBE_CONFIGS, C), CLUSTER_REFUSED)], None),
    (join, [((OP.READ, G), GROUP_REFUSED)], None),
    (heartbeat, [((OP.READ, G), GROUP_REFUSED)], None),
    (sync, [((OP.READ, G), GROUP_REFUSED)], None),
    (leave, [((OP.READ, G), GROUP_REFUSED)], None),
    (group_heartbeat, [((OP.READ, G), GROUP_REFUSED)], None),
    (find_group, [((OP.DESCRIBE, G), GROUP_REFUSED)], None),
    (find_transactions, [((OP.DESCRIBE, X), TX_REFUSED)], None),
    (offset_commit, [((OP.READ, G), GROUP_REFUSED), ((OP.READ, T), TOPIC_REFUSED)], None),
    (offset_fetch, [((OP.DESCRIBE, G), GROUP_REFUSED), ((OP.DESCRIBE, T), TOPIC_REFUSED)], None),
    (offset_delete, [((OP.DELETE, G), GROUP_REFUSED), ((OP.READ, T), TOPIC_REFUSED)], None),
    (describe_groups, [((OP.DESCRIBE, G), GROUP_REFUSED)], None),
    (describe_consumer_groups, [((OP.DESCRIBE, G), GROUP_REFUSED)], None),
    (delete_groups, [((OP.DELETE, G), GROUP_REFUSED)], None),
    (init_transactional, [((OP.WRITE, X), TX_REFUSED)], None),
    (init_idempotent, [((OP.IDEMPOTENT_WRITE, C), CLUSTER_REFUSED)], None),
    (init_idempotent, [((OP.WRITE, T), CLUSTER_REFUSED)], None),
    (add_partitions, [((OP.WRITE, X), TX_REFUSED), ((OP.WRITE, T), TOPIC_REFUSED)], 3),
    (add_offsets, [((OP.WRITE, X), TX_REFUSED), ((OP.READ, G), GROUP_REFUSED)], None),
    (end_txn, [((OP.WRITE, X), TX_REFUSED)], None),
    (
        txn_offset_commit,
        [((OP.WRITE, X), TX_REFUSED), ((OP.READ, G), GROUP_REFUSED), ((OP.READ, T), TOPIC_REFUSED)],
        None,
    ),
    (describe_transactions, [((OP.DESCRIBE, X), TX_REFUSED)], None),
    (markers, [((OP.CLUSTER_ACTION, C), CLUSTER_REFUSED)], None),
    (markers, [((OP.ALTER, C), CLUSTER_REFUSED)], None),
    (elect, [((OP.ALTER, C), CLUSTER_REFUSED)], None),
    (describe_acls, [((OP.DESCRIBE, C), CLUSTER_REFUSED)], None),
    (create_acls, [((OP.ALTER, C), CLUSTER_REFUSED)], None),
    (delete_acls, [((OP.ALTER, C), CLUSTER_REFUSED)], None),
]


def codes(found: Any) -> set[int]:
    """Every error code anywhere in an answer."""
    if isinstance(found, list | tuple):
        return {code for each in found for code in codes(each)}
    fields = getattr(type(found), "FIELDS", ())
    own = {
        getattr(found, name)
        for name in fields
        if name in ("error_code", "partition_error_code") and getattr(found, name)
    }
    return own.union(*(codes(getattr(found, name)) for name in fields), set())


@pytest.mark.parametrize(
    ("build", "needed", "version"), CASES, ids=lambda v: getattr(v, "__name__", None)
)
def test_refused_until_all_that_it_needs_is_granted(
    harness: Harness, build: Callable[[Harness], Message], needed: list, version: int | None
) -> None:
    """Each missing right is named by its own code; with all of them the API itself answers."""
    refusals = {TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, TX_REFUSED}
    for (operation, (resource, name)), code in needed:
        assert codes(ask(harness, build(harness), version)) & refusals == {code}
        grant(harness, operation, resource, name)
    assert not codes(ask(harness, build(harness), version)) & refusals


@pytest.mark.parametrize(
    ("build", "needed", "version"), CASES, ids=lambda v: getattr(v, "__name__", None)
)
def test_super_users_and_brokers_that_ask_nobody_refuse_nothing(
    harness: Harness, build: Callable[[Harness], Message], needed: list, version: int | None
) -> None:
    refusals = {TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, TX_REFUSED}
    assert not codes(ask(harness, build(harness), version, ROOT)) & refusals
    plain = Harness()
    plain.state.topics.create("t", 2, {})
    assert not codes(ask(plain, build(plain), version)) & refusals


@pytest.mark.parametrize(
    ("build", "needed", "version"), CASES, ids=lambda v: getattr(v, "__name__", None)
)
def test_a_screen_compares_no_part_of_a_request_with_another(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[Harness], Message],
    needed: list,
    version: int | None,
) -> None:
    """Hostile input: with 100,000 topics in a request that would be minutes, for all clients."""
    request = build(harness)
    for field in request.FIELDS:
        if isinstance(listed := getattr(request, field), list):
            listed += copy.deepcopy(listed)
    api = APIS[request.API_KEY]
    call = Call(
        version or api.max_version, 1, "c", "/127.0.0.1", False, lambda _: None, principal=ALICE
    )
    authorizer = harness.state.acls.authorizer
    assert authorizer is not None

    def compared(one: object, other: object) -> bool:
        raise AssertionError("two parts of a request are compared")

    monkeypatch.setattr(Struct, "__eq__", compared)
    name = request.NAME.removesuffix("Request")
    AUTHORIZERS[name](Asking(harness.node, authorizer, call), request)


def test_what_may_be_done_is_done_beside_what_may_not(harness: Harness) -> None:
    grant(harness, OP.DESCRIBE, R.TOPIC, "t")
    m = module("list_offsets_request")
    topics = [
        m.ListOffsetsTopic(
            name=name, partitions=[m.ListOffsetsPartition(partition_index=0, timestamp=-1)]
        )
        for name in ("t", "u")
    ]
    answer = ask(harness, m.ListOffsetsRequest(topics=topics))
    found = {t.name: (t.partitions[0].error_code, t.partitions[0].offset) for t in answer.topics}
    assert found == {"t": (0, 0), "u": (TOPIC_REFUSED, -1)}


def test_nothing_tells_that_a_topic_exists(harness: Harness) -> None:
    """A name that may not be described is answered alike whether it is there or not."""
    m = module("metadata_request")
    wanted = [m.MetadataRequestTopic(name=name) for name in ("u", "absent")]
    answer = ask(harness, m.MetadataRequest(topics=wanted, allow_auto_topic_creation=True))
    assert {t.name: (t.error_code, t.partitions) for t in answer.topics} == {
        "u": (TOPIC_REFUSED, []),
        "absent": (TOPIC_REFUSED, []),
    }
    assert harness.state.topics.get("absent") is None
    everything = ask(harness, m.MetadataRequest(topics=None))
    assert everything.topics == []
    grant(harness, OP.DESCRIBE, R.TOPIC, "u")
    assert [t.name for t in ask(harness, m.MetadataRequest(topics=None)).topics] == ["u"]


def test_a_topic_is_made_by_those_alone_who_may(harness: Harness) -> None:
    m = module("metadata_request")
    request = m.MetadataRequest(
        topics=[m.MetadataRequestTopic(name="made")], allow_auto_topic_creation=True
    )
    grant(harness, OP.DESCRIBE, R.TOPIC, "made")
    assert codes(ask(harness, request)) == {TOPIC_REFUSED}
    grant(harness, OP.CREATE, R.TOPIC, "made")
    request.topics = [m.MetadataRequestTopic(name="made")]
    assert codes(ask(harness, request)) == set()
    assert harness.state.topics.get("made") is not None


def test_groups_that_may_not_be_described_are_not_listed(harness: Harness) -> None:
    for group in ("g", "h"):
        assert codes(ask(harness, simple_commit(harness, group), who=ROOT)) == set()
    listing = module("list_groups_request").ListGroupsRequest()
    assert ask(harness, listing).groups == []
    grant(harness, OP.DESCRIBE, R.GROUP, "h")
    assert [g.group_id for g in ask(harness, listing).groups] == ["h"]
    grant(harness, OP.DESCRIBE, R.CLUSTER, "kafka-cluster")
    assert [g.group_id for g in ask(harness, listing).groups] == ["g", "h"]


def test_a_right_that_is_taken_away_ends_reading_in_a_session_too(harness: Harness) -> None:
    grant(harness, OP.READ, R.TOPIC, "t")
    m = module("fetch_request")
    parts = [m.FetchPartition(partition=0, partition_max_bytes=1_000)]
    topics = [m.FetchTopic(topic_id=topic_id(harness, "t"), partitions=parts)]
    first = ask(harness, m.FetchRequest(max_wait_ms=0, topics=topics, session_epoch=0))
    assert first.session_id != 0
    acls = harness.state.acls
    acls.change(remove=list(acls._acls))
    again = m.FetchRequest(max_wait_ms=0, session_id=first.session_id, session_epoch=1)
    assert codes(ask(harness, again)) == {TOPIC_REFUSED}


def test_a_forbidden_topic_does_not_end_the_wait_for_the_others(harness: Harness) -> None:
    """It is set aside at once, nor do its records wake the fetch; a right that is taken away
    during the wait ends it."""
    grant(harness, OP.READ, R.TOPIC, "t")
    m = module("fetch_request")
    parts = [m.FetchPartition(partition=0, partition_max_bytes=1_000)]
    topics = [m.FetchTopic(topic_id=topic_id(harness, n), partitions=parts) for n in ("t", "u")]

    def fetch_both() -> Answer:
        request = m.FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics)
        return harness.send(request, 18, principal=ALICE)

    def errors(answer: Answer) -> list[int]:
        response = harness.read(answer, FetchResponse, 18)
        return [p.error_code for topic in response.responses for p in topic.partitions]

    waiting = fetch_both()
    assert not waiting.done
    assert not harness.state.topics.partition("u", 0).waiters  # type: ignore[union-attr]
    harness.env.advance(501)
    assert errors(waiting) == [0, TOPIC_REFUSED]
    waiting = fetch_both()
    acls = harness.state.acls
    acls.change(remove=list(acls._acls))
    assert not waiting.done
    harness.send(produce_request("t", batch_of([b"a"])), 12, principal=ROOT)
    assert errors(waiting) == [TOPIC_REFUSED, TOPIC_REFUSED]
    assert fetch_both().done, "there is nothing to wait for"


def test_operations_are_told_when_asked_for(harness: Harness) -> None:
    """KIP-430."""
    grant(harness, OP.READ, R.TOPIC, "t")
    m = module("metadata_request")
    answer = ask(
        harness,
        m.MetadataRequest(
            topics=[m.MetadataRequestTopic(name="t")], include_topic_authorized_operations=True
        ),
    )
    assert answer.topics[0].topic_authorized_operations == (1 << OP.READ) | (1 << OP.DESCRIBE)


def test_entries_survive_a_restart_and_a_change_is_whole_or_nothing() -> None:
    files = MemoryFiles()
    first = Harness(files, durability="os", acls=True)
    grant(first, OP.READ, R.TOPIC, "t")
    first.state.close()
    second = Harness(files, durability="os", acls=True, super_users=(ROOT,))
    found = ask(second, describe_acls(second), who=ROOT)
    assert [(r.resource_name, r.acls[0].principal) for r in found.resources] == [("t", ALICE)]
    both = create_acls(second)
    senseless = create_acls(second).creations[0]
    senseless.principal = "alice"
    both.creations.append(senseless)
    answer = ask(second, both, who=ROOT)
    assert [r.error_code for r in answer.results] == [0, ErrorCode.INVALID_REQUEST]
    assert "TYPE:NAME" in (answer.results[1].error_message or "")


def test_without_access_control_the_apis_say_so() -> None:
    harness = Harness()
    for build in (describe_acls, create_acls, delete_acls):
        assert codes(ask(harness, build(harness))) == {ErrorCode.SECURITY_DISABLED}
