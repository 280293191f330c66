"""Reading partitions to the end that they have at the start, outside of any group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kohort.client.config import ConsumerConfig
from kohort.client.consumer import Consumer
from kohort.client.types import TopicPartition
from kohort.errors import KafkaTimeoutError
from kohort.records import Record

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
        page = consumer.poll(POLL_S, max_records=most)
        if page:
            yield page
        silent = 0 if page else silent + 1
        left = [tp for tp in left if consumer.position(tp) < ends[tp]]
        if left and silent > PATIENCE_POLLS:
            raise KafkaTimeoutError(
                f"{left[0]} has records up to {ends[left[0]]}, but none came for half a minute "
                f"after {consumer.position(left[0])}; start it again to go on"
            )
