"""Leaders move and nodes die under producers and groups: nothing lost, nothing twice, in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kohort import Consumer, Producer
from kohort.broker.state.failpoints import Event, Moment
from kohort.wire.messages.fetch_request import FetchRequest
from tests.clusters import Embedded as Cluster
from tests.e2e.conftest import SESSIONS
from tests.e2e.feeders import Feeder
from tests.e2e.group_run import GroupRun
from tests.e2e.makes import CONFLUENT, KOHORT, MAKES, deadline, fresh, read
from tests.effort import chiefly
from tests.known import known
from tests.patience import PATIENCE_S

PARTITIONS = 6


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with Cluster(nodes=3, broker_session_timeout_ms=50, **SESSIONS) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("make", chiefly([KOHORT], MAKES))
def test_moves_and_deaths_of_the_leader(nodes: Cluster, tmp_path: Path, make: str) -> None:
    """An idempotent producer and a group of each make go on by themselves (L8, L11, G10)."""
    topic = fresh("moving")
    nodes.create_topic(topic)
    with (
        Feeder(make, nodes.bootstrap, topic, tmp_path) as feeder,
        GroupRun(nodes.bootstrap, topic, fresh("movers"), "range", 1, tmp_path) as run,
    ):
        run.start(make)
        feeder.await_acked(100)
        run.await_stable()
        nodes.move_leader(topic, 0)
        feeder.await_acked(100)
        dead = nodes.leader_of(topic, 0)
        nodes.kill_node(dead)
        feeder.await_acked(100)
        nodes.restart_node(dead)
        nodes.elect_preferred()
        feeder.await_acked(100)
        stopped = nodes.leader_of(topic, 0)
        nodes.stop_node(stopped)
        feeder.await_acked(100)
        nodes.restart_node(stopped)
        feeder.finish()
        sent = len(feeder.acked)
        assert sorted(feeder.acked) == list(range(sent))
        run.produced[0] = sent
        run.await_stable()
        run.await_consumed()
    (rows,) = read(KOHORT, nodes.bootstrap, topic, [0], sent).values()
    assert [int(row.value or b"") for row in rows] == list(range(sent))


class Reading(threading.Thread):
    """A member of ours that reads a topic and keeps what it was handed, by partition."""

    def __init__(self, servers: str, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self._settings: dict[str, Any] = {"bootstrap_servers": servers, "group_id": group}
        self._topic = topic
        self.ending = threading.Event()
        self.rows: list[tuple[int, int, bytes]] = []

    def run(self) -> None:
        with Consumer(**self._settings, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([self._topic])
            while not self.ending.is_set():
                self.rows += [(r.partition, r.offset, known(r.value)) for r in consumer.poll(0.1)]


@pytest.mark.slow
def test_our_producer_and_consumers_over_every_partition(nodes: Cluster) -> None:
    """Each node dies once while six partitions are written to and read (our own clients)."""
    topic = fresh("six")
    nodes.create_topic(topic, PARTITIONS)
    readers = [Reading(nodes.bootstrap, topic, fresh("sixers")) for _ in range(2)]
    readers[1]._settings = dict(readers[0]._settings)
    for reader in readers:
        reader.start()
    sent, acked = 0, []
    with Producer(
        bootstrap_servers=nodes.bootstrap, linger_ms=1, enable_idempotence=True
    ) as producer:

        def send(count: int) -> None:
            nonlocal sent
            futures = []
            for _ in range(count):
                for p in range(PARTITIONS):
                    futures.append(producer.send(topic, b"%d" % sent, partition=p))
                sent += 1
            producer.flush(PATIENCE_S)
            acked.extend(future.result(0) for future in futures)

        send(50)
        for node in nodes.nodes:
            nodes.kill_node(node)
            send(50)
            nodes.restart_node(node)
            send(50)
            nodes.elect_preferred()
            send(50)
            for p in range(PARTITIONS):
                nodes.move_leader(topic, p)
            send(50)
    check = deadline()
    everything = {(p, n, b"%d" % n) for p in range(PARTITIONS) for n in range(sent)}
    while not everything <= {row for reader in readers for row in list(reader.rows)}:
        check("everything is read")
        readers[0].ending.wait(0.05)
    for reader in readers:
        reader.ending.set()
    for reader in readers:
        reader.join()
    assert {row for reader in readers for row in reader.rows} == everything
    assert len(acked) == len(set(acked)) == sent * PARTITIONS


@pytest.mark.slow
def test_a_transaction_survives_the_death_of_its_coordinator(nodes: Cluster) -> None:
    """Spec 4, on three nodes: committed once and whole, aborted never seen."""
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import Producer as ConfluentProducer
    from confluent_kafka import TopicPartition

    topic = fresh("transacted")
    nodes.create_topic(topic, PARTITIONS)
    producer = ConfluentProducer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "transactional.id": "moving-tx",
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    committed = 0
    for round_, node in enumerate([*nodes.nodes, *nodes.nodes]):
        producer.begin_transaction()
        for p in range(PARTITIONS):
            producer.produce(topic, b"%d" % round_, partition=p)
        assert producer.flush(PATIENCE_S) == 0
        nodes.kill_node(node)
        if round_ % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            committed += 1
        nodes.restart_node(node)
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": nodes.bootstrap,
            "group.id": fresh("auditor"),
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    check = deadline()
    while sum(map(len, found.values())) < committed * PARTITIONS:
        check(f"{found}")
        for message in consumer.consume(100, 0.2):
            assert message.error() is None
            found[known(message.partition())].append(known(message.value()))
    consumer.close()
    assert found == {p: [b"0", b"2", b"4"] for p in range(PARTITIONS)}


@pytest.mark.slow
def test_consumers_read_from_the_replica_of_their_rack() -> None:
    """KIP-392: librdkafka's client and ours go where the leader sends them, and read it all."""
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import TopicPartition

    fetched: dict[str, set[int]] = {}

    def look(event: Event) -> bool:
        if isinstance(event.message, FetchRequest) and event.message.topics:
            fetched.setdefault(event.client_id, set()).add(event.node_id)
        return False

    with Cluster(
        nodes=3,
        broker_rack=("a", "b", "c"),
        replica_selector_class="RackAwareReplicaSelector",
        **SESSIONS,
    ) as nodes:
        nodes.create_topic("t")
        leader = nodes.leader_of("t", 0)
        near = next(n for n in nodes.nodes if n != leader)
        rack = "abc"[nodes.nodes.index(near)]
        with Producer(bootstrap_servers=nodes.bootstrap) as producer:
            for n in range(100):
                producer.send("t", b"%d" % n)
        with nodes.tap(Moment.RECEIVED, look):
            with Consumer(
                bootstrap_servers=nodes.bootstrap,
                client_id=KOHORT,
                client_rack=rack,
                auto_offset_reset="earliest",
            ) as ours:
                ours.assign([("t", 0)])
                check, rows = deadline(), list[bytes]()
                while len(rows) < 100 or near not in fetched[KOHORT]:
                    check("ours reads near")
                    rows += [r.value or b"" for r in ours.poll(0.2)]
            theirs = ConfluentConsumer(
                {
                    "bootstrap.servers": nodes.bootstrap,
                    "client.id": CONFLUENT,
                    "client.rack": rack,
                    "group.id": "near",
                    "log_level": 0,
                }
            )
            theirs.assign([TopicPartition("t", 0, 0)])
            seen: list[bytes | None] = []
            while len(seen) < 100 or near not in fetched[CONFLUENT]:
                check("theirs reads near")
                seen += [m.value() for m in theirs.consume(100, 0.2)]
            theirs.close()
    assert rows == seen == [b"%d" % n for n in range(100)]
