"""Reading partitions to the end that they have at the start, outside of any group."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.errors import CorruptRecordError, KafkaTimeoutError
from kohort.records import Record
from kohort.retry.unreadable import Unreadable

log = logging.getLogger("kohort.retry")

POLL_S: Final = 0.5
PATIENCE_POLLS: Final = 60
PAGE_RECORDS: Final = 1_000


def pages_to_end(
    config: ConsumerConfig, partitions: Sequence[TopicPartition]
) -> Iterator[list[Record]]:
    """Every record there is now, up to 1,000 at a time, each partition in offset order.

    Raises as `pages_between`.
    """
    with Consumer(config=config) as consumer:
        ends = consumer.end_offsets(partitions)
        starts = consumer.beginning_offsets(partitions)
        yield from pages_between(consumer, starts, ends, PAGE_RECORDS)


def poll_past_damage(
    consumer: Consumer, timeout_s: float, max_records: int | None = None
) -> Sequence[Record]:
    """A poll that goes past batches which cannot be read, and warns of each.

    For readers of retry topics and dead-letter topics; programs that handle records
    keeps the bytes (`kohort.retry.unreadable`). Raises CorruptRecordError where the next readable
    offset is not known.
    """
    try:
        return consumer.poll(timeout_s, max_records=max_records)
    except CorruptRecordError as error:
        unreadable = Unreadable.of(error)
        if unreadable is None:
            raise
        log.warning("%s; passed over", error)
        consumer.seek(
            TopicPartition(unreadable.topic, unreadable.partition), unreadable.next_offset
        )
        return ()


def pages_between(
    consumer: Consumer,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    most: int,
) -> Iterator[list[Record]]:
    """Every record from `starts` up to `ends`, up to `most` at a time.

    Raises KafkaTimeoutError when records that are there do not come for half a minute.
    """
    left = [tp for tp, start in starts.items() if start < ends[tp]]
    consumer.assign(left)
    for tp in left:
        consumer.seek(tp, starts[tp])
        consumer.limit(tp, ends[tp])
    silent = 0
    while left:
        page = list(poll_past_damage(consumer, POLL_S, most))
        if page:
            yield page
        unread = len(left)
        left = [tp for tp in left if consumer.position(tp) < ends[tp]]
        silent = 0 if page or len(left) < unread else silent + 1
        if left and silent > PATIENCE_POLLS:
            raise KafkaTimeoutError(
                f"{left[0]} has records up to {ends[left[0]]}, but none came for half a minute "
                f"after {consumer.position(left[0])}; start it again to continue"
            )
