"""Screen 3, dead letters: one bug or many, since when, and what a redrive would send back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.console.views.figures import (
    Paging,
    ago,
    clock,
    count,
    paging,
    spark,
    whole,
)

if TYPE_CHECKING:
    from kohort.console.views.masks import Content, Masks
    from kohort.observe.retry_owners import RetryOwner
    from kohort.observe.snapshot import ClusterSnapshot
    from kohort.sampling.retry_records import Copies, RetryCopy

READ_AT_MOST: Final = 5_000
ROWS: Final = 50
BUCKETS: Final = 24


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One dead-letter topic."""

    name: str
    topic: str
    group: str
    records: str
    partitions: int


@dataclass(frozen=True, slots=True)
class DeadLetterTopics:
    """All dead-letter topics of the cluster, the fullest first."""

    rows: Sequence[TopicRow]


def dead_letter_topics(
    owners: Sequence[RetryOwner], sizes: Mapping[str, int], snapshot: ClusterSnapshot
) -> DeadLetterTopics:
    """The list of dead-letter topics.

    Args:
        owners: of all retry topics.
        sizes: how many offsets each dead-letter topic holds, as far as leaders answer.
        snapshot: of the cluster.
    """
    having = [owner for owner in owners if owner.dead_letter in snapshot.topics]
    having.sort(key=lambda o: (-sizes.get(o.dead_letter or "", -1), o.topic, o.group))
    return DeadLetterTopics(
        [
            TopicRow(
                o.dead_letter or "",
                o.topic,
                o.group,
                count(sizes.get(o.dead_letter or "")),
                len(snapshot.topics[o.dead_letter or ""].partitions),
            )
            for o in having
        ]
    )


@dataclass(frozen=True, slots=True)
class KindRow:
    """Failures of one kind; `spark` is how many over the time between the first and the last."""

    reason: str
    error_class: str
    fingerprint: str
    message: str
    count: int
    first: str
    last: str
    last_at: str
    spark: str


@dataclass(frozen=True, slots=True)
class FailedRow:
    """One failed record."""

    place: str
    origin: str
    origin_topic: str
    origin_partition: int
    origin_offset: int
    partition: int
    offset: int
    reason: str
    error_class: str
    message: str
    attempts: int
    redrives: int
    failed: str
    failed_at: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class RedriveRow:
    """A redrive that has begun: how far it has come, by its committed offsets."""

    name: str
    done: int
    total: int
    finished: bool


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """One dead-letter topic."""

    name: str
    topic: str
    group: str
    total: int
    looked_at: int
    strangers: int
    kinds: Sequence[KindRow]
    rows: Sequence[FailedRow]
    paging: Paging
    redrives: Sequence[RedriveRow]
    chosen: Mapping[str, str]
    silent: Sequence[str]


FILTERS: Final = ("reason", "error_class", "fingerprint", "text")


def dead_letter_topic(
    owner: RetryOwner,
    copies: Copies,
    redrives: Sequence[RedriveRow],
    query: Mapping[str, str],
    masks: Masks,
    now_ms: int,
) -> DeadLetterTopic:
    """A dead-letter topic's kinds and records for a query.

    Args:
        owner: whose it is.
        copies: its youngest copies.
        redrives: those that have begun.
        query: `reason`, `error_class`, `fingerprint`, `text`, `page`.
        masks: what `text` is not looked for in.
        now_ms: milliseconds since 1970.
    """
    chosen = {name: query.get(name, "") for name in FILTERS}
    some = [one for one in copies.copies if _chosen(one, chosen, masks)]
    some.sort(key=lambda one: -one.retry.last_failed_at_ms)
    place = paging(len(some), whole(query.get("page", ""), 1), ROWS)
    return DeadLetterTopic(
        owner.dead_letter or "",
        owner.topic,
        owner.group,
        copies.total,
        len(copies.copies),
        copies.strangers,
        _kinds(copies.copies, now_ms),
        [_row(one, now_ms) for one in some[place.first : place.last]],
        place,
        redrives,
        chosen,
        [str(tp) for tp in copies.silent],
    )


def _chosen(one: RetryCopy, chosen: Mapping[str, str], masks: Masks) -> bool:
    retry, record = one.retry, one.record
    for name, value in (
        ("reason", retry.reason),
        ("error_class", retry.error_class),
        ("fingerprint", retry.fingerprint),
    ):
        if chosen[name] and chosen[name] != value:
            return False
    text = chosen["text"].lower()
    words = f"{retry.reason} {retry.error_class} {retry.error_message}".lower()
    return not text or text in words or masks.finds(text, record.key, record.value)


def _kinds(copies: Sequence[RetryCopy], now_ms: int) -> list[KindRow]:
    groups: dict[tuple[str, str, str], list[RetryCopy]] = {}
    for one in copies:
        retry = one.retry
        groups.setdefault((retry.reason, retry.error_class, retry.fingerprint), []).append(one)
    first_ms = min((one.retry.last_failed_at_ms for one in copies), default=now_ms)
    rows: list[KindRow] = []
    for (reason, error_class, fingerprint), some in groups.items():
        times = [one.retry.last_failed_at_ms for one in some]
        rows.append(
            KindRow(
                reason,
                error_class,
                fingerprint,
                some[-1].retry.error_message,
                len(some),
                clock(min(times)),
                ago(max(times), now_ms),
                clock(max(times)),
                spark(_buckets(times, first_ms, now_ms)),
            )
        )
    return sorted(rows, key=lambda row: -row.count)


def _buckets(times: Sequence[int], first_ms: int, now_ms: int) -> list[float | None]:
    width = max(1, (now_ms - first_ms) // BUCKETS + 1)
    counts: list[float | None] = [0.0] * BUCKETS
    for at in times:
        place = min(BUCKETS - 1, max(0, (at - first_ms) // width))
        counts[place] = (counts[place] or 0.0) + 1
    return counts


def _row(one: RetryCopy, now_ms: int) -> FailedRow:
    retry, record = one.retry, one.record
    origin = retry.origin
    return FailedRow(
        f"{record.partition}:{record.offset}",
        origin.retry_id,
        origin.topic,
        origin.partition,
        origin.offset,
        record.partition,
        record.offset,
        retry.reason,
        retry.error_class,
        retry.error_message,
        retry.number + 1,
        retry.redrive_count,
        ago(retry.last_failed_at_ms, now_ms),
        clock(retry.last_failed_at_ms),
        retry.fingerprint,
    )


@dataclass(frozen=True, slots=True)
class HeaderRow:
    """A header; Kohort's own are marked."""

    name: str
    content: Content
    ours: bool


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """One record of a dead-letter topic, whole."""

    name: str
    topic: str
    group: str
    row: FailedRow
    stack: str
    disposition: str
    key: Content
    value: Content
    headers: Sequence[HeaderRow]
    first_failed: str


def failed_record(owner: RetryOwner, one: RetryCopy, masks: Masks, now_ms: int) -> FailedRecord:
    """A failed record with everything its headers say."""
    from kohort.retry.headers import RESERVED

    retry, record = one.retry, one.record
    headers = [
        HeaderRow(name, masks.header(name, value), name in RESERVED)
        for name, value in record.headers
        if name != "retry_error_stack"
    ]
    return FailedRecord(
        owner.dead_letter or "",
        owner.topic,
        owner.group,
        _row(one, now_ms),
        retry.error_stack,
        retry.disposition.value,
        masks.key(record.key),
        masks.value(record.value),
        sorted(headers, key=lambda h: (h.ours, h.name)),
        clock(retry.first_failed_at_ms),
    )
