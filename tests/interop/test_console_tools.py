"""Apache Kafka's console and performance tools against the embedded broker (issue 5)."""

from __future__ import annotations

import json

import pytest

from kohort import Admin, Consumer, Producer
from tests.clusters import Embedded as Cluster
from tests.e2e.makes import fresh
from tests.interop.java import events, needs_java, tool, verifiable
from tests.known import known
from tests.patience import PATIENCE_S

pytestmark = [needs_java, pytest.mark.slow, pytest.mark.java]
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture
def at(cluster) -> tuple[str, str]:
    return ("--bootstrap-server", cluster.bootstrap)


@pytest.fixture
def topic(cluster) -> str:
    name = fresh("tools")
    cluster.create_topic(name, partitions=3)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(30):
            producer.send(name, b"v%d" % n, b"k%d" % n, partition=n % 3, timestamp_ms=1_000 + n)
    return name


@pytest.fixture
def group(cluster, topic) -> str:
    name = fresh("tools-group")
    with Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        consumer.assign([(topic, n) for n in range(3)])
        seen = 0
        while seen < 30:
            seen += len(consumer.poll(5))
        consumer.commit({(topic, 0): 4, (topic, 1): 10})
    return name


def test_topics(at) -> None:
    name = fresh("made")
    assert "Created topic" in tool(
        f"{TOOLS}.TopicCommand",
        *at,
        "--create",
        "--topic",
        name,
        "--partitions",
        "2",
        "--replication-factor",
        "1",
        "--config",
        "retention.ms=60000",
    )
    assert name in tool(f"{TOOLS}.TopicCommand", *at, "--list").split()
    tool(f"{TOOLS}.TopicCommand", *at, "--alter", "--topic", name, "--partitions", "5")
    shown = tool(f"{TOOLS}.TopicCommand", *at, "--describe", "--topic", name)
    assert "PartitionCount: 5" in shown
    assert "retention.ms=60000" in shown
    tool(f"{TOOLS}.TopicCommand", *at, "--delete", "--topic", name)
    assert name not in tool(f"{TOOLS}.TopicCommand", *at, "--list").split()


def test_groups(at, topic, group) -> None:
    command = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    assert group in tool(command, *at, "--list").split()
    shown = tool(command, *at, "--describe", "--group", group)
    rows = {
        (w[1], w[2]): w[3:6] for line in shown.splitlines() if (w := line.split())[:1] == [group]
    }
    assert rows[topic, "0"] == ["4", "10", "6"]
    assert rows[topic, "1"] == ["10", "10", "0"]
    assert "Empty" in tool(command, *at, "--describe", "--group", group, "--state")
    reset = tool(
        command,
        *at,
        "--group",
        group,
        "--topic",
        topic,
        "--reset-offsets",
        "--to-datetime",
        "1970-01-01T00:00:01.015",
        "--execute",
    )
    assert {line.split()[2]: line.split()[3] for line in reset.splitlines() if topic in line} == {
        "0": "5",
        "1": "5",
        "2": "5",
    }
    tool(command, *at, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    tool(command, *at, "--delete", "--group", group)
    assert group not in tool(command, *at, "--list").split()


def test_groups_of_both_protocols_are_listed_with_their_types(at, cluster, topic) -> None:
    names = {protocol: fresh(protocol) for protocol in ("classic", "consumer")}
    consumers = []
    for protocol, name in names.items():
        consumer = Consumer(
            bootstrap_servers=cluster.bootstrap,
            group_id=name,
            group_protocol=protocol,
            auto_offset_reset="earliest",
        )
        consumer.subscribe([topic])
        while not consumer.poll(1):
            pass
        consumers.append(consumer)
    shown = tool(f"{TOOLS}.GroupsCommand", *at, "--list")
    types = {w[0]: w[1] for line in shown.splitlines() if len(w := line.split()) > 1}
    assert types[names["classic"]] == "Classic"
    assert types[names["consumer"]] == "Consumer"
    command = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    members = tool(
        command, *at, "--describe", "--group", names["consumer"], "--members", "--verbose"
    )
    assert f"{topic}:0,1,2" in members
    for consumer in consumers:
        consumer.close()


def test_offsets(at, topic) -> None:
    shown = tool(f"{TOOLS}.GetOffsetShell", *at, "--topic", topic)
    assert sorted(shown.split()) == [f"{topic}:{n}:10" for n in range(3)]
    early = tool(f"{TOOLS}.GetOffsetShell", *at, "--topic", topic, "--time", "-2")
    assert sorted(early.split()) == [f"{topic}:{n}:0" for n in range(3)]
    by_time = tool(f"{TOOLS}.GetOffsetShell", *at, "--topic", topic, "--time", "1015")
    assert sorted(by_time.split()) == [f"{topic}:{n}:5" for n in range(3)]


def test_console_producer_and_consumer(at, cluster) -> None:
    name = fresh("console")
    cluster.create_topic(name)
    tool(
        f"{TOOLS}.ConsoleProducer",
        *at,
        "--topic",
        name,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
        stdin="a:1\nb:2\n",
    )
    shown = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *at,
        "--topic",
        name,
        "--from-beginning",
        "--max-messages",
        "2",
        "--formatter-property",
        "print.key=true",
    )
    assert shown.split() == ["a", "1", "b", "2"]


