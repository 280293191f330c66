"""Four makes of client behind one face: write rows with a codec, read a topic to its end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tests.known import fake, known
from tests.patience import PATIENCE_S as PATIENCE_S

CONFLUENT, AIOKAFKA, KAFKA_PYTHON, KOHORT = "confluent-kafka", "aiokafka", "kafka-python", "kohort"
MAKES = (CONFLUENT, AIOKAFKA, KAFKA_PYTHON, KOHORT)
PEERS = MAKES[:3]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_numbers = itertools.count()


class Row(NamedTuple):
    """A record, the same for every make."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def fresh(stem: str) -> str:
    """A name that nobody has used."""
    return f"{stem}-{next(_numbers)}"


def deadline() -> Callable[[str], None]:
    """Call the result with what is waited for; it raises once patience is over."""
    end = time.monotonic() + PATIENCE_S

    def check(what: str) -> None:
        assert time.monotonic() < end, f"waited {PATIENCE_S} s: {what}"

    return check


def missing_codecs(make: str) -> set[str]:
    """What this machine lacks for a make: kafka-python asks for a package a codec."""
    if make != KAFKA_PYTHON:
        return set()
    from kafka import codec

    has = {"snappy": codec.has_snappy, "lz4": codec.has_lz4, "zstd": codec.has_zstd}
    return {name for name, there in has.items() if not there()}


# -- writing ---------------------------------------------------------------------------------------


def write(
    make: str,
    servers: str,
    topic: str,
    rows: Iterable[Row],
    *,
    codec: str = "none",
    idempotent: bool = False,
) -> None:
    """Produce with acks=all and wait until everything is acknowledged."""
    _WRITERS[make](servers, topic, list(rows), codec, idempotent)


def _write_confluent(servers: str, topic: str, rows: list[Row], codec: str, safe: bool) -> None:
    from confluent_kafka import Producer

    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "compression.type": codec,
            "enable.idempotence": safe,
            "linger.ms": 20,
        }
    )
    for row in rows:
        producer.produce(
            topic,
            row.value,
            row.key,
            row.partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
            timestamp=row.timestamp,
            headers=list(row.headers),
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def _write_aiokafka(servers: str, topic: str, rows: list[Row], codec: str, safe: bool) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=safe,
            acks="all",
            linger_ms=20,
        )
        async with producer:
            futures = [
                await producer.send(
                    topic, row.value, row.key, row.partition, row.timestamp, list(row.headers)
                )
                for row in rows
            ]
            await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)

    asyncio.run(run())


def _write_kafka_python(servers: str, topic: str, rows: list[Row], codec: str, safe: bool) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else fake(codec),
        enable_idempotence=safe,
        acks="all",
        linger_ms=20,
    )
    try:
        futures = [
            producer.send(
                topic,
                value=row.value,
                key=row.key,
                headers=fake(list(row.headers)),  # it takes None in them
                partition=row.partition,
                timestamp_ms=row.timestamp,
            )
            for row in rows
        ]
        producer.flush(PATIENCE_S)
        for future in futures:
            future.get(PATIENCE_S)
    finally:
        producer.close(PATIENCE_S)


def _write_kohort(servers: str, topic: str, rows: list[Row], codec: str, safe: bool) -> None:
    from kohort import Producer

    with Producer(
        bootstrap_servers=servers, compression_type=codec, enable_idempotence=safe, linger_ms=20
    ) as producer:
        for row in rows:
            producer.send(topic, row.value, row.key, row.partition, row.timestamp, row.headers)


_WRITERS = {
    CONFLUENT: _write_confluent,
    AIOKAFKA: _write_aiokafka,
    KAFKA_PYTHON: _write_kafka_python,
    KOHORT: _write_kohort,
}

# -- reading ---------------------------------------------------------------------------------------


