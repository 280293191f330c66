"""The producer with the embedded broker: killed and started again, read back by other clients."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer as TheirConsumer

from kohort import Admin, AsyncProducer, NewTopic, Producer, TopicPartition
from kohort.client.producer.plan.fast_send_choice import for_key
from kohort.errors import ClosedError, KafkaTimeoutError, RecordTooLargeError, UsageError
from kohort.testing import VirtualClock
from tests.clusters import APACHE, Cluster
from tests.patience import PATIENCE_S


def read_all(address: str, topic: str, expected: int) -> list:
    """Every record of a topic, by librdkafka, which checks CRCs and formats for itself."""
    consumer = TheirConsumer(
        {
            "bootstrap.servers": address,
            "group.id": f"read-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    found: list = []
    try:
        while len(found) < expected:
            messages = consumer.consume(min(5_000, expected - len(found)), PATIENCE_S)
            assert messages, f"only {len(found)} of {expected} records came"
            for message in messages:
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_reads_what_we_produce(codec):
    with Cluster() as cluster:
        cluster.create_topic("t", partitions=3)
        with Producer(bootstrap_servers=cluster.bootstrap, compression_type=codec) as producer:
            for n in range(3_000):
                producer.send("t", b"v%d" % n, b"k%d" % (n % 50), headers=[("n", b"%d" % n)])
        found = read_all(cluster.bootstrap, "t", 3_000)
    assert sorted(m.value() for m in found) == sorted(b"v%d" % n for n in range(3_000))
    for message in found:
        assert message.partition() == for_key(message.key(), 3)
        assert message.headers() == [("n", message.value()[1:])]


def test_killing_the_broker_again_and_again_loses_and_doubles_nothing():
    """KIP-98 end to end: every record once and in order, whatever the kill cut off."""
    with Cluster(durability="fsync") as cluster:
        cluster.create_topic("t", partitions=2)
        sent, stop = [0, 0], threading.Event()
        producer = Producer(
            bootstrap_servers=cluster.bootstrap,
            batch_size=2_000,
            linger_ms=1,
            retry_backoff_ms=5,
            reconnect_backoff_ms=5,
            buffer_memory=100_000,
        )

        def produce() -> None:
            while not stop.is_set():
                for partition in range(2):
                    producer.send("t", b"%d" % sent[partition], partition=partition)
                    sent[partition] += 1

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                for _ in range(4):
                    wait_for_growth(admin, 300)
                    cluster.kill()
                    cluster.start()
                wait_for_growth(admin, 300)
        finally:
            stop.set()
            thread.join(PATIENCE_S)
        producer.close(PATIENCE_S)
        found = read_all(cluster.bootstrap, "t", sum(sent))
    for partition in range(2):
        values = [m.value() for m in found if m.partition() == partition]
        assert values == [b"%d" % n for n in range(sent[partition])]


def wait_for_growth(admin: Admin, records: int) -> None:
    """Wait until so many more records have been stored."""
    tp = TopicPartition("t", 0)
    start = admin.list_offsets({tp: "latest"})[tp].offset
    while admin.list_offsets({tp: "latest"})[tp].offset < start + records:
        pass


def test_a_topic_that_grows_gets_records_in_its_new_partitions():
    with (
        Cluster() as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=20) as producer,
    ):
        admin.create_topics([NewTopic("t", 1)])
        assert producer.send("t", b"v").result(PATIENCE_S).partition == 0
        admin.create_partitions({"t": 8})
        keys = [b"%d" % n for n in range(40)]
        grown = False
        while not grown:
            places = [producer.send("t", b"v", key).result(PATIENCE_S).partition for key in keys]
            grown = places == [for_key(key, 8) for key in keys]


@pytest.mark.skipif(APACHE, reason="on a virtual clock")
def test_a_topic_that_comes_back_with_fewer_partitions_keeps_nothing_else_from_leaving():
    """What is open for a partition that is gone waits for its deadline, alone."""
    with (
        VirtualClock() as clock,
        Cluster(clock=clock) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
        Producer(
            bootstrap_servers=cluster.bootstrap,
            linger_ms=20_000,
            metadata_max_age_ms=20,
            request_timeout_ms=2_000,
            delivery_timeout_ms=25_000,
        ) as producer,
    ):
        admin.create_topics([NewTopic("t", 4), NewTopic("u", 1)])
        producer.send("u", b"first")
        producer.flush()
        gone = producer.send("t", b"v", partition=3)
        admin.delete_topics(["t"])
        admin.create_topics([NewTopic("t", 2)])
        core = producer._core
        assert clock.run_until(lambda: len(core.routes["t"].slots) == 2, PATIENCE_S)
        there = [producer.send("t", b"w", partition=1), producer.send("u", b"x")]
        with pytest.raises(KafkaTimeoutError, match="1 of 3 batches had no outcome"):
            producer.flush(1)
        assert [future.result(0).offset for future in there] == [0, 1]
        assert not gone.done
        assert core.usage()[2] == 0
        assert isinstance(gone.error(PATIENCE_S), KafkaTimeoutError)


def test_batches_larger_than_the_topic_takes_are_split():
    """max.message.bytes below batch_size: all is stored, once, in order, each future is right."""
    with Cluster() as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1, configs={"max.message.bytes": "1000"})])
        with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=100) as producer:
            futures = [producer.send("t", b"%03d" % n * 20) for n in range(300)]
            with pytest.raises(RecordTooLargeError):
                producer.send("t", b"x" * 2_000).result(PATIENCE_S)
            offsets = [future.result(PATIENCE_S).offset for future in futures]
        found = read_all(cluster.bootstrap, "t", 300)
    assert offsets == list(range(300))
    assert [m.value() for m in found] == [b"%03d" % n * 20 for n in range(300)]


@pytest.mark.parametrize("way", ["send", "send_many", "produce_arrow"])
@pytest.mark.parametrize("ignore", [True, False])
def test_every_way_to_send_asks_the_same_partitioner(way, ignore):
    """A function of the user's, or `partitioner.ignore.keys`."""
    chooser: dict[str, Any] = (
        {"partitioner_ignore_keys": True}
        if ignore
        else {"partitioner": lambda topic, key, count: 2}
    )
    with Cluster() as cluster:
        cluster.create_topic("t", partitions=4)
        with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=50, **chooser) as producer:
            keys, values = [b"%d" % n for n in range(20)], [b"v"] * 20
            if way == "send":
                futures = [producer.send("t", v, k) for k, v in zip(keys, values, strict=True)]
            elif way == "send_many":
                futures = producer.send_many("t", values, keys)
            else:
                table = pa.table({"key": keys, "value": values})
                futures = producer.produce_arrow("t", table)
            found = {future.result(PATIENCE_S).partition for future in futures}
    assert len(found) == 1
    assert ignore or found == {2}