def test_our_offsets_topic_is_read_by_their_formatter(at, topic, group) -> None:
    """Issue 2, 3: `__consumer_offsets` holds Kafka's own records."""
    shown = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *at,
        "--topic",
        "__consumer_offsets",
        "--from-beginning",
        "--timeout-ms",
        "5000",
        "--formatter",
        f"{TOOLS}.consumer.OffsetsMessageFormatter",
    )
    found, reader, rest = [], json.JSONDecoder(), shown[shown.index("{") :]
    while rest.startswith("{"):  # one after the other, with nothing between
        record, end = reader.raw_decode(rest)
        found.append(record)
        rest = rest[end:].lstrip()
    ours = {
        record["key"]["data"]["partition"]: record["value"]["data"]["offset"]
        for record in found
        if record["key"]["data"].get("group") == group
    }
    assert ours[0] == 4
    assert ours[1] == 10


def test_configs(at, topic) -> None:
    command = "kafka.admin.ConfigCommand"
    tool(command, *at, "--alter", "--topic", topic, "--add-config", "retention.ms=12345")
    assert "retention.ms=12345" in tool(command, *at, "--describe", "--topic", topic)
    tool(command, *at, "--alter", "--topic", topic, "--delete-config", "retention.ms")
    assert "retention.ms=12345" not in tool(command, *at, "--describe", "--topic", topic)


def test_delete_records(at, topic, tmp_path) -> None:
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 7}], "version": 1})
    )
    tool(f"{TOOLS}.DeleteRecordsCommand", *at, "--offset-json-file", str(wanted))
    early = tool(f"{TOOLS}.GetOffsetShell", *at, "--topic", f"{topic}", "--time", "-2")
    assert f"{topic}:0:7" in early


def test_performance_tools(at, cluster) -> None:
    name = fresh("perf")
    cluster.create_topic(name, partitions=2)
    shown = tool(
        f"{TOOLS}.ProducerPerformance",
        "--topic",
        name,
        "--num-records",
        "20000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--bootstrap-server",
        cluster.bootstrap,
    )
    assert "20000 records sent" in shown
    shown = tool(
        f"{TOOLS}.ConsumerPerformance",
        *at,
        "--topic",
        name,
        "--num-records",
        "20000",
        "--timeout",
        "20000",
    )
    assert " 20" in shown
    assert tool(
        f"{TOOLS}.EndToEndLatency",
        "--bootstrap-server",
        cluster.bootstrap,
        "--topic",
        name,
        "--num-records",
        "50",
        "--producer-acks",
        "1",
        "--record-size",
        "100",
    )


