"""Read-only views of a ledger: what waits in each retry topic, and what failed and why.

Rules (spec 5.6, 6.3):
- Read only, by committed state, one query an answer; a pipeline may run meanwhile.
- The newest row of a record says what became of it; copies in topics are not looked at.
- Every list has a limit that its caller gives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from kohort.errors import KohortError, StorageError
from kohort.retry.headers import Origin
from kohort.retry.ledger import LedgerRow, Place
from kohort.retry.store import ENDED, NEWEST, Store

log = logging.getLogger("kohort.retry")
T = TypeVar("T")
_FIRST_FAILED = (
    "(SELECT min(f.created_at) FROM kohort_ledger f "
    "WHERE f.pipeline = l.pipeline AND f.retry_id = l.retry_id)"
)


@dataclass(frozen=True, slots=True)
class RetryTopicState:
    """What waits in one retry topic. Times: ms since 1970; None when nothing waits or is due."""

    topic: str
    waiting: int
    due_now: int
    oldest_due_ms: int | None
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One record that waits for its next try. Times are ms since 1970.

    Attributes:
        number: which retry it waits for.
        waits_in: the retry topic with its copy.
        waits_at: where in it, as `TOPIC/PARTITION/OFFSET`; empty where only the ledger was asked.
    """

    origin: Origin
    number: int
    reason: str
    error_class: str
    error_message: str
    fingerprint: str
    first_failed_ms: int
    due_ms: int | None
    waits_in: str
    waits_at: str = ""


@dataclass(frozen=True, slots=True)
class FailedRow:
    """One record that has failed, by the ledger. `attempts` counts the first try, too."""

    origin: Origin
    reason: str
    error_class: str
    error_message: str
    fingerprint: str
    disposition: str
    attempts: int
    redrives: int
    first_failed_ms: int
    failed_ms: int
    copy: Place | None


@dataclass(frozen=True, slots=True)
class FailedKind:
    """Records that failed in the same way."""

    reason: str
    error_class: str
    fingerprint: str
    count: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class FailedFilter:
    """The failed records to list; None: all. `since_ms` is when a record failed permanently.

    `text` is looked for in reason, class and message, without regard to case.
    """

    reason: str | None = None
    error_class: str | None = None
    fingerprint: str | None = None
    topic: str | None = None
    since_ms: int | None = None
    text: str | None = None

    def sql(self, lower: str) -> tuple[str, list[Any]]:
        """Conditions on the ledger row `l`, each begun with AND, and their values.

        Args:
            lower: the database's function for small letters, as `Store.lower`.
        """
        conditions: list[tuple[str, Any]] = [
            ("l.reason = ?", self.reason),
            ("l.error_class = ?", self.error_class),
            ("l.fingerprint = ?", self.fingerprint),
            ("l.origin_topic = ?", self.topic),
            ("l.closed_at >= ?", self.since_ms),
            (
                f"{lower}(l.reason || ' ' || l.error_class || ' ' || l.error_message) LIKE ? "
                "ESCAPE '!'",
                None if self.text is None else f"%{_literally(self.text.lower())}%",
            ),
        ]
        chosen = [(text, value) for text, value in conditions if value is not None]
        return "".join(f" AND {text}" for text, _ in chosen), [value for _, value in chosen]


def _literally(text: str) -> str:
    """A text for LIKE that means itself."""
    for mark in "!%_":
        text = text.replace(mark, f"!{mark}")
    return text


def retry_topic_states(
    store: Store, pipeline: str, retry_topics: Iterable[str], now_ms: int
) -> list[RetryTopicState]:
    """The named retry topics in their order, then others in which something waits.

    Raises StorageError when the store has no ledger.
    """
    rows = _ask(
        store,
        "SELECT dest, count(*), sum(CASE WHEN due <= ? THEN 1 ELSE 0 END), min(due), "
        "min(CASE WHEN due > ? THEN due END) FROM kohort_ledger "
        "WHERE pipeline = ? AND status = 'scheduled' GROUP BY dest ORDER BY dest",
        [now_ms, now_ms, pipeline],
    )
    states = {
        str(dest): RetryTopicState(str(dest), int(count), int(due), oldest, following)
        for dest, count, due, oldest, following in rows
    }
    named = list(dict.fromkeys(retry_topics))
    names = [*named, *(name for name in states if name not in named)]
    return [states.get(name, RetryTopicState(name, 0, 0, None, None)) for name in names]


def failed_rows(
    store: Store, pipeline: str, failed_filter: FailedFilter, limit: int
) -> list[FailedRow]:
    """Records that have failed, the latest first. Raises StorageError without a ledger."""
    conditions, values = failed_filter.sql(store.lower)
    rows = _ask(
        store,
        "SELECT origin_topic, origin_partition, origin_offset, origin_timestamp, reason, "
        "error_class, error_message, fingerprint, disposition, retry_number, redrive_count, "
        f"{_FIRST_FAILED}, closed_at, dest, copy_partition, copy_offset FROM kohort_ledger l "
        f"WHERE l.pipeline = ? AND l.status = 'failed' AND {NEWEST}{conditions} "
        "ORDER BY closed_at DESC, retry_id LIMIT ?",
        [pipeline, *values, limit],
    )
    return [_failed_row(row) for row in rows]


def failed_kinds(
    store: Store, pipeline: str, failed_filter: FailedFilter, limit: int
) -> list[FailedKind]:
    """How many failed in which way, the most frequent first. Raises StorageError as above."""
    conditions, values = failed_filter.sql(store.lower)
    rows = _ask(
        store,
        "SELECT reason, error_class, fingerprint, count(*), min(closed_at), max(closed_at) "
        f"FROM kohort_ledger l WHERE l.pipeline = ? AND l.status = 'failed' AND {NEWEST}"
        f"{conditions} GROUP BY reason, error_class, fingerprint "
        "ORDER BY count(*) DESC, reason, error_class, fingerprint LIMIT ?",
        [pipeline, *values, limit],
    )
    return [FailedKind(*row) for row in rows]


