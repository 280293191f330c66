"""The progress of a pipeline, and its reconciliation: computed from store and topics.

Rules (spec 6.3, README point 6):
- Failures are counted by the ledger; copies in topics are not counted, since orphans and duplicates
  are among them. A copy in the dead-letter topic counts when its ledger row names its very place.
- What became of a record is counted in the transaction that does it. Gaps in offsets (markers,
  compaction), handlers that return nothing, several rows of a record and replaced rows are no loss.
- Each record that was read is loaded, filtered, failed or in a retry topic; where rows name their
  input and are never replaced, the table must hold as many as were written.
- A number that cannot be known is absent; nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kohort.config import format_duration
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.dead_letters import FailedCopies
from kohort.retry.ledger import Counts
from kohort.retry.offset_queries import TopicView, markers_alone
from kohort.retry.policy import RetryTopics
from kohort.retry.sql_statements import quote
from kohort.retry.store import NEWEST, Store
from kohort.spark.offsets import TopicPartition
from kohort.spark.outputs.late import LATE_ROWS
from kohort.spark.outputs.swapping import owing_stages, swapping

if TYPE_CHECKING:
    from kohort.spark.dataframes.graph import Graph


class Accountable(Protocol):
    """A pipeline, as far as its progress and its books need it."""

    name: str
    graph: Graph

    @property
    def topics(self) -> Mapping[str, RetryTopics]:
        """The retry topics by source topic."""
        ...

    @property
    def client_config(self) -> Mapping[str, str]:
        """The configuration of its clients."""
        ...

    @property
    def books(self) -> Sequence[Book]:
        """The topics whose inputs are counted."""
        ...

    def open_store(self) -> Store:
        """Its store, not connected yet."""
        ...


@dataclass(frozen=True)
class Progress:
    """The progress of a pipeline now.

    Attributes:
        inputs: records in the source topics.
        done: records that have been handled for the first time at least.
        retrying: failed records that wait for another try.
        failed: records that have failed, and that no redrive has sent back since.
        retries: attempts that were scheduled so far.
        next_offsets: the fence of every partition, retry topics included.
    """

    inputs: int
    done: int
    retrying: int
    failed: int
    retries: int
    next_offsets: Mapping[TopicPartition, int] = field(repr=False)
    entering: int = 0

    @property
    def ending(self) -> bool:
        """No source record waits for its first try, and none for a retry."""
        return self.done >= self.inputs and self.retrying == 0

    @property
    def drained(self) -> bool:
        """Everything that is there has ended: loaded or failed."""
        return self.ending and self.entering == 0


def measure(
    pipeline: Accountable, store: Store, port: ClusterPort, forwarded: Iterable[str] = ()
) -> Progress:
    """The present progress. The fences are read before the ledger: what a fence has passed and
    failed is in the ledger by then, so that `drained` is never true too early.
    """
    topics = pipeline.topics
    views = port.topics()
    sources = _partitions(topics, views)
    entries = _partitions([t.entry for t in topics.values()], views)
    handed = _partitions(forwarded, views)
    ends = port.latest([*sources, *entries, *handed])
    starts = port.earliest(sources)
    fences = {(f.topic, f.partition): f.next_offset for f in store.fences(pipeline.name)}
    begun = {at: fences.get(at, starts.get(at, 0)) for at in ends}
    behind = {at: (begun[at], end) for at, end in ends.items() if begun[at] < end}
    if behind and markers_alone(port, behind):  # no batch is made of them
        ends |= {at: begun[at] for at in behind}
    counts = _counts(store, pipeline.name)
    return Progress(
        inputs=sum(ends[at] - starts[at] for at in sources),
        done=sum(max(0, fences.get(at, starts[at]) - starts[at]) for at in sources),
        retrying=counts["scheduled"],
        failed=counts["failed"],
        retries=counts["retries"],
        next_offsets=fences,
        entering=sum(max(0, ends[at] - fences.get(at, 0)) for at in (*entries, *handed)),
    )


def _counts(store: Store, name: str) -> dict[str, int]:
    rows = store.query(
        "SELECT (SELECT count(*) FROM kohort_ledger WHERE pipeline = ? AND status = 'scheduled'), "
        "(SELECT coalesce(sum(scheduled), 0) FROM kohort_counts WHERE pipeline = ?), "
        "(SELECT count(*) FROM kohort_ledger l WHERE pipeline = ? AND status = 'failed' "
        f"AND {NEWEST})",
        (name, name, name),
    )
    scheduled, retries, failed = rows[0]
    return {"scheduled": int(scheduled), "retries": int(retries), "failed": int(failed)}


@dataclass(frozen=True, slots=True)
class Book:
    """One topic whose inputs are balanced, and the table whose rows name them, if one does.

    Args:
        origin: the table's columns with partition and offset of a row's input.
        key: the columns by which rows replace each other.
    """

    topic: str
    table: str | None = None
    origin: tuple[str, str] | None = None
    key: tuple[str, ...] = ()


@dataclass
class TopicReconciliation:
    """What became of the inputs of a source topic since its pipeline began.

    Attributes:
        inputs: records that were read, and offsets that are still to be read.
        handled: records that were read.
        loaded: records with something written, after a retry or at once; None for a pipeline that
            began before its records were counted.
        filtered: records for which the handler returned nothing to write.
        loaded_after_retry: of `loaded` and `filtered`, those that had failed before.
        duplicates: outcomes beyond one of each record, or rows in the table beyond those written.
        both: inputs with a row that have failed.
        missing: records without an outcome, or rows that were written and are not in the table.
        strangers: rows that name an input which the topic never had.
        failed_copies: copies in the dead-letter topic that the ledger backs, of inputs that the
            source topic still holds; `failed_held` is how many there should be.
    """

    topic: str
    inputs: int
    handled: int
    loaded: int | None
    failed: dict[str, int]
    retrying: int
    loaded_after_retry: int
    duplicates: int = 0
    both: int = 0
    missing: int = 0
    strangers: int = 0
    failed_copies: int = 0
    failed_held: int = 0
    filtered: int | None = None


@dataclass
class Reconciliation:
    """Everything adds up when `exact` is True. See `TopicReconciliation` for the fields.

    Attributes:
        late: by step, rows that came behind its watermark and were dropped, in the batches of
            `kohort_batch_history`.
        owing: steps whose last batch is in the tables, and whose Kafka transaction has not ended:
            readers of their topics may not see its records yet. The next run ends it.
        behind: by source or step, how many offsets of its rows the steps that keep state have yet
            to read.
    """

    topics: dict[str, TopicReconciliation]
    late: dict[str, int] = field(default_factory=dict[str, int])
    owing: list[str] = field(default_factory=list[str])
    behind: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def exact(self) -> bool:
        """Each input ended exactly once, the dead-letter topic agrees with the ledger, no Kafka
        transaction is left to end, and the steps that keep state have read all their rows."""
        return not (self.owing or self.behind) and all(
            t.inputs == t.handled
            and not (t.duplicates or t.both or t.missing or t.strangers or t.retrying)
            and t.failed_copies == t.failed_held
            for t in self.topics.values()
        )

    def of(self, topic: str) -> TopicReconciliation:
        """The part of one source topic."""
        return self.topics[topic]

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a report."""
        topics = {n: asdict(t) for n, t in self.topics.items()}
        return {
            "exact": self.exact,
            "topics": topics,
            "late": self.late,
            "owing": self.owing,
            "behind": self.behind,
        }


