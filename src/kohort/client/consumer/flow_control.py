"""Flow control between topics, by pause and resume (spec 4.11).

    urgent_first = Priorities([["orders-urgent"], ["orders"]])
    while True:
        records = consumer.poll()
        urgent_first.apply(consumer)

Rules:
- Decisions are pure (`paused`); `apply` compares them with what is paused and changes the rest.
- Only partitions of the topics that were named are paused or resumed; others are left alone.
- A paused partition keeps its buffer and continues exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kohort.client.common.types import TopicPartition
from kohort.client.consumer.health import ConsumerHealth
from kohort.errors import ConfigError
from kohort.records import Record


class Flowing(Protocol):
    """What is asked of a consumer, sync or async."""

    def health(self) -> ConsumerHealth: ...
    def assignment(self) -> frozenset[TopicPartition]: ...
    def paused(self) -> frozenset[TopicPartition]: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...


class Priorities:
    """Read lower topics only while nothing is left to read in the higher ones.

    Args:
        levels: topics, the most urgent level first.
        max_lag: what may be left in a higher topic without holding back the lower ones.
    """

    def __init__(self, levels: Sequence[Iterable[str]], *, max_lag: int = 0) -> None:
        self._levels = [frozenset(level) for level in levels]
        if len(set[str]().union(*self._levels)) != sum(map(len, self._levels)):
            raise ConfigError("a topic is in two levels; give each topic one priority")
        self._max_lag = max_lag

    def paused(self, lags: Mapping[TopicPartition, int | None]) -> set[TopicPartition]:
        """What has to wait. A lag of None (not known yet) pauses no partition."""
        held: set[TopicPartition] = set()
        busy = False
        for level in self._levels:
            mine = [tp for tp in lags if tp.topic in level]
            if busy:
                held.update(mine)
            busy = busy or any((lags[tp] or 0) > self._max_lag for tp in mine)
        return held

    def apply(self, consumer: Flowing) -> set[TopicPartition]:
        """Pause and resume as it has to be now; what is paused by this."""
        lags = {each.partition: each.lag for each in consumer.health().partitions}
        held = self.paused(lags)
        _change(consumer, held, set[str]().union(*self._levels))
        return held


class Together:
    """Keep streams that are joined within a bound of each other, by the time of their records.

    Each partition is compared by the newest time that was handed out of it. The partition that is
    furthest behind is never held back; those that are more than `bound_ms` ahead of it wait. A
    partition that has been read to its end pauses no partition: it has nothing to wait for.

    Args:
        topics: the streams.
        bound_ms: how far a partition may be ahead, in milliseconds of record time.
    """

    def __init__(self, topics: Iterable[str], bound_ms: int) -> None:
        self._topics = frozenset(topics)
        self._at: dict[TopicPartition, int] = {}
        """The newest time of each partition of which something was handed out."""
        if len(self._topics) < 2 or bound_ms < 0:
            raise ConfigError("keeping streams together takes two topics and a bound of 0 or more")
        self._bound_ms = bound_ms

    def saw(self, records: Iterable[Record]) -> None:
        """Tell what was handed out."""
        for record in records:
            if record.topic in self._topics:
                tp = TopicPartition(record.topic, record.partition)
                self._at[tp] = max(self._at.get(tp, 0), record.timestamp)

    def ahead(self, unread: Mapping[TopicPartition, bool]) -> set[TopicPartition]:
        """The partitions that have to wait.

        Args:
            unread: the assigned partitions, and whether something is left to read in each.

        Returns:
            Those whose time is more than the bound ahead of the slowest with something left. One
            that has not been read yet counts as the slowest.
        """
        behind = [self._at.get(tp, 0) for tp, more in unread.items() if more and self._mine(tp)]
        if not behind:
            return set()
        latest = min(behind) + self._bound_ms
        return {tp for tp in unread if self._mine(tp) and self._at.get(tp, 0) > latest}

    def apply(self, consumer: Flowing) -> set[TopicPartition]:
        """Pause and resume as it has to be now; the partitions that wait."""
        unread = {each.partition: each.lag != 0 for each in consumer.health().partitions}
        for tp in self._at.keys() - unread.keys():
            del self._at[tp]  # revoked: its next owner tells how far it is
        held = self.ahead(unread)
        _change(consumer, held, self._topics)
        return held

    def _mine(self, tp: TopicPartition) -> bool:
        return tp.topic in self._topics


def _change(consumer: Flowing, held: set[TopicPartition], topics: Collection[str]) -> None:
    paused = consumer.paused()
    mine = consumer.assignment()
    if new := (held - paused) & mine:
        consumer.pause(*new)
    if over := {tp for tp in paused - held if tp.topic in topics}:
        consumer.resume(*over)
