"""The lag of a streaming query, from the progress that Spark reports. Pure.

Rules:
- Every query that reads Kafka's topics is understood, by `format("kohort")` or by Spark's own
  connector: both write offsets as `{"topic": {"0": 23}}`.
- An unknown figure is None, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from kohort.spark.offsets import RESERVED, TopicPartition

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class QueryHealth:
    """One streaming query, as of its last progress.

    Attributes:
        name: its `queryName`, or its id without one.
        id: the id that its checkpoint keeps.
        batch_id: the last batch that ended; None before the first.
        at_ms: when its last progress was made, in milliseconds since 1970.
        active: False when it was stopped or has failed.
        error: why it failed; empty when it did not.
        next: by partition, the offset after the last record that a batch has handled.
        ends: by partition, the end of the log when the last batch was planned.
        rows: how many records the last batch has read; where Spark counts fewer rows than the
            batch has offsets, the offsets.
        batch_ms: how long the last trigger took, in milliseconds.
        rows_per_s: how many rows it handles a second.
        bytes_behind: bytes of unread records, by the size of the oldest ones; None when not asked.
        oldest_ms: when the oldest unread record was written; None when not asked, or none is,
            or one has no timestamp.
    """

    name: str
    id: str
    batch_id: int | None = None
    at_ms: int = 0
    active: bool = True
    error: str = ""
    next: Offsets = field(default_factory=dict[TopicPartition, int])
    ends: Offsets = field(default_factory=dict[TopicPartition, int])
    rows: int = 0
    batch_ms: int = 0
    rows_per_s: float = 0.0
    bytes_behind: int | None = None
    oldest_ms: int | None = None

    @property
    def behind(self) -> Offsets:
        """Records that are not read, by partition, as far as they are known."""
        return {at: max(0, end - self.next[at]) for at, end in self.ends.items() if at in self.next}

    @property
    def records_behind(self) -> int | None:
        """Records that are not read; None when the source does not tell the ends of its logs."""
        return sum(self.behind.values()) if self.behind else None

    def seconds_behind(self, now_ms: int) -> float | None:
        """How long ago the oldest unread record was written; 0 when all is read."""
        if self.oldest_ms is not None:
            return max(0, now_ms - self.oldest_ms) / 1000
        return 0.0 if self.records_behind == 0 else None


def after(health: QueryHealth, progress: Mapping[str, Any]) -> QueryHealth:
    """What one progress event tells, as `StreamingQueryProgress.json` holds it."""
    began: Offsets = {}
    reached: Offsets = {}
    ends: Offsets = {}
    for source in cast(list[dict[str, Any]], progress.get("sources", [])):
        began |= offsets_in(source.get("startOffset"))
        reached |= offsets_in(source.get("endOffset"))
        ends |= offsets_in(source.get("latestOffset"))
    batch_ms = cast(dict[str, int], progress.get("durationMs", {})).get("triggerExecution", 0)
    rows = int(progress.get("numInputRows", 0))
    rows_per_s = float(progress.get("processedRowsPerSecond", 0.0))
    spanned = sum(max(0, end - began[at]) for at, end in reached.items() if at in began)
    if spanned > rows:  # the rows of a query of handlers are ranges, which its sink fetches
        rows, rows_per_s = spanned, spanned * 1000 / batch_ms if batch_ms else 0.0
    return replace(
        health,
        batch_id=int(progress["batchId"]),
        at_ms=_ms(str(progress["timestamp"])),
        next=health.next | reached,
        ends=health.ends | ends,
        rows=rows,
        batch_ms=batch_ms,
        rows_per_s=rows_per_s,
        bytes_behind=None,
        oldest_ms=None,
    )


def offsets_in(offset: Any) -> Offsets:
    """The offsets of a source's position; empty where it is not one of Kafka's topics."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    if not isinstance(offset, dict):
        return {}
    found: Offsets = {}
    for topic, partitions in cast(dict[str, Any], offset).items():
        if topic == RESERVED or not isinstance(partitions, dict):
            continue
        for partition, number in cast(dict[str, Any], partitions).items():
            if partition.isdigit() and isinstance(number, int):
                found[topic, int(partition)] = number
    return found


def unread(queries: Iterable[QueryHealth]) -> dict[TopicPartition, int]:
    """The oldest unread record of each partition of these queries."""
    found: dict[TopicPartition, int] = {}
    for query in queries:
        for at, count in query.behind.items():
            if count:
                found[at] = min(found.get(at, query.next[at]), query.next[at])
    return found


def _ms(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp() * 1000)
