"""Virtual time: session timeouts, poll intervals and retention pass in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from kohort import Admin, Consumer, Producer, RebalanceListener
from kohort.client.common import completion
from kohort.errors import KafkaTimeoutError, UsageError
from kohort.testing import Cluster, VirtualClock


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    with VirtualClock() as made:
        yield made


@pytest.fixture
def cluster(clock: VirtualClock) -> Iterator[Cluster]:
    with Cluster(clock=clock) as made:
        made.create_topic("orders", partitions=2)
        yield made


def member(cluster: Cluster, name: str, **settings: object) -> Consumer:
    made = Consumer(
        bootstrap_servers=cluster.bootstrap, group_id="g", client_id=name,
        auto_offset_reset="earliest", **settings,
    )  # fmt: skip
    made.subscribe(["orders"])
    return made


def test_records_go_through(clock: VirtualClock, cluster: Cluster):
    with (
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        member(cluster, "a") as consumer,
    ):
        for n in range(10):
            producer.send("orders", str(n).encode(), partition=n % 2)
        producer.flush()
        read: list[bytes] = []
        while len(read) < 10:
            read += [record.value or b"" for record in consumer.poll(1)]
        assert sorted(read) == [str(n).encode() for n in range(10)]


def test_a_poll_of_a_minute_takes_a_moment(clock: VirtualClock, cluster: Cluster):
    with member(cluster, "a") as consumer:
        began, before = time.monotonic(), clock.elapsed_s
        assert consumer.poll(60) == []
        assert 59 < clock.elapsed_s - before < 61
        assert time.monotonic() - began < 50, "virtual time is no time at all"


def test_a_member_that_is_cut_off_is_replaced_after_its_session(
    clock: VirtualClock, cluster: Cluster
):
    """The default session timeout of 45 s, to the second, in milliseconds."""
    with member(cluster, "a") as a, member(cluster, "b") as b:
        while not (a.assignment() and b.assignment()):
            a.poll(0.1)
            b.poll(0.1)
        cluster.faults.cut(client_id="a", times=1_000_000)
        before = clock.elapsed_s
        while len(b.assignment()) < 2:
            b.poll(1)
            assert clock.elapsed_s - before < 60
        assert 40 < clock.elapsed_s - before < 50
        cluster.faults.clear()
        while len(a.assignment()) < 1:
            a.poll(1)
            b.poll(1)


def test_who_does_not_poll_leaves_after_max_poll_interval(clock: VirtualClock, cluster: Cluster):
    lost: list[object] = []

    class Listener(RebalanceListener):
        def on_partitions_lost(self, partitions: object) -> None:
            lost.append(partitions)

    with member(cluster, "a") as consumer:
        consumer.subscribe(["orders"], Listener())
        while not consumer.assignment():
            consumer.poll(1)
        clock.advance(299)
        assert not cluster.requests.of("LeaveGroup")
        clock.advance(2)
        assert cluster.requests.of("LeaveGroup", client_id="a")
        while not consumer.assignment() or not lost:
            consumer.poll(1)


def test_waits_for_faults_and_requests(clock: VirtualClock, cluster: Cluster):
    with member(cluster, "a") as consumer:
        while not consumer.assignment():
            consumer.poll(1)
        with cluster.faults.fail("Heartbeat", "COORDINATOR_LOAD_IN_PROGRESS") as fault:
            fault.wait(timeout_s=30)
        cluster.requests.clear()
        cluster.requests.wait("Heartbeat", count=5, timeout_s=60)
        with pytest.raises(KafkaTimeoutError):
            cluster.requests.wait("DeleteTopics", timeout_s=60)


def test_retention_passes(clock: VirtualClock):
    """A week of retention, and the broker's look at it every five minutes."""
    with (
        Cluster(clock=clock, log_segment_bytes=200) as cluster,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
    ):
        cluster.create_topic("t", config={"retention.ms": "3600000", "segment.bytes": "200"})
        for _ in range(5):
            producer.send("t", b"x" * 100).result()
        assert consumer.beginning_offsets([("t", 0)]) == {("t", 0): 0}
        clock.advance(2 * 3600)
        assert consumer.beginning_offsets([("t", 0)])[("t", 0)] >= 4


def test_nodes_fail_over(clock: VirtualClock):
    with Cluster(nodes=3, clock=clock) as cluster:
        cluster.create_topic("orders", partitions=3)
        with member(cluster, "a") as consumer, Admin(bootstrap_servers=cluster.bootstrap) as admin:
            while not consumer.assignment():
                consumer.poll(1)
            coordinator = cluster.coordinator_of("g")
            cluster.kill_node(coordinator)
            cluster.requests.wait("Heartbeat", node=coordinator % 3 + 1, timeout_s=60)
            cluster.restart_node(coordinator)
            assert len(admin.describe_cluster().nodes) >= 2
            consumer.commit()


def test_after_it_clients_have_their_thread_again():
    with VirtualClock():
        pass
    assert completion.driver is None
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.describe_cluster()


def test_mistakes_are_explained(clock: VirtualClock):
    with pytest.raises(UsageError, match="in memory"):
        Cluster(durability="os", clock=clock)
    with pytest.raises(UsageError, match="make a new one"), clock:
        pass


def test_the_brokers_clock_jumps_for_any_client():
    """A member of another make that says nothing more is expelled without 40 s of waiting."""
    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=2)
        settings = {
            "bootstrap.servers": cluster.bootstrap, "group.id": "g", "session.timeout.ms": 40_000,
            "client.id": "theirs", "heartbeat.interval.ms": 200,
        }  # fmt: skip
        theirs = confluent_kafka.Consumer(settings)
        theirs.subscribe(["orders"])
        while not theirs.assignment():
            theirs.poll(0.1)
        with (
            cluster.faults.cut(client_id="theirs", times=1_000_000),
            member(cluster, "ours") as ours,
        ):
            cluster.requests.wait("JoinGroup", client_id="ours", answered=False)
            began = time.monotonic()
            cluster.advance(41)
            while len(ours.assignment()) < 2:
                ours.poll(0.1)
            assert time.monotonic() - began < 35
        theirs.close()


def test_retention_of_a_broker_that_jumps():
    with (
        Cluster() as cluster,
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
    ):
        cluster.create_topic("t", config={"retention.ms": "3600000", "segment.bytes": "200"})
        for _ in range(5):
            producer.send("t", b"x" * 100).result()
        cluster.advance(2 * 3600)
        while consumer.beginning_offsets([("t", 0)])[("t", 0)] < 4:
            consumer.poll(0.05)
