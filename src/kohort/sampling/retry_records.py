"""Records of dead-letter topics and retry topics, read without joining a group.

Rules: only committed records are read, from the youngest `most` records of a topic on, up to the
end that its leaders tell; nothing is committed. Of large records fewer are kept, the youngest.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kohort.client.common.config import ConsumerConfig, known_to
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.retry.headers import HeaderFault, RetryHeaders, parse
from kohort.retry.reading import pages_between
from kohort.sampling.log_offsets import LEADER_S, span_of, spans

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import TopicDescription
    from kohort.records import Record

PAGE_RECORDS: Final = 500
KEPT_BYTES: Final = 64 << 20
"""Of the records of one topic, with their headers."""


@dataclass(frozen=True)
class RetryCopy:
    """A record of a retry topic or dead-letter topic, with what its headers say."""

    record: Record
    retry: RetryHeaders


@dataclass(frozen=True)
class Copies:
    """What was read of a topic.

    Attributes:
        total: offsets between the first and the end, all partitions together.
        strangers: records without our headers.
        silent: partitions that are left out, because no leader answers for them.
    """

    copies: Sequence[RetryCopy]
    total: int
    strangers: int
    silent: Sequence[TopicPartition] = ()


def reader(settings: Mapping[str, Any], **more: Any) -> Consumer:
    """A consumer that only looks."""
    ours: dict[str, Any] = {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
        "isolation_level": "read_committed",
    }
    mine = known_to(ConsumerConfig, settings)
    return Consumer(ConsumerConfig.from_mapping({**mine, **ours, **more}))


def latest_copies(
    admin: Admin,
    settings: Mapping[str, Any],
    topic: TopicDescription,
    most: int,
    kept_bytes: int = KEPT_BYTES,
) -> Copies:
    """The youngest copies of a topic, about `most` of them, each partition in its order.

    Args:
        admin: of the cluster.
        settings: of clients, in Kafka's names.
        topic: its description.
        most: the most records that are read.
        kept_bytes: about the most bytes of records that are returned.

    Raises:
        KafkaTimeoutError: records that are there do not come.
    """
    logs = spans(admin, [topic], "read_committed")
    parts = max(1, len(logs.ends))
    starts = {
        tp: max(logs.firsts[tp], end - max(1, most // parts)) for tp, end in logs.ends.items()
    }
    kept = {tp: _Youngest(kept_bytes // parts) for tp in starts}
    strangers = 0
    with reader(settings) as consumer:
        for page in pages_between(consumer, starts, logs.ends, PAGE_RECORDS):
            for record in page:
                try:
                    copy = RetryCopy(record.detach(), parse(record.headers))
                except HeaderFault:
                    strangers += 1
                    continue
                kept[TopicPartition(record.topic, record.partition)].add(copy)
    copies = [copy for one in kept.values() for copy in one.copies]
    return Copies(copies, logs.total, strangers, logs.silent)


class _Youngest:
    """The last copies of one partition, up to so many bytes; at least one."""

    def __init__(self, most_bytes: int) -> None:
        self.copies: deque[RetryCopy] = deque()
        self._most_bytes, self._bytes = most_bytes, 0

    def add(self, copy: RetryCopy) -> None:
        self.copies.append(copy)
        self._bytes += _size(copy.record)
        while self._bytes > self._most_bytes and len(self.copies) > 1:
            self._bytes -= _size(self.copies.popleft().record)


def _size(record: Record) -> int:
    parts = [record.key, record.value, *(value for _, value in record.headers)]
    return sum(len(part or b"") for part in parts)


@dataclass(frozen=True)
class WaitingCopy:
    """A record that waits in a retry topic, and when it is due, in milliseconds since 1970."""

    copy: RetryCopy
    due_ms: int


@dataclass(frozen=True)
class Waiting:
    """What a group has not tried again yet.

    Attributes:
        total: how many records wait.
        first: those of them that are due first.
        silent: partitions that are left out, because no leader answers for them.
    """

    total: int
    first: Sequence[WaitingCopy]
    silent: Sequence[TopicPartition] = ()


def waiting_copies(
    admin: Admin,
    settings: Mapping[str, Any],
    group: str,
    topics: Sequence[TopicDescription],
    limit: int,
) -> Waiting:
    """What a group has not tried again yet: how many records, and those that are due first.

    Args:
        admin: of the cluster.
        settings: of clients, in Kafka's names.
        group: whose retry topics these are.
        topics: the retry topics.
        limit: the most records that are listed.

    Raises:
        KafkaTimeoutError: the group's coordinator does not answer, or records that are there do not
            come.
    """
    from kohort.processing.engine.snapshot import SnapshotError, decode

    logs = spans(admin, topics, "read_committed")
    count, first = 0, list[WaitingCopy]()
    with reader(settings, group_id=group) as consumer:
        starts, done = dict(logs.firsts), dict[TopicPartition, Sequence[tuple[int, int]]]()
        for tp, commit in consumer.committed(starts, LEADER_S).items():
            if commit is not None:
                starts[tp] = max(starts[tp], commit.offset)
                with contextlib.suppress(SnapshotError):  # another program's metadata
                    done[tp] = decode(commit.offset, commit.metadata).done
        for page in pages_between(consumer, starts, logs.ends, PAGE_RECORDS):
            copies = [one for record in page if (one := _waiting(record, done)) is not None]
            count += len(copies)
            first = heapq.nsmallest(limit, [*first, *copies], key=lambda one: one.due_ms)
    return Waiting(count, first, logs.silent)


def _waiting(
    record: Record, done: Mapping[TopicPartition, Sequence[tuple[int, int]]]
) -> WaitingCopy | None:
    ranges = done.get(TopicPartition(record.topic, record.partition), ())
    if any(start <= record.offset < end for start, end in ranges):
        return None
    try:
        retry = parse(record.headers)
    except HeaderFault:
        return None
    due_ms = max(retry.not_before_ms, record.timestamp + retry.delay_ms)
    return WaitingCopy(RetryCopy(record.detach(), retry), due_ms)


def record_at(
    admin: Admin, settings: Mapping[str, Any], tp: TopicPartition, offset: int
) -> Record | None:
    """The first committed record at or after an offset; None where there is none now.

    Raises:
        KohortError: its leader does not answer, or there is none.
    """
    first, end = span_of(admin, tp, "read_committed")
    with reader(settings, max_partition_fetch_bytes=4 << 20) as consumer:
        for page in pages_between(consumer, {tp: max(first, offset)}, {tp: end}, 1):
            return page[0].detach()
    return None
