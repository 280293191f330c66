"""How clients fare when the broker dies, and when it refuses (issue 2, "Must hold")."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin
from tests.clusters import APACHE, BrokerProcess, Cluster
from tests.e2e.conftest import SESSIONS, Watch
from tests.e2e.feeders import Feeder
from tests.e2e.group_run import GroupRun
from tests.e2e.makes import (
    AIOKAFKA,
    CONFLUENT,
    KAFKA_PYTHON,
    KOHORT,
    MAKES,
    Row,
    fresh,
    read,
    write,
)
from tests.effort import chiefly
from tests.patience import PATIENCE_S

LARGE = 5_000


@pytest.fixture
def broker(tmp_path: Path):
    broker = BrokerProcess(tmp_path, **SESSIONS)
    broker.start()
    yield broker
    broker.stop()
    assert broker.complaints() == []


@pytest.mark.slow
@pytest.mark.parametrize("make", chiefly([KOHORT], MAKES))
def test_kill_9_of_the_broker(broker: BrokerProcess, tmp_path: Path, make: str) -> None:
    """Everything acknowledged is there, once and in order; both sides go on by themselves."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics(["t"])
    with (
        Feeder(make, broker.bootstrap, "t", tmp_path) as feeder,
        GroupRun(broker.bootstrap, "t", "g", "range", 1, tmp_path) as run,
    ):
        run.start(make)
        feeder.await_acked(200)
        run.await_stable()
        for _ in range(2):
            broker.kill()
            broker.start()
            feeder.await_acked(200)
        feeder.finish()
        sent = len(feeder.acked)
        assert sorted(feeder.acked) == list(range(sent))
        run.produced[0] = sent
        run.await_stable()
        run.await_consumed()
    (rows,) = read(KOHORT, broker.bootstrap, "t", [0], sent).values()
    assert [int(row.value or b"") for row in rows] == list(range(sent))


# -- what is refused ---------------------------------------------------------------------------


def send_one(make: str, servers: str, topic: str, value: bytes, bound_ms: int = 60_000) -> str:
    """Produce one record; the name of the error, or nothing. Waits no longer than the bound."""
    return _SEND_ONE[make](servers, topic, value, bound_ms)


def _one_by_confluent(servers: str, topic: str, value: bytes, bound_ms: int) -> str:
    from confluent_kafka import Producer

    errors: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "topic.metadata.propagation.max.ms": 200,
            "message.timeout.ms": 60_000,
        }
    )
    producer.produce(topic, value, on_delivery=lambda e, _: errors.append(e.name() if e else ""))
    assert producer.flush(PATIENCE_S) == 0
    return errors[0]


def _one_by_aiokafka(servers: str, topic: str, value: bytes, bound_ms: int) -> str:
    import asyncio

    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def run() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=servers, request_timeout_ms=bound_ms)
        async with producer:
            try:
                await producer.send_and_wait(topic, value)
            except KafkaError as error:
                return type(error).__name__
        return ""

    return asyncio.run(run())


def _one_by_kafka_python(servers: str, topic: str, value: bytes, bound_ms: int) -> str:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(bootstrap_servers=servers, max_block_ms=bound_ms)
    try:
        producer.send(topic, value).get(PATIENCE_S)
    except KafkaError as error:
        return type(error).__name__
    finally:
        producer.close()
    return ""


def _one_by_kohort(servers: str, topic: str, value: bytes, bound_ms: int) -> str:
    from kohort import Producer
    from kohort.errors import KohortError

    with Producer(bootstrap_servers=servers, max_block_ms=bound_ms) as producer:
        try:
            producer.send(topic, value).result(PATIENCE_S)
        except KohortError as error:
            return type(error).__name__
    return ""


_SEND_ONE = {
    CONFLUENT: _one_by_confluent,
    AIOKAFKA: _one_by_aiokafka,
    KAFKA_PYTHON: _one_by_kafka_python,
    KOHORT: _one_by_kohort,
}

TOO_LARGE = {
    CONFLUENT: "MSG_SIZE_TOO_LARGE",
    AIOKAFKA: "MessageSizeTooLargeError",
    KAFKA_PYTHON: "MessageSizeTooLargeError",
    KOHORT: "RecordTooLargeError",
}
UNKNOWN_TOPIC = {
    CONFLUENT: "UNKNOWN_TOPIC_OR_PART",
    AIOKAFKA: "UnknownTopicOrPartitionError",
    KAFKA_PYTHON: "KafkaTimeoutError",
    KOHORT: "BrokerError",
}


