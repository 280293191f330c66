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

UNANSWERED: Final = (
    BrokerError, ConnectionFailedError, KafkaTimeoutError, NoOffsetForPartitionError, ProtocolError,
)  # fmt: skip


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


def _ask(
    settings: Mapping[str, Any], spans: Mapping[TopicPartition, tuple[int, int]]
) -> set[TopicPartition]:
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer

    found, open_ones = set[TopicPartition](), set(spans)
    own: dict[str, Any] = {
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "allow_auto_create_topics": False,
        "max_partition_fetch_bytes": FETCH_BYTES,
    }
    with Consumer(**{**settings, **own}) as consumer:
        consumer.assign(spans)
        for tp, (committed, _) in spans.items():
            consumer.seek(tp, committed)
        deadline = time.monotonic() + ASK_S
        while open_ones and (left_s := deadline - time.monotonic()) > 0:
            records = consumer.poll(min(POLL_S, left_s))
            read = {TopicPartition(one.topic, one.partition) for one in records} & open_ones
            ended = {tp for tp in open_ones - read if consumer.position(tp) >= spans[tp][1]}
            found |= ended
            open_ones -= read | ended
            consumer.pause(*read, *ended)
    return found
