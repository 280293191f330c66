"""Copies of failed rows for the retry topics and the dead-letter topic, made by Spark's tasks.

Rules:
- A copy is made of the input as it was read, and of the batch's time: every task, and every run of
  a batch, makes the same.
- The driver makes the ledger's rows of the same failures by the same functions (`books.py`).
- A copy that its topic would refuse as too large is made smaller, down to a stub (A2). The size is
  known beforehand: a refusal would fail the whole batch, again at each try.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kohort.errors import RecordTooLargeError
from kohort.records import BatchBuilder
from kohort.retry.classify import Disposition, Failure, stated
from kohort.retry.copies import (
    BAD_HEADERS_REASON,
    UNDECODABLE,
    Attempt,
    Copy,
    copy_for,
    ladder,
    read_attempt,
)
from kohort.retry.fenced import CONSTRAINT_REASON
from kohort.retry.headers import Origin
from kohort.retry.policy import RetryTopics
from kohort.spark.dataframes.isolating import WORKER_KILLED
from kohort.spark.dataframes.rows import (
    RecordValues,
    VerdictValues,
    fields_of,
    records,
    verdicts,
)
from kohort.spark.formats.plain_arrays import plain_array
from kohort.spark.formats.record_columns import HEADERS, Header, header_column

COPY_SCHEMA: Final = (
    "topic string, partition int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
_COPIES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
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
        most_bytes: by retry topic and dead-letter topic, the largest batch that it takes. A topic
            that is not in it takes every copy as it is.
    """

    topics: Mapping[str, RetryTopics]
    partitions: Mapping[str, int]
    topic_ids: Mapping[str, str]
    most_bytes: Mapping[str, int] = field(default_factory=dict[str, int])

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
            origins, reasons = records(fields_of(batch.column(0))), verdicts(batch.column(1))
            copied = [
                _copy(spec, record, verdict, now_ms)
                for record, verdict in zip(origins, reasons, strict=True)
            ]
            *columns, headers = zip(*copied, strict=True) if copied else [()] * len(_COPIES)
            arrays = [plain_array(c, f.type) for c, f in zip(columns, _COPIES, strict=False)]
            yield pa.RecordBatch.from_arrays([*arrays, header_column(headers)], schema=_COPIES)

    return run


def _copy(
    spec: RetrySpec, record: RecordValues, verdict: VerdictValues, now_ms: int
) -> tuple[str, int, bytes | None, bytes | None, list[Header]]:
    permanent, reason, message = verdict
    attempt = (spec.own if reason == BAD_HEADERS_REASON else spec.attempt)(*record)
    names = spec.topics[spec.base(record[0])]
    failure = failure_of(permanent, reason, message)
    whole, _ = copy_for(attempt, failure, topics=names, now_ms=now_ms)
    copy, headers = _fitting(whole, spec.most_bytes.get(whole.topic))
    partition = spec.place(copy.topic, copy.partition_hint)
    return copy.topic, partition, copy.key, copy.value, headers


def _fitting(whole: Copy, most_bytes: int | None) -> tuple[Copy, list[Header]]:
    """The copy, or the first smaller one that fits into a batch of so many bytes; its headers."""
    for copy in ladder(whole):
        headers = copy.headers
        if most_bytes is None or _size(copy, headers) <= most_bytes:
            return copy, headers
    raise RecordTooLargeError(
        f"{whole.topic}: not even a stub of {whole.retry.origin.retry_id} fits into {most_bytes:,} "
        "bytes; raise the topic's max.message.bytes"
    )


def _size(copy: Copy, headers: list[Header]) -> int:
    """The size of a batch that has nothing but this copy."""
    batch = BatchBuilder()
    batch.append(0, copy.key, copy.value, headers)
    return batch.size