@pytest.mark.parametrize("make", MAKES)
def test_too_large_a_record(cluster: Cluster, make: str) -> None:
    """Refused by the topic's own bound, which no client knows; what fits goes on."""
    topic = fresh("narrow")
    cluster.create_topic(topic, config={"max.message.bytes": "2000"})
    value = os.urandom(LARGE)
    assert send_one(make, cluster.bootstrap, topic, value) == TOO_LARGE[make]
    assert send_one(make, cluster.bootstrap, topic, b"fits") == ""
    (rows,) = read(KOHORT, cluster.bootstrap, topic, [0], 1).values()
    assert [row.value for row in rows] == [b"fits"]


@pytest.fixture(scope="module")
def strict():
    """A broker that makes no topics by itself."""
    with Cluster(auto_create_topics_enable=False) as cluster:
        yield cluster


@pytest.mark.parametrize("make", MAKES)
def test_an_unknown_topic(strict: Cluster, make: str) -> None:
    """A clear error in bounded time, and the topic is not made."""
    topic = fresh("unknown")
    found = send_one(make, strict.bootstrap, topic, b"x", 2_000)
    if found != UNKNOWN_TOPIC[make]:  # it was not even connected before it gave up
        found = send_one(make, strict.bootstrap, topic, b"x")
    assert found == UNKNOWN_TOPIC[make]
    with Admin(bootstrap_servers=strict.bootstrap) as admin:
        assert topic not in [t.name for t in admin.list_topics()]


@pytest.mark.parametrize("make", MAKES)
def test_a_topic_is_made_on_first_use(cluster: Cluster, make: str) -> None:
    topic = fresh("made")
    assert send_one(make, cluster.bootstrap, topic, b"x") == ""
    (rows,) = read(make, cluster.bootstrap, topic, [0], 1).values()
    assert [row.value for row in rows] == [b"x"]


# -- old protocols -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 0), (2, 1), (2, 8), (3, 9), (4, 0), None])
def test_kafka_python_set_to_an_older_broker(
    cluster: Cluster, version: tuple[int, int] | None
) -> None:
    """It speaks as that version's broker would have it; all of those are served."""
    from kafka import KafkaConsumer, KafkaProducer

    topic = fresh("old")
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap}
    cluster.create_topic(topic)
    idempotent = version is None or version >= (2, 0)
    producer = KafkaProducer(
        **settings, api_version=version, enable_idempotence=idempotent, acks="all"
    )
    try:
        sent = producer.send(topic, b"v", key=b"k", headers=[("h", b"1")])
        assert sent.get(PATIENCE_S).offset == 0
    finally:
        producer.close()
    consumer = KafkaConsumer(
        **settings, api_version=version, group_id=fresh("old"), auto_offset_reset="earliest"
    )
    try:
        consumer.subscribe([topic])
        (records,) = consumer.poll(int(PATIENCE_S * 1_000)).values()
        assert [(r.key, r.value, r.headers[0][0]) for r in records] == [(b"k", b"v", "h")]
        consumer.commit()
    finally:
        consumer.close()


@pytest.mark.skipif(APACHE, reason="looks at the log of the embedded broker")
def test_a_client_older_than_we_serve(cluster: Cluster, watch: Watch) -> None:
    """Produce v2 (message format 1) ended with Kafka 4.0: refused with one line, not answered."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    watch.allow("is not served here")
    topic = fresh("ancient")
    cluster.create_topic(topic)
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        api_version=(0, 10, 2),
        enable_idempotence=False,
        retries=0,
        request_timeout_ms=50_000,
        delivery_timeout_ms=60_000,
    )
    try:
        with pytest.raises(KafkaError):
            producer.send(topic, b"x").get(PATIENCE_S)
    finally:
        producer.close(5)
    assert any("API key 0 version 2 is not served here" in line for line in watch.bad)


def test_aiokafka_with_its_old_setting(cluster: Cluster) -> None:
    """`api_version="auto"` is what older code passes; it negotiates all the same."""
    import asyncio

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic = fresh("auto")
    cluster.create_topic(topic)

    async def run() -> bytes | None:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap,
            "api_version": "auto",
        }
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"x")
        async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            return (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value

    with pytest.warns(DeprecationWarning, match="api_version"):
        assert asyncio.run(run()) == b"x"


@pytest.mark.extended
def test_rows_survive_a_clean_restart(broker: BrokerProcess) -> None:
    """SIGTERM ends in order; what each make wrote is there for each make."""
    for make in MAKES:
        write(make, broker.bootstrap, make, [Row(0, 1_700_000_000_000, b"k", b"v")])
    broker.stop()
    broker.start()
    for topic in MAKES:
        for reader in MAKES:
            (rows,) = read(reader, broker.bootstrap, topic, [0], 1).values()
            assert rows == [Row(0, 1_700_000_000_000, b"k", b"v")]
