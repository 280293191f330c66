"""The executors' half of a pipeline: load a task's records, guarded by the fence.

Rules (E2):
- One task has whole partitions (the source never splits them for a pipeline), so a partition's
  records meet one fence in one task, in offset order.
- Spark passes range markers, which say what the task must finish; the task fetches
  the records itself, so that they never cross the JVM. A range without records moves its fence all
  the same.
- The writer is rebuilt in every process: it holds what the user wrote and no connection.
- Progress goes to the group after all tasks of a batch are done, and may fail: it is advisory.
"""

# pyarrow and pyspark: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kohort.client.common.config import ConsumerConfig, known_to
from kohort.errors import KohortError, ProtocolError
from kohort.retry.cluster_port import ClusterPort, WallClock
from kohort.retry.fenced import Fetched, Loader, RangeLoad, Report, SourceRange
from kohort.retry.handling import HandlerSpec
from kohort.retry.policy import RetryTopics
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.spark import arrow
from kohort.spark.fetch import read_records
from kohort.spark.offsets import Range, TopicPartition
from kohort.spark.options import SourceOptions
from kohort.spark.publisher import CopyPublisher
from kohort.spark.worker import forget, keep, settle_down
from kohort.spark.worker.breadcrumbs import GuardedHandlers

log = logging.getLogger("kohort.spark")


@dataclass(frozen=True)
class PipelineSpec:
    """What executors need to know of a pipeline. It is pickled, the user's functions with it.

    Args:
        topics: the retry topics by source topic.
        partitions: partition count by topic, of every retry topic.
        chunk_rows: the most records of one transaction.
    """

    name: str
    group: str
    store_url: str
    client: dict[str, str] = field(repr=False)
    topics: dict[str, RetryTopics]
    partitions: dict[str, int]
    handlers: tuple[HandlerSpec, ...]
    skew_ms: int
    chunk_rows: int

    def source_of(self, topic: str) -> tuple[str, int | None]:
        """The source topic whose handler applies, and the retry delay (None: it is the source)."""
        if topic in self.topics:
            return topic, None
        for base, names in self.topics.items():
            delay = names.delays_ms.get(topic)
            if delay is not None:
                return base, delay
        raise ProtocolError(f"topic {topic} is none of pipeline {self.name}")


class Loaded(WriterCommitMessage):
    """What one task reports to the driver."""

    def __init__(self, reports: list[Report]) -> None:
        self.reports = reports


class PipelineWriter(DataSourceStreamArrowWriter):
    """Handles and writes a task's rows exactly once; see `kohort.retry.fenced` for the steps."""

    def __init__(self, spec: PipelineSpec) -> None:
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Loaded:
        settle_down()
        spec = self._spec
        store = keep("store", {"url": spec.store_url}, lambda: open_store(spec.store_url))
        try:
            return Loaded(self._load(iterator, store))
        except KohortError:
            forget("store", {"url": spec.store_url})
            raise

    def _load(self, iterator: Iterator[pa.RecordBatch], store: Store) -> list[Report]:
        spec = self._spec
        handlers = GuardedHandlers(spec.name, spec.handlers)
        loader = Loader(
            spec.name,
            spec.topics,
            store,
            CopyPublisher(spec.client, spec.partitions),
            handlers,
            WallClock(),
            spec.skew_ms,
            {h.topic: (h.table, h.origin) for h in spec.handlers if h.table and h.origin},
        )
        loads: dict[TopicPartition, RangeLoad] = {}
        spans: list[Range] = []
        for span in (span for batch in iterator for span in arrow.read_markers(batch)):
            load = loads[span.topic, span.partition] = loader.open(self._source_range(span))
            if not load.done:
                spans.append(span)
        options = SourceOptions(known_to(ConsumerConfig, spec.client), streaming=True)
        waiting: dict[TopicPartition, list[Fetched]] = {}
        for records in read_records(options, spans, spec.chunk_rows):
            at = (records[0].topic, records[0].partition)
            held = waiting.setdefault(at, [])
            held += records
            if len(held) >= spec.chunk_rows:
                loads[at].load(waiting.pop(at))
        for at, held in waiting.items():
            loads[at].load(held)
        reports = [load.finish() for load in loads.values()]
        handlers.close()
        return reports

    def _source_range(self, span: Range) -> SourceRange:
        base, delay_ms = self._spec.source_of(span.topic)
        return SourceRange(
            span.topic,
            span.topic_id,
            span.partition,
            span.start,
            span.end,
            base,
            delay_ms,
            span.first,
            span.planned_ms,
        )

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Publish the batch's progress to the group, as far as all of its tasks have come."""
        spec = self._spec
        offsets: dict[TopicPartition, int] = {}
        for message in messages:
            if isinstance(message, Loaded):
                offsets |= {(r.topic, r.partition): r.next_offset for r in message.reports}
        if not offsets:
            return
        try:
            port = keep("port", spec.client, lambda: ClusterPort(spec.client))
            port.commit(spec.group, offsets)
        except KohortError as error:  # the next plan publishes it again
            forget("port", spec.client)
            log.warning("progress of batch %d was not published: %s", batchId, error)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing to undo: what a task committed stays, and its fence lets a re-run skip it."""


def sink_class(spec: PipelineSpec, name: str) -> type[DataSource]:
    """A data source of this name that writes through the pipeline.

    Created for each pipeline, so that Spark pickles it by value, with the user's functions in it,
    and nothing of them shows in options or plans.
    """

    class PipelineSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return arrow.ddl(tuple(arrow.TYPES))

        def streamWriter(self, schema: StructType, overwrite: bool) -> PipelineWriter:
            return PipelineWriter(spec)

    return PipelineSink
