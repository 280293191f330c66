"""Spec 8.3 with real clients: healthy and sick groups of every make, on one broker."""

from __future__ import annotations

from typing import Any

import pytest

from kohort import Admin, Consumer, Producer
from tests.cli.group.clients import confluent_member, kohort_member, member
from tests.cli.group.situations import Why, healthy, sick, words
from tests.clusters import Cluster
from tests.e2e.makes import MAKES, fresh
from tests.peers import PEERS

pytestmark = PEERS


# -- of every make


@pytest.mark.parametrize("make", MAKES)
def test_idle_on_defaults(make: str, cluster: Cluster, topic: str, why: Why) -> None:
    group = fresh("idle")
    with member(make, cluster.bootstrap, group, topic):
        healthy(why(group))


@pytest.mark.parametrize("make", MAKES)
def test_at_the_end(make: str, cluster: Cluster, topic: str, why: Why) -> None:
    group = fresh("read")
    with member(make, cluster.bootstrap, group, topic, most=2):
        healthy(why(group))


@pytest.mark.parametrize("make", MAKES)
def test_behind_the_last_record_of_a_transaction(make: str, cluster: Cluster, why: Why) -> None:
    """The marker takes an offset that some makes never commit."""
    name, group = fresh("paid"), fresh("marker")
    cluster.create_topic(name, 1)
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"1")
        producer.commit_transaction()
    with member(make, cluster.bootstrap, group, name, most=1):
        healthy(why(group))


@pytest.mark.parametrize("make", MAKES)
def test_a_handler_hangs(make: str, cluster: Cluster, topic: str, why: Why) -> None:
    group = fresh("hangs")
    with member(make, cluster.bootstrap, group, topic, most=1):
        sick(why(group), "has committed nothing")


@pytest.mark.parametrize("make", MAKES)
def test_gone_with_records_left(make: str, cluster: Cluster, topic: str, why: Why) -> None:
    group = fresh("gone")
    with member(make, cluster.bootstrap, group, topic, most=1):
        pass
    sick(why(group), "nobody reads")


@pytest.mark.parametrize("make", MAKES)
def test_gone_with_all_read(make: str, cluster: Cluster, topic: str, why: Why) -> None:
    group = fresh("done")
    with member(make, cluster.bootstrap, group, topic, most=2):
        pass
    healthy(why(group))


@pytest.mark.parametrize("make", MAKES)
def test_what_it_would_read_next_is_gone(
    make: str, cluster: Cluster, topic: str, why: Why, admin: Admin
) -> None:
    group = fresh("trimmed")
    with member(make, cluster.bootstrap, group, topic, 1):
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send(topic, b"3").result(30)
        admin.delete_records({(topic, 0): 2})
        sick(why(group), "is gone: offset 1")


# -- KIP-848


def test_the_consumer_protocol(cluster: Cluster, topic: str, why: Why) -> None:
    """Idle, at the end, and hanging; ours and librdkafka's."""
    at = cluster.bootstrap
    with kohort_member(at, "k-idle", topic, 0, group_protocol="consumer"):
        healthy(why("k-idle"))
    with kohort_member(at, "k-read", topic, 2, group_protocol="consumer"):
        healthy(why("k-read"))
    with kohort_member(at, "k-hangs", topic, 1, group_protocol="consumer"):
        sick(why("k-hangs"), "has committed nothing")
    sick(why("k-hangs"), "nobody reads")
    with confluent_member(at, "c-idle", topic, 0, **{"group.protocol": "consumer"}):
        healthy(why("c-idle"))
    with confluent_member(at, "c-hangs", topic, 1, **{"group.protocol": "consumer"}):
        sick(why("c-hangs"), "has committed nothing")


# -- ours


def test_a_static_member_is_away(cluster: Cluster, topic: str, why: Why) -> None:
    """It keeps its partition for its session timeout without being there."""
    with kohort_member(cluster.bootstrap, "static", topic, 1, group_instance_id="s-1"):
        pass
    ran = why("static")
    assert ran.json["members"] == 1
    healthy(ran)


def test_a_paused_member(cluster: Cluster, topic: str, why: Why) -> None:
    with kohort_member(cluster.bootstrap, "paused", topic, 1) as consumer:
        consumer.pause(*consumer.assignment())
        assert consumer.poll(0.01) == []
        sick(why("paused"), "has paused it")


def test_a_member_that_reads_another_topic_now(cluster: Cluster, topic: str, why: Why) -> None:
    other = fresh("newer")
    cluster.create_topic(other, 1)
    with kohort_member(cluster.bootstrap, "moved-on", topic, 1) as consumer:
        consumer.subscribe([other])
        while {tp.topic for tp in consumer.assignment()} != {other}:
            consumer.poll(0.1)
        ran = why("moved-on")
        assert "left over" in words(ran)
        healthy(ran)


def test_offsets_without_members(cluster: Cluster, topic: str, why: Why, admin: Admin) -> None:
    """As Spark and Flink keep theirs; what they would read next may be gone all the same."""
    admin.alter_group_offsets("spark", {(topic, 0): 1})
    healthy(why("spark"))
    admin.delete_records({(topic, 0): 2})
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send(topic, b"3").result(30)
    sick(why("spark"), "is gone: offset 1")


def test_assign_with_a_group(cluster: Cluster, topic: str, why: Why) -> None:
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "group_id": "by-hand"}
    with Consumer(**settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while not consumer.poll(0.1, max_records=1):
            pass
        consumer.commit()
        healthy(why("by-hand"))


def test_all_of_it_was_deleted(cluster: Cluster, topic: str, why: Why, admin: Admin) -> None:
    with kohort_member(cluster.bootstrap, "emptied", topic, 1):
        admin.delete_records({(topic, 0): 2})
        healthy(why("emptied"))


def test_a_topic_that_was_made_again(cluster: Cluster, topic: str, why: Why, admin: Admin) -> None:
    admin.alter_group_offsets("again", {(topic, 0): 99})
    sick(why("again"), "behind the log's end")


def test_transactions(cluster: Cluster, topic: str, why: Why) -> None:
    """One that is young holds a reader back, which is no alarm; one that was aborted does not."""
    settings: dict[str, Any] = {"isolation_level": "read_committed"}
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        with kohort_member(cluster.bootstrap, "committed", topic, 2, **settings):
            producer.begin_transaction()
            producer.send(topic, b"3").result(30)
            ran = why("committed")
            assert "has a transaction open" in words(ran)
            healthy(ran)
            producer.abort_transaction()
            healthy(why("committed"))


def test_a_hung_partition_beside_one_that_is_read(cluster: Cluster, why: Why) -> None:
    name = fresh("two")
    cluster.create_topic(name, 2)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for partition in (0, 1):
            producer.send(name, b"1", partition=partition)
        producer.flush()
    with kohort_member(cluster.bootstrap, "half", name, 2) as consumer:
        consumer.commit({(name, 0): 0})
        ran = why("half")
        sick(ran, "has committed nothing")
        assert [row["state"] for row in ran.json["partitions"]] == ["stuck", "caught up"]
