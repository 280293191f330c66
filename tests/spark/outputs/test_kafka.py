"""The Kafka transaction of a query, on the driver (spec 6.4; ADR 0019)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from kohort import Consumer, TopicPartition
from kohort.spark.outputs.fence import Batch, Fence
from kohort.spark.outputs.kafka import TopicTransaction
from kohort.testing import Cluster

numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def topics(cluster: Cluster) -> list[str]:
    names = [f"out{next(numbers)}" for _ in range(3)]
    for name in names:
        cluster.create_topic(name, partitions=2)
    return names


def transaction(cluster: Cluster, topics: list[str]) -> TopicTransaction:
    name = f"kohort.spark.{topics[0]}"
    return TopicTransaction(name, topics, 60_000, {"bootstrap_servers": cluster.bootstrap})


def ends(cluster: Cluster, topics: list[str]) -> list[int]:
    with Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        return list(consumer.end_offsets([TopicPartition(t, 0) for t in topics]).values())


def test_markers_go_to_the_topics_of_the_batch_alone(cluster: Cluster, topics: list[str]) -> None:
    """A marker in a retry topic would be the next batch's work, whose marker the one after's."""
    kafka = transaction(cluster, topics)
    kafka.narrow({topics[1]})
    identity = kafka.init()
    assert kafka.partitions == dict.fromkeys(topics, 2)
    kafka.add(identity)
    kafka.set_fence(identity, Batch("q", 3, "c"))
    kafka.end(identity, commit=True)
    kafka.close()
    assert ends(cluster, topics) == [0, 1, 0]


def test_the_first_transaction_of_a_later_batch_has_a_fence_before_it(
    cluster: Cluster, topics: list[str]
) -> None:
    """Batches without records had none. Were this one lost, nobody could tell from an expired
    fence, and the query would stop."""
    kafka = transaction(cluster, topics)
    kafka.ensure_fence(Batch("q", 0, "c"))
    assert kafka.fence() is None
    kafka.ensure_fence(Batch("q", 7, "c"))
    assert kafka.fence() == Fence(6, "c")
    kafka.ensure_fence(Batch("q", 9, "c"))
    assert kafka.fence() == Fence(6, "c"), "a fence that is there stays"
    kafka.close()
    assert ends(cluster, topics) == [0, 0, 0]