def reconcile(pipeline: Accountable) -> Reconciliation:
    """Count what became of every input, by the store's tables, its ledger, and the topics."""
    store, port = pipeline.open_store(), ClusterPort(pipeline.client_config)
    try:
        views = port.topics()
        found: dict[str, TopicReconciliation] = {}
        for spec in pipeline.books:
            at = _partitions([spec.topic], views)
            starts, ends = port.earliest(at), port.latest(at)
            books = _Books(pipeline, spec, store, at)
            found[spec.topic] = part = books.balance(starts, ends)
            part.failed_copies = _backed(pipeline, spec.topic, store, views, starts)
        owing = owing_stages(store, pipeline.name)
        behind = _behind(pipeline, store, port, views)
        return Reconciliation(found, _late(store, pipeline.name), owing, behind)
    finally:
        store.close()
        port.close()


def _behind(
    pipeline: Accountable, store: Store, port: ClusterPort, views: Mapping[str, TopicView]
) -> dict[str, int]:
    """By source or step, what its intermediate topics hold that no step has read."""
    nodes = pipeline.graph.possible_intermediate_topics(pipeline.name)
    at = _partitions(nodes, views)
    if not at:
        return {}
    starts, ends = port.earliest(at), port.latest(at)
    fences = {(f.topic, f.partition): f.next_offset for f in store.fences(pipeline.name)}
    found: dict[str, int] = {}
    for part in at:
        begin, end = max(fences.get(part, 0), starts[part]), ends[part]
        if begin < end and not markers_alone(port, {part: (begin, end)}):
            node = nodes[part[0]]
            found[node] = found.get(node, 0) + end - begin
    return found


