"""One member of a group, of any make, in a process of its own: `python -m tests.e2e.member JSON`.

It consumes, reports what it saw, commits, and reports that, until standard input ends; then it
leaves the group. One JSON list a line on standard output:
    ["assigned", {partition: committed offset}]   what is new, with where it has to begin
    ["owns", [partitions]]                        all it owns now
    ["records", {partition: [first, last]}]       handed out
    ["gap", partition, offset, expected]          ... but not next in line, or not ours any more
    ["committed", {partition: offset}]            acknowledged by the broker
    ["refused", text]                             a commit that was refused
    ["left"]                                      closed in order
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from tests.e2e.makes import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, KOHORT
from tests.known import known
from tests.patience import PATIENCE_S

POLL_MS = 100
SETTLE_S = 2


class Reporter:
    """Says what happens to one member, and notices gaps in what it is handed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = threading.Event()
        self.next: dict[int, int] = {}
        self._owned: list[int] | None = None
        self._to_commit: dict[int, int] = {}
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        sys.stdin.read()
        self.stopping.set()

    def say(self, *what: Any) -> None:
        os.write(1, json.dumps(what).encode() + b"\n")

    def assigned(self, committed: dict[int, int]) -> None:
        begin = {p: max(offset, 0) for p, offset in committed.items()}
        self.next.update(begin)
        self.say("assigned", begin)

    def revoked(self, partitions: Iterable[int]) -> None:
        """From here on, a record of these is a gap: somebody else may have it."""
        for partition in partitions:
            self.next.pop(partition, None)
            self._to_commit.pop(partition, None)

    def owns(self, partitions: Iterable[int]) -> None:
        owned = sorted(partitions)
        if owned != self._owned:
            self._owned = owned
            self.say("owns", owned)

    def records(self, records: Iterable[tuple[int, int]]) -> dict[int, int]:
        """(partition, offset) of what was handed out; returns what to commit, again if refused."""
        spans: dict[int, list[int]] = {}
        for partition, offset in records:
            if self.next.get(partition) != offset:
                self.say("gap", partition, offset, self.next.get(partition))
            self.next[partition] = offset + 1
            spans.setdefault(partition, [offset, offset])[1] = offset
        if spans:
            self.say("records", spans)
        self._to_commit.update({p: last + 1 for p, (_, last) in spans.items()})
        return dict(self._to_commit)

    def committed(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            if self._to_commit.get(partition) == offset:
                del self._to_commit[partition]
        self.say("committed", offsets)

    def refused(self, error: object) -> None:
        self.say("refused", f"{type(error).__name__}: {error}")


def run_confluent(me: Reporter, servers: str, group: str, topic: str, options: dict) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "client.id": me.name,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **(
                {"group.protocol": "consumer"}
                if options["protocol"] == "consumer"
                else {
                    "session.timeout.ms": options["session_ms"],
                    "heartbeat.interval.ms": options["heartbeat_ms"],
                    "partition.assignment.strategy": options["strategy"],
                }
            ),
        }
    )

    def committed(partitions: list[Any]) -> list[Any]:
        """Asked again when librdkafka gave up its connection while the question waited in line."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return consumer.committed(partitions, PATIENCE_S)
            except KafkaException:
                if time.monotonic() > end:
                    raise

    def assigned(_: Any, partitions: list[Any]) -> None:
        me.assigned({tp.partition: tp.offset for tp in committed(partitions)})

    def revoked(_: Any, partitions: list[Any]) -> None:
        me.revoked(tp.partition for tp in partitions)

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not me.stopping.is_set():
        messages = consumer.consume(200, POLL_MS / 1000)
        offsets = me.records(
            (known(m.partition()), known(m.offset())) for m in messages if not m.error()
        )
        me.owns(tp.partition for tp in consumer.assignment())
        if offsets:
            try:
                parts = [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
                consumer.commit(offsets=parts, asynchronous=False)
                me.committed(offsets)
            except KafkaException as error:
                me.refused(error)
    consumer.close()


def run_kafka_python(me: Reporter, servers: str, group: str, topic: str, options: dict) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaConnectionError, KafkaError
    from kafka.structs import OffsetAndMetadata, TopicPartition

    kinds = (
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
        CooperativeStickyAssignor,
    )
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        client_id=me.name,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=options["session_ms"],
        heartbeat_interval_ms=options["heartbeat_ms"],
        partition_assignment_strategy=[k for k in kinds if k.name == options["strategy"]],
    )

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: Any) -> None:
            fresh.difference_update(revoked)
            me.revoked(tp.partition for tp in revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            fresh.update(assigned)  # it runs on the network's thread, which may not ask anything

    fresh: set[Any] = set()
    consumer.subscribe([topic], listener=Listener())
    # When the topic's metadata comes after it has joined, it joins again, and forgets that second
    # join for ever if a poll's time is over meanwhile (3.0.12). So the first polls are long.
    settled: float | None = None
    while not me.stopping.is_set():
        short = settled is not None and time.monotonic() > settled
        try:
            polled = consumer.poll(POLL_MS if short else SETTLE_S * 2_000)
        except KafkaConnectionError:  # of a lookup while the broker is down; it is to poll again
            continue
        if settled is None and consumer.assignment():
            settled = time.monotonic() + SETTLE_S
        if fresh:
            me.assigned({tp.partition: consumer.committed(tp) or 0 for tp in fresh})
            fresh.clear()
        offsets = me.records((r.partition, r.offset) for rs in polled.values() for r in rs)
        me.owns(tp.partition for tp in consumer.assignment())
        if offsets:
            try:
                consumer.commit(
                    {
                        TopicPartition(topic, p): OffsetAndMetadata(offset, "", -1)
                        for p, offset in offsets.items()
                    }
                )
                me.committed(offsets)
            except KafkaError as error:
                me.refused(error)
    consumer.close()


def run_aiokafka(me: Reporter, servers: str, group: str, topic: str, options: dict) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    kinds = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers,
            client_id=me.name,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=options["session_ms"],
            heartbeat_interval_ms=options["heartbeat_ms"],
            partition_assignment_strategy=[k for k in kinds if k.name == options["strategy"]],
        )

        class Listener(ConsumerRebalanceListener):  # aiokafka awaits what these return
            async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]
                self, revoked: Any
            ) -> None:
                me.revoked(tp.partition for tp in revoked)

            async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]
                self, assigned: Any
            ) -> None:
                me.assigned({tp.partition: await consumer.committed(tp) or 0 for tp in assigned})

        consumer.subscribe([topic], listener=Listener())
        async with consumer:
            while not me.stopping.is_set():
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                offsets = me.records((r.partition, r.offset) for rs in polled.values() for r in rs)
                me.owns(tp.partition for tp in consumer.assignment())
                if offsets:
                    try:
                        await consumer.commit(
                            {TopicPartition(topic, p): offset for p, offset in offsets.items()}
                        )
                        me.committed(offsets)
                    except KafkaError as error:
                        me.refused(error)

    asyncio.run(run())


def run_kohort(me: Reporter, servers: str, group: str, topic: str, options: dict) -> None:
    from kohort import Consumer, RebalanceListener
    from kohort.errors import KohortError

    protocol: dict[str, Any] = (
        {"group_protocol": "consumer"}
        if options["protocol"] == "consumer"
        else {
            "session_timeout_ms": options["session_ms"],
            "heartbeat_interval_ms": options["heartbeat_ms"],
            "partition_assignment_strategy": options["strategy"],
        }
    )
    consumer = Consumer(
        bootstrap_servers=servers,
        client_id=me.name,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **protocol,
    )

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, partitions: Any) -> None:
            me.revoked(tp.partition for tp in partitions)

        def on_partitions_assigned(self, partitions: Any) -> None:
            found = consumer.committed(partitions)
            me.assigned({tp.partition: o.offset if o else 0 for tp, o in found.items()})

    with consumer:
        consumer.subscribe([topic], listener=Listener())
        while not me.stopping.is_set():
            offsets = me.records((r.partition, r.offset) for r in consumer.poll(POLL_MS / 1000))
            me.owns(tp.partition for tp in consumer.assignment())
            if offsets:
                try:
                    consumer.commit({(topic, p): offset for p, offset in offsets.items()})
                    me.committed(offsets)
                except KohortError as error:
                    me.refused(error)


def run_java(me: Reporter, servers: str, group: str, topic: str, options: dict) -> None:
    from tests.interop.java_member import run_java

    run_java(me, servers, group, topic, options)


RUN = {
    CONFLUENT: run_confluent,
    AIOKAFKA: run_aiokafka,
    KAFKA_PYTHON: run_kafka_python,
    KOHORT: run_kohort,
    "java": run_java,
}

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # where it hangs, when a test has lost patience
    settings = json.loads(sys.argv[1])
    reporter = Reporter(settings["name"])
    RUN[settings["make"]](
        reporter, settings["servers"], settings["group"], settings["topic"], settings["options"]
    )
    reporter.say("left")