def ended_count(store: Store, pipeline: str, before_ms: int) -> int:
    """How many records `Store.vacuum` would forget. Raises StorageError without a ledger."""
    ((count,),) = _ask(store, f"SELECT count(*) {ENDED}", [pipeline, before_ms])
    return int(count)


def pipelines(store: Store) -> Mapping[str, int]:
    """The pipelines and apps that have kept a ledger or progress here, with their ledger rows."""
    rows = _ask(
        store,
        "SELECT pipeline, sum(n) FROM (SELECT pipeline, 0 AS n FROM kohort_fence UNION ALL "
        "SELECT pipeline, 1 AS n FROM kohort_ledger) AS both_tables "
        "GROUP BY pipeline ORDER BY pipeline",
        [],
    )
    counts = {str(name): int(count) for name, count in rows}
    for name, _ in _app_topics(store):
        counts.setdefault(name, 0)
    return dict(sorted(counts.items()))


def topics_read(store: Store, name: str) -> set[str]:
    """The topics, retry topics included, that a pipeline or app has progress of."""
    fences = _explained(store, lambda: store.fences(name))
    return {row.topic for row in fences} | {
        topic for group, topic in _app_topics(store) if group == name
    }


def _app_topics(store: Store) -> list[tuple[str, str]]:
    """Each app with each of its topics."""
    try:
        rows = store.query("SELECT DISTINCT pipeline, topic FROM kohort_progress")
    except KohortError:
        raise
    except Exception as error:  # every database has its own classes
        log.warning(
            "the progress of apps in %s cannot be read, so only pipelines are known: %s (a store "
            "of before version 0.1 has none)",
            without_password(store.url),
            error,
        )
        return []
    return [(str(name), str(topic)) for name, topic in rows]


def without_password(url: str) -> str:
    """A store's URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


def _failed_row(row: Sequence[Any]) -> FailedRow:
    (
        topic,
        partition,
        offset,
        timestamp,
        reason,
        error_class,
        message,
        fingerprint,
        disposition,
        number,
        redrives,
        first,
        failed,
        dest,
        copy_partition,
        copy_offset,
    ) = row
    return FailedRow(
        Origin(topic, partition, offset, timestamp),
        reason,
        error_class,
        message,
        fingerprint,
        disposition,
        number + 1,
        redrives,
        first,
        failed,
        None if copy_offset is None else Place(dest, copy_partition, copy_offset),
    )


def _ask(store: Store, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return _explained(store, lambda: store.query(sql, values))


def _explained(store: Store, read: Callable[[], T]) -> T:
    """What `read` finds. Raises StorageError where the tables are not a ledger's."""
    try:
        return read()
    except KohortError:
        raise
    except Exception as error:  # every database has its own classes
        raise StorageError(
            f"the ledger in {without_password(store.url)} cannot be read: {error}; is this the "
            "store of a pipeline or an app that has run?"
        ) from error


def attempt_rows(store: Store, name: str, retry_id: str) -> list[LedgerRow]:
    """Every attempt of a record, in order. Raises StorageError without a ledger."""
    rows = _explained(store, lambda: list(store.rows(name, "retry_id = ?", (retry_id,))))
    return sorted(rows, key=lambda row: (row.redrive_count, row.number))


def waiting_rows(store: Store, name: str, limit: int) -> tuple[int, list[WaitingRow]]:
    """How many records wait for their next try, and those that are due first.

    Args:
        name: the pipeline, or the app's group.
        limit: the most rows.

    Raises StorageError without a ledger.
    """
    where = "FROM kohort_ledger l WHERE l.pipeline = ? AND l.status = 'scheduled'"
    count = _ask(store, f"SELECT count(*) {where}", (name,))[0][0]
    rows = _ask(
        store,
        "SELECT origin_topic, origin_partition, origin_offset, origin_timestamp, retry_number, "
        f"reason, error_class, error_message, fingerprint, {_FIRST_FAILED}, due, dest {where} "
        f"ORDER BY due, retry_id LIMIT {int(limit)}",
        (name,),
    )
    return int(count), [WaitingRow(Origin(*row[:4]), *row[4:]) for row in rows]


@dataclass(frozen=True, slots=True)
class BookRow:
    """What a pipeline has done with one partition, counted in the transactions of its results.

    Attributes:
        since_offset: where counting began.
        next_offset: every record below is settled: the fence.
        updated_ms: when the fence moved last.
        read: records that ended in one of the ways behind it.
    """

    topic: str
    partition: int
    since_offset: int
    next_offset: int
    updated_ms: int
    read: int
    loaded: int
    filtered: int
    scheduled: int
    failed: int

    @property
    def balanced(self) -> bool:
        """Whether every record that was read is counted in exactly one way."""
        return self.read == self.loaded + self.filtered + self.scheduled + self.failed


def books(store: Store, pipeline: str) -> list[BookRow]:
    """The books of every partition that a pipeline reads. Raises StorageError without a ledger."""
    rows = _ask(
        store,
        "SELECT f.topic, f.partition, c.since_offset, f.next_offset, f.updated_at, c.read, "
        "c.loaded, c.filtered, c.scheduled, c.failed FROM kohort_fence f JOIN kohort_counts c "
        "ON c.pipeline = f.pipeline AND c.topic = f.topic AND c.partition = f.partition "
        "WHERE f.pipeline = ? ORDER BY f.topic, f.partition",
        [pipeline],
    )
    return [BookRow(str(row[0]), *map(int, row[1:])) for row in rows]
