"""Spec 8.3 with real clients: several members, both protocols, Apps, brokers that do not answer.

Together with `test_verdicts_of_clients.py`: 32 healthy and 31 sick situations; `make interop` runs
those that can be on Apache Kafka as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kohort import Admin, App, Consumer, Producer, Record, Temporary
from kohort.observe.verdicts import REBALANCING
from tests.cli.conftest import Run
from tests.cli.group.clients import POLL_S, confluent_member, kohort_member
from tests.cli.group.situations import Why, healthy, sick, words
from tests.clusters import APACHE, Cluster
from tests.e2e.makes import deadline, fresh
from tests.processing.conftest import Running

PROTOCOLS = ("classic", "consumer")


@pytest.fixture
def pair(cluster: Cluster) -> str:
    """A topic with a record in each of two partitions."""
    name = fresh("pair")
    cluster.create_topic(name, 2)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for partition in (0, 1):
            producer.send(name, b"1", partition=partition)
        producer.flush()
    return name


# -- both protocols


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_committed_offset_past_the_end(
    protocol: str, cluster: Cluster, topic: str, why: Why
) -> None:
    group = fresh("past")
    with kohort_member(cluster.bootstrap, group, topic, 1, group_protocol=protocol) as consumer:
        consumer.commit({(topic, 0): 99})
        sick(why(group), "behind the log's end")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_of_two_members_hangs(
    protocol: str, cluster: Cluster, pair: str, why: Why, admin: Admin
) -> None:
    group = fresh("two")
    admin.alter_group_offsets(group, {(pair, 0): 0, (pair, 1): 0})
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "group_id": group}
    more = {"group_protocol": protocol, "enable_auto_commit": False}
    with Consumer(**settings, **more) as one, Consumer(**settings, **more) as other:
        check = deadline()
        for consumer in (one, other):
            consumer.subscribe([pair])
        while len(one.assignment()) != 1 or len(other.assignment()) != 1:
            check("a partition for each")
            one.poll(POLL_S)
            other.poll(POLL_S)
        one.commit(dict.fromkeys(one.assignment(), 1))
        ran = why(group)
        sick(ran, "has committed nothing")
        states = sorted(row["state"] for row in ran.json["partitions"])
        assert states == ["caught up", "stuck"]


def test_a_spare_member_has_nothing(cluster: Cluster, topic: str, why: Why) -> None:
    group = fresh("spare")
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "group_id": group}
    with kohort_member(cluster.bootstrap, group, topic, 2) as one, Consumer(**settings) as spare:
        spare.subscribe([topic])
        check = deadline()
        while len(admin_members(cluster, group)) != 2 or not (
            one.assignment() or spare.assignment()
        ):
            check("two members")
            one.poll(POLL_S)
            spare.poll(POLL_S)
        ran = why(group)
        assert ran.json["members"] == 2
        healthy(ran)


def admin_members(cluster: Cluster, group: str) -> list[str]:
    """The members of a stable group; none while it rebalances."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        found = admin.describe_groups([group])[group]
    return [one.member_id for one in found.members] if found.state == "Stable" else []


# -- KIP-848


def test_the_consumer_protocol_where_records_are_gone(
    cluster: Cluster, topic: str, why: Why, admin: Admin
) -> None:
    at = cluster.bootstrap
    ours, theirs = fresh("k-trimmed"), fresh("c-trimmed")
    with (
        kohort_member(at, ours, topic, 1, group_protocol="consumer"),
        confluent_member(at, theirs, topic, 1, **{"group.protocol": "consumer"}),
    ):
        with Producer(bootstrap_servers=at) as producer:
            producer.send(topic, b"3").result(30)
        admin.delete_records({(topic, 0): 2})
        sick(why(ours), "is gone: offset 1")
        sick(why(theirs), "is gone: offset 1")


def test_the_consumer_protocol_when_members_go(cluster: Cluster, topic: str, why: Why) -> None:
    at = cluster.bootstrap
    with confluent_member(at, "c-gone", topic, 1, **{"group.protocol": "consumer"}):
        pass
    sick(why("c-gone"), "nobody reads")
    with kohort_member(at, "k-done", topic, 2, group_protocol="consumer"):
        pass
    healthy(why("k-done"))
    static = {"group_protocol": "consumer", "group_instance_id": "s-1"}
    with kohort_member(at, "k-static", topic, 1, **static):
        pass
    healthy(why("k-static"))


