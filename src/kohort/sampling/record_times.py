"""When the record at a committed offset was written: one small fetch for each partition.

Offsets are not records: markers of transactions take one each, aborted records stay for a while,
and compaction leaves gaps. Where a fetch passes the end without a record, there is nothing to read.

Rules: at most `MOST` partitions are asked, for `ASK_S` in all; what does not answer, or what this
user may not read, is left out. Nothing is committed. An answer is kept until the offset moves.

Shell: the clock.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from kohort.errors import KohortError

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer

MOST: Final = 200
ASK_S: Final = 2.0
POLL_S: Final = 0.1
FETCH_BYTES: Final = 64 << 10
KEPT: Final = 20_000
"""Answers that are remembered."""


class RecordTimes:
    """Asks for the times of records, and remembers them.

    Args:
        settings: of the consumer that reads, in Kafka's names.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        own: dict[str, Any] = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
            "max_partition_fetch_bytes": FETCH_BYTES,
        }
        self._settings = {**settings, **own}
        self._consumer: Consumer | None = None
        self._known: dict[tuple[TopicPartition, int], int | None] = {}

    def times(
        self, spans: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int | None]:
        """The time of the first record at or after each offset.

        Args:
            spans: (committed offset, end), by partition.

        Returns:
            Milliseconds since 1970, negative for a record that has no time, and None where no
            committed record is before the end; without those that did not answer in time.
        """
        requested = [tp for tp, (offset, _) in spans.items() if (tp, offset) not in self._known]
        if requested:
            try:
                self._ask({tp: spans[tp] for tp in requested[:MOST]})
            except KohortError:
                self.close()  # a new consumer asks next time
        places = {tp: (tp, offset) for tp, (offset, _) in spans.items()}
        return {tp: self._known[at] for tp, at in places.items() if at in self._known}

    def _ask(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> None:
        from kohort.client.common.types import TopicPartition
        from kohort.client.consumer.consumer import Consumer

        if self._consumer is None:
            self._consumer = Consumer(**self._settings)
        consumer, left = self._consumer, set(spans)
        consumer.assign(spans)
        for tp, (offset, _) in spans.items():
            consumer.seek(tp, offset)
        deadline = time.monotonic() + ASK_S
        while left and (left_s := deadline - time.monotonic()) > 0:
            read = set[TopicPartition]()
            for record in consumer.poll(min(POLL_S, left_s)):
                tp = TopicPartition(record.topic, record.partition)
                if tp in left and tp not in read:
                    read.add(tp)
                    self._keep(tp, spans[tp][0], record.timestamp)
            ended = {tp for tp in left - read if consumer.position(tp) >= spans[tp][1]}
            for tp in ended:
                self._keep(tp, spans[tp][0], None)
            left -= read | ended
            consumer.pause(*read, *ended)
        consumer.assign([])

    def _keep(self, tp: TopicPartition, offset: int, at_ms: int | None) -> None:
        self._known[tp, offset] = at_ms
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]

    def forget_nothing(self) -> None:
        """Ask again where nothing was to be read: a record may have come since."""
        self._known = {key: at for key, at in self._known.items() if at is not None}

    def close(self) -> None:
        """Close the consumer; the next question opens another."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
