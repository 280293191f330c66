"""The broker dies under a producer and a group of another client, and comes back (spec 2.12)."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from tests.broker.server.test_server import Process, nothing_stays  # noqa: F401 (a fixture)
from tests.clusters import Embedded as Cluster
from tests.known import known
from tests.patience import PATIENCE_S, until

PARTITIONS = 3


class Producing(threading.Thread):
    """An idempotent producer that goes on until it is told to end."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._servers = bootstrap
        self.ending = threading.Event()
        self.sent = 0
        self.acked: list[bytes] = []
        self.failed: list[str] = []
        self.left = -1

    def run(self) -> None:
        from confluent_kafka import Producer

        config = {"bootstrap.servers": self._servers, "enable.idempotence": True, "log_level": 0}
        producer = Producer({**config, "reconnect.backoff.max.ms": 100, "linger.ms": 1})

        def delivered(error: object, message: object) -> None:
            if error is None:
                self.acked.append(message.value())  # type: ignore[attr-defined]
            else:
                self.failed.append(str(error))

        while not self.ending.wait(0.001):
            for _ in range(5):
                producer.produce("t", b"%d" % self.sent, key=b"%d" % self.sent, callback=delivered)
                self.sent += 1
            producer.poll(0)
        self.left = producer.flush(PATIENCE_S)


class Consuming(threading.Thread):
    """One member of a group, which commits what it has seen."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._servers = bootstrap
        self.ending = threading.Event()
        self.seen: list[tuple[int, int, bytes]] = []
        self.lost = 0

    def run(self) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
                "log_level": 0,
            }
        )

        def lost(_consumer: object, partitions: list[TopicPartition]) -> None:
            self.lost += len(partitions)

        consumer.subscribe(["t"], on_lost=lost)
        while not self.ending.is_set():
            messages = [m for m in consumer.consume(500, 0.1) if m.error() is None]
            self.seen += [
                (known(m.partition()), known(m.offset()), known(m.value())) for m in messages
            ]
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # the broker is away; the next commit covers this one
        consumer.close()


@pytest.mark.slow
def test_kill_9_under_a_producer_and_a_group(tmp_path: Path) -> None:
    """Nothing acknowledged is lost or doubled, and nobody is thrown out of the group."""
    broker = Process("fsync", tmp_path)
    port = int(broker.bootstrap.rpartition(":")[2])
    Cluster(port=port).create_topic("t", PARTITIONS)  # never started: only its helper is used
    producing = Producing(broker.bootstrap)
    members = [Consuming(broker.bootstrap) for _ in range(2)]
    for thread in (producing, *members):
        thread.start()
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        before = len(producing.acked)
        until(lambda before=before: len(producing.acked) > before + 500)
        seen = sum(len(m.seen) for m in members)
        until(lambda seen=seen: sum(len(m.seen) for m in members) > seen + 100)
        broker.end(number)
        broker = Process("fsync", tmp_path, port)
    producing.ending.set()
    producing.join()
    rows = set[tuple[int, int, bytes]]()

    def all_seen() -> bool:
        rows.update(row for m in members for row in list(m.seen))
        return len(rows) >= producing.sent

    until(all_seen)
    for member in members:
        member.ending.set()
        member.join()
    assert (producing.left, producing.failed) == (0, [])
    assert sorted(int(v) for _, _, v in rows) == list(range(producing.sent))
    assert sum(m.lost for m in members) == 0
    assert broker.end(signal.SIGTERM) == 0
