"""What the consumer's end-to-end tests share: an embedded broker, topics, and patience."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

from kohort import Consumer, Producer, RebalanceListener, TopicPartition
from tests.clusters import Cluster
from tests.known import known
from tests.patience import PATIENCE_S

_numbers = itertools.count()


class World:
    """A running cluster, and consumers that are closed at the end."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.made: list[Consumer] = []

    def topic(self, partitions: int = 4, records: int = 0, stem: str = "t") -> str:
        name = f"{stem}-{next(_numbers)}"
        self.cluster.create_topic(name, partitions=partitions)
        if records:
            self.produce(name, partitions, range(records))
        return name

    def produce(self, topic: str, partitions: int, numbers: Iterable[int]) -> None:
        """Record n goes to partition n % partitions, with value and timestamp n."""
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for n in numbers:
                producer.send(topic, b"%d" % n, partition=n % partitions, timestamp_ms=n)

    def producer(self) -> Producer:
        return Producer(bootstrap_servers=self.cluster.bootstrap)

    def group(self) -> str:
        return f"g-{next(_numbers)}"

    def consumer(self, **config: Any) -> Consumer:
        classic = config.get("group_protocol") != "consumer"
        settings = {
            "auto_offset_reset": "earliest",
            **({"heartbeat_interval_ms": 50} if classic else {}),
            "retry_backoff_ms": 20,
            "fetch_max_wait_ms": 50,
            **config,
        }
        consumer = Consumer(bootstrap_servers=self.cluster.bootstrap, **settings)
        self.made.append(consumer)
        return consumer

    def close(self) -> None:
        for consumer in self.made:
            consumer.close(5)  # what is not done by then harms nobody: groups are of one test


class Listener(RebalanceListener):
    """Remembers what it was told, and does `then` with each revocation."""

    def __init__(self, then: Callable[[list[TopicPartition]], None] | None = None) -> None:
        self.calls: list[tuple[str, frozenset[TopicPartition]]] = []
        self.then = then

    def on_partitions_revoked(self, partitions):
        self.calls.append(("revoked", frozenset(partitions)))
        if self.then is not None:
            self.then(list(partitions))

    def on_partitions_assigned(self, partitions):
        self.calls.append(("assigned", frozenset(partitions)))

    def on_partitions_lost(self, partitions):
        self.calls.append(("lost", frozenset(partitions)))


def until(met: Callable[[], bool], *consumers: Consumer) -> list[bytes]:
    """Poll these in turn until `met`; the values that came meanwhile."""
    seen: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s; {len(seen)} records came"
        for consumer in consumers:
            seen += [known(record.value) for record in consumer.poll(0.02)]
    return seen


def take(consumer: Consumer, count: int, **options: Any) -> list[bytes]:
    """The values of the next `count` records."""
    seen: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < count:
        assert time.monotonic() < deadline, f"only {len(seen)} of {count} records came"
        most = {"max_records": count - len(seen), **options}
        seen += [known(record.value) for record in consumer.poll(0.5, **most)]
    return seen


def values(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % n for n in numbers]


def shared(*consumers: Consumer) -> bool:
    """Each has the same share, and together they have four partitions without overlap."""
    found = [consumer.assignment() for consumer in consumers]
    every = [tp for tps in found for tp in tps]
    even = all(len(tps) == 4 // len(consumers) for tps in found)
    return even and len(every) == len(set(every)) == 4
