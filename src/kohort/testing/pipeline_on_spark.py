"""Pipelines of DataFrames for the harness: a local Spark session and an embedded broker.

Shell: the clock, the broker, Spark.

Rules:
- Time that passes is the broker's clock, the driver's, and what the source takes for due.
- A driver that dies is cut off by an error within its batch: its JVM serves the next one.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.client.producer.producer import Producer
from kohort.errors import UsageError
from kohort.records import Record
from kohort.retry.headers import Header
from kohort.spark.dataframes.graph import TopicTarget
from kohort.spark.outputs.protocol import Step
from kohort.testing.cluster import Cluster
from kohort.testing.pipeline_engine import Crashed, FailedRecord, Reach

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.pipeline import Pipeline

LATER_MS: Final = 2_000
"""A copy is appended so much later than its batch began, at the most."""


class SparkEngine:
    """One pipeline of DataFrames; see `kohort.testing.pipeline_harness.Engine`."""

    def __init__(
        self,
        pipeline: Pipeline,
        directory: Path,
        partitions: int,
        spark: SparkSession | None,
        reach: Reach,
    ) -> None:
        if pipeline.handlers:
            raise UsageError(
                "a harness runs row handlers or DataFrames, not both: their clocks are moved in "
                "different ways. Register them in two functions, and test each in a pipeline"
            )
        self._pipeline = pipeline
        self._spark = spark or _session()
        self._partitions = partitions
        self._reach = reach
        self._died: Crashed | None = None
        self._ahead_ms = 0
        self._moved_ms = 0
        self._cluster = Cluster(offsets_retention_minutes=525_600).start()
        pipeline.bootstrap_servers = self._cluster.bootstrap
        pipeline.checkpoint = str(directory / "checkpoint")
        pipeline.skew_ms = 0
        pipeline.now_ms = lambda: self.now_ms
        pipeline.reached = self._reached
        graph = pipeline.graph
        targets = [s.target for s in graph.steps.values()]
        for topic in dict.fromkeys(
            [
                *(s.topic for s in graph.sources.values()),
                *(r.topic for r in graph.references.values()),
                *(t.topic for t in targets if isinstance(t, TopicTarget)),
            ]
        ):
            self._cluster.create_topic(topic, partitions=partitions)

    @property
    def now_ms(self) -> int:
        """The wall clock, and what the test has moved it."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    @property
    def moved_ms(self) -> int:
        """What the test has moved the clock, without `LATER_MS`."""
        return self._moved_ms

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
    ) -> None:
        """Produce a record."""
        with Producer(bootstrap_servers=self._cluster.bootstrap) as producer:
            producer.send(topic, value, key, partition, headers=headers).result()

    def run(self) -> None:
        """Each stage once over what is there and due."""
        try:
            self._pipeline.run("available_now", spark=self._spark, max_restarts=0)
        except Exception:  # the error that cut the driver off, in any class that Spark wraps it in
            died, self._died = self._died, None
            if died is None:
                raise
            raise died from None

    def _reached(self, step: Step) -> None:
        try:
            self._reach(step.value)
        except Crashed as died:
            self._died = died
            raise RuntimeError(f"the harness ends the driver here: {step.value}") from None

    def next_due_ms(self, waiting: Sequence[FailedRecord]) -> int | None:
        """When the next record that waits is due, by the ledger."""
        return min((r.due_ms for r in waiting if r.due_ms is not None), default=None)

    def move_to(self, time_ms: int) -> None:
        """Let the clocks show this time."""
        moved_ms = max(0, time_ms - self.now_ms)
        self._moved_ms += moved_ms
        ms = moved_ms + LATER_MS
        self._cluster.advance(ms / 1000)
        self._ahead_ms += ms
        self._pipeline.skew_ms = -self._ahead_ms

    def records(self, topic: str) -> list[Record]:
        """The committed records of a topic, partition by partition."""
        at = [TopicPartition(topic, p) for p in range(self._partitions)]
        found: list[Record] = []
        with Consumer(
            bootstrap_servers=self._cluster.bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,
        ) as consumer:
            consumer.assign(at)
            ends = consumer.end_offsets(at)
            while any(consumer.position(tp) < ends[tp] for tp in at):
                found += consumer.poll(1.0)
        return sorted(found, key=lambda r: (r.partition, r.offset))

    def close(self) -> None:
        """End the broker. The session stays for the next harness."""
        self._cluster.stop()


def _session() -> SparkSession:
    from kohort.spark.sessions import session

    return session("kohort harness", master="local[2]", profile="test")
