"""The recorded requests: every API that the broker serves, on its usual and its unusual ways.

Each function is one story, told to a `World` from the beginning; the stories are told in order to
one broker, which holds the topics `t` (two partitions) and `u` (one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kohort.wire import ZERO_UUID
from tests.broker.harness import batch_of
from tests.interop.asking import World

NOBODY = bytes(15) + b"\x07"
"""A topic id that nobody has."""
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
STAMP_MS = 1_700_000_000_000


def topics(world: World) -> None:
    """Created, described, grown, deleted."""
    ask = world.ask
    configs = [{"name": "retention.ms", "value": "1000"}]
    made = {"name": "made", "num_partitions": 3, "replication_factor": 1, "configs": configs}
    ask("CreateTopics", "validate only", topics=[made], validate_only=True, timeout_ms=5_000)
    ask("CreateTopics", "a topic", topics=[made], timeout_ms=5_000)
    ask("CreateTopics", "the same again", topics=[made], timeout_ms=5_000)
    ask(
        "CreateTopics",
        "the broker's defaults",
        timeout_ms=5_000,
        topics=[{"name": "plain", "num_partitions": -1, "replication_factor": -1}],
    )
    world.each("CreateTopics", "a taken name", topics=[{**made, "name": "t"}], timeout_ms=5_000)
    for label, change in {
        "no name": {"name": ""},
        "a bad name": {"name": "a b"},
        "two dots": {"name": ".."},
        "a long name": {"name": "x" * 250},
        "no partitions": {"num_partitions": 0},
        "less than no partitions": {"num_partitions": -2},
        "no replicas": {"replication_factor": 0},
        "too many replicas": {"replication_factor": 3},
        "an unknown config": {"configs": [{"name": "no.such", "value": "1"}]},
        "a bad value": {"configs": [{"name": "retention.ms", "value": "soon"}]},
        "a bad policy": {"configs": [{"name": "cleanup.policy", "value": "burn"}]},
        "a config without a value": {"configs": [{"name": "retention.ms", "value": None}]},
        "a clash of names": {"name": "clash.of_names"},
        "an internal name": {"name": "__consumer_offsets"},
        "counts and assignments": {"assignments": [{"partition_index": 0, "broker_ids": [1]}]},
    }.items():
        wanted = {**made, "name": f"new-{len(world.answers)}", **change}
        ask("CreateTopics", label, topics=[wanted], timeout_ms=5_000)
    ask(
        "CreateTopics",
        "the other of the clash",
        timeout_ms=5_000,
        topics=[{**made, "name": "clash_of.names"}],
    )
    ask("CreateTopics", "twice in one", topics=[made, made], timeout_ms=5_000)
    for label, assigned in {
        "assigned": [(0, [1]), (1, [1])],
        "assigned with a gap": [(0, [1]), (2, [1])],
        "assigned to nobody": [(0, [])],
        "assigned to a stranger": [(0, [9])],
        "assigned twice to one": [(0, [1, 1])],
    }.items():
        placed = [{"partition_index": n, "broker_ids": b} for n, b in assigned]
        ask(
            "CreateTopics",
            label,
            timeout_ms=5_000,
            topics=[
                {
                    "name": label.replace(" ", "-"),
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": placed,
                }
            ],
        )
    grow(world)
    deleted(world)


def grow(world: World) -> None:
    def ask(label: str, **topic: Any) -> None:
        wanted = {"name": "made", "assignments": None, **topic}
        world.ask("CreatePartitions", label, topics=[wanted], timeout_ms=5_000)

    ask("two more", count=5)
    ask("as many", count=5)
    ask("fewer", count=2)
    ask("none", count=0)
    ask("less than none", count=-1)
    ask("of an unknown topic", name="nope", count=5)
    ask("assigned", count=6, assignments=[{"broker_ids": [1]}])
    ask("assigned too few", count=8, assignments=[{"broker_ids": [1]}])
    ask("assigned too many", count=7, assignments=[{"broker_ids": [1]}, {"broker_ids": [1]}])
    ask("assigned to a stranger", count=7, assignments=[{"broker_ids": [9]}])
    ask("assigned to nobody", count=7, assignments=[{"broker_ids": []}])
    made = {"name": "made", "count": 9, "assignments": None}
    world.ask("CreatePartitions", "twice in one", topics=[made, made], timeout_ms=5_000)
    world.ask(
        "CreatePartitions", "validate only", topics=[made], timeout_ms=5_000, validate_only=True
    )
    world.each("CreatePartitions", "too few", topics=[{**made, "count": 1}], timeout_ms=5_000)


def deleted(world: World) -> None:
    def ask(label: str, version: int, *names: str | None, topic_id: bytes = ZERO_UUID) -> None:
        states = [{"name": name, "topic_id": topic_id} for name in names]
        world.ask(
            "DeleteTopics",
            label,
            version,
            topics=states,
            timeout_ms=5_000,
            topic_names=[name for name in names if name],
        )

    for version in range(1, 7):
        ask("an unknown topic", version, "nope")
    ask("an unknown id", 6, None, topic_id=NOBODY)
    ask("neither name nor id", 6, None)
    ask("name and id", 6, "made", topic_id=world.topic_id("made"))
    ask("twice in one", 6, "made", "made")
    ask("by id", 6, None, topic_id=world.topic_id("made"))
    ask("by name", 6, "plain")
    ask("by name, old", 1, "assigned")


def metadata(world: World) -> None:
    each = world.each
    world.topic_id("t")
    each("Metadata", "a topic", topics=[{"name": "t"}])
    each("Metadata", "no topics", since=1, topics=[])
    each("Metadata", "unknown", since=4, topics=[{"name": "nope"}], allow_auto_topic_creation=False)
    each(
        "Metadata", "a bad name", since=4, topics=[{"name": "a b"}], allow_auto_topic_creation=False
    )
    each(
        "Metadata",
        "operations",
        since=8,
        topics=[{"name": "t"}],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    by_id = {"name": None, "topic_id": world.topic_id("t")}
    each("Metadata", "by id", since=12, topics=[by_id])
    each("Metadata", "an unknown id", since=12, topics=[{"name": None, "topic_id": NOBODY}])
    each("Metadata", "neither", since=12, topics=[{"name": None}])
    each("Metadata", "a name and an id", since=12, topics=[{"name": "t", "topic_id": NOBODY}])
    each("Metadata", "twice", since=4, topics=[{"name": "t"}, {"name": "t"}])
    each("DescribeTopicPartitions", "a topic", topics=[{"name": "t"}])
    each("DescribeTopicPartitions", "unknown", topics=[{"name": "nope"}, {"name": "t"}])
    each("DescribeTopicPartitions", "a bad name", topics=[{"name": "a b"}])
    each(
        "DescribeTopicPartitions",
        "limited",
        topics=[{"name": "t"}, {"name": "u"}],
        response_partition_limit=1,
    )
    each(
        "DescribeTopicPartitions",
        "exactly",
        topics=[{"name": "t"}, {"name": "u"}],
        response_partition_limit=2,
    )
    each("DescribeTopicPartitions", "no limit", topics=[{"name": "t"}], response_partition_limit=0)
    for label, name, index in (
        ("of a topic", "t", 1),
        ("behind a topic", "t", 2),
        ("far behind a topic", "t", 9),
        ("of a later topic", "u", 0),
        ("behind all", "z", 0),
        ("less than none", "t", -1),
        ("between topics", "tt", 0),
    ):
        each(
            "DescribeTopicPartitions",
            f"cursor {label}",
            topics=[{"name": "t"}, {"name": "u"}],
            cursor={"topic_name": name, "partition_index": index},
        )
    each("DescribeTopicPartitions", "twice", topics=[{"name": "t"}, {"name": "t"}])


def cluster(world: World) -> None:
    each, ask = world.each, world.ask
    each(
        "ApiVersions",
        "known",
        since=0,
        client_software_name="kohort",
        client_software_version="1.0",
    )
    each("ApiVersions", "no name", since=3, client_software_name="", client_software_version="1")
    each(
        "ApiVersions",
        "a bad version",
        since=3,
        client_software_name="x",
        client_software_version="-1",
    )
    each("DescribeCluster", "brokers", endpoint_type=1)
    each("DescribeCluster", "operations", include_cluster_authorized_operations=True)
    each("DescribeCluster", "fenced too", since=2, include_fenced_brokers=True)
    ask("DescribeCluster", "controllers", endpoint_type=2)
    ask("DescribeCluster", "neither", endpoint_type=3)
    each("DescribeLogDirs", "one topic", topics=[{"topic": "t", "partitions": [0, 1]}])
    each("DescribeLogDirs", "unknown", topics=[{"topic": "nope", "partitions": [0]}])
    each("DescribeLogDirs", "nothing", topics=[])
    quorum = "__cluster_metadata"
    each(
        "DescribeQuorum",
        "metadata",
        topics=[{"topic_name": quorum, "partitions": [{"partition_index": 0}]}],
    )
    each(
        "DescribeQuorum",
        "another topic",
        topics=[{"topic_name": "t", "partitions": [{"partition_index": 0}]}],
    )
    each(
        "DescribeQuorum",
        "another partition",
        topics=[{"topic_name": quorum, "partitions": [{"partition_index": 1}]}],
    )
    each("DescribeQuorum", "nothing", topics=[])
    for label, feature, level, kind in (
        ("the same", "transaction.version", 2, 1),
        ("too high", "transaction.version", 99, 1),
        ("lower", "transaction.version", 1, 1),
        ("lower, safely", "transaction.version", 1, 2),
        ("unknown", "no.such", 1, 1),
        ("no level", "transaction.version", -1, 1),
        ("no kind", "transaction.version", 2, 0),
        ("zero", "transaction.version", 0, 1),
        ("no name", "", 1, 1),
    ):
        update = {
            "feature": feature,
            "max_version_level": level,
            "upgrade_type": kind,
            "allow_downgrade": kind > 1,
        }
        for version in (0, 1, 2):
            ask("UpdateFeatures", label, version, feature_updates=[update], validate_only=True)
    ask("UpdateFeatures", "nothing", feature_updates=[])
    telemetry(world)
    reassignments(world)
    elections(world)


def telemetry(world: World) -> None:
    ask = world.ask
    ask("GetTelemetrySubscriptions", "a new client")
    ask("GetTelemetrySubscriptions", "a known client", client_instance_id=NOBODY)
    ask("PushTelemetry", "an unknown subscription", client_instance_id=NOBODY, subscription_id=7)
    ask("PushTelemetry", "nobody", subscription_id=7)


def reassignments(world: World) -> None:
    def alter(label: str, topic: str, partition: int, replicas: list[int] | None) -> None:
        wanted = [{"partition_index": partition, "replicas": replicas}]
        world.each(
            "AlterPartitionReassignments",
            label,
            timeout_ms=5_000,
            topics=[{"name": topic, "partitions": wanted}],
        )

    alter("to where it is", "t", 0, [1])
    alter("to nobody", "t", 0, [])
    alter("to a stranger", "t", 0, [9])
    alter("twice to one", "t", 0, [1, 1])
    alter("to less than nobody", "t", 0, [-1])
    alter("of an unknown topic", "nope", 0, [1])
    alter("of an unknown partition", "t", 9, [1])
    alter("taken back", "t", 0, None)
    alter("taken back, unknown", "nope", 0, None)
    world.each("AlterPartitionReassignments", "nothing", topics=[], timeout_ms=5_000)
    each = world.each
    each("ListPartitionReassignments", "all", topics=None, timeout_ms=5_000)
    each(
        "ListPartitionReassignments",
        "a topic",
        timeout_ms=5_000,
        topics=[{"name": "t", "partition_indexes": [0, 1]}],
    )
    each(
        "ListPartitionReassignments",
        "unknown",
        timeout_ms=5_000,
        topics=[{"name": "nope", "partition_indexes": [0]}],
    )
    each("ListPartitionReassignments", "nothing", topics=[], timeout_ms=5_000)


def elections(world: World) -> None:
    def elect(label: str, topic: str, partitions: list[int], kind: int = 0) -> None:
        world.ask(
            "ElectLeaders",
            label,
            election_type=kind,
            timeout_ms=5_000,
            topic_partitions=[{"topic": topic, "partitions": partitions}],
        )

    elect("preferred", "t", [0])
    elect("unclean", "t", [0], 1)
    elect("an unknown topic", "nope", [0])
    elect("an unknown partition", "t", [9])
    elect("twice", "t", [0, 0])
    elect("another kind", "t", [0], 7)
    for version in (0, 1, 2):
        world.ask("ElectLeaders", "all", version, topic_partitions=None, timeout_ms=5_000)
    world.ask("ElectLeaders", "none", topic_partitions=[], timeout_ms=5_000)


def configs(world: World) -> None:
    def describe(label: str, kind: int, name: str, **more: Any) -> None:
        keys = more.pop("keys", None)
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        world.each("DescribeConfigs", label, resources=[resource], **more)

    some = [
        "retention.ms",
        "cleanup.policy",
        "max.message.bytes",
        "min.insync.replicas",
        "message.timestamp.type",
        "segment.bytes",
    ]
    describe("some of a topic", TOPIC, "t", keys=some)
    describe("with synonyms", TOPIC, "t", keys=some, include_synonyms=True)
    describe("with documentation", TOPIC, "t", keys=some, include_documentation=True)
    describe("unknown keys", TOPIC, "t", keys=["no.such"])
    describe("no keys", TOPIC, "t", keys=[])
    describe("an unknown topic", TOPIC, "nope")
    describe("a bad name", TOPIC, "a b")
    describe("no name", TOPIC, "")
    world.ask(
        "DescribeConfigs",
        "a whole topic",
        resources=[{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}],
    )
    describe("some of a broker", BROKER, "1", keys=["node.id", "num.partitions"])
    describe("another broker", BROKER, "9", keys=["node.id"])
    describe("no broker", BROKER, "x", keys=["node.id"])
    describe("all brokers", BROKER, "", keys=["node.id", "num.partitions"])
    describe("a group", GROUP, "g", keys=["consumer.session.timeout.ms"], include_synonyms=True)
    describe("no group", GROUP, "", keys=["consumer.session.timeout.ms"])
    describe("client metrics", CLIENT_METRICS, "m")
    describe("no client metrics", CLIENT_METRICS, "")
    describe("a logger", LOGGER, "1", keys=["no.such"])
    describe("another kind", 99, "x")
    world.ask("DescribeConfigs", "nothing", resources=[])
    altered(world)
    replaced(world)
    listed(world)


SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def altered(world: World) -> None:
    count = [0]

    def alter(
        label: str,
        *changes: tuple[str, int, str | None],
        kind: int = TOPIC,
        name: str = "u",
        **more: Any,
    ) -> None:
        count[0] += 1
        wanted = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": wanted}
        world.ask("IncrementalAlterConfigs", label, resources=[resource], **more)

    alter("set", ("retention.ms", SET, "5000"))
    alter("validate only", ("retention.ms", SET, "6000"), validate_only=True)
    alter("delete", ("retention.ms", DELETE, None))
    alter("delete what is not set", ("segment.ms", DELETE, None))
    alter("append", ("cleanup.policy", APPEND, "compact"))
    alter("append again", ("cleanup.policy", APPEND, "compact"))
    alter("subtract", ("cleanup.policy", SUBTRACT, "compact"))
    alter("subtract what is not there", ("cleanup.policy", SUBTRACT, "compact"))
    alter("subtract the last", ("cleanup.policy", SUBTRACT, "delete"))
    alter("back", ("cleanup.policy", DELETE, None))
    alter("append to a number", ("retention.ms", APPEND, "1"))
    alter("an unknown name", ("no.such", SET, "1"))
    alter("delete an unknown name", ("no.such", DELETE, None))
    alter("append to an unknown name", ("no.such", APPEND, "1"))
    alter("a bad value", ("retention.ms", SET, "soon"))
    alter("too low a value", ("retention.ms", SET, "-2"))
    alter("no value", ("retention.ms", SET, None))
    alter("no name", ("", SET, "1"))
    alter("an unknown operation", ("retention.ms", 9, "1"))
    alter("twice", ("retention.ms", SET, "1000"), ("retention.ms", SET, "2000"))
    alter("nothing")
    alter("an unknown topic", ("retention.ms", SET, "1"), name="nope")
    alter("no topic", ("retention.ms", SET, "1"), name="")
    group, session = {"kind": GROUP, "name": "g"}, "consumer.session.timeout.ms"
    alter("of a group", (session, SET, "50000"), **group)
    alter("of a group, too low", (session, SET, "1"), **group)
    alter("of a group, no number", (session, SET, "x"), **group)
    alter("of a group, unknown", ("no.such", SET, "1"), **group)
    alter("of a group, back", (session, DELETE, None), **group)
    alter("of no group", (session, SET, "50000"), kind=GROUP, name="")
    alter("of client metrics, unknown", ("no.such", SET, "1"), kind=CLIENT_METRICS, name="m")
    alter("of a broker, unknown", ("no.such", SET, "1"), kind=BROKER, name="1")
    alter("of a broker, read only", ("node.id", SET, "1"), kind=BROKER, name="1")
    alter("of another broker", ("node.id", SET, "1"), kind=BROKER, name="9")
    alter("of no broker", ("node.id", SET, "1"), kind=BROKER, name="x")
    alter("of another kind", ("retention.ms", SET, "1"), kind=99)
    of_running_brokers(world, alter)
    one = {
        "resource_type": TOPIC,
        "resource_name": "u",
        "configs": [{"name": "retention.ms", "config_operation": SET, "value": "1"}],
    }
    world.ask("IncrementalAlterConfigs", "one resource twice", resources=[one, one])


def of_running_brokers(world: World, alter: Callable[..., None]) -> None:
    """KIP-226."""
    one, every = {"kind": BROKER, "name": "1"}, {"kind": BROKER, "name": ""}
    threads, policy = "background.threads", "log.cleanup.policy"
    alter("of all brokers", (threads, SET, "8"), ("log.retention.ms", SET, "7777777"), **every)
    alter("of a broker", (threads, SET, "9"), (policy, APPEND, "compact"), **one)
    alter("of a broker, too low", (threads, SET, "0"), **one)
    alter("of a broker, append to a number", (threads, APPEND, "1"), **one)

    def asked(name: str) -> dict[str, Any]:
        return {
            "resource_type": BROKER,
            "resource_name": name,
            "configuration_keys": [threads, policy],
        }

    def is_applied() -> bool:
        [broker] = world.call("DescribeConfigs", resources=[asked("1")]).results
        return {config.value for config in broker.configs} == {"9", "delete,compact"}

    world.until(is_applied)
    for name in ("1", ""):
        resource = asked(name)
        world.each(
            "DescribeConfigs",
            f"of the running broker {name!r}",
            resources=[resource],
            include_synonyms=True,
        )
    resource = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configuration_keys": ["cleanup.policy"],
    }
    world.each("DescribeConfigs", "of a topic then", resources=[resource], include_synonyms=True)
    alter("of a broker, subtract", (policy, SUBTRACT, "compact"), **one)
    alter("of a broker, back", (threads, DELETE, None), (policy, DELETE, None), **one)
    alter(
        "of all brokers, back", (threads, DELETE, None), ("log.retention.ms", DELETE, None), **every
    )


def replaced(world: World) -> None:
    def alter(
        label: str, *values: tuple[str, str | None], kind: int = TOPIC, name: str = "u"
    ) -> None:
        wanted = [{"name": n, "value": v} for n, v in values]
        resource = {"resource_type": kind, "resource_name": name, "configs": wanted}
        world.each("AlterConfigs", label, resources=[resource])

    alter("replaced", ("retention.ms", "7000"))
    alter("replaced by nothing")
    alter("no value", ("retention.ms", None))
    alter("a bad value", ("retention.ms", "soon"))
    alter("an unknown name", ("no.such", "1"))
    alter("an unknown topic", ("retention.ms", "1"), name="nope")
    alter("another kind", ("retention.ms", "1"), kind=99)


def listed(world: World) -> None:
    world.settle()
    world.each("ListConfigResources", "client metrics, or all")
    for label, kinds in {
        "topics": [TOPIC],
        "brokers": [BROKER],
        "loggers": [LOGGER],
        "groups": [GROUP],
        "metrics": [CLIENT_METRICS],
        "unknown": [99],
        "two kinds": [BROKER, TOPIC],
    }.items():
        world.each("ListConfigResources", label, since=1, resource_types=kinds)


def quotas(world: World) -> None:
    def entity(*parts: tuple[str, str | None]) -> list[dict[str, Any]]:
        return [{"entity_type": kind, "entity_name": name} for kind, name in parts]

    def alter(
        label: str,
        who: list[dict[str, Any]],
        key: str,
        value: float = 0.0,
        *,
        remove: bool = False,
        **more: Any,
    ) -> None:
        ops = [{"key": key, "value": value, "remove": remove}]
        world.ask("AlterClientQuotas", label, entries=[{"entity": who, "ops": ops}], **more)

    def describe(
        label: str, *components: tuple[str, int, str | None], strict: bool = False
    ) -> None:
        wanted = [{"entity_type": k, "match_type": m, "match": n} for k, m, n in components]
        world.each("DescribeClientQuotas", label, components=wanted, strict=strict)

    ann = entity(("user", "ann"))
    alter("of a user", ann, "producer_byte_rate", 1000.0)
    alter(
        "of a user's client", entity(("user", "ann"), ("client-id", "c")), "consumer_byte_rate", 5.5
    )
    alter("of any client", entity(("client-id", None)), "request_percentage", 50.0)
    alter("of an address", entity(("ip", "10.0.0.1")), "connection_creation_rate", 9.0)
    alter("validate only", ann, "producer_byte_rate", 2000.0, validate_only=True)
    alter("an unknown key", ann, "no_such", 1.0)
    alter("a key of another kind", ann, "connection_creation_rate", 1.0)
    alter("zero", ann, "producer_byte_rate", 0.0)
    alter("less than zero", ann, "producer_byte_rate", -1.0)
    alter("a fraction of a whole", ann, "producer_byte_rate", 1.5)
    alter("an unknown kind", entity(("planet", "earth")), "producer_byte_rate", 1.0)
    alter("nobody", [], "producer_byte_rate", 1.0)
    alter("an empty name", entity(("user", "")), "producer_byte_rate", 1.0)
    alter("a kind twice", entity(("user", "a"), ("user", "b")), "producer_byte_rate", 1.0)
    alter("a user's address", entity(("user", "a"), ("ip", "10.0.0.1")), "producer_byte_rate", 1.0)
    alter("no address", entity(("ip", "nowhere.invalid")), "connection_creation_rate", 1.0)
    alter("removed where it is not", ann, "consumer_byte_rate", remove=True)
    world.settle()
    describe("all")
    describe("all, strictly", strict=True)
    describe("a user", ("user", 0, "ann"))
    describe("a user alone", ("user", 0, "ann"), strict=True)
    describe("any user", ("user", 2, None))
    describe("the default client", ("client-id", 1, None))
    describe("a user's client", ("user", 0, "ann"), ("client-id", 0, "c"))
    describe("an address", ("ip", 0, "10.0.0.1"))
    describe("nobody", ("user", 0, "bob"))
    describe("an unknown kind", ("planet", 2, None))
    describe("an unknown match", ("user", 9, None))
    describe("a kind twice", ("user", 0, "a"), ("user", 0, "b"))
    describe("a user and an address", ("user", 2, None), ("ip", 2, None))
    describe("no name to match", ("user", 0, None))
    alter("removed", ann, "producer_byte_rate", remove=True)
    world.settle()
    describe("a user without", ("user", 0, "ann"), strict=True)


def batch(values: list[bytes], **more: Any) -> bytes:
    return batch_of(values, STAMP_MS, **more)  # type: ignore[arg-type]


def produce(world: World) -> None:
    t = world.topic_id("t")
    for version in range(3, 14):
        part = {"index": 0, "records": batch([b"v%d" % version])}
        world.ask(
            "Produce",
            "a record",
            version,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[{"name": "t", "topic_id": t, "partition_data": [part]}],
        )
    broken = bytearray(batch([b"x"]))
    broken[-1] ^= 1
    for label, name, topic_id, index, records, acks in (
        ("an unknown topic", "nope", NOBODY, 0, batch([b"x"]), -1),
        ("an unknown partition", "t", t, 9, batch([b"x"]), -1),
        ("empty records", "t", t, 0, b"", -1),
        ("damaged records", "t", t, 0, bytes(broken), -1),
        ("two batches", "t", t, 0, batch([b"x"]) + batch([b"y"]), -1),
        ("acks of two", "t", t, 0, batch([b"x"]), 2),
        ("one acknowledgement", "t", t, 0, batch([b"one"]), 1),
        ("an internal topic", "__consumer_offsets", NOBODY, 0, batch([b"x"]), -1),
        (
            "an unknown producer",
            "t",
            t,
            1,
            batch([b"x"], producer_id=77, producer_epoch=0, base_sequence=5),
            -1,
        ),
        (
            "a first sequence",
            "t",
            t,
            1,
            batch([b"i0"], producer_id=78, producer_epoch=0, base_sequence=0),
            -1,
        ),
        (
            "the same again",
            "t",
            t,
            1,
            batch([b"i0"], producer_id=78, producer_epoch=0, base_sequence=0),
            -1,
        ),
        ("a gap", "t", t, 1, batch([b"i9"], producer_id=78, producer_epoch=0, base_sequence=9), -1),
        (
            "an old epoch",
            "t",
            t,
            1,
            batch([b"i1"], producer_id=78, producer_epoch=-1, base_sequence=1),
            -1,
        ),
        (
            "a new epoch not from zero",
            "t",
            t,
            1,
            batch([b"i1"], producer_id=78, producer_epoch=1, base_sequence=3),
            -1,
        ),
    ):
        for version in (7, 9, 12, 13):
            if label in ("a first sequence", "one acknowledgement") and version != 13:
                continue
            data = {
                "name": name,
                "topic_id": topic_id,
                "partition_data": [{"index": index, "records": records}],
            }
            world.ask("Produce", label, version, acks=acks, timeout_ms=5_000, topic_data=[data])
    world.ask("Produce", "nothing", acks=-1, timeout_ms=5_000, topic_data=[])


def fetch(world: World) -> None:
    def part(partition: int, offset: int, **more: Any) -> dict[str, Any]:
        return {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": 1 << 20,
            **more,
        }

    def asked(name: str, topic_id: bytes, *parts: dict[str, Any], **more: Any):
        return {
            "topics": [{"topic": name, "topic_id": topic_id, "partitions": list(parts)}],
            "max_bytes": 1 << 20,
            "max_wait_ms": 0,
            "min_bytes": 0,
            **more,
        }

    t, each = world.topic_id("t"), world.each
    each("Fetch", "from the start", **asked("t", t, part(0, 0)))
    each("Fetch", "at the end", **asked("t", t, part(0, 12)))
    each("Fetch", "beyond the end", **asked("t", t, part(0, 99)))
    each("Fetch", "below the start", **asked("t", t, part(0, -5)))
    each("Fetch", "an empty partition", **asked("u", world.topic_id("u"), part(0, 0)))
    each("Fetch", "an unknown topic", **asked("nope", NOBODY, part(0, 0)))
    each("Fetch", "an unknown partition", **asked("t", t, part(9, 0)))
    each("Fetch", "committed", **asked("t", t, part(0, 10), isolation_level=1))
    each("Fetch", "another isolation", **asked("t", t, part(0, 12), isolation_level=7))
    each("Fetch", "one byte", **asked("t", t, part(0, 0, partition_max_bytes=1), max_bytes=1))
    each("Fetch", "an old epoch", since=9, **asked("t", t, part(0, 0, current_leader_epoch=-1)))
    each("Fetch", "a later epoch", since=9, **asked("t", t, part(0, 12, current_leader_epoch=9)))
    each("Fetch", "nothing", topics=[], max_bytes=1, max_wait_ms=0, min_bytes=0)
    each("Fetch", "a partition twice", **asked("t", t, part(0, 12), part(0, 11)))
    for version in (7, 12, 13, 18):
        sessions(world, version, asked, part)


def sessions(
    world: World, version: int, asked: Callable[..., dict], part: Callable[..., dict]
) -> None:
    t, u = world.topic_id("t"), world.topic_id("u")

    def ask(label: str, session_id: int, epoch: int, fields: dict | None = None) -> int:
        empty = {"topics": [], "max_bytes": 1 << 20, "max_wait_ms": 0, "min_bytes": 0}
        answer = world.ask(
            "Fetch",
            f"session: {label}",
            version,
            session_id=session_id,
            session_epoch=epoch,
            **(fields or empty),
        )
        return answer.session_id

    def forgotten(name: str, topic_id: bytes, *partitions: int) -> dict:
        left = {"topic": name, "topic_id": topic_id, "partitions": list(partitions)}
        return {
            "topics": [],
            "forgotten_topics_data": [left],
            "max_bytes": 1 << 20,
            "max_wait_ms": 0,
            "min_bytes": 0,
        }

    ask("unknown", 7_777, 1)
    session = ask("begun", 0, 0, asked("t", t, part(0, 12), part(1, 0)))
    ask("nothing new", session, 1)
    ask("a position moved", session, 2, asked("t", t, part(0, 11)))
    ask("still there", session, 3)
    ask("an epoch skipped", session, 9)
    ask("one more", session, 4, asked("u", u, part(0, 0)))
    ask("an unknown one", session, 5, asked("nope", NOBODY, part(0, 0)))
    ask("the unknown one again", session, 6)
    ask("forgotten", session, 7, forgotten("nope", NOBODY, 0))
    ask("two forgotten", session, 8, forgotten("t", t, 0, 1))
    other = 12 if version >= 13 else 18
    world.ask(
        "Fetch",
        f"session: topics named otherwise than v{version}",
        other,
        session_id=session,
        session_epoch=9,
        topics=[],
        max_bytes=1,
        max_wait_ms=0,
        min_bytes=0,
    )
    ask("all forgotten", session, 9, forgotten("u", u, 0))
    ask("gone", session, 10)
    session = ask("another", 0, 0, asked("t", t, part(0, 12)))
    ask("begun anew", session, 0, asked("t", t, part(0, 12)))
    ask("the former", session, 1)
    ask("ended", session, -1, asked("t", t, part(0, 12)))
    ask("empty", 0, 0)


def offsets(world: World) -> None:
    def part(partition: int, timestamp: int, **more: Any) -> dict[str, Any]:
        return {"partition_index": partition, "timestamp": timestamp, **more}

    def listed(label: str, name: str, *parts: dict[str, Any], **more: Any) -> None:
        since = more.pop("since", 1)
        world.each(
            "ListOffsets",
            label,
            since=since,
            replica_id=-1,
            timeout_ms=5_000,  # type: ignore[arg-type]
            topics=[{"name": name, "partitions": list(parts)}],
            **more,
        )

    listed("earliest", "t", part(0, EARLIEST))
    listed("latest", "t", part(0, LATEST))
    listed("latest committed", "t", part(0, LATEST), isolation_level=1, since=2)
    listed("greatest time", "t", part(0, MAX_TIMESTAMP))
    listed("greatest time of nothing", "u", part(0, MAX_TIMESTAMP))
    listed("earliest local", "t", part(0, -4))
    listed("latest tiered", "t", part(0, -5))
    listed("earliest pending", "t", part(0, -6))
    listed("another special", "t", part(0, -7))
    listed("by time", "t", part(0, STAMP_MS))
    listed("by a time before all", "t", part(0, 0))
    listed("by a time after all", "t", part(0, STAMP_MS + 1))
    listed("by time, of nothing", "u", part(0, 0))
    listed("unknown topic", "nope", part(0, LATEST))
    listed("unknown partition", "t", part(9, LATEST))
    listed("a later epoch", "t", part(0, LATEST, current_leader_epoch=9), since=4)
    listed("twice", "t", part(0, LATEST), part(0, EARLIEST))
    world.ask("ListOffsets", "nothing", replica_id=-1, topics=[])

    def ended(label: str, name: str, **one: Any) -> None:
        world.each(
            "OffsetForLeaderEpoch",
            label,
            replica_id=-1,
            topics=[{"topic": name, "partitions": [{"partition": 0, **one}]}],
        )

    ended("this epoch", "t", leader_epoch=0)
    ended("a later epoch", "t", leader_epoch=5)
    ended("no epoch", "t", leader_epoch=-1)
    ended("an unknown topic", "nope", leader_epoch=0)
    ended("an unknown partition", "t", leader_epoch=0, partition=9)
    ended("a later current epoch", "t", leader_epoch=0, current_leader_epoch=3)
    ended("of nothing", "u", leader_epoch=0)

    def delete(label: str, name: str, partition: int, offset: int) -> None:
        before = {"partition_index": partition, "offset": offset}
        world.each(
            "DeleteRecords",
            label,
            timeout_ms=5_000,
            topics=[{"name": name, "partitions": [before]}],
        )

    delete("some", "t", 0, 3)
    delete("less than before", "t", 0, 1)
    delete("beyond the end", "t", 0, 99)
    delete("less than all", "t", 0, -2)
    delete("an unknown topic", "nope", 0, 1)
    delete("an unknown partition", "t", 9, 1)
    delete("of nothing", "u", 0, 0)
    delete("all of nothing", "u", 0, -1)
    listed("earliest after deleting", "t", part(0, EARLIEST))
    gone = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1}
    world.each(
        "Fetch",
        "deleted",
        max_bytes=1 << 20,
        max_wait_ms=0,
        min_bytes=0,
        topics=[{"topic": "t", "topic_id": world.topic_id("t"), "partitions": [gone]}],
    )
    producers(world)


def producers(world: World) -> None:
    t = world.topic_id("t")
    late = batch_of([b"late"], 1_000_000_000_000 + (1 << 50))
    data = {"name": "t", "topic_id": t, "partition_data": [{"index": 1, "records": late}]}
    world.ask("Produce", "a time to come", acks=-1, timeout_ms=5_000, topic_data=[data])
    for label, name, partition in (
        ("of a partition", "t", 1),
        ("of an empty one", "u", 0),
        ("unknown topic", "nope", 0),
        ("unknown partition", "t", 9),
    ):
        world.each(
            "DescribeProducers", label, topics=[{"name": name, "partition_indexes": [partition]}]
        )


def beginning(world: World) -> None:
    """From here on the internal topics are there."""
    world.each("FindCoordinator", "of a group", key="g", key_type=0, coordinator_keys=["g"])
    world.each(
        "FindCoordinator", "of a transaction", since=1, key="x", key_type=1, coordinator_keys=["x"]
    )
    world.each(
        "FindCoordinator", "of another kind", since=1, key="x", key_type=7, coordinator_keys=["x"]
    )
    world.each("FindCoordinator", "nothing", since=4, key_type=0, coordinator_keys=[])
    world.each("FindCoordinator", "no name", key="", key_type=0, coordinator_keys=[""])
    world.ask("FindCoordinator", "twice", key_type=0, coordinator_keys=["g", "g"])


STORIES = (beginning, topics, metadata, cluster, configs, quotas, produce, fetch, offsets)
