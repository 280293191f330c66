"""Transactions of four makes of client: each writes them, each reads what was committed.

And exactly once over kill -9 of the broker and of those who copy.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kohort import Admin, Consumer, NewTopic, Producer, TopicPartition
from kohort.broker.base.config import TRANSACTIONS_TOPIC
from kohort.broker.state.failpoints import Event, Moment, Verdict
from kohort.transactions.records import decode_record
from kohort.transactions.states import TransactionState
from tests.clusters import APACHE, BrokerProcess, Cluster
from tests.e2e.broker_process import ROOT
from tests.e2e.conftest import SESSIONS
from tests.e2e.makes import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KOHORT, MAKES, deadline, fresh
from tests.effort import chiefly
from tests.known import fake, known

PATIENCE_S = WAIT_S = 150 if APACHE else 100  # Apache Kafka takes longer to start again
STORED = [b"a%d" % n for n in range(10)] + [b"c%d" % n for n in range(10)]
ABORTED = [b"b%d" % n for n in range(10)]
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files.*:DeprecationWarning")


# -- writing: one transaction that commits, one that is aborted, one that commits with an offset


def write_by_kohort(servers: str, topic: str, group: str) -> None:
    with Producer(bootstrap_servers=servers, transactional_id=fresh("tx")) as producer:
        producer.init_transactions(WAIT_S)
        with producer.transaction():
            producer.send_many(topic, STORED[:10])
        producer.begin_transaction()
        producer.send_many(topic, ABORTED)
        producer.flush()
        producer.abort_transaction()
        with (
            Consumer(bootstrap_servers=servers, group_id=group) as consumer,
            producer.transaction(),
        ):
            producer.send_many(topic, STORED[10:])
            offsets = {TopicPartition(topic, 0): 7}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())


def write_by_confluent(servers: str, topic: str, group: str) -> None:
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": fresh("tx")})
    producer.init_transactions(WAIT_S)
    for values in (STORED[:10], ABORTED, STORED[10:]):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        if values is ABORTED:
            assert producer.flush(WAIT_S) == 0
            producer.abort_transaction(WAIT_S)
            continue
        if values == STORED[10:]:
            consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": group})
            offsets = [ck.TopicPartition(topic, 0, 7)]
            who = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, who, WAIT_S)
            consumer.close()
        producer.commit_transaction(WAIT_S)


def write_by_aiokafka(servers: str, topic: str, group: str) -> None:
    import aiokafka as ak

    async def abort(producer: ak.AIOKafkaProducer) -> None:
        async with producer.transaction():
            for value in ABORTED:
                await (await producer.send(topic, value))
            raise ZeroDivisionError

    async def run() -> None:
        producer = ak.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=fresh("tx"))
        async with producer:
            async with producer.transaction():
                for value in STORED[:10]:
                    await producer.send(topic, value)
            with pytest.raises(ZeroDivisionError):
                await abort(producer)
            async with producer.transaction():
                for value in STORED[10:]:
                    await producer.send(topic, value)
                offsets = {ak.TopicPartition(topic, 0): 7}
                await producer.send_offsets_to_transaction(offsets, group)

    asyncio.run(run())


def write_by_kafka_python(servers: str, topic: str, group: str) -> None:
    from kafka import KafkaProducer
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as TheirPartition

    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=fresh("tx"))
    producer.init_transactions()
    for values in (STORED[:10], ABORTED, STORED[10:]):
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value)
        if values is ABORTED:
            producer.flush(WAIT_S)
            producer.abort_transaction()
            continue
        if values == STORED[10:]:
            offsets = {TheirPartition(topic, 0): OffsetAndMetadata(7, "", -1)}
            producer.send_offsets_to_transaction(offsets, group)
        producer.commit_transaction()
    producer.close()


WRITERS: dict[str, Callable[[str, str, str], None]] = {
    KOHORT: write_by_kohort,
    CONFLUENT: write_by_confluent,
    AIOKAFKA: write_by_aiokafka,
    KAFKA_PYTHON: write_by_kafka_python,
}


# -- reading, to the last record that may be seen


def read_by_kohort(servers: str, topic: str, level: str, until: bytes) -> list[bytes]:
    found: list[bytes] = []
    check = deadline()
    with Consumer(bootstrap_servers=servers, isolation_level=level) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while until not in found:
            check("our consumer")
            found += [known(record.value) for record in consumer.poll(1)]
    return found


def read_by_confluent(servers: str, topic: str, level: str, until: bytes) -> list[bytes]:
    import confluent_kafka as ck

    consumer = ck.Consumer(
        {"bootstrap.servers": servers, "group.id": fresh("g"), "isolation.level": level}
    )
    consumer.assign([ck.TopicPartition(topic, 0, ck.OFFSET_BEGINNING)])
    found: list[bytes] = []
    check = deadline()
    while until not in found:
        check("confluent-kafka")
        found += [known(m.value()) for m in consumer.consume(100, 1) if m.error() is None]
    consumer.close()
    return found


def read_by_aiokafka(servers: str, topic: str, level: str, until: bytes) -> list[bytes]:
    import aiokafka as ak

    async def run() -> list[bytes]:
        found: list[bytes] = []
        check = deadline()
        consumer = ak.AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=level)
        async with consumer:
            consumer.assign([ak.TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            while until not in found:
                check("aiokafka")
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    found += [known(m.value) for m in messages]
        return found

    return asyncio.run(run())


def read_by_kafka_python(servers: str, topic: str, level: str, until: bytes) -> list[bytes]:
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition as TheirPartition

    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level=fake(level), group_id=None)
    consumer.assign([TheirPartition(topic, 0)])
    consumer.seek_to_beginning()
    found: list[bytes] = []
    check = deadline()
    while until not in found:
        check("kafka-python")
        for messages in consumer.poll(500).values():
            found += [known(m.value) for m in messages]
    consumer.close()
    return found


READERS: dict[str, Callable[[str, str, str, bytes], list[bytes]]] = {
    KOHORT: read_by_kohort,
    CONFLUENT: read_by_confluent,
    AIOKAFKA: read_by_aiokafka,
    KAFKA_PYTHON: read_by_kafka_python,
}


@pytest.mark.parametrize("make", MAKES)
def test_a_transaction_is_seen_whole_or_not_at_all(cluster: Cluster, make: str) -> None:
    """What was aborted is in the log, and no make that reads committed records is shown it (F2)."""
    topic, group = fresh("t"), fresh("g")
    cluster.create_topic(topic)
    WRITERS[make](cluster.bootstrap, topic, group)
    last = STORED[-1]
    for reader in MAKES:
        read = READERS[reader]
        assert read(cluster.bootstrap, topic, "read_committed", last) == STORED, reader
        everything = read(cluster.bootstrap, topic, "read_uncommitted", last)
        assert sorted(everything) == sorted(STORED + ABORTED), reader
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id=group) as consumer:
        committed = consumer.committed([tp])[tp]
        assert committed is not None
        assert committed.offset == 7


# -- exactly once


class Copier:
    """One `tests.e2e.copier`."""

    def __init__(self, make: str, servers: str, name: str, directory: Path) -> None:
        self._command = [sys.executable, "-m", "tests.e2e.copier", make, servers, name]
        self._log = directory / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self.process.kill()
        self._gone()

    def revive(self) -> None:
        """Start it again when it has given up, as whatever runs it would."""
        if self.process.poll() is not None:
            self._gone()
            self.start()

    def finish(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        assert code == 0, self._log.read_text()

    def _gone(self) -> None:
        assert self.process.stdin is not None
        self.process.wait()
        self.process.stdin.close()


class Out(threading.Thread):
    """Reads what was committed to `out`, all the time."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self.values: list[bytes] = []
        self.ending = threading.Event()

    def run(self) -> None:
        level = "read_committed"
        with Consumer(bootstrap_servers=self._servers, isolation_level=level) as consumer:
            consumer.assign([TopicPartition("out", p) for p in range(2)])
            consumer.seek_to_beginning()
            while not self.ending.is_set():
                self.values += [known(record.value) for record in consumer.poll(0.2)]

    def await_count(self, count: int, copiers: list[Copier]) -> None:
        end = time.monotonic() + PATIENCE_S
        tick = threading.Event()
        while len(self.values) < count:
            assert time.monotonic() < end, f"{len(self.values)} of {count} came"
            for copier in copiers:
                copier.revive()
            tick.wait(0.05)


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("make", chiefly([KOHORT], [KOHORT, CONFLUENT]))
def test_consume_transform_produce_exactly_once(make: str, tmp_path: Path) -> None:
    """Two copiers; both of them and the broker are killed with -9, again and again (X3)."""
    broker = BrokerProcess(tmp_path, **SESSIONS)
    broker.start()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic("in", 4), NewTopic("out", 2)])
    out = Out(broker.bootstrap)
    out.start()
    copiers = [Copier(make, broker.bootstrap, f"copier{n}", tmp_path) for n in range(2)]
    sent = 0
    try:
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for round_ in range(4):
                for _ in range(300):
                    producer.send("in", b"%d" % sent, b"k%d" % sent)
                    sent += 1
                producer.flush()
                out.await_count(sent - 200, copiers)
                if round_ % 2:
                    broker.kill()
                    broker.start()
                victim = copiers[round_ % 2]
                victim.kill()
                victim.start()
        out.await_count(sent, copiers)
        for copier in copiers:
            copier.finish()
    finally:
        for copier in copiers:
            if copier.process.poll() is None:
                copier.kill()
        out.ending.set()
        out.join(WAIT_S)
        broker.stop()
    assert sorted(out.values, key=int) == [b"%d" % n for n in range(sent)]
    assert broker.complaints() == []


