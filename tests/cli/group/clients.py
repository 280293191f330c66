"""Members of every make, as threads of the test: idle on their defaults, at the end, or hanging."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from kohort import Consumer
from tests.e2e.makes import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KOHORT, deadline

POLL_S = 0.1
Settings = dict[str, Any]


@contextmanager
def member(make: str, servers: str, group: str, topic: str, most: int = 0) -> Iterator[None]:
    """A member that has its partition, and has handled and committed `most` records.

    With none it is idle on its make's defaults. After that it does nothing more.
    """
    with ExitStack() as stack:
        stack.enter_context(_MAKES[make](servers, group, topic, most))
        yield


@contextmanager
def _kohort(servers: str, group: str, topic: str, most: int, **more: Any) -> Iterator[Consumer]:
    start = {"auto_offset_reset": "earliest", "enable_auto_commit": False} if most else {}
    with Consumer(bootstrap_servers=servers, group_id=group, **start, **more) as consumer:
        consumer.subscribe([topic])
        check, done = deadline(), 0
        while done < most or not consumer.assignment():
            check(f"a record of {topic}")
            done += len(consumer.poll(POLL_S, max_records=1))
        if most:
            consumer.commit()
        yield consumer


@contextmanager
def _confluent(servers: str, group: str, topic: str, most: int, **more: Any) -> Iterator[None]:
    from confluent_kafka import Consumer as Confluent

    start = {"auto.offset.reset": "earliest", "enable.auto.commit": False} if most else {}
    consumer = Confluent({"bootstrap.servers": servers, "group.id": group, **start, **more})
    consumer.subscribe([topic])
    check, done = deadline(), 0
    while done < most or not consumer.assignment():
        check(f"a record of {topic}")
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            done += 1
            consumer.commit(message=message, asynchronous=False)
    try:
        yield
    finally:
        consumer.close()


@contextmanager
def _kafka_python(servers: str, group: str, topic: str, most: int) -> Iterator[None]:
    from kafka import KafkaConsumer
    from kafka.errors import RebalanceInProgressError
    from kafka.structs import OffsetAndMetadata, TopicPartition

    start: Settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False} if most else {}
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=group, **start)
    try:
        consumer.partitions_for_topic(topic)  # else it may lead its group without the metadata
        consumer.subscribe([topic])
        check, done = deadline(), 0
        while done < most or not consumer.assignment():
            check(f"a record of {topic}")
            done += sum(map(len, consumer.poll(int(POLL_S * 1000), max_records=1).values()))
        while most:
            check(f"a commit in {topic}")
            with suppress(RebalanceInProgressError):  # polling ends the rebalance
                consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(most, "", -1)})
                break
            consumer.pause(*consumer.assignment())
            consumer.poll(int(POLL_S * 1000))
        yield
    finally:
        consumer.close()


@contextmanager
def _aiokafka(servers: str, group: str, topic: str, most: int) -> Iterator[None]:
    ready, end = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_run_aiokafka(servers, group, topic, most, ready, end))
    )
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        end.set()
        thread.join()


async def _run_aiokafka(
    servers: str, group: str, topic: str, most: int, ready: threading.Event, end: threading.Event
) -> None:
    from aiokafka import AIOKafkaConsumer

    start: Settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False} if most else {}
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=servers, group_id=group, **start)
    async with consumer:
        check, done = deadline(), 0
        while done < most or not consumer.assignment():
            check(f"a record of {topic}")
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=1)
            done += sum(map(len, found.values()))
        if most:
            await consumer.commit()
        ready.set()
        await asyncio.to_thread(end.wait)


_MAKES: dict[str, Callable[..., Any]] = {
    KOHORT: _kohort,
    CONFLUENT: _confluent,
    KAFKA_PYTHON: _kafka_python,
    AIOKAFKA: _aiokafka,
}
kohort_member = _kohort
confluent_member = _confluent
