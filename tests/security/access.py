"""What a user may see and do: requests of every API, and the rights that open them one by one.

A step is a request with the first of its rights, none at first; `access.txt` says what is visible
in each, by Apache Kafka's rules. Nothing here changes what a later step sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kohort.acl import CLUSTER_NAME, Operation, Resource
from tests.broker.harness import batch_of
from tests.interop.asking import Flat, World, served

TABLE = Path(__file__).with_name("access.txt")
ALICE = "User:alice"
NEVER = 77_777
"""A producer id that nobody has."""
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"
PROTOCOLS = [{"name": "range", "metadata": SUBSCRIPTION}]

STRANGER = "no login"
BEATS = 4
"""Heartbeats after which an expression has been resolved."""

Right = tuple[str, str, str]
Rights = tuple[Right, ...]


class Ask(NamedTuple):
    """One request, in every version from `since` to `until` that is served."""

    api: str
    label: str
    fields: Mapping[str, Any]
    needs: Rights = ()
    since: int = 0
    until: int = 99


class Step(NamedTuple):
    """One request in one version, with some rights."""

    ask: Ask
    version: int
    rights: Rights

    def __str__(self) -> str:
        return f"{self.ask.api}.{self.version} {self.ask.label} | {shown(self.rights)}"


def shown(rights: Rights) -> str:
    return ", ".join(" ".join(right) for right in rights) or "no rights"


def topic(operation: str, name: str = "mine") -> Right:
    return operation, "TOPIC", name


def group(operation: str, name: str = "gmine") -> Right:
    return operation, "GROUP", name


def transactional(operation: str, name: str = "xmine") -> Right:
    return operation, "TRANSACTIONAL_ID", name


def cluster(operation: str) -> Right:
    return operation, "CLUSTER", CLUSTER_NAME


def named(*names: str, key: str = "name", **more: Any) -> list[dict[str, Any]]:
    return [{key: name, **more} for name in names]


def by_id(*names: str, **more: Any) -> list[dict[str, Any]]:
    """Topics by their ids, which are put in when they are known."""
    return [{"topic_id": f"#{name}", **more} for name in names]


def asks() -> Iterator[Ask]:
    yield from topics_listed()
    yield from topics_read()
    yield from topics_changed()
    yield from groups()
    yield from offsets()
    yield from transactions()
    yield from configs()
    yield from clusters()


def topics_listed() -> Iterator[Ask]:
    see, both = topic("DESCRIBE"), (topic("DESCRIBE"), topic("DESCRIBE", "theirs"))
    some = named("mine", "theirs", "absent")
    yield Ask("Metadata", "every topic", {"topics": []}, both, until=0)
    yield Ask("Metadata", "every topic", {"topics": None}, both, since=1)
    yield Ask("Metadata", "no topic", {"topics": []}, (see,), since=1)
    yield Ask("Metadata", "a forbidden topic alone", {"topics": named("theirs")}, (see,))
    yield Ask(
        "Metadata",
        "some topics",
        {"topics": some, "allow_auto_topic_creation": False},
        both,
        since=4,
    )
    yield Ask(
        "Metadata",
        "a topic that would be made",
        {"topics": named("absent")},
        (topic("DESCRIBE", "absent"),),
    )
    yield Ask("Metadata", "by id", {"topics": by_id("mine", "theirs", name=None)}, both, since=12)
    yield Ask(
        "Metadata",
        "another's id behind a name",
        {"topics": by_id("theirs", name="mine")},
        both,
        since=12,
    )
    yield Ask(
        "Metadata",
        "operations",
        {
            "topics": some,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        (see, cluster("CREATE"), cluster("DESCRIBE")),
        since=8,
    )
    yield Ask("DescribeTopicPartitions", "every topic", {"topics": []}, both)
    yield Ask("DescribeTopicPartitions", "some topics", {"topics": some}, both)
    yield Ask(
        "DescribeTopicPartitions",
        "forbidden topics alone",
        {"topics": named("theirs", "absent")},
        (see,),
    )
    yield Ask(
        "DescribeTopicPartitions",
        "a short page",
        {"topics": [], "response_partition_limit": 2},
        (see,),
    )
    yield Ask(
        "DescribeTopicPartitions",
        "behind a forbidden topic",
        {"topics": [], "cursor": {"topic_name": "theirs", "partition_index": 0}},
        (see,),
    )


def topics_read() -> Iterator[Ask]:
    names = ("mine", "theirs", "absent")
    parts = [{"partition": index, "partition_max_bytes": 1_000} for index in (0, 9)]
    read = topic("READ"), topic("DESCRIBE", "theirs")
    yield Ask(
        "Fetch",
        "records",
        {
            "max_wait_ms": 0,
            "session_epoch": -1,
            "topics": named(*names, key="topic", partitions=parts),
        },
        read,
        until=12,
    )
    yield Ask(
        "Fetch",
        "records by id",
        {
            "max_wait_ms": 0,
            "session_epoch": -1,
            "topics": by_id("mine", "theirs", partitions=parts),
        },
        read,
        since=13,
    )
    parts = [{"partition_index": index, "timestamp": -1} for index in (0, 9)]
    yield Ask(
        "ListOffsets", "ends", {"topics": named(*names, partitions=parts)}, (topic("DESCRIBE"),)
    )
    parts = [{"partition": index, "leader_epoch": 0} for index in (0, 9)]
    yield Ask(
        "OffsetForLeaderEpoch",
        "epochs",
        {"topics": named(*names, key="topic", partitions=parts)},
        (topic("DESCRIBE"),),
    )
    yield Ask(
        "DescribeProducers",
        "producers",
        {"topics": named(*names, partition_indexes=[0, 9])},
        (topic("READ"),),
    )


def topics_changed() -> Iterator[Ask]:
    names = ("mine", "theirs", "absent")
    parts = [{"index": index, "records": batch_of([b"x"])} for index in (0, 9)]
    produce = {"acks": 1, "timeout_ms": 5_000}
    yield Ask(
        "Produce",
        "records",
        {**produce, "topic_data": named(*names, partition_data=parts)},
        (topic("WRITE"), topic("DESCRIBE", "theirs")),
        until=12,
    )
    yield Ask(
        "Produce",
        "records by id",
        {**produce, "topic_data": by_id("mine", "theirs", partition_data=parts)},
        (topic("WRITE"), topic("DESCRIBE", "theirs")),
        since=13,
    )
    made: dict[str, Any] = {"num_partitions": 1, "replication_factor": 1}
    changing = {"timeout_ms": 5_000, "validate_only": True}
    yield Ask(
        "CreateTopics",
        "topics",
        {**changing, "topics": named("fresh", "theirs", **made)},
        (topic("CREATE", "fresh"), topic("DESCRIBE_CONFIGS", "fresh")),
    )
    yield Ask(
        "CreateTopics",
        "in the cluster",
        {**changing, "topics": named("fresh", **made)},
        (cluster("CREATE"),),
    )
    grown = named(*names, count=1, assignments=None)
    yield Ask(
        "CreatePartitions",
        "partitions",
        {**changing, "topics": grown},
        (topic("ALTER"), topic("DESCRIBE", "theirs")),
    )
    yield Ask(
        "DeleteTopics",
        "topics",
        {"timeout_ms": 5_000, "topic_names": ["absent", "theirs"]},
        (topic("DESCRIBE", "absent"), topic("DELETE", "absent"), topic("DESCRIBE", "theirs")),
        until=5,
    )
    yield Ask(
        "DeleteTopics",
        "by name and by id",
        {
            "timeout_ms": 5_000,
            "topics": [
                *named("absent", "mine"),
                *by_id("theirs", name=None),
            ],
        },
        (topic("DESCRIBE", "absent"), topic("DELETE", "absent"), topic("DESCRIBE", "theirs")),
        since=6,
    )
    yield Ask(
        "DeleteTopics",
        "in the cluster",
        {"timeout_ms": 5_000, "topic_names": ["absent"], "topics": named("absent")},
        (cluster("ALL"),),
    )
    parts = [{"partition_index": index, "offset": 0} for index in (0, 9)]
    yield Ask(
        "DeleteRecords",
        "records",
        {"timeout_ms": 5_000, "topics": named(*names, partitions=parts)},
        (topic("DELETE"), topic("DESCRIBE", "theirs")),
    )


def groups() -> Iterator[Ask]:
    read = (group("READ"),)
    yield Ask(
        "FindCoordinator",
        "of a group",
        {"key": "gmine", "key_type": 0},
        (group("DESCRIBE"),),
        until=3,
    )
    yield Ask(
        "FindCoordinator",
        "of groups",
        {"coordinator_keys": ["gmine", "gtheirs"], "key_type": 0},
        (group("DESCRIBE"),),
        since=4,
    )
    me = {"group_id": "gmine", "member_id": "nobody", "generation_id": 1}
    join = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 5_000,
        "protocol_type": "consumer",
        "protocols": PROTOCOLS,
    }
    yield Ask("JoinGroup", "a member", {"group_id": "gmine", "member_id": "nobody", **join}, read)
    yield Ask(
        "SyncGroup", "a member", {**me, "protocol_type": "consumer", "protocol_name": "range"}, read
    )
    yield Ask("Heartbeat", "a member", me, read)
    yield Ask("LeaveGroup", "a member", {"group_id": "gmine", "member_id": "nobody"}, read, until=2)
    yield Ask(
        "LeaveGroup",
        "a member",
        {"group_id": "gmine", "members": [{"member_id": "nobody"}]},
        read,
        since=3,
    )
    beat = {"group_id": "cmine", "member_id": "nobody", "member_epoch": 1}
    yield Ask(
        "ConsumerGroupHeartbeat",
        "named topics",
        {**beat, "subscribed_topic_names": ["mine", "theirs", "absent"]},
        (
            group("READ", "cmine"),
            topic("DESCRIBE"),
            topic("DESCRIBE", "theirs"),
            topic("DESCRIBE", "absent"),
        ),
    )
    yield Ask("ConsumerGroupHeartbeat", "nothing new", beat, (group("READ", "cmine"),))
    yield Ask(
        "ConsumerGroupDescribe",
        "groups",
        {"group_ids": ["cmine", "ctheirs"], "include_authorized_operations": True},
        (group("DESCRIBE", "cmine"), topic("DESCRIBE"), topic("DESCRIBE", "theirs")),
    )
    yield Ask(
        "DescribeGroups",
        "groups",
        {"groups": ["gmine", "gtheirs"], "include_authorized_operations": True},
        (group("DESCRIBE"), group("READ")),
    )
    yield Ask("ListGroups", "groups", {}, (group("DESCRIBE"), cluster("DESCRIBE")))
    yield Ask(
        "DeleteGroups",
        "groups",
        {"groups_names": ["gabsent", "gtheirs"]},
        (group("DESCRIBE", "gabsent"), group("DELETE", "gabsent")),
    )


def offsets() -> Iterator[Ask]:
    rights = group("READ"), topic("READ"), topic("DESCRIBE", "theirs")
    parts = [{"partition_index": 0, "committed_offset": 1}]
    commit = {"group_id": "gmine", "generation_id_or_member_epoch": -1}
    yield Ask(
        "OffsetCommit",
        "offsets",
        {**commit, "topics": named("mine", "theirs", "absent", partitions=parts)},
        rights,
        until=9,
    )
    yield Ask(
        "OffsetCommit",
        "offsets by id",
        {**commit, "topics": by_id("mine", "theirs", partitions=parts)},
        rights,
        since=10,
    )
    rights = group("DESCRIBE"), topic("DESCRIBE")
    indexes: dict[str, Any] = {"partition_indexes": [0]}
    some = named("mine", "theirs", "absent", **indexes)
    yield Ask("OffsetFetch", "offsets", {"group_id": "gmine", "topics": some}, rights, until=7)
    yield Ask(
        "OffsetFetch",
        "forbidden offsets alone",
        {"group_id": "gmine", "topics": named("theirs", **indexes)},
        rights,
        until=7,
    )
    yield Ask(
        "OffsetFetch",
        "every offset",
        {"group_id": "gmine", "topics": None},
        rights,
        since=2,
        until=7,
    )
    choices = {"offsets": some, "forbidden offsets alone": some[1:2], "every offset": None}
    for label, chosen in choices.items():
        yield Ask(
            "OffsetFetch",
            f"{label} of groups",
            {"groups": named("gmine", "gtheirs", key="group_id", topics=chosen)},
            rights,
            since=8,
            until=99 if chosen is None else 9,
        )
    ids = {"offsets": ("mine", "theirs"), "forbidden offsets alone": ("theirs",)}
    for label, chosen in ids.items():
        yield Ask(
            "OffsetFetch",
            f"{label} of groups by id",
            {"groups": named("gmine", "gtheirs", key="group_id", topics=by_id(*chosen, **indexes))},
            rights,
            since=10,
        )
    yield Ask(
        "OffsetDelete",
        "offsets",
        {
            "group_id": "gabsent",
            "topics": named("mine", "theirs", partitions=[{"partition_index": 0}]),
        },
        (group("DELETE", "gabsent"), topic("READ")),
    )


def transactions() -> Iterator[Ask]:
    write = transactional("WRITE")
    me = {"transactional_id": "xmine", "producer_id": NEVER, "producer_epoch": 0}
    yield Ask(
        "FindCoordinator",
        "of a transactional id",
        {"key": "xmine", "key_type": 1},
        (transactional("DESCRIBE"),),
        since=1,
        until=3,
    )
    yield Ask(
        "FindCoordinator",
        "of transactional ids",
        {"coordinator_keys": ["xmine", "xtheirs"], "key_type": 1},
        (transactional("DESCRIBE"),),
        since=4,
    )
    yield Ask(
        "InitProducerId",
        "idempotent",
        {"transactional_id": None, "transaction_timeout_ms": 1_000},
        (topic("WRITE"),),
    )
    yield Ask(
        "InitProducerId",
        "idempotent, by the cluster",
        {"transactional_id": None, "transaction_timeout_ms": 1_000},
        (cluster("IDEMPOTENT_WRITE"),),
    )
    yield Ask(
        "InitProducerId",
        "transactional",
        {"transactional_id": "xfresh", "transaction_timeout_ms": 1_000},
        (transactional("WRITE", "xfresh"),),
    )
    topics = named("mine", "theirs", partitions=[0])
    yield Ask(
        "AddPartitionsToTxn",
        "partitions",
        {
            "v3_and_below_transactional_id": "xmine",
            "v3_and_below_producer_id": NEVER,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": topics,
        },
        (write, topic("WRITE"), topic("WRITE", "theirs")),
        until=3,
    )
    yield Ask(
        "AddPartitionsToTxn",
        "of brokers",
        {"transactions": [{**me, "verify_only": True, "topics": topics}]},
        (write, topic("WRITE"), cluster("CLUSTER_ACTION")),
        since=4,
    )
    yield Ask("AddOffsetsToTxn", "a group", {**me, "group_id": "gmine"}, (write, group("READ")))
    yield Ask("EndTxn", "a transaction", {**me, "committed": True}, (write,))
    parts = [{"partition_index": 0, "committed_offset": 1}]
    yield Ask(
        "TxnOffsetCommit",
        "offsets",
        {
            **me,
            "group_id": "gmine",
            "topics": named("mine", "theirs", partitions=parts),
        },
        (write, group("READ"), topic("READ")),
    )
    yield Ask(
        "DescribeTransactions",
        "transactions",
        {"transactional_ids": ["xmine", "xtheirs"]},
        (transactional("DESCRIBE"), topic("DESCRIBE"), topic("DESCRIBE", "theirs")),
    )
    yield Ask("ListTransactions", "transactions", {}, (transactional("DESCRIBE"),))
    markers = [
        {
            "producer_id": NEVER,
            "producer_epoch": 0,
            "transaction_result": True,
            "coordinator_epoch": 0,
            "topics": named("absent", partition_indexes=[0]),
        }
    ]
    yield Ask("WriteTxnMarkers", "markers", {"markers": markers}, (cluster("ALTER"),))
    yield Ask(
        "WriteTxnMarkers", "markers of brokers", {"markers": markers}, (cluster("CLUSTER_ACTION"),)
    )


TOPIC, BROKER, GROUP = 2, 4, 32


def configs() -> Iterator[Ask]:
    places = [(TOPIC, "mine"), (TOPIC, "theirs"), (TOPIC, "absent"), (BROKER, "1")]
    resources = [{"resource_type": kind, "resource_name": name} for kind, name in places]
    keys = {"configuration_keys": ["cleanup.policy", "node.id"]}
    yield Ask(
        "DescribeConfigs",
        "configurations",
        {"resources": [{**each, **keys} for each in resources]},
        (topic("DESCRIBE_CONFIGS"), topic("DESCRIBE", "theirs"), cluster("DESCRIBE_CONFIGS")),
    )
    for api in ("AlterConfigs", "IncrementalAlterConfigs"):
        yield Ask(
            api,
            "configurations",
            {"validate_only": True, "resources": [{**each, "configs": []} for each in resources]},
            (topic("ALTER_CONFIGS"), topic("DESCRIBE", "theirs"), cluster("ALTER_CONFIGS")),
        )
        yield Ask(
            api,
            "of groups",
            {
                "validate_only": True,
                "resources": [
                    {"resource_type": GROUP, "resource_name": name, "configs": []}
                    for name in ("gmine", "gtheirs")
                ],
            },
            (group("ALTER_CONFIGS"),),
            since=0 if api.startswith("I") else 99,
        )
    yield Ask(
        "DescribeConfigs",
        "of groups",
        {
            "resources": [
                {"resource_type": GROUP, "resource_name": name, **keys}
                for name in ("gmine", "gtheirs")
            ]
        },
        (group("DESCRIBE_CONFIGS"),),
    )
    yield Ask(
        "ListConfigResources",
        "of topics",
        {"resource_types": [TOPIC]},
        (topic("DESCRIBE_CONFIGS"), cluster("DESCRIBE_CONFIGS")),
    )
    yield Ask(
        "DescribeClientQuotas",
        "quotas",
        {"components": [], "strict": False},
        (cluster("DESCRIBE_CONFIGS"),),
    )
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "root"}],
        "ops": [{"key": "producer_byte_rate", "value": 1.0}],
    }
    yield Ask(
        "AlterClientQuotas",
        "quotas",
        {"entries": [entry], "validate_only": True},
        (cluster("ALTER_CONFIGS"),),
    )


def clusters() -> Iterator[Ask]:
    see, change = (cluster("DESCRIBE"),), (cluster("ALTER"),)
    yield Ask(
        "ApiVersions", "versions", {"client_software_name": "x", "client_software_version": "1"}
    )
    yield Ask(
        "DescribeCluster",
        "brokers",
        {"include_cluster_authorized_operations": True},
        (cluster("CREATE"), *see),
    )
    yield Ask("DescribeLogDirs", "every topic", {"topics": None}, see)
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    yield Ask("DescribeQuorum", "quorum", {"topics": quorum}, see)
    yield Ask("DescribeUserScramCredentials", "a user", {"users": [{"name": "nobody"}]}, see)
    yield Ask(
        "AlterUserScramCredentials",
        "a user",
        {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
        change,
    )
    anything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    yield Ask("DescribeAcls", "every entry", anything, see)
    senseless = {
        "resource_type": 2,
        "resource_name": "mine",
        "resource_pattern_type": 3,
        "principal": "nobody",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    yield Ask("CreateAcls", "an entry", {"creations": [senseless]}, change)
    none = {
        **anything,
        "resource_type_filter": 2,
        "resource_name_filter": "none",
        "pattern_type_filter": 3,
    }
    yield Ask("DeleteAcls", "entries", {"filters": [none]}, change)
    feature = {"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}
    yield Ask(
        "UpdateFeatures",
        "a feature",
        {"feature_updates": [feature], "validate_only": True, "timeout_ms": 5_000},
        change,
    )
    places = [{"topic": "theirs", "partitions": [0, 9]}]
    yield Ask(
        "ElectLeaders", "partitions", {"timeout_ms": 5_000, "topic_partitions": places}, change
    )
    yield Ask(
        "ElectLeaders", "every partition", {"timeout_ms": 5_000, "topic_partitions": None}, change
    )
    moved = named("theirs", partitions=[{"partition_index": 0, "replicas": None}])
    yield Ask(
        "AlterPartitionReassignments", "a partition", {"timeout_ms": 5_000, "topics": moved}, change
    )
    yield Ask("ListPartitionReassignments", "every one", {"timeout_ms": 5_000, "topics": None}, see)
    yield Ask("GetTelemetrySubscriptions", "a client", {})
    yield Ask(
        "PushTelemetry",
        "an unknown subscription",
        {"client_instance_id": bytes(15) + b"\x07", "subscription_id": 7},
    )


def steps() -> list[Step]:
    """Every request in every version with each of its rights, so that rights change seldom."""
    found: list[Step] = []
    for ask in asks():
        oldest, newest = served(ask.api)
        for version in range(max(oldest, ask.since), min(newest, ask.until) + 1):
            found += [Step(ask, version, ask.needs[:n]) for n in range(len(ask.needs) + 1)]
    order = {rights: at for at, rights in enumerate(dict.fromkeys(s.rights for s in found))}
    return sorted(found, key=lambda step: order[step.rights])


# A cluster with something to hide


class Hiding:
    """A cluster as its administrator sees it, and as alice does."""

    def __init__(self, root: World, alice: World) -> None:
        self.root, self.alice = root, alice
        alice.topic_ids = root.topic_ids
        self.reader: dict[str, Any] = {}
        self.count = 0

    def set_up(self) -> None:
        call = self.root.call
        made = named("mine", "theirs", num_partitions=2, replication_factor=1)
        call("CreateTopics", topics=made, timeout_ms=5_000)
        for name in ("mine", "theirs"):
            self.root.topic_id(name)
        for key, key_type in (("gmine", 0), ("xmine", 1)):
            call("FindCoordinator", 3, key=key, key_type=key_type)
        parts = [{"partition_index": 0, "committed_offset": 1}]
        for each in ("gmine", "gtheirs"):
            call(
                "OffsetCommit",
                8,
                group_id=each,
                generation_id_or_member_epoch=-1,
                topics=named("mine", "theirs", partitions=parts),
            )
        for each in ("xmine", "xtheirs"):
            made = call("InitProducerId", 5, transactional_id=each, transaction_timeout_ms=900_000)
            call(
                "AddPartitionsToTxn",
                3,
                v3_and_below_transactional_id=each,
                v3_and_below_producer_id=made.producer_id,
                v3_and_below_producer_epoch=made.producer_epoch,
                v3_and_below_topics=named("mine", "theirs", partitions=[0]),
            )
        self.beat()

    def beat(self) -> None:
        """The one member of each group of KIP-848, which stays."""
        join = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_names": ["mine", "theirs"],
        }
        for each in ("cmine", "ctheirs"):
            known = self.reader.get(each)
            fields = join if known is None else {"member_epoch": known}
            answer = self.root.call(
                "ConsumerGroupHeartbeat", 1, group_id=each, member_id=f"m{each}", **fields
            )
            assert answer.error_code == 0, answer
            self.reader[each] = answer.member_epoch

    def grant(self, rights: Rights) -> None:
        """Alice has these rights and no others."""
        anything = {
            "resource_type_filter": 1,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": ALICE,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
        self.root.call("DeleteAcls", filters=[anything])
        creations = [
            {
                "resource_type": Resource[kind],
                "resource_name": name,
                "resource_pattern_type": 3,
                "principal": ALICE,
                "host": "*",
                "operation": Operation[operation],
                "permission_type": 3,
            }
            for operation, kind, name in rights
        ]
        if creations:
            answer = self.root.call("CreateAcls", creations=creations)
            assert {r.error_code for r in answer.results} == {0}, answer
        wanted = {(Resource[kind], name, Operation[operation]) for operation, kind, name in rights}

        def is_granted() -> bool:
            described = self.root.call("DescribeAcls", **anything)
            return wanted == {
                (r.resource_type, r.resource_name, acl.operation)
                for r in described.resources
                for acl in r.acls
            }

        self.root.until(is_granted)
        self.beat()

    def answers(self) -> dict[str, Flat]:
        """The answers to all steps."""
        self.set_up()
        found: dict[str, Flat] = {}
        rights: Rights | None = None
        for step in steps():
            if step.rights != rights:
                rights = step.rights
                self.grant(rights)
            fields = self.with_ids(step.ask.fields)
            answer = self.alice.call(step.ask.api, step.version, **fields)
            assert str(step) not in found, f"{step} is there twice"
            found[str(step)] = self.alice.flat(answer, step.version)
        return found

    def answers_to_strangers(self) -> dict[str, Flat]:
        """The answers to those who have not logged in, or cannot."""
        found: dict[str, Flat] = {}

        def ask(what: str, *requests: tuple[str, int, dict[str, Any]]) -> None:
            host, port = self.alice.address
            stranger = World(f"{host}:{port}")
            *before, (api, version, fields) = requests
            try:
                for first, its_version, its_fields in before:
                    stranger.call(first, its_version, **its_fields)
                answer = stranger.call(api, version, **fields)
            finally:
                stranger.close()
            found[f"{api}.{version} {what} | {STRANGER}"] = stranger.flat(answer, version)

        for version in range(served("SaslHandshake")[1] + 1):
            ask("another mechanism", ("SaslHandshake", version, {"mechanism": "NONE"}))
        chosen = ("SaslHandshake", 1, {"mechanism": "PLAIN"})
        for version in range(served("SaslAuthenticate")[1] + 1):
            for what, user in (("a wrong password", "alice"), ("a wrong name", "nobody")):
                token = f"\0{user}\0wrong".encode()
                ask(what, chosen, ("SaslAuthenticate", version, {"auth_bytes": token}))
        return found

    def read_by(self, expression: str, rights: Rights) -> Flat:
        """What alice is assigned who reads by an expression, when all that is to come has come."""
        self.grant(rights)
        self.count += 1
        names = {"group_id": "calice", "member_id": f"alice-{self.count}"}
        join = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "topic_partitions": [],
            "subscribed_topic_regex": expression,
        }
        answer = self.alice.call("ConsumerGroupHeartbeat", 1, **names, **join)
        received: Flat = {}
        for _ in range(BEATS):
            received |= self.alice.flat(answer, 1)
            self.alice.settle()
            answer = self.alice.call(
                "ConsumerGroupHeartbeat", 1, **names, member_epoch=answer.member_epoch
            )
        self.alice.call("ConsumerGroupHeartbeat", 1, **names, member_epoch=-1)
        return {place: value for place, value in received.items() if "topic_id" in place}

    def with_ids(self, value: Any) -> Any:
        """The same with ids where topics are named by them."""
        if isinstance(value, Mapping):
            return {
                key: self.root.topic_ids[part[1:]]
                if key == "topic_id" and isinstance(part, str)
                else self.with_ids(part)
                for key, part in value.items()
            }
        if isinstance(value, list):
            return [self.with_ids(part) for part in value]
        return value


# What is visible in an answer

NAMES = re.compile(r"\b(?:[gxc]?(?:mine|theirs)|absent|fresh|gabsent|xfresh|root)\b")
ELEMENT = re.compile(r"\[([^\[\]]*)\]")
IDS = re.compile(r"<id of (\w+)>")
UNTOLD = "-2147483648"


def visible(answer: Flat) -> str:
    """What an answer shows: names of what is there, and errors (`theirs!CODE`)."""
    wrong: dict[str, set[str]] = {}
    for place, value in answer.items():
        if place.endswith("error_code") and value != "NONE":
            wrong.setdefault(_whose(place), set()).add(value)
    found = {f"{name}!{code}" for name, codes in wrong.items() for code in codes}
    for place, value in answer.items():
        if place.endswith("authorized_operations") and value != UNTOLD:
            found.add(f"{_whose(place)}~{value}")
        names = [] if _whose(place) in wrong else NAMES.findall(_whose(place))
        if "[" not in place or not place.endswith(("name", "topic", "group_id", "key")):
            names += NAMES.findall(value)
        found.update(names)
        if place.endswith("group_state"):
            found.add(f"{_whose(place)}={value}")
        if place == "answer":
            found.add(value)
    return " ".join(sorted(found)) or "nothing"


def _whose(place: str) -> str:
    """The name of the outermost element that a place lies in."""
    for name in ELEMENT.findall(place):
        if known := IDS.search(name):
            return known[1]
        if NAMES.fullmatch(name):
            return name
    return ""


# The table


class Row(NamedTuple):
    """What is visible, in some versions."""

    api: str
    versions: range
    label: str
    rights: str
    seen: str


def rows() -> list[Row]:
    lines = TABLE.read_text().splitlines()
    return [_parsed(line) for line in lines if line and not line.startswith("#")]


def _parsed(line: str) -> Row:
    what, rights, seen = (part.strip() for part in line.split("|"))
    call, _, label = what.partition(" ")
    api, _, versions = call.partition(".")
    first, _, last = versions.partition("-")
    return Row(api, range(int(first), int(last or first) + 1), label, rights, seen)


def table() -> dict[str, str]:
    """What is visible in each step."""
    return {
        f"{row.api}.{version} {row.label} | {row.rights}": row.seen
        for row in rows()
        for version in row.versions
    }


def written(answers: Mapping[str, Flat]) -> Iterable[str]:
    """The lines of the table, versions that show the same in one."""
    order = {(ask.api, ask.label): at for at, ask in enumerate(asks())}
    single = [_parsed(f"{what} | {visible(answer)}") for what, answer in answers.items()]
    rights = {shown(step.rights): len(step.rights) for step in steps()}
    single.sort(
        key=lambda row: (
            order.get((row.api, row.label), len(order)),
            row.api,
            row.label,
            rights.get(row.rights, 0),
            row.versions.start,
        )
    )
    runs: list[Row] = []
    for row in single:
        last = runs[-1] if runs else None
        if (
            last is not None
            and row == last._replace(versions=row.versions)
            and (row.versions.start == last.versions.stop)
        ):
            runs[-1] = last._replace(versions=range(last.versions.start, row.versions.stop))
        else:
            runs.append(row)
    for run in runs:
        first, last_one = run.versions.start, run.versions.stop - 1
        numbers = f"{first}" if first == last_one else f"{first}-{last_one}"
        yield f"{run.api}.{numbers} {run.label} | {run.rights} | {run.seen}"
