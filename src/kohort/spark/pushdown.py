"""Predicates of a batch read that become seeks. Pure.

Rules (spec 6.7):
- A predicate on topic, partition or offset is answered by what is read, and Spark does not look at
  it again. A lower bound on timestamp only moves the start, and Spark still looks at each row:
  timestamps within a partition may be out of order. An upper bound moves nothing, for that reason.
- Predicates are those that Spark hands over: the parts of one AND. Everything else is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from kohort.spark.offsets import Range, TopicPartition

Offsets = Mapping[TopicPartition, int]
NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp", "timestampType")
LAST: Final = (1 << 63) - 1


@dataclass
class Seeks:
    """What of the log the predicates leave.

    Attributes:
        topics, partitions: the only ones; None for all.
        low, high: offsets [low, high).
        from_ms: records before the first at or past this time are not read.
    """

    topics: set[Any] | None = None
    partitions: set[Any] | None = None
    low: int = 0
    high: int = LAST
    from_ms: int | None = None
    _above: int = field(default=-1, init=False)
    _below: int = field(default=LAST, init=False)

    def take(self, kind: str, column: str, value: Any) -> bool:
        """Take a predicate in; whether Spark need not look at it again.

        Args:
            kind: the name of Spark's class, such as `EqualTo`.
            value: what the column is compared with; of `In` all of them.
        """
        if kind == "IsNotNull":
            return column in NEVER_NULL
        if value is None:
            return False
        if column in ("topic", "partition") and kind in ("EqualTo", "In"):
            self._only(column, set(value) if kind == "In" else {value})
            return True
        if column == "offset" and isinstance(value, int) and kind in _BOUNDS:
            low, high = _BOUNDS[kind](value)
            self.low, self.high = max(self.low, low), min(self.high, high)
            return True
        if column == "partition" and isinstance(value, int) and kind in _BOUNDS:
            low, high = _BOUNDS[kind](value)
            self._above, self._below = max(self._above, low - 1), min(self._below, high)
            return True
        if column == "timestamp" and kind in _AT_LEAST and isinstance(value, datetime):
            at_ms = int(value.timestamp() * 1_000) - 1  # a float of seconds is near, not exact
            self.from_ms = max(self.from_ms or 0, at_ms)
        return False

    def _only(self, column: str, values: set[Any]) -> None:
        if column == "topic":
            self.topics = values if self.topics is None else self.topics & values
        else:
            self.partitions = values if self.partitions is None else self.partitions & values

    def _reads(self, span: Range) -> bool:
        return (
            (self.topics is None or span.topic in self.topics)
            and (self.partitions is None or span.partition in self.partitions)
            and self._above < span.partition < self._below
        )

    def _clipped(self, span: Range) -> Range:
        return span._replace(start=max(span.start, self.low), end=min(span.end, self.high))

    def spans(
        self, spans: Iterable[Range], first_at: Callable[[dict[TopicPartition, int]], Offsets]
    ) -> list[Range]:
        """The part of the ranges that is left.

        Args:
            first_at: gives the first offset of each partition at or past a time (ms); -1 where all
                records are before it. Asked when there is such a predicate.
        """
        left = [self._clipped(s) for s in spans if self._reads(s)]
        left = [s for s in left if s.size > 0]
        if self.from_ms is None or not left:
            return left
        first = first_at({(s.topic, s.partition): self.from_ms for s in left})
        moved = [
            s._replace(start=max(s.start, first[s.topic, s.partition]))
            for s in left
            if first[s.topic, s.partition] >= 0
        ]
        return [s for s in moved if s.size > 0]


_BOUNDS: Final[Mapping[str, Callable[[int], tuple[int, int]]]] = {
    "EqualTo": lambda v: (v, v + 1),
    "GreaterThan": lambda v: (v + 1, LAST),
    "GreaterThanOrEqual": lambda v: (v, LAST),
    "LessThan": lambda v: (0, v),
    "LessThanOrEqual": lambda v: (0, v + 1),
}
_AT_LEAST: Final = ("EqualTo", "GreaterThan", "GreaterThanOrEqual")
