"""Against librdkafka's mock cluster of three brokers: a peer that we did not write."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer as TheirProducer

from kohort import Admin, Producer, TopicPartition
from tests.patience import PATIENCE_S


@pytest.fixture
def mock():
    """Bootstrap addresses of a mock cluster; it lives as long as the client that made it."""
    owner = TheirProducer(
        {"bootstrap.servers": "ignored:1", "test.mock.num.brokers": 3, "log_level": 0}
    )
    brokers = owner.list_topics(timeout=PATIENCE_S).brokers.values()
    yield ",".join(f"{b.host}:{b.port}" for b in brokers)
    del owner


def test_records_and_offsets_over_three_brokers(mock):
    with Producer(bootstrap_servers=mock) as producer, Admin(bootstrap_servers=mock) as admin:
        futures = [producer.send("t", b"%d" % n, b"k%d" % n) for n in range(500)]
        producer.flush(PATIENCE_S)
        counts: dict[int, int] = {}
        for future in futures:
            place = future.result()
            assert place.offset == counts.get(place.partition, 0)
            counts[place.partition] = place.offset + 1
        assert len(admin.describe_cluster().nodes) == 3
        found = admin.list_offsets({TopicPartition("t", p): "latest" for p in counts})
        assert {tp.partition: offset.offset for tp, offset in found.items()} == counts
