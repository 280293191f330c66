"""Real clients keep to the interval that each answer names (KIP-848), ours, librdkafka and Java's.

A member by hand holds everything; the client's member waits for half of it, and is told to
heartbeat sooner than others meanwhile (`state.consumer_heartbeat_interval`).
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kohort import Consumer
from kohort.testing import Cluster
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from tests.interop.java import java, needs_java

INTERVAL_MS = 2_000
SOON_MS = INTERVAL_MS // 2
NAME = "client-of-another"


@contextmanager
def polling(consumer: Any) -> Iterator[None]:
    """A consumer that polls on a thread of its own."""
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        consumer.close()


@contextmanager
def ours(servers: str, directory: Path) -> Iterator[None]:
    del directory
    consumer = Consumer(
        bootstrap_servers=servers, group_id="g", group_protocol="consumer", client_id=NAME
    )
    consumer.subscribe(["t"])
    with polling(consumer):
        yield


@contextmanager
def librdkafka(servers: str, directory: Path) -> Iterator[None]:
    from confluent_kafka import Consumer as Confluent

    del directory
    consumer = Confluent(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "group.protocol": "consumer",
            "client.id": NAME,
        }
    )
    consumer.subscribe(["t"])
    with polling(consumer):
        yield


@contextmanager
def javas(servers: str, directory: Path) -> Iterator[None]:
    settings = directory / "consumer.properties"
    settings.write_text(f"client.id={NAME}\n")
    process = subprocess.Popen(
        java(
            "org.apache.kafka.tools.VerifiableConsumer",
            "--bootstrap-server",
            servers,
            "--topic",
            "t",
            "--group-id",
            "g",
            "--group-protocol",
            "consumer",
            "--command-config",
            str(settings),
            heap="128m",
        ),
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


class Holder:
    """The member by hand."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.epoch = cluster, 0
        self.beat(subscribed_topic_names=["t"], topic_partitions=[], rebalance_timeout_ms=120_000)

    def beat(self, **more: Any) -> list[TopicPartitions]:
        """One heartbeat; what it is to own, where it is told."""
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="holder", member_epoch=self.epoch, **more
        )
        answer = self.cluster.request(request, ConsumerGroupHeartbeatResponse, 1)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        topics = [] if answer.assignment is None else answer.assignment.topic_partitions
        return [TopicPartitions(topic_id=t.topic_id, partitions=t.partitions) for t in topics]

    def give_up(self) -> None:
        """What it is told to."""
        kept = self.beat()
        assert [len(each.partitions) for each in kept] == [1]
        self.beat(topic_partitions=kept)


@pytest.mark.parametrize(
    "client", [ours, librdkafka, pytest.param(javas, marks=[needs_java, pytest.mark.java])]
)
def test_who_waits_asks_soon_and_then_at_the_interval_again(
    client: Callable[[str, Path], Any], tmp_path: Path
) -> None:
    intervals: dict[str, Any] = {
        "group_consumer_heartbeat_interval_ms": INTERVAL_MS,
        "group_consumer_min_heartbeat_interval_ms": INTERVAL_MS,
    }
    with Cluster(**intervals) as cluster:
        cluster.create_topic("t", 2)

        def beats(count: int) -> list[float]:
            cluster.requests.clear()
            found = cluster.requests.wait(
                "ConsumerGroupHeartbeat", count=count, client_id=NAME, timeout_s=60
            )
            return [beat.time_ms for beat in found]

        holder = Holder(cluster)
        with client(cluster.bootstrap, tmp_path):
            beats(1)
            soon = beats(5)  # it waits since a moment ago
            assert soon[-1] - soon[0] < 4 * SOON_MS, soon
            holder.give_up()
            beats(3)  # that it has taken what is free
            usual = beats(3)
            assert usual[-1] - usual[0] > SOON_MS, usual
