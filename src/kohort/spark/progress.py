"""How far a pipeline is, and whether everything adds up: by store and topics, never in passing.

Rules (spec 6.3, README point 6):
- Failures are counted by the ledger; copies in topics are not counted, since orphans and duplicates
  are among them. A copy in the failed topic counts when its ledger row names its very place.
- Loaded rows are counted in the user's table, by the columns that name each row's input.
- A number that cannot be told is absent; nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kohort.config import format_duration
from kohort.retry.asking import TopicView
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.effects import quote
from kohort.retry.failed import FailedCopies
from kohort.retry.handling import HandlerSpec
from kohort.retry.store import Store
from kohort.spark.offsets import TopicPartition

if TYPE_CHECKING:
    from kohort.spark.pipeline import Pipeline

_NEWEST = (
    "NOT EXISTS (SELECT 1 FROM kohort_ledger n WHERE n.pipeline = l.pipeline "
    "AND n.retry_id = l.retry_id AND (n.redrive_count > l.redrive_count OR "
    "(n.redrive_count = l.redrive_count AND n.retry_number > l.retry_number)))"
)
"""True of the newest row of its record, which says what became of it."""


@dataclass(frozen=True)
class Progress:
    """Where a pipeline stands now.

    Attributes:
        inputs: records in the source topics.
        done: records that have been handled for the first time at least.
        in_tiers: failed records that wait for another try.
        failed: records that have failed, and that no redrive has sent back since.
        retries: attempts that were scheduled so far.
        next_offsets: the fence of every partition, tiers included.
    """

    inputs: int
    done: int
    in_tiers: int
    failed: int
    retries: int
    next_offsets: Mapping[TopicPartition, int] = field(repr=False)
    entering: int = 0

    @property
    def drained(self) -> bool:
        """Everything that is there has ended: loaded or failed."""
        return self.done >= self.inputs and self.in_tiers == 0 and self.entering == 0


def measure(pipeline: Pipeline, store: Store, port: ClusterPort) -> Progress:
    """The present progress. The fences are read before the ledger: what a fence has passed and
    failed is in the ledger by then, so that `drained` is never true too early.
    """
    topics = pipeline.topics
    views = port.topics()
    sources = _partitions(topics, views)
    entries = _partitions([t.entry for t in topics.values()], views)
    ends = port.latest([*sources, *entries])
    starts = port.earliest(sources)
    fences = {(f.topic, f.partition): f.next_offset for f in store.fences(pipeline.name)}
    counts = _counts(store, pipeline.name)
    return Progress(
        inputs=sum(ends[at] - starts[at] for at in sources),
        done=sum(max(0, fences.get(at, starts[at]) - starts[at]) for at in sources),
        in_tiers=counts["scheduled"],
        failed=counts["failed"],
        retries=counts["retries"],
        next_offsets=fences,
        entering=sum(max(0, ends[at] - fences.get(at, 0)) for at in entries),
    )


def _counts(store: Store, name: str) -> dict[str, int]:
    rows = store.query(
        "SELECT coalesce(sum(CASE WHEN status = 'scheduled' THEN 1 ELSE 0 END), 0), "
        "coalesce(sum(CASE WHEN retry_number > 0 THEN 1 ELSE 0 END), 0), "
        "coalesce(sum(CASE WHEN status = 'failed' "
        f"AND {_NEWEST} THEN 1 ELSE 0 END), 0) FROM kohort_ledger l WHERE pipeline = ?",
        (name,),
    )
    scheduled, retries, failed = rows[0]
    return {"scheduled": int(scheduled), "retries": int(retries), "failed": int(failed)}


@dataclass
class TopicReconciliation:
    """What became of the inputs that a source topic still holds; what waits in tiers, of all.

    Attributes:
        loaded: distinct inputs with a row in the handler's table; None when the handler names no
            `origin` columns, and the table therefore cannot tell.
        duplicates: rows beyond the first of an input.
        both: inputs that are loaded and failed.
        missing: inputs that are neither loaded, nor failed, nor in a tier.
        strangers: rows that name an input which the topic does not hold.
        failed_copies: copies in the failed topic that the ledger backs.
    """

    topic: str
    inputs: int
    handled: int
    loaded: int | None
    failed: dict[str, int]
    in_tiers: int
    loaded_after_retry: int
    duplicates: int = 0
    both: int = 0
    missing: int = 0
    strangers: int = 0
    failed_copies: int = 0


@dataclass
class Reconciliation:
    """Everything adds up when `exact` is True. See `TopicReconciliation` for the fields."""

    topics: dict[str, TopicReconciliation]

    @property
    def exact(self) -> bool:
        """Each input once and only once, none left, and the failed topic agrees with the ledger."""
        return all(
            t.inputs == t.handled
            and not (t.duplicates or t.both or t.missing or t.strangers or t.in_tiers)
            and t.failed_copies == sum(t.failed.values())
            for t in self.topics.values()
        )

    def of(self, topic: str) -> TopicReconciliation:
        """The part of one source topic."""
        return self.topics[topic]

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a report."""
        return {"exact": self.exact, "topics": {n: asdict(t) for n, t in self.topics.items()}}


