"""Whether there is a record between a committed offset and the end of its partition.

Offsets are not records: markers of transactions take one each, aborted records stay for a while,
and compaction leaves gaps. A member of librdkafka commits behind the last record, not behind the
marker after it, and lags by one for ever.

Rules: at most `MOST` partitions are asked, for `ASK_S` in all; one that does not answer, or that
this user may not read, counts as having records. Nothing is committed.

Shell: the clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import (
    BrokerError,
    ConnectionFailedError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    ProtocolError,
)

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition

MOST: Final = 200
ASK_S: Final = 5.0
POLL_S: Final = 0.1
FETCH_BYTES: Final = 64 << 10
"""A partition's part of an answer; a broker sends at least one batch."""
LOOKS_ONLY: Final[dict[str, Any]] = {
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "isolation_level": "read_committed",
    "allow_auto_create_topics": False,
    "max_partition_fetch_bytes": FETCH_BYTES,
}

UNANSWERED: Final = (
    BrokerError,
    ConnectionFailedError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    ProtocolError,
)


def without_records(
    settings: Mapping[str, Any], spans: Mapping[TopicPartition, tuple[int, int]]
) -> set[TopicPartition]:
    """Of partitions with (committed offset, end): those where no committed record is between.

    Args:
        settings: of the consumer that looks, in Kafka's names.
        spans: where to look from, and up to which offset.
    """
    if not spans:
        return set()
    try:
        return _ask(settings, dict(islice(sorted(spans.items()), MOST)))
    except UNANSWERED:
        return set()


def oldest_unread(
    settings: Mapping[str, Any], starts: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], tuple[int, int]]:
    """When the record at or after an offset was written, and how large records are there.

    Args:
        settings: of the consumer that looks, in Kafka's names.
        starts: the offset to look from, by topic and partition.

    Returns:
        By topic and partition, the oldest record's timestamp in milliseconds since 1970 (negative:
        it has none) and the mean size of the records that came with it, in bytes of keys and
        values. Those that did not answer in time are absent.
    """
    from kohort.client.consumer.consumer import Consumer

    chosen = dict(islice(sorted(starts.items()), MOST))
    oldest: dict[tuple[str, int], tuple[int, int]] = {}
    if not chosen:
        return oldest
    try:
        with Consumer(**{**settings, **LOOKS_ONLY}) as consumer:
            consumer.assign(chosen)
            for at, offset in chosen.items():
                consumer.seek(at, offset)
            deadline = time.monotonic() + ASK_S
            while len(oldest) < len(chosen) and (left_s := deadline - time.monotonic()) > 0:
                records = consumer.poll(min(POLL_S, left_s))
                for at in {(one.topic, one.partition) for one in records} - oldest.keys():
                    here = [one for one in records if (one.topic, one.partition) == at]
                    size = sum(len(one.key or b"") + len(one.value or b"") for one in here)
                    oldest[at] = (here[0].timestamp, size // len(here))
                    consumer.pause(at)
    except UNANSWERED:
        return oldest
    return oldest


def _ask(
    settings: Mapping[str, Any], spans: Mapping[TopicPartition, tuple[int, int]]
) -> set[TopicPartition]:
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer

    answered, open_ones = set[TopicPartition](), set(spans)
    with Consumer(**{**settings, **LOOKS_ONLY}) as consumer:
        consumer.assign(spans)
        for tp, (committed, _) in spans.items():
            consumer.seek(tp, committed)
        deadline = time.monotonic() + ASK_S
        while open_ones and (left_s := deadline - time.monotonic()) > 0:
            records = consumer.poll(min(POLL_S, left_s))
            read = {TopicPartition(one.topic, one.partition) for one in records} & open_ones
            ended = {tp for tp in open_ones - read if consumer.position(tp) >= spans[tp][1]}
            answered |= ended
            open_ones -= read | ended
            consumer.pause(*read, *ended)
    return answered