def _late(store: Store, name: str) -> dict[str, int]:
    """By step, the rows that stateful stages have dropped as late."""
    if not swapping(store).has("kohort_batch_history"):
        return {}
    prefix = f"{name}."
    rows = store.query(
        "SELECT query, sum(rows_read) FROM kohort_batch_history WHERE output = ? "
        "GROUP BY query ORDER BY query",
        (LATE_ROWS,),
    )
    steps = [(query[len(prefix) :], int(n)) for query, n in rows if query.startswith(prefix)]
    return {step: count for step, count in steps if "." not in step}


def retries_over_time(
    pipeline: Accountable, store: Store, *, bucket_ms: int = 1_000
) -> dict[str, list[tuple[int, int]]]:
    """By delay (`5m`): (time in ms, retries scheduled then) in time order, from the ledger."""
    rows = store.query(
        "SELECT delay_ms, created_at / ? * ?, count(*) FROM kohort_ledger "
        "WHERE pipeline = ? AND delay_ms IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2",
        (bucket_ms, bucket_ms, pipeline.name),
    )
    found: dict[str, list[tuple[int, int]]] = {}
    for delay_ms, at, count in rows:
        found.setdefault(format_duration(int(delay_ms)), []).append((int(at), int(count)))
    return found


class _Books:
    """The counts, the ledger and the table of one handler, read in one statement."""

    def __init__(
        self, pipeline: Accountable, spec: Book, store: Store, at: list[TopicPartition]
    ) -> None:
        self._name, self._spec, self._store, self._at = pipeline.name, spec, store, at
        self._retry_topics = list(pipeline.topics[spec.topic].delays_ms)
        self._since = {
            (spec.topic, int(partition)): int(since)
            for partition, since in store.query(
                "SELECT partition, since_offset FROM kohort_counts "
                "WHERE pipeline = ? AND topic = ?",
                (self._name, spec.topic),
            )
        }
        self._fences: dict[TopicPartition, int] = {}
        self._counted: dict[str, Counts] = {}
        self._ledger: dict[str, int] = {}
        self._rows: int | None = None

    def balance(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> TopicReconciliation:
        """What became of every record that was read."""
        self._read()
        topic, name = self._spec.topic, self._name
        left = sum(max(0, ends[at] - self._fences.get(at, starts[at])) for at in self._at)
        part = TopicReconciliation(
            topic=topic,
            inputs=left,
            handled=0,
            loaded=None,
            failed=_failed_by_reason(self._store, name, topic, {}),
            retrying=self._ledger.get("scheduled", 0),
            loaded_after_retry=0,
            failed_held=sum(_failed_by_reason(self._store, name, topic, starts).values()),
        )
        if set(self._fences) <= set(self._since):
            self._balance_counts(part)
        else:  # it began before records were counted
            part.handled = sum(max(0, o - starts.get(at, o)) for at, o in self._fences.items())
            part.loaded_after_retry = _in_state(self._store, name, topic, "done", starts)
        part.inputs = left + part.handled
        if self._spec.table is not None and self._spec.origin is not None:
            self._look_at_rows(part, ends)
        return part

    def _balance_counts(self, part: TopicReconciliation) -> None:
        first = self._counted.get(self._spec.topic, Counts())
        again = [self._counted[t] for t in self._retry_topics if t in self._counted]
        part.handled = first.read
        part.loaded_after_retry = sum(c.loaded + c.filtered for c in again)
        part.loaded = first.loaded + sum(c.loaded for c in again)
        part.filtered = first.filtered + sum(c.filtered for c in again)
        ended = part.loaded + part.filtered + sum(self._ledger.values())
        part.missing, part.duplicates = max(0, first.read - ended), max(0, ended - first.read)
        if self._rows is not None and not self._spec.key:
            written = first.rows + sum(c.rows for c in again)
            part.missing += max(0, written - self._rows)
            part.duplicates += max(0, self._rows - written)

    def _read(self) -> None:
        """All in one statement, and so of one moment."""
        zeros = ", 0" * (len(Counts.names()) - 1)
        sql = (
            f"SELECT 'counts', topic, 0, {', '.join(Counts.names())} FROM kohort_counts "
            "WHERE pipeline = ? UNION ALL "
            f"SELECT 'fence', topic, partition, next_offset{zeros} FROM kohort_fence "
            "WHERE pipeline = ? AND topic = ? UNION ALL "
            f"SELECT 'ledger', status, 0, count(*){zeros} FROM kohort_ledger l WHERE pipeline = ? "
            f"AND origin_topic = ? AND status IN ('scheduled', 'failed') AND {NEWEST} "
            "GROUP BY status"
        )
        topic = self._spec.topic
        params: list[Any] = [self._name, self._name, topic, self._name, topic]
        if self._spec.table is not None and self._spec.origin is not None:
            table, below = self._table(self._spec.table, self._spec.origin)
            sql += f" UNION ALL SELECT 'rows', '', 0, count(*){zeros} FROM {table}"
            params += below
        for kind, name, partition, *numbers in self._store.query(sql, params):
            values = [int(number) for number in numbers]
            if kind == "counts":
                counts = astuple(self._counted.get(name, Counts()))
                self._counted[name] = Counts(*map(sum, zip(counts, values, strict=True)))
            elif kind == "fence":
                self._fences[name, int(partition)] = values[0]
            elif kind == "ledger":
                self._ledger[name] = values[0]
            else:
                self._rows = values[0]

    def _table(self, table: str, origin: tuple[str, str]) -> tuple[str, tuple[int, ...]]:
        """The table's rows that name an input since counting began, with the parameters."""
        p, o = quote(origin[0]), quote(origin[1])
        held, below = _held(self._spec.topic, self._since, p, o)
        return f"{quote(table)} WHERE {p} IS NOT NULL AND {o} IS NOT NULL AND {held}", below

    def _look_at_rows(self, part: TopicReconciliation, ends: Mapping[TopicPartition, int]) -> None:
        """Rows that name an input which has failed, or which there never was."""
        assert self._spec.table is not None, "rows are counted in a table"
        assert self._spec.origin is not None, "rows are counted by their origin"
        p, o = (quote(column) for column in self._spec.origin)
        table, below = self._table(self._spec.table, self._spec.origin)
        distinct = f"(SELECT DISTINCT {p} AS p, {o} AS o FROM {table}) t"
        ((both,),) = self._store.query(
            f"SELECT count(*) FROM {distinct} JOIN kohort_ledger l ON l.origin_partition = t.p "
            "AND l.origin_offset = t.o WHERE l.pipeline = ? AND l.origin_topic = ? "
            f"AND l.status = 'failed' AND {NEWEST}",
            (*below, self._name, part.topic),
        )
        part.both = int(both)
        for partition, count, low, high in self._store.query(
            f"SELECT p, count(*), min(o), max(o) FROM {distinct} GROUP BY p", below
        ):
            at = (part.topic, partition)
            if at not in ends or low < 0 or high >= ends[at]:
                part.strangers += int(count)


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
        f"AND {held} AND status = 'failed' AND {NEWEST} GROUP BY reason ORDER BY reason",
        (name, topic, *below),
    )
    return {str(reason): int(count) for reason, count in rows}


