"""Records of dead-letter topics and retry topics, read without joining a group.

Rules: only committed records are read, from the youngest `most` records of a topic on, up to its
present end; nothing is committed.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kohort.client.common.config import ConsumerConfig, known_to
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.retry.headers import HeaderFault, RetryHeaders, parse
from kohort.retry.reading import pages_between

if TYPE_CHECKING:
    from kohort.records import Record

PAGE_RECORDS: Final = 500


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
    """

    copies: Sequence[RetryCopy]
    total: int
    strangers: int


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


def latest_copies(settings: Mapping[str, Any], topic: str, partitions: int, most: int) -> Copies:
    """The youngest copies of a topic, about `most` of them, in the order of reading.

    Raises:
        KafkaTimeoutError: records that are there do not come.
    """
    parts = [TopicPartition(topic, number) for number in range(partitions)]
    share = max(1, most // max(1, partitions))
    copies: list[RetryCopy] = []
    strangers = 0
    with reader(settings) as consumer:
        firsts, ends = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
        starts = {tp: max(firsts[tp], ends[tp] - share) for tp in parts}
        for page in pages_between(consumer, starts, ends, PAGE_RECORDS):
            for record in page:
                try:
                    copies.append(RetryCopy(record.detach(), parse(record.headers)))
                except HeaderFault:
                    strangers += 1
    return Copies(copies, sum(ends[tp] - firsts[tp] for tp in parts), strangers)


@dataclass(frozen=True)
class WaitingCopy:
    """A record that waits in a retry topic, and when it is due, in milliseconds since 1970."""

    copy: RetryCopy
    due_ms: int


def waiting_copies(
    settings: Mapping[str, Any], group: str, topics: Mapping[str, int], limit: int
) -> tuple[int, list[WaitingCopy]]:
    """What a group has not tried again yet: how many records, and those that are due first.

    Args:
        settings: of clients, in Kafka's names.
        group: whose retry topics these are.
        topics: the number of partitions, by retry topic.
        limit: the most records that are listed.
    """
    from kohort.processing.engine.snapshot import SnapshotError, decode

    parts = [TopicPartition(name, p) for name, count in topics.items() for p in range(count)]
    count, first = 0, list[WaitingCopy]()
    with reader(settings, group_id=group) as consumer:
        ends, firsts = consumer.end_offsets(parts), consumer.beginning_offsets(parts)
        starts, done = dict(firsts), dict[TopicPartition, Sequence[tuple[int, int]]]()
        for tp, commit in consumer.committed(parts).items():
            if commit is not None:
                starts[tp] = max(firsts[tp], commit.offset)
                with contextlib.suppress(SnapshotError):  # another program's metadata
                    done[tp] = decode(commit.offset, commit.metadata).done
        for page in pages_between(consumer, starts, ends, PAGE_RECORDS):
            copies = [one for record in page if (one := _waiting(record, done)) is not None]
            count += len(copies)
            first = heapq.nsmallest(limit, [*first, *copies], key=lambda one: one.due_ms)
    return count, first


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


def record_at(settings: Mapping[str, Any], tp: TopicPartition, offset: int) -> Record | None:
    """The first committed record at or after an offset; None where there is none now."""
    with reader(settings, max_partition_fetch_bytes=4 << 20) as consumer:
        ends, firsts = consumer.end_offsets([tp]), consumer.beginning_offsets([tp])
        start = max(firsts[tp], offset)
        for page in pages_between(consumer, {tp: start}, ends, 1):
            return page[0].detach()
    return None