def test_transactions_and_producers(at, cluster, topic) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=fresh("tx")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0).result(PATIENCE_S)
        name = known(producer.config.transactional_id)
        shown = tool(f"{TOOLS}.TransactionsCommand", *at, "list")
        assert any(name in line and "Ongoing" in line for line in shown.splitlines())
        described = tool(
            f"{TOOLS}.TransactionsCommand", *at, "describe", "--transactional-id", name
        )
        assert f"{topic}-0" in described
        producers = tool(
            f"{TOOLS}.TransactionsCommand",
            *at,
            "describe-producers",
            "--topic",
            topic,
            "--partition",
            "0",
        )
        assert "ProducerId" in producers
        producer.commit_transaction()


def test_verifiable_producer(at, cluster) -> None:
    name = fresh("verifiable")
    cluster.create_topic(name)
    process = verifiable(
        "VerifiableProducer", [*at, "--topic", name, "--max-messages", "100", "--acks", "-1"]
    )
    printed = list(events(process))
    assert process.wait(PATIENCE_S) == 0
    for pipe in (process.stdout, process.stderr):
        known(pipe).close()
    assert sum(event["name"] == "producer_send_success" for event in printed) == 100


def test_broker_and_cluster_tools(at, cluster) -> None:
    assert "ApiVersions" in tool("org.apache.kafka.tools.BrokerApiVersionsCommand", *at)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        cluster_id = admin.describe_cluster().cluster_id
    assert known(cluster_id) in tool(f"{TOOLS}.ClusterTool", "cluster-id", *at)
    assert "version" in tool(f"{TOOLS}.FeatureCommand", *at, "describe").lower()


def test_disks_and_replicas(at, topic, tmp_path) -> None:
    """DescribeLogDirs, reassignments, elections."""
    shown = tool(f"{TOOLS}.LogDirsCommand", *at, "--describe", "--topic-list", topic)
    [broker] = json.loads(shown.splitlines()[-1])["brokers"]
    sizes = {p["partition"]: p["size"] for d in broker["logDirs"] for p in d["partitions"]}
    assert sizes.keys() == {f"{topic}-{n}" for n in range(3)}
    assert min(sizes.values()) > 0
    command = f"{TOOLS}.reassign.ReassignPartitionsCommand"
    plan = tmp_path / "plan.json"
    partition = {"topic": topic, "partition": 0, "replicas": [1]}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    tool(command, *at, "--reassignment-json-file", str(plan), "--execute")
    verified = tool(command, *at, "--reassignment-json-file", str(plan), "--verify")
    assert f"Reassignment of partition {topic}-0 is completed" in verified
    assert "No partition reassignments found" in tool(command, *at, "--list")
    tool(
        f"{TOOLS}.LeaderElectionCommand",
        *at,
        "--election-type",
        "preferred",
        "--all-topic-partitions",
    )


def test_quotas_quorum_and_special_offsets(at, topic) -> None:
    command = "kafka.admin.ConfigCommand"
    who = ("--entity-type", "users", "--entity-name", "ann")
    tool(command, *at, "--alter", *who, "--add-config", "producer_byte_rate=1000")
    assert "producer_byte_rate=1000.0" in tool(command, *at, "--describe", *who)
    quorum = tool(f"{TOOLS}.MetadataQuorumCommand", *at, "describe", "--status")
    assert "LeaderId:               1" in quorum
    newest = tool(f"{TOOLS}.GetOffsetShell", *at, "--topic", topic, "--time", "max-timestamp")
    assert newest.split() == [f"{topic}:{n}:9" for n in range(3)]
    local = tool(f"{TOOLS}.GetOffsetShell", *at, "--topic", topic, "--time", "earliest-local")
    assert local.split() == [f"{topic}:{n}:0" for n in range(3)]
    settings = ("--describe", "--all", "--entity-type", "topics", "--entity-name", topic)
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in tool(command, *at, *settings)
