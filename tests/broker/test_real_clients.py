"""Other people's clients against the broker: produce, consume in a group, commit, go on.

The full matrix of clients, codecs and faults is elsewhere; this is what must never break.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from tests.clusters import Embedded as Cluster
from tests.known import known
from tests.patience import PATIENCE_S
from tests.peers import PEERS

pytestmark = PEERS

COUNT = 300
VALUES = [b"value %d" % i for i in range(COUNT)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        made.create_topic("t", 3)
        yield made


def by_confluent(bootstrap: str) -> list[bytes]:
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in VALUES:
        producer.produce("t", value, key=value)
    assert producer.flush(PATIENCE_S) == 0
    config = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    consumer = Consumer(config)
    consumer.subscribe(["t"])
    while len(found) < COUNT and time.monotonic() < deadline:
        found += [known(m.value()) for m in consumer.consume(COUNT, 1) if m.error() is None]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def by_aiokafka(bootstrap: str) -> list[bytes]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def run() -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        async with producer:
            for value in VALUES:
                await producer.send("t", value, key=value)
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest"
        )
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        async with consumer:
            while len(found) < COUNT and time.monotonic() < deadline:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    found += [known(m.value) for m in messages]
            await consumer.commit()
        return found

    return asyncio.run(run())


def by_kafka_python(bootstrap: str) -> list[bytes]:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for value in VALUES:
        producer.send("t", value, key=value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < COUNT and time.monotonic() < deadline:
        for messages in consumer.poll(500).values():
            found += [known(m.value) for m in messages]
    consumer.commit()
    consumer.close()
    return found


@pytest.mark.parametrize("client", [by_confluent, by_aiokafka, by_kafka_python])
def test_produce_consume_commit(cluster: Cluster, client: Callable[[str], list[bytes]]) -> None:
    from confluent_kafka import Consumer, TopicPartition

    assert sorted(client(cluster.bootstrap)) == sorted(VALUES)
    cluster.restart()  # what was committed is found by another client, after a restart
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    offsets = consumer.committed([TopicPartition("t", p) for p in range(3)], timeout=PATIENCE_S)
    assert sum(o.offset for o in offsets) == COUNT
    consumer.close()