def reconcile(pipeline: Pipeline) -> Reconciliation:
    """Count what became of every input, by the store's tables, its ledger, and the topics."""
    store, port = pipeline.open_store(), ClusterPort(pipeline.client_config)
    try:
        views = port.topics()
        found: dict[str, TopicReconciliation] = {}
        for spec in pipeline.handlers:
            at = _partitions([spec.topic], views)
            starts, ends = port.earliest(at), port.latest(at)
            fences = {(f.topic, f.partition): f.next_offset for f in store.fences(pipeline.name)}
            part = TopicReconciliation(
                topic=spec.topic,
                inputs=sum(ends[tp] - starts[tp] for tp in at),
                handled=sum(max(0, fences.get(tp, starts[tp]) - starts[tp]) for tp in at),
                loaded=None,
                failed=_failed_by_reason(store, pipeline.name, spec.topic, starts),
                in_tiers=_in_state(store, pipeline.name, spec.topic, "scheduled", {}),
                loaded_after_retry=_in_state(store, pipeline.name, spec.topic, "done", starts),
            )
            if spec.table is not None and spec.origin is not None:
                _count_rows(part, spec, store, pipeline.name, starts, ends)
            part.failed_copies = _backed(pipeline, spec.topic, store, views, starts)
            found[spec.topic] = part
        return Reconciliation(found)
    finally:
        store.close()
        port.close()


def retries_over_time(
    pipeline: Pipeline, store: Store, *, bucket_ms: int = 1_000
) -> dict[str, list[tuple[int, int]]]:
    """By tier (`5m`): (time in ms, retries scheduled then) in time order, from the ledger."""
    rows = store.query(
        "SELECT delay_ms, created_at / ? * ?, count(*) FROM kohort_ledger "
        "WHERE pipeline = ? AND delay_ms IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2",
        (bucket_ms, bucket_ms, pipeline.name),
    )
    found: dict[str, list[tuple[int, int]]] = {}
    for delay_ms, at, count in rows:
        found.setdefault(format_duration(int(delay_ms)), []).append((int(at), int(count)))
    return found


def _count_rows(
    part: TopicReconciliation, spec: HandlerSpec, store: Store, name: str,
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int],
) -> None:  # fmt: skip
    assert spec.table is not None, "rows are counted in a table"
    assert spec.origin is not None, "rows are counted by their origin"
    p, o = quote(spec.origin[0]), quote(spec.origin[1])
    held, below = _held(part.topic, starts, p, o)
    table = f"{quote(spec.table)} WHERE {held}"
    distinct = f"(SELECT DISTINCT {p} AS p, {o} AS o FROM {table}) t"
    ((rows, loaded),) = store.query(
        f"SELECT (SELECT count(*) FROM {table}), (SELECT count(*) FROM {distinct})",
        (*below, *below),
    )
    ((both,),) = store.query(
        f"SELECT count(*) FROM {distinct} JOIN kohort_ledger l ON l.origin_partition = t.p "
        "AND l.origin_offset = t.o WHERE l.pipeline = ? AND l.origin_topic = ? "
        f"AND l.status = 'failed' AND {_NEWEST}",
        (*below, name, part.topic),
    )
    strangers = 0
    for partition, count, low, high in store.query(
        f"SELECT p, count(*), min(o), max(o) FROM {distinct} GROUP BY p", below
    ):
        at = (part.topic, partition)
        if at not in ends or low < 0 or high >= ends[at]:
            strangers += int(count)
    part.loaded = int(loaded)
    part.duplicates = int(rows) - int(loaded)
    part.both = int(both)
    part.strangers = strangers
    waiting = _in_state(store, name, part.topic, "scheduled", starts)
    ended = int(loaded) + sum(part.failed.values()) - part.both + waiting
    part.missing = max(0, part.handled - ended)


def _held(
    topic: str, starts: Mapping[TopicPartition, int], partition: str, offset: str
) -> tuple[str, tuple[int, ...]]:
    """A condition in SQL, with its parameters: not of an input that retention has deleted."""
    below = [(number, start) for (name, number), start in starts.items() if name == topic and start]
    sql = " AND ".join(f"NOT ({partition} = ? AND {offset} < ?)" for _ in below) or "1 = 1"
    return sql, tuple(value for pair in below for value in pair)


def _failed_by_reason(
    store: Store, name: str, topic: str, starts: Mapping[TopicPartition, int]
) -> dict[str, int]:
    held, below = _held(topic, starts, "origin_partition", "origin_offset")
    rows = store.query(
        "SELECT reason, count(*) FROM kohort_ledger l WHERE pipeline = ? AND origin_topic = ? "
        f"AND {held} AND status = 'failed' AND {_NEWEST} GROUP BY reason ORDER BY reason",
        (name, topic, *below),
    )
    return {str(reason): int(count) for reason, count in rows}


def _in_state(
    store: Store, name: str, topic: str, status: str, starts: Mapping[TopicPartition, int]
) -> int:
    held, below = _held(topic, starts, "origin_partition", "origin_offset")
    ((count,),) = store.query(
        "SELECT count(*) FROM kohort_ledger l WHERE pipeline = ? AND origin_topic = ? "
        f"AND {held} AND status = ? AND {_NEWEST}",
        (name, topic, *below, status),
    )
    return int(count)


def _backed(
    pipeline: Pipeline, topic: str, store: Store, views: Mapping[str, TopicView],
    starts: Mapping[TopicPartition, int],
) -> int:  # fmt: skip
    names = pipeline.topics[topic]
    if names.failed not in views:
        return 0
    count = views[names.failed].partitions
    copies = FailedCopies(pipeline.name, names, store, pipeline.client_config, count)
    found = (c.origin for c in copies.read() if c.backed and c.origin.topic == topic)
    return sum(origin.offset >= starts.get((topic, origin.partition), 0) for origin in found)


def _partitions(names: Iterable[str], views: Mapping[str, Any]) -> list[TopicPartition]:
    return [(n, p) for n in names if n in views for p in range(views[n].partitions)]


__all__ = [
    "Progress", "Reconciliation", "TopicReconciliation", "measure", "reconcile",
    "retries_over_time",
]  # fmt: skip
