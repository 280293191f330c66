"""The consumer protocol (KIP-848) against librdkafka's mock broker: a peer we did not write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer as TheirProducer

from kohort import Consumer, TopicPartition
from tests.client.consumer_world import Listener, take
from tests.patience import PATIENCE_S

TOPIC, PARTITIONS, RECORDS = "t", 4, 40
EVERY = frozenset(TopicPartition(TOPIC, n) for n in range(PARTITIONS))


class Mock:
    """The mock cluster, and our consumers on it."""

    def __init__(self) -> None:
        self.owner = TheirProducer(
            {"bootstrap.servers": "ignored:1", "test.mock.num.brokers": 1, "log_level": 0}
        )
        (broker,) = self.owner.list_topics(timeout=PATIENCE_S).brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"
        for n in range(RECORDS):
            self.owner.produce(TOPIC, b"%d" % n, partition=n % PARTITIONS)
        self.owner.flush(PATIENCE_S)
        self.made: list[Consumer] = []

    def consumer(self, **config: Any) -> Consumer:
        consumer = Consumer(
            bootstrap_servers=self.bootstrap,
            group_id="g",
            group_protocol="consumer",
            auto_offset_reset="earliest",
            retry_backoff_ms=20,
            **config,
        )
        self.made.append(consumer)
        return consumer


@pytest.fixture
def mock() -> Iterator[Mock]:
    world = Mock()
    yield world
    for consumer in world.made:
        consumer.close(PATIENCE_S)


def test_alone_it_reads_and_commits_everything(mock: Mock) -> None:
    """KIP-848: join, take, read, commit with the member epoch, leave."""
    listener = Listener()
    consumer = mock.consumer()
    consumer.subscribe([TOPIC], listener)
    assert sorted(take(consumer, RECORDS), key=int) == [b"%d" % n for n in range(RECORDS)]
    assert listener.calls == [("assigned", EVERY)]
    assert consumer.group_metadata().generation > 0
    consumer.commit()
    assert {o.offset for o in consumer.committed(EVERY).values() if o} == {RECORDS // PARTITIONS}
    report = consumer.close()
    assert (report.committed, report.left_group) == (True, True)
    assert listener.calls[1:] == [("revoked", EVERY)]
