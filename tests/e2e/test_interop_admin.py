"""Every make's admin client against the embedded broker, compared with ours (issue 2, broker)."""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin names what it exports in its documentation alone)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kohort import Admin, Consumer, Producer, TopicPartition
from kohort.errors import BrokerError
from tests.clusters import APACHE, Cluster
from tests.e2e.admins import admin_of
from tests.e2e.makes import CONFLUENT, PEERS, deadline, fresh
from tests.known import fake
from tests.patience import PATIENCE_S

DEFAULT_RETENTION = ("-1", "604800000")
"""Of `kohort.testing`, and of Apache Kafka."""


@pytest.fixture
def ours(cluster: Cluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin


@pytest.fixture(params=PEERS)
def theirs(request, cluster: Cluster) -> Iterator[Any]:
    with admin_of(request.param, cluster.bootstrap) as admin:
        yield admin


def counts(admin: Admin, *names: str) -> dict[str, int]:
    return {t.name: t.partition_count for t in admin.list_topics() if t.name in names}


def code_of(error: BaseException) -> int:
    """The broker's error code out of any make's exception."""
    if isinstance(error, BrokerError):
        return error.code
    code = getattr(error, "errno", None)
    return error.args[0].code() if code is None else code


def comes(look: Callable[[], object], wanted: object) -> None:
    """Seen at once on the embedded broker; Apache Kafka's hears of changes from its controller."""
    check = deadline()
    while (seen := look()) != wanted:
        assert APACHE, f"{seen} instead of {wanted}"
        check(f"{wanted} instead of {seen}")


def test_a_topics_life(theirs, ours: Admin) -> None:
    """Create, see, grow, configure, delete; each step seen by both."""
    name = fresh("managed")

    def here(setting: str) -> str | None:
        return ours.describe_configs(name)[setting].value

    def there() -> dict[str, int]:
        return {n: c for n, c in theirs.topics().items() if n == name}

    theirs.create_topic(name, 2, {"retention.ms": "1000000"})
    comes(lambda: (counts(ours, name), there()), ({name: 2}, {name: 2}))
    theirs.create_partitions(name, 5)
    comes(lambda: (counts(ours, name), there()), ({name: 5}, {name: 5}))
    mine = {c.name: c.value for c in ours.describe_configs(name).values()}
    assert theirs.configs(name) == mine
    assert mine["retention.ms"] == "1000000"
    if theirs.alter_config:
        theirs.alter_config(name, "retention.ms", "77000")
        theirs.alter_config(name, "max.message.bytes", "2000")
        comes(lambda: (here("retention.ms"), here("max.message.bytes")), ("77000", "2000"))
        theirs.alter_config(name, "retention.ms", None)
        comes(lambda: here("retention.ms") in DEFAULT_RETENTION, True)
        assert here("max.message.bytes") == "2000"
        ours.alter_configs(name, {"max.message.bytes": None})
    ours.alter_configs(name, {"retention.ms": None, "retention.bytes": "5000"})
    theirs.replace_configs(name, {"retention.ms": "88000"})  # AlterConfigs: the others go back
    kept = {} if theirs.replaces else {"retention.bytes": "5000"}

    def changed() -> dict[str, str | None]:
        entries = ours.describe_configs(name)
        return {n: e.value for n, e in entries.items() if e.source == "topic"}

    comes(changed, {"retention.ms": "88000", **kept})
    theirs.delete_topic(name)
    comes(lambda: (counts(ours, name), there()), ({}, {}))


def test_what_is_refused(theirs, ours: Admin) -> None:
    """The same error, whoever asks, and nothing has changed."""
    name = fresh("refused")
    ours.create_topics([name])
    refusals = {
        36: lambda admin: admin(name, 1, {}),  # TOPIC_ALREADY_EXISTS
        37: lambda admin: admin(f"{name}-0", 0, {}),  # INVALID_PARTITIONS
        17: lambda admin: admin("no/slashes", 1, {}),  # INVALID_TOPIC_EXCEPTION
        40: lambda admin: admin(f"{name}-1", 1, {"retention.ms": "soon"}),  # INVALID_CONFIG
    }
    for code, create in refusals.items():
        with pytest.raises(Exception) as caught:  # each make has a tree of its own
            create(theirs.create_topic)
        if code != 37 or not isinstance(caught.value, ValueError):  # refused before it was sent
            assert code_of(caught.value) == code
    with pytest.raises(Exception) as caught:
        theirs.create_partitions(name, 1)
    assert code_of(caught.value) == 37
    with pytest.raises(Exception) as caught:
        theirs.delete_topic(f"{name}-unknown")
    assert code_of(caught.value) == 3
    assert counts(ours, name, f"{name}-0", f"{name}-1") == {name: 1}


def test_the_cluster_and_its_broker(theirs, ours: Admin) -> None:
    found = ours.describe_cluster()
    node_ids = [node.node_id for node in found.nodes]
    assert theirs.cluster() == (found.cluster_id, found.controller_id, node_ids)
    mine = {c.name: c.value for c in ours.describe_configs("1", broker=True).values()}
    assert theirs.configs("1", "broker") == mine


def test_records_and_offsets(theirs, ours: Admin, cluster: Cluster) -> None:
    """ListOffsets by name and by time, and DeleteRecords."""
    topic, tp = fresh("offsets"), TopicPartition
    cluster.create_topic(topic)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in (0, 10, 40, 30, 20):
            producer.send(topic, b"x", timestamp_ms=1_000_000 + n)
    specs = ("earliest", "latest", "max_timestamp", 1_000_000, 1_000_015, 1_000_040, 2_000_000)
    if theirs.offsets:
        for spec in specs:
            mine = ours.list_offsets({tp(topic, 0): spec})[tp(topic, 0)].offset
            assert theirs.offsets(topic, spec) == mine
        assert theirs.offsets(topic, "max_timestamp") == 2
    assert theirs.delete_records(topic, 3) == 3
    assert ours.list_offsets({tp(topic, 0): "earliest"})[tp(topic, 0)].offset == 3
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert next(iter(consumer)).offset == 3
    assert theirs.delete_records(topic, -1) == 5


def test_a_groups_life(theirs, ours: Admin, cluster: Cluster) -> None:
    """List, describe with members, offsets, refusals while it lives, delete."""
    topic, name = fresh("watched"), fresh("watched")
    cluster.create_topic(topic, partitions=3)
    consumer = Consumer(
        bootstrap_servers=cluster.bootstrap,
        group_id=name,
        client_id="somebody",
        enable_auto_commit=False,
        partition_assignment_strategy="roundrobin",
    )
    with consumer:
        consumer.subscribe([topic])
        check = deadline()
        while len(consumer.assignment()) < 3:
            check("the consumer joins")
            consumer.poll(0.1)
        consumer.commit({(topic, 0): 4, (topic, 2): 6})
        members = {"somebody": [0, 1, 2]}
        expected = {"state": "Stable", "protocol": "roundrobin", "members": members}
        assert theirs.group(name) == expected
        mine = ours.describe_groups([name])[name]
        assert (mine.state, mine.protocol, len(mine.members)) == ("Stable", "roundrobin", 1)
        assert theirs.groups()[name] in ("Stable", None)
        assert theirs.group_offsets(name) == {0: 4, 2: 6}
        if theirs.delete_group:
            with pytest.raises(Exception):  # noqa: B017  (NON_EMPTY_GROUP, in each make's words)
                theirs.delete_group(name)
    assert theirs.group(name)["state"] == "Empty"
    assert theirs.groups()[name] in ("Empty", None)
    if theirs.alter_group_offset:
        theirs.alter_group_offset(name, topic, 2)
    else:
        ours.alter_group_offsets(name, {TopicPartition(topic, 0): 2})
    assert theirs.group_offsets(name) == {0: 2, 2: 6}
    mine = ours.list_group_offsets(name)
    assert {tp.partition: o.offset for tp, o in mine.items()} == {0: 2, 2: 6}
    if theirs.delete_group:
        theirs.delete_group(name)
    else:
        ours.delete_groups([name])
    assert name not in theirs.groups()
    assert name not in [g.group_id for g in ours.list_groups()]


@pytest.mark.skipif(APACHE, reason="compares with the embedded broker's own table")
def test_kafka_python_sees_the_versions_that_we_list(cluster: Cluster) -> None:
    """ApiVersions: what a peer understood is what the modules say."""
    from kafka import KafkaAdminClient

    from kohort.broker.apis import APIS

    admin = fake(KafkaAdminClient(bootstrap_servers=cluster.bootstrap))  # typed as version 2
    try:
        seen = {int(key): versions for key, versions in admin.api_versions().items()}
    finally:
        admin.close()
    served = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
    assert seen == {**served, 0: (0, served[0][1])}, "Produce is listed from v0, for old clients"


@pytest.mark.skipif(APACHE, reason="the advice is the embedded broker's")
def test_access_control_that_is_off_says_so(cluster: Cluster) -> None:
    """Without `acls=true` no entry is taken, and a client is told what to do about it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    entry = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    with admin_of(CONFLUENT, cluster.bootstrap) as admin:
        (future,) = admin._admin.create_acls([entry]).values()
        with pytest.raises(KafkaException, match="start it with acls=true"):
            future.result(PATIENCE_S)