def _in_state(
    store: Store, name: str, topic: str, status: str, starts: Mapping[TopicPartition, int]
) -> int:
    held, below = _held(topic, starts, "origin_partition", "origin_offset")
    ((count,),) = store.query(
        "SELECT count(*) FROM kohort_ledger l WHERE pipeline = ? AND origin_topic = ? "
        f"AND {held} AND status = ? AND {NEWEST}",
        (name, topic, *below, status),
    )
    return int(count)


def _backed(
    pipeline: Accountable,
    topic: str,
    store: Store,
    views: Mapping[str, TopicView],
    starts: Mapping[TopicPartition, int],
) -> int:
    names = pipeline.topics[topic]
    if names.dead_letter not in views:
        return 0
    count = views[names.dead_letter].partitions
    copies = FailedCopies(pipeline.name, names, store, pipeline.client_config, count)
    found = (c.origin for c in copies.read() if c.backed and c.origin.topic == topic)
    return sum(origin.offset >= starts.get((topic, origin.partition), 0) for origin in found)


def _partitions(names: Iterable[str], views: Mapping[str, Any]) -> list[TopicPartition]:
    return [(n, p) for n in names if n in views for p in range(views[n].partitions)]


__all__ = [
    "Progress",
    "Reconciliation",
    "TopicReconciliation",
    "measure",
    "reconcile",
    "retries_over_time",
]