# -- the coordinator dies


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with Cluster(nodes=3, broker_session_timeout_ms=50) as cluster:
        yield cluster


def at(state: TransactionState) -> Callable[[Event], bool]:
    """When the record of a state stands in the coordinator's log, and nobody knows of it yet."""

    def matches(event: Event) -> bool:
        if event.topic != TRANSACTIONS_TOPIC:
            return False
        stored = [decode_record(record) for record in event.records]
        return any(s is not None and s[1] is not None and s[1].state is state for s in stored)

    return matches


def transact_by_kohort(servers: str, topic: str, name: str, *, commit: bool) -> None:
    with Producer(bootstrap_servers=servers, transactional_id=name) as producer:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.send(topic, b"%d" % commit)
        producer.flush()
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)


def transact_by_confluent(servers: str, topic: str, name: str, *, commit: bool) -> None:
    import confluent_kafka as ck

    producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"%d" % commit)
    assert producer.flush(WAIT_S) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_S)


@pytest.mark.parametrize(
    "transact", chiefly([transact_by_kohort], [transact_by_kohort, transact_by_confluent])
)
@pytest.mark.parametrize(
    ("state", "commit"),
    [
        (TransactionState.EMPTY, True),
        (TransactionState.ONGOING, True),
        (TransactionState.PREPARE_COMMIT, True),
        (TransactionState.COMPLETE_COMMIT, True),
        (TransactionState.PREPARE_ABORT, False),
        (TransactionState.COMPLETE_ABORT, False),
    ],
)
def test_the_coordinator_dies_at_each_step(
    nodes: Cluster, transact: Callable[..., None], state: TransactionState, commit: bool
) -> None:
    """Whatever it had decided stands; whatever it had not is done again (spec 2.12)."""
    topic, name = fresh("t"), fresh("tx")
    nodes.create_topic(topic)
    with nodes.tap(Moment.APPENDED, at(state), verdict=Verdict.KILL) as tap:
        transact(nodes.bootstrap, topic, name, commit=commit)
        dead = tap.wait().node_id
    nodes.restart_node(dead)
    transact_by_kohort(nodes.bootstrap, topic, fresh("tx"), commit=True)
    seen = read_by_kohort(nodes.bootstrap, topic, "read_committed", b"1")
    while len(seen) < 1 + commit:
        seen = read_by_kohort(nodes.bootstrap, topic, "read_committed", b"1")
    assert seen == [b"1"] * (1 + commit)
