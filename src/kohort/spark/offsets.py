"""Offsets as Spark keeps them, and how a range of them becomes tasks. Pure functions.

Rules:
- An offset is `{"topic": {"0": 23}}`, as the JVM connector writes it, and one reserved key `"@"`
  (no topic can be called so) for what the plan of a batch rests on: topic ids, where each partition
  began, the number of tasks, and of retry topics the time by which all was due. So the tasks of a
  batch are a function of (start, end) alone, and a replayed batch is planned as the first time.
- Spark keeps no record of where a Python source began. The first batch's end does: it is planned
  from where its end says that each partition began; after a crash the start may differ.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from kohort.errors import DataLossError, ProtocolError

TopicPartition = tuple[str, int]
RESERVED: Final = "@"


class Range(NamedTuple):
    """Offsets [start, end) of one partition. `first`: start is where the query began with it.

    `planned_ms` is the driver's time at which all of it was due; 0 where nothing has to be.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    first: bool = False
    planned_ms: int = 0

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass
class Position:
    """A query's position: the offset of each partition's next record, and the plan's inputs.

    Args:
        began: where each partition began, and so may have no fence yet.
        ids: the topic's id (text), by topic; a topic created again has another.
        tasks: how many tasks a batch is packed into.
        planned_ms: when the batch that ends here was planned, of a query that reads retry topics.
        initial: this is the answer to where the query begins, which a restart may answer otherwise.
    """

    next: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    began: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    tasks: int = 1
    planned_ms: int = 0
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """The dictionary that Spark writes into its offset log."""
        extra = {"began": _by_topic(self.began), "ids": self.ids, "tasks": self.tasks}
        if self.planned_ms:
            extra["planned"] = self.planned_ms
        if self.initial:
            extra["initial"] = True
        return {**_by_topic(self.next), RESERVED: extra}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Position:
        """Read what `to_json` wrote. Raises ProtocolError for anything else."""
        try:
            extra = offset.get(RESERVED, {})
            return cls(
                next=_by_partition({t: v for t, v in offset.items() if t != RESERVED}),
                began=_by_partition(extra.get("began", {})),
                ids={str(k): str(v) for k, v in extra.get("ids", {}).items()},
                tasks=max(1, int(extra.get("tasks", 1))),
                planned_ms=int(extra.get("planned", 0)),
                initial=extra.get("initial") is True,
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ProtocolError(
                f"the checkpoint holds an offset that is not ours: {str(offset)[:200]}"
            ) from error


def renewed(start: Position, ids: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The topics that were deleted and created again: their old id and the one in `ids`."""
    pairs = {name: (old, ids.get(name, "")) for name, old in start.ids.items()}
    return {name: (old, new) for name, (old, new) in pairs.items() if old and new and old != new}


def check_renewed(start: Position, ids: Mapping[str, str], remedy: str = "") -> None:
    """Raise DataLossError for a topic that was deleted and created again.

    Args:
        remedy: what the error advises; by default what any query can do.
    """
    remedy = remedy or (
        "Start a new query with a new checkpoint, or say failOnDataLoss=false to read the new "
        "topic from its beginning"
    )
    for topic, (old, new) in renewed(start, ids).items():
        raise DataLossError(
            f"topic {topic} was deleted and created again ({old} became {new}) while it was read. "
            f"{remedy}"
        )


def ranges(start: Position, end: Position, *, lenient: bool = False) -> list[Range]:
    """What lies between two positions, partitions in order. A new one begins where `end` says.

    Args:
        lenient: a topic that was created again is read from where `end` began with it.

    Raises DataLossError when a topic was created again in between, or an end is before its start.
    """
    found: list[Range] = []
    recreated = renewed(start, end.ids)
    if not lenient:
        check_renewed(start, end.ids)
    for (topic, partition), stop in sorted(end.next.items()):
        at = (topic, partition)
        begin = start.next.get(at, end.began.get(at, stop))
        if start.initial or topic in recreated:
            begin = end.began.get(at, stop)
        if stop < begin:
            raise DataLossError(f"{topic}/{partition}: the plan would go back, {begin} to {stop}")
        if stop > begin:
            first = begin == end.began.get(at, -1)
            topic_id = end.ids.get(topic, "")
            found.append(Range(topic, partition, begin, stop, topic_id, first, end.planned_ms))
    return found


def pack(
    spans: Sequence[Range], tasks: int, *, max_records: int | None, split: bool, least: int = 1
) -> list[list[Range]]:
    """The ranges of each task: about equal in records, at most `tasks`, more for `max_records`.

    Fewer tasks where they would have less than `least` records each.

    With `split`, big ranges are cut; without it every partition stays whole and in one task, which
    the fence of a pipeline needs. The same input always gives the same tasks.
    """
    if not spans:
        return []
    total = sum(s.size for s in spans)
    tasks = max(1, min(tasks, total // least))
    fair = -(-total // max(1, tasks))
    if split:
        limit = min(fair, max_records) if max_records else fair
        spans = [piece for span in spans for piece in _cut(span, max(1, limit))]
        if max_records:
            tasks = max(tasks, -(-total // max_records))
    bins: list[list[Range]] = [[] for _ in range(max(1, min(tasks, len(spans))))]
    loads = [(0, index) for index in range(len(bins))]
    for span in sorted(spans, key=lambda s: (-s.size, s.topic, s.partition, s.start)):
        load, lightest = loads[0]
        if split and max_records and load and load + span.size > max_records:
            heapq.heappush(loads, (span.size, len(bins)))
            bins.append([span])
            continue
        bins[lightest].append(span)
        heapq.heapreplace(loads, (load + span.size, lightest))
    return [sorted(b, key=lambda s: (s.topic, s.partition, s.start)) for b in bins if b]


def lag(position: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Records between a position and the ends."""
    return sum(max(0, end - position.get(at, end)) for at, end in ends.items())


def _cut(span: Range, size: int) -> Iterable[Range]:
    pieces = max(1, -(-span.size // size))
    each = -(-span.size // pieces)
    for low in range(span.start, span.end, each):
        yield span._replace(
            start=low, end=min(low + each, span.end), first=span.first and low == span.start
        )


def _by_topic(flat: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(flat.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _by_partition(nested: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in cast(Mapping[str, Any], partitions).items()
    }
