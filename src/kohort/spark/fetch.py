"""An executor's reads: the ranges of one task, as Arrow batches for Spark, or as records for the
sink of a pipeline.

Shell: none of its own; the consumer's network thread does the work.

Rules (spec 6.1):
- One consumer a worker process, kept between tasks; it assigns, seeks and never joins a group.
- Nothing at or past a range's end is fetched. A range is done when its position has reached the
  end, so gaps of compaction and markers neither block nor end it early.
- The order of records within a partition is kept; ranges of one task are read side by side.
- A pipeline gets the bytes of an unreadable batch; for a query, which has no dead-letter
  topic, it is an error.
- Records that are gone are an error, or with failOnDataLoss=false skipped (the planner warns).
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from kohort.client.common.config import ConsumerConfig, known_to
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.config import format_elapsed
from kohort.errors import CorruptRecordError, DataLossError, KafkaTimeoutError, KohortError
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.unreadable import Unreadable
from kohort.spark import arrow
from kohort.spark.formats import Rows, Typed
from kohort.spark.offsets import Range
from kohort.spark.options import SourceOptions
from kohort.spark.worker import forget, keep

if TYPE_CHECKING:
    from kohort.retry.fenced import Fetched

log = logging.getLogger("kohort.spark")
T = TypeVar("T", bound=Sized)
POLL_S: Final = 0.5
GONE_POLLS: Final = 10
"""Polls without a single record before a read looks whether its topics are still there."""
_OURS = {
    "key": "key",
    "value": "value",
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}


def read_ranges(
    options: SourceOptions,
    spans: Sequence[Range],
    columns: Sequence[str],
    typed: Typed | Rows | None = None,
) -> Iterator[pa.RecordBatch]:
    """All records of the ranges, in batches of the options' size.

    Args:
        typed: decodes keys and values; None leaves them bytes.

    With range markers nothing but them: the sink of a pipeline reads for itself (`read_records`).
    """
    if options.range_markers:
        if spans:
            yield arrow.markers(spans)
        return
    schema = arrow.schema(columns, arrow.TYPES | (typed.types if typed else {}))
    wanted = {"topic", "partition", "offset", *(_OURS[c] for c in columns if c in _OURS)}
    wanted |= set(typed.parts) if typed else set()

    def poll(consumer: Consumer, timeout_s: float) -> pa.RecordBatch:
        return consumer.poll_arrow(timeout_s, max_rows=options.batch_rows, columns=wanted)

    for batch in _read(options, spans, poll):
        ready = _for_spark(batch, schema, typed.columns(batch) if typed else {})
        yield from arrow.cut(ready, options.batch_rows, options.batch_bytes)


def read_records(
    options: SourceOptions, spans: Sequence[Range], most: int
) -> Iterator[Sequence[Fetched]]:
    """All records of the ranges and the unreadable batches, at most so many of one partition at a
    time.
    """

    def poll(consumer: Consumer, timeout_s: float) -> Sequence[Fetched]:
        return consumer.poll(timeout_s, max_records=most)

    for records in _read(options, spans, poll, lambda damaged: [damaged]):
        for _, run in itertools.groupby(records, key=attrgetter("topic", "partition")):
            yield list(run)


def _read(
    options: SourceOptions,
    spans: Sequence[Range],
    poll: Callable[[Consumer, float], T],
    skip: Callable[[Unreadable], T] | None = None,
) -> Iterator[T]:
    """What `poll` gives until the ranges are read.

    Args:
        skip: what an unreadable batch becomes; None makes it an error.
    """
    config = options.client
    kind = "consumer" if options.fail_on_data_loss else "lenient consumer"
    for group in _apart(spans):
        consumer: Consumer = keep(
            kind, config, lambda: _consumer(config, options.fail_on_data_loss)
        )
        try:
            yield from _polled(consumer, options, group, poll, skip)
        except KohortError:
            forget(kind, config)
            raise
        finally:
            _let_go(consumer)


def _let_go(consumer: Consumer) -> None:
    """Nothing is fetched between two tasks, also when a task was not read to its end."""
    with contextlib.suppress(KohortError):  # it failed, and was closed
        consumer.assign([])


def _polled(
    consumer: Consumer,
    options: SourceOptions,
    spans: Sequence[Range],
    poll: Callable[[Consumer, float], T],
    skip: Callable[[Unreadable], T] | None,
) -> Iterator[T]:
    left = {TopicPartition(s.topic, s.partition): s for s in spans}
    consumer.assign(list(left))
    for tp, span in left.items():
        consumer.limit(tp, span.end)
        consumer.seek(tp, span.start)
    silent = 0
    while left:
        unread = len(left)
        try:
            found = _next(consumer, left, poll)
        except CorruptRecordError as error:
            if skip is None:
                raise
            silent = 0
            yield skip(_past_damage(consumer, left, error))
        else:
            silent = 0 if len(found) or len(left) < unread else silent + 1
            if len(found):
                yield found
        if left and silent and silent % GONE_POLLS == 0:
            left = _without_deleted(options, left)
        if silent * POLL_S * 1_000 > options.poll_timeout_ms:
            named = ", ".join(
                f"{s.topic}/{s.partition} [{s.start}, {s.end})" for s in left.values()
            )
            raise KafkaTimeoutError(
                f"no record came for {format_elapsed(options.poll_timeout_ms)} "
                f"(kafkaConsumer.pollTimeoutMs), but more is there: {named}"
            )


def _next(
    consumer: Consumer,
    left: dict[TopicPartition, Range],
    poll: Callable[[Consumer, float], T],
) -> T:
    """What is at hand, else what comes within POLL_S; what has been read is taken out of `left`.

    Positions are looked at only when nothing is at hand: there may be hundreds of them.
    """
    found = poll(consumer, 0.0)
    if len(found):
        return found
    for tp in [tp for tp, span in left.items() if consumer.position(tp) >= span.end]:
        del left[tp]
    return poll(consumer, POLL_S) if left else found


def _past_damage(
    consumer: Consumer, left: dict[TopicPartition, Range], error: CorruptRecordError
) -> Unreadable:
    """The part of a damaged batch within its range; reading continues behind it.

    Raises the error where the end of the damage is unknown.
    """
    found = Unreadable.of(error)
    span = left.get(TopicPartition(found.topic, found.partition)) if found else None
    if found is None or span is None:
        raise error
    log.error("%s; its bytes go to the dead-letter topic", error)
    offset = max(found.offset, span.start)
    found = replace(found, offset=offset, next_offset=min(found.next_offset, span.end))
    consumer.seek((found.topic, found.partition), found.next_offset)
    return found


def _without_deleted(
    options: SourceOptions, left: dict[TopicPartition, Range]
) -> dict[TopicPartition, Range]:
    """What can still be read when a topic was deleted after the batch was planned.

    Raises DataLossError for the rest, unless failOnDataLoss is false.
    """
    port = ClusterPort(options.client)
    try:
        views = port.topics()
    finally:
        port.close()
    ids = {name: view.topic_id for name, view in views.items()}
    kept = {
        tp: span
        for tp, span in left.items()
        if tp.topic in ids and (not span.topic_id or ids[tp.topic] in ("", span.topic_id))
    }
    if len(kept) < len(left):
        names = ", ".join(sorted({tp.topic for tp in left if tp not in kept}))
        if options.fail_on_data_loss:
            remedy = options.loss_remedy or (
                "Take it out of the query's topics, or say failOnDataLoss=false to continue "
                "without it"
            )
            raise DataLossError(f"topic {names} was deleted while it was read. {remedy}")
        log.warning("topic %s was deleted while it was read; continuing without it", names)
    return kept


def _for_spark(
    batch: pa.RecordBatch, schema: pa.Schema, decoded: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Our columns under the connector's names and types, and what was decoded."""
    arrays: list[pa.Array] = []
    for field in schema:
        if field.name in decoded:
            arrays.append(decoded[field.name])
            continue
        if field.name == arrow.RANGE_END:
            arrays.append(pa.nulls(len(batch), field.type))
            continue
        column = batch.column(_OURS[field.name])
        column = column if column.type.equals(field.type) else column.cast(field.type)
        arrays.append(arrow.none_as_null(column) if field.name == "headers" else column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _consumer(config: dict[str, str], fail_on_data_loss: bool) -> Consumer:
    """Records that are gone are an error, or skipped: then the log's start is next."""
    settings = {
        "max_partition_fetch_bytes": 4 << 20,
        **known_to(ConsumerConfig, config),
        "enable_auto_commit": False,
        "auto_offset_reset": "none" if fail_on_data_loss else "earliest",
        "allow_auto_create_topics": False,
    }
    return Consumer(config=ConsumerConfig.from_mapping(settings))


def _apart(spans: Sequence[Range]) -> list[list[Range]]:
    """Groups that contain each partition once: a consumer has one position for each partition."""
    groups: list[dict[tuple[str, int], Range]] = []
    for span in spans:
        at = (span.topic, span.partition)
        for group in groups:
            if at not in group:
                group[at] = span
                break
        else:
            groups.append({at: span})
    return [list(group.values()) for group in groups]