@pytest.mark.parametrize("way", ["send", "send_many", "produce_arrow"])
@pytest.mark.parametrize("chosen", ["1", 1.0, object(), -1])
def test_a_partitioner_that_returns_no_partition_is_named(way: str, chosen: object) -> None:
    """Spec 8: a user's function of a wrong type fails at the call, and the producer goes on."""
    answers: list[Any] = [chosen]
    with Cluster() as cluster:
        cluster.create_topic("t", partitions=2)
        with Producer(
            bootstrap_servers=cluster.bootstrap,
            partitioner=lambda topic, key, count: answers[0],
        ) as producer:
            calls = {
                "send": lambda: [producer.send("t", b"v", b"k")],
                "send_many": lambda: producer.send_many("t", [b"v"], [b"k"]),
                "produce_arrow": lambda: producer.produce_arrow(
                    "t", pa.table({"key": [b"k"], "value": [b"v"]})
                ),
            }
            with pytest.raises(UsageError, match=r"partitions? "):
                calls[way]()
            answers[0] = 1
            assert [one.result(PATIENCE_S).partition for one in calls[way]()] == [1]


@pytest.mark.skipif(APACHE, reason="tells the broker to be silent")
@pytest.mark.parametrize("face", ["Producer", "AsyncProducer"])
def test_flush_and_close_end_when_their_time_is_over(face: str) -> None:
    """Issue 4, bounded close: with what was not done in words, and nothing left behind."""

    async def both(p: Producer | AsyncProducer, call: str) -> None:
        if isinstance(p, AsyncProducer):
            await getattr(p, call)(0.05)
        else:
            getattr(p, call)(0.05)

    async def run() -> None:
        kind = AsyncProducer if face == "AsyncProducer" else Producer
        p = kind(bootstrap_servers=cluster.bootstrap, linger_ms=0)
        sent = p.send("t", b"v")
        future = await sent if asyncio.iscoroutine(sent) else sent
        with pytest.raises(KafkaTimeoutError, match="1 of 1 batches had no outcome"):
            await both(p, "flush")
        assert not future.done
        with pytest.raises(KafkaTimeoutError, match="1 of 1 batches had no outcome"):
            await both(p, "close")
        assert isinstance(future.error(PATIENCE_S), ClosedError)

    with Cluster() as cluster:
        cluster.create_topic("t", partitions=1)
        with cluster.faults.silence("Produce"):
            asyncio.run(run())
