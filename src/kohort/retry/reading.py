"""Reading partitions to the end that they have at the start, outside of any group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    Raises KafkaTimeoutError when records that are there do not come for half a minute.
    """
    with Consumer(config=config) as consumer:
        ends = consumer.end_offsets(partitions)
        firsts = consumer.beginning_offsets(partitions)
        left = [tp for tp in partitions if firsts[tp] < ends[tp]]
        consumer.assign(left)
        for tp in left:
            consumer.seek(tp, firsts[tp])
            consumer.limit(tp, ends[tp])
        silent = 0
        while left:
            page = consumer.poll(POLL_S, max_records=PAGE_RECORDS)
            if page:
                yield page
            silent = 0 if page else silent + 1
            left = [tp for tp in left if consumer.position(tp) < ends[tp]]
            if left and silent > PATIENCE_POLLS:
                raise KafkaTimeoutError(
                    f"{left[0]} has records up to {ends[left[0]]}, but none came for half a "
                    f"minute after {consumer.position(left[0])}"
                )