def test_the_consumer_protocol_with_one_partition_hung(
    cluster: Cluster, pair: str, why: Why
) -> None:
    with kohort_member(cluster.bootstrap, "k-half", pair, 2, group_protocol="consumer") as consumer:
        consumer.commit({(pair, 0): 0})
        ran = why("k-half")
        sick(ran, "has committed nothing")
        assert [row["state"] for row in ran.json["partitions"]] == ["stuck", "caught up"]


def test_a_paused_member_of_the_consumer_protocol(cluster: Cluster, topic: str, why: Why) -> None:
    with kohort_member(cluster.bootstrap, "k-paused", topic, 1, group_protocol="consumer") as one:
        one.pause(*one.assignment())
        assert one.poll(0.01) == []
        sick(why("k-paused"), "has paused it")


# -- rebalances


@pytest.mark.parametrize("memory", [True, False], ids=["coordinator", "log"])
def test_one_rebalance_after_the_other(
    cluster: Cluster,
    topic: str,
    why: Why,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
    memory: bool,
) -> None:
    """A coordinator of Apache Kafka remembers none: they are read from `__consumer_offsets`."""
    if not memory:
        monkeypatch.setattr(Admin, "group_timeline", lambda *_, **__: None)
    group = fresh("storm")
    admin.alter_group_offsets(group, {(topic, 0): 0})
    settings = {"enable_auto_commit": False}
    for _ in range(6):
        with kohort_member(cluster.bootstrap, group, topic, 0, **settings):
            pass
    with kohort_member(cluster.bootstrap, group, topic, 0, **settings):
        sick(why(group), "rebalances in the last minutes")


@contextmanager
def joining(cluster: Cluster, group: str, topic: str) -> Iterator[None]:
    """A member that waits for its first assignment."""
    end = threading.Event()

    def poll() -> None:
        settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap, "group_id": group}
        with Consumer(**settings) as consumer:
            consumer.subscribe([topic])
            while not end.is_set():
                consumer.poll(POLL_S)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_first_rebalance_waits_for_more_members(bare: Run) -> None:
    """`group.initial.rebalance.delay.ms`: from outside it looks as if it would not end."""
    with (
        Cluster(group_initial_rebalance_delay_ms=60_000) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        cluster.create_topic("orders", 1)
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("orders", b"1").result(30)
        admin.alter_group_offsets("delayed", {("orders", 0): 0})
        with joining(cluster, "delayed", "orders"):
            check = deadline()
            while admin.describe_groups(["delayed"])["delayed"].state not in REBALANCING:
                check("a rebalance")
            ask = ("group", "why", "delayed", "--for", "1ms", "-o", "json")
            ran = bare(*ask, "-b", cluster.bootstrap)
            assert "a rebalance is under way" in words(ran)
            healthy(ran)


# -- Apps


def app(cluster: Cluster, group: str) -> App:
    return App(group, bootstrap_servers=cluster.bootstrap, retries="1h", clock_skew=0)


def test_an_app_hangs_and_goes_on(cluster: Cluster, topic: str, why: Why, admin: Admin) -> None:
    group = fresh("app-hangs")
    admin.alter_group_offsets(group, {(topic, 0): 0})
    hanging, go_on, done = threading.Event(), threading.Event(), threading.Event()
    program = app(cluster, group)

    @program.handler(topic)
    def handle(record: Record) -> None:
        hanging.set()
        go_on.wait()
        if record.offset == 1:
            done.set()

    running = Running(program)
    hanging.wait()
    sick(why(group), "has committed nothing")
    go_on.set()
    done.wait()
    running.stop()
    healthy(why(group))


def test_the_records_of_an_app_wait_for_their_next_try(
    cluster: Cluster, topic: str, why: Why
) -> None:
    group, failed = fresh("app-waits"), threading.Event()
    program = app(cluster, group)

    @program.handler(topic)
    def handle(record: Record) -> None:
        if record.offset == 1:
            failed.set()
        raise Temporary("the warehouse is down")

    running = Running(program)
    failed.wait()
    running.stop()
    healthy(why(group))


# -- brokers


@pytest.mark.skipif(APACHE, reason="the faults are the embedded broker's")
def test_a_leader_does_not_answer(cluster: Cluster, topic: str, why: Why, admin: Admin) -> None:
    group = fresh("silent")
    admin.alter_group_offsets(group, {(topic, 0): 1})
    with cluster.faults.fail("ListOffsets", "UNKNOWN_SERVER_ERROR", times=1_000):
        sick(why(group), "does not answer for it")