def read(
    how: str, servers: str, topic: str, partitions: Iterable[int], count: int
) -> dict[int, list[Row]]:
    """The first `count` records of these partitions, by partition, in the order of offsets."""
    rows: dict[int, list[Row]] = {p: [] for p in partitions}
    _READERS[how](servers, topic, rows, count)
    return rows


def _read_confluent(servers: str, topic: str, rows: dict[int, list[Row]], count: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": fresh("reader"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in rows])
    check = deadline()
    while sum(map(len, rows.values())) < count:
        check(f"{sum(map(len, rows.values()))} of {count} came")
        for m in consumer.consume(count, 0.2):
            assert m.error() is None
            headers = tuple(fake(m.headers()) or ())  # a list of pairs
            row = Row(known(m.partition()), m.timestamp()[1], m.key(), m.value(), headers)
            assert m.offset() == len(rows[row.partition])
            rows[row.partition].append(row)
    consumer.close()


def _read_aiokafka(servers: str, topic: str, rows: dict[int, list[Row]], count: int) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        async with consumer:
            consumer.assign([TopicPartition(topic, p) for p in rows])
            check = deadline()
            while sum(map(len, rows.values())) < count:
                check(f"{sum(map(len, rows.values()))} of {count} came")
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    _take(rows, records)

    asyncio.run(run())


def _read_kafka_python(servers: str, topic: str, rows: dict[int, list[Row]], count: int) -> None:
    from kafka import KafkaConsumer
    from kafka.structs import TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    try:
        consumer.assign([TopicPartition(topic, p) for p in rows])
        check = deadline()
        while sum(map(len, rows.values())) < count:
            check(f"{sum(map(len, rows.values()))} of {count} came")
            for records in consumer.poll(200).values():
                _take(rows, records)
    finally:
        consumer.close()


def _take(rows: dict[int, list[Row]], records: Iterable[Any]) -> None:
    for r in records:
        assert r.offset == len(rows[r.partition])
        headers = tuple((name, value) for name, value in r.headers or ())
        rows[r.partition].append(Row(r.partition, r.timestamp, r.key, r.value, headers))


def _read_kohort(servers: str, topic: str, rows: dict[int, list[Row]], count: int) -> None:
    from kohort import Consumer

    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, p) for p in rows])
        check = deadline()
        while sum(map(len, rows.values())) < count:
            check(f"{sum(map(len, rows.values()))} of {count} came")
            _take(rows, consumer.poll(0.2))


def _read_async(servers: str, topic: str, rows: dict[int, list[Row]], count: int) -> None:
    from kohort import AsyncConsumer

    async def run() -> None:
        consumer = AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
        async with consumer:
            await consumer.assign([(topic, p) for p in rows])
            check = deadline()
            while sum(map(len, rows.values())) < count:
                check(f"{sum(map(len, rows.values()))} of {count} came")
                _take(rows, await consumer.poll(0.2))

    asyncio.run(run())


def _read_arrow(servers: str, topic: str, rows: dict[int, list[Row]], count: int) -> None:
    from kohort import Consumer

    columns = ["partition", "offset", "timestamp", "key", "value", "headers"]
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, p) for p in rows])
        check = deadline()
        while sum(map(len, rows.values())) < count:
            check(f"{sum(map(len, rows.values()))} of {count} came")
            for r in consumer.poll_arrow(0.2, columns=columns).to_pylist():
                headers = tuple((h["key"], h["value"]) for h in r["headers"] or ())
                when = round(r["timestamp"].timestamp() * 1000)
                assert r["offset"] == len(rows[r["partition"]])
                row = Row(r["partition"], when, r["key"], r["value"], headers)
                rows[r["partition"]].append(row)


_READERS = {
    CONFLUENT: _read_confluent,
    AIOKAFKA: _read_aiokafka,
    KAFKA_PYTHON: _read_kafka_python,
    KOHORT: _read_kohort,
    "kohort async": _read_async,
    "kohort poll_arrow": _read_arrow,
}
READERS = tuple(_READERS)
