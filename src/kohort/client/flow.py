"""Flow control between topics, by pause and resume (spec 4.11).

    urgent_first = Priorities([["orders-urgent"], ["orders"]])
    while True:
        records = consumer.poll()
        urgent_first.apply(consumer)

Rules:
- Decisions are pure (`paused`); `apply` compares them with what is paused and changes the rest.
- Only partitions of the topics that were named are paused or resumed; others are left alone.
- A paused partition keeps what is buffered, and goes on exactly where it stood.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kohort.client.health import ConsumerHealth
from kohort.client.types import TopicPartition
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
            raise ConfigError("a topic stands in two levels; give each topic one priority")
        self._max_lag = max_lag

    def paused(self, lags: Mapping[TopicPartition, int | None]) -> set[TopicPartition]:
        """What has to wait. A lag of None (not known yet) holds nobody back."""
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

    The stream that is furthest behind is never held back; the others wait when they are more than
    `bound_ms` ahead of it. A stream that has been read to its end holds nobody back: nothing can
    be waited for there.

    Args:
        topics: the streams.
        bound_ms: how far one may be ahead, in milliseconds of record time.
    """

    def __init__(self, topics: Iterable[str], bound_ms: int) -> None:
        self._at: dict[str, int | None] = dict.fromkeys(topics)
        if len(self._at) < 2 or bound_ms < 0:
            raise ConfigError("keeping streams together takes two topics and a bound of 0 or more")
        self._bound_ms = bound_ms

    def saw(self, records: Iterable[Record]) -> None:
        """Tell what was handed out."""
        for record in records:
            if record.topic in self._at:
                known = self._at[record.topic]
                self._at[record.topic] = max(known or 0, record.timestamp)

    def ahead(self, at_end: Iterable[str] = ()) -> set[str]:
        """The topics that have to wait, when those in `at_end` have nothing left to read."""
        ended = set(at_end)
        behind = [at for topic, at in self._at.items() if topic not in ended]
        if not behind:
            return set()
        slowest = min(at or 0 for at in behind)
        return {
            topic
            for topic, at in self._at.items()
            if at is not None and at - slowest > self._bound_ms
        }

    def apply(self, consumer: Flowing) -> set[str]:
        """Pause and resume as it has to be now; the topics that wait."""
        left: dict[str, bool] = dict.fromkeys(self._at, False)
        for each in consumer.health().partitions:
            if each.partition.topic in left and each.lag != 0:
                left[each.partition.topic] = True
        ahead = self.ahead(topic for topic, more in left.items() if not more)
        held = {tp for tp in consumer.assignment() if tp.topic in ahead}
        _change(consumer, held, set(self._at))
        return ahead


def _change(consumer: Flowing, held: set[TopicPartition], topics: set[str]) -> None:
    paused = consumer.paused()
    mine = consumer.assignment()
    if new := (held - paused) & mine:
        consumer.pause(*new)
    if over := {tp for tp in paused - held if tp.topic in topics}:
        consumer.resume(*over)
