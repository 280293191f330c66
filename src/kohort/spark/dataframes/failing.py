"""Copies of failed rows for the retry topics and the dead-letter topic, made by Spark's tasks.

Rules:
- A copy is made of the input as it was read, and of the batch's time: every task, and every run of
  a batch, makes the same.
- The driver makes the ledger's rows of the same failures by the same functions (`books.py`).
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kohort.retry.classify import Disposition, Failure, stated
from kohort.retry.copies import BAD_HEADERS_REASON, Attempt, copy_for, read_attempt
from kohort.retry.fenced import CONSTRAINT_REASON
from kohort.retry.handling import UNDECODABLE
from kohort.retry.headers import Origin
from kohort.retry.policy import RetryTopics
from kohort.spark.dataframes.isolating import WORKER_KILLED

COPY_SCHEMA: Final = (
    "topic string, partition int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_COPIES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
_DISPOSITIONS: Final = {
    UNDECODABLE: Disposition.DESERIALIZE,
    CONSTRAINT_REASON: Disposition.FATAL,
    WORKER_KILLED: Disposition.CRASH,
}
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class RetrySpec:
    """What tells an attempt from a record, in tasks and on the driver.

    Args:
        topics: the retry topics by source topic.
        partitions: how many partitions each retry topic and dead-letter topic has.
        topic_ids: ids of the source topics.
    """

    topics: Mapping[str, RetryTopics]
    partitions: Mapping[str, int]
    topic_ids: Mapping[str, str]

    def base(self, topic: str) -> str:
        """The source topic that a topic belongs to."""
        if topic in self.topics:
            return topic
        return next(base for base, names in self.topics.items() if topic in names.delays_ms)

    def own(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
    ) -> Attempt:
        """A record as its own origin."""
        origin = Origin(
            topic, partition, offset, timestamp_ms, timestamp_type, self.topic_ids.get(topic, "")
        )
        return Attempt(origin, 0, (topic, partition, offset), key, value, headers)

    def attempt(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
    ) -> Attempt:
        """The attempt that a record represents. Raises HeaderFault for a copy that is not ours."""
        base = self.base(topic)
        if base == topic:
            return self.own(
                topic, partition, offset, timestamp_ms, timestamp_type, key, value, headers
            )
        names = self.topics[base]
        return read_attempt(
            topic,
            partition,
            offset,
            key,
            value,
            headers,
            policy=names.policy,
            delay_ms=names.delays_ms[topic],
            group=names.group,
        )

    def place(self, topic: str, hint: int) -> int:
        """The partition of a copy: all copies of a record are in one."""
        return hint % max(1, self.partitions.get(topic, 1))


def failure_of(permanent: bool, reason: str, message: str) -> Failure:
    """The failure that a verdict represents."""
    disposition = _DISPOSITIONS.get(reason)
    return stated(reason, permanent=permanent, message=message, disposition=disposition)


def copies(spec: RetrySpec, now_ms: int) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`: hidden columns of failed rows in, records of copies out."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            origins, verdicts = (batch.column(i).to_pylist() for i in (0, 1))
            for origin, verdict in zip(origins, verdicts, strict=True):
                rows.append(_copy(spec, origin, verdict, now_ms))
            columns = list(zip(*rows, strict=True)) if rows else [()] * len(_COPIES)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, _COPIES, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=_COPIES)

    return run


def _copy(
    spec: RetrySpec, origin: Mapping[str, Any], verdict: Mapping[str, Any], now_ms: int
) -> tuple[Any, ...]:
    headers = [(h["key"], h["value"]) for h in origin["headers"] or ()]
    stamp = origin["timestamp"]
    record = (
        origin["topic"],
        origin["partition"],
        origin["offset"],
        -1 if stamp is None else milliseconds(stamp),
        origin["timestampType"],
        origin["key"],
        origin["value"],
        headers,
    )
    ours = spec.own if verdict["reason"] == BAD_HEADERS_REASON else spec.attempt
    attempt = ours(*record)
    failure = failure_of(verdict["permanent"], verdict["reason"], verdict["message"] or "")
    names = spec.topics[spec.base(origin["topic"])]
    copy, _ = copy_for(attempt, failure, topics=names, now_ms=now_ms)
    listed = [{"key": key, "value": value} for key, value in copy.headers]
    return copy.topic, spec.place(copy.topic, copy.partition_hint), copy.key, copy.value, listed


def milliseconds(stamp: Any) -> int:
    """A datetime of Spark (UTC) as milliseconds since the epoch."""
    return round(stamp.timestamp() * 1000)
