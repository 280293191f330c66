"""Reading partitions to the end that they have at the start, outside of any group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kohort.errors import KafkaTimeoutError

if TYPE_CHECKING:
    from kohort.client.types import TopicPartition
    from kohort.records import Record

POLL_S = 0.5
PATIENCE_POLLS = 60
PAGE_RECORDS = 1_000


def read_to_end(
    settings: Mapping[str, Any], partitions: Sequence[TopicPartition]
) -> Iterator[Record]:
    """Every record there is now. Raises KafkaTimeoutError when they do not come for 30 seconds."""
    from kohort.client.consumer import Consumer

    with Consumer(**settings) as consumer:
        ends = consumer.end_offsets(partitions)
        firsts = consumer.beginning_offsets(partitions)
        left = [tp for tp in partitions if firsts[tp] < ends[tp]]
        consumer.assign(left)
        for tp in left:
            consumer.seek(tp, firsts[tp])
            consumer.limit(tp, ends[tp])
        silent = 0
        while left:
            records = consumer.poll(POLL_S, max_records=PAGE_RECORDS)
            yield from records
            silent = 0 if records else silent + 1
            left = [tp for tp in left if consumer.position(tp) < ends[tp]]
            if left and silent > PATIENCE_POLLS:
                raise KafkaTimeoutError(
                    f"{left[0]} has records up to {ends[left[0]]}, but none came for half a "
                    f"minute after {consumer.position(left[0])}"
                )
