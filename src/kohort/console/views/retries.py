"""Screen 4, what waits for its next try: when it is due, where, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.config import format_duration
from kohort.console.views.figures import clock, count, duration, spark

if TYPE_CHECKING:
    from kohort.console.views.masks import Content, Masks
    from kohort.observe.overview import Overview
    from kohort.observe.retry_owners import RetryOwner
    from kohort.sampling.retry_records import Waiting, WaitingCopy

LISTED: Final = 200
BUCKETS: Final = 30


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The retry topics of one (topic, group); `waiting` counts offsets that are not committed."""

    topic: str
    group: str
    delays: str
    waiting: str
    dead: str
    dead_letter: str


@dataclass(frozen=True, slots=True)
class RetryTopicsView:
    """All groups that retry."""

    rows: Sequence[OwnerRow]


def retry_topics_view(
    owners: Sequence[RetryOwner], sizes: Mapping[str, int], overview: Overview
) -> RetryTopicsView:
    """The list of groups that retry, with what waits.

    Args:
        owners: of all retry topics.
        sizes: how many offsets each dead-letter and retry topic holds.
        overview: the last overview, which has the lag of each retry topic.
    """
    rows = [
        (
            _waiting(owner, sizes, overview) or 0,
            OwnerRow(
                owner.topic,
                owner.group,
                ", ".join(format_duration(ms) for ms in owner.retry_topics.values() if ms) or "–",
                count(_waiting(owner, sizes, overview)),
                count(sizes.get(owner.dead_letter or "")),
                owner.dead_letter or "",
            ),
        )
        for owner in owners
    ]
    return RetryTopicsView([row for _, row in sorted(rows, key=lambda item: -item[0])])


def _waiting(owner: RetryOwner, sizes: Mapping[str, int], overview: Overview) -> int | None:
    """Offsets that are not committed: all of a topic where nothing is committed yet."""
    view = overview.groups.get(owner.group)
    seen = list(view.look.partitions.items()) if view else []
    lags: list[int] = []
    for topic in owner.retry_topics:
        here = [s.lag for tp, s in seen if tp.topic == topic and s.lag is not None]
        if here:
            lags.append(sum(here))
        elif topic in sizes:
            lags.append(sizes[topic])
    return sum(lags) if lags else None


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """One record that waits."""

    origin: str
    origin_topic: str
    origin_partition: int
    origin_offset: int
    attempt: int
    due: str
    due_at: str
    late: bool
    reason: str
    error: str
    waits_in: str
    at: str


@dataclass(frozen=True, slots=True)
class DueBar:
    """How many records fall due in one part of the time line."""

    label: str
    count: int
    share: int


@dataclass(frozen=True, slots=True)
class RetriesView:
    """What waits in the retry topics of one (topic, group)."""

    topic: str
    group: str
    total: int
    listed: int
    due_now: int
    next_due: str
    bars: Sequence[DueBar]
    spark: str
    rows: Sequence[WaitingRow]
    silent: Sequence[str]


def retries_view(owner: RetryOwner, waiting: Waiting, now_ms: int) -> RetriesView:
    """The time line of what waits.

    Args:
        owner: whose retry topics these are.
        waiting: how many records wait, and those that are due first.
        now_ms: milliseconds since 1970.
    """
    first = waiting.first
    due = sum(one.due_ms <= now_ms for one in first)
    later = [one.due_ms for one in first if one.due_ms > now_ms]
    return RetriesView(
        owner.topic,
        owner.group,
        waiting.total,
        len(first),
        due,
        f"in {duration(min(later) - now_ms)}" if later else "–",
        _bars([one.due_ms for one in first], now_ms),
        spark([float(bar.count) for bar in _bars([one.due_ms for one in first], now_ms)]),
        [_row(one, now_ms) for one in first[:LISTED]],
        [str(tp) for tp in waiting.silent],
    )


def _bars(due: Sequence[int], now_ms: int) -> list[DueBar]:
    """Due now, then equal parts of the time to the last one."""
    if not due:
        return []
    last = max(max(due), now_ms + 1)
    parts = 8
    width = max(1, (last - now_ms) // parts + 1)
    counts = [0] * (parts + 1)
    for at in due:
        counts[0 if at <= now_ms else 1 + min(parts - 1, (at - now_ms) // width)] += 1
    top = max(counts)
    labels = ["due now"] + [
        f"in {duration(n * width)} to {duration((n + 1) * width)}" for n in range(parts)
    ]
    return [
        DueBar(label, number, round(100 * number / top))
        for label, number in zip(labels, counts, strict=True)
    ]


def _row(one: WaitingCopy, now_ms: int) -> WaitingRow:
    retry = one.copy.retry
    left = one.due_ms - now_ms
    return WaitingRow(
        retry.origin.retry_id,
        retry.origin.topic,
        retry.origin.partition,
        retry.origin.offset,
        retry.number,
        f"in {duration(left)}" if left > 0 else f"{duration(-left)} late",
        clock(one.due_ms),
        left <= 0,
        retry.reason,
        f"{retry.error_class.rpartition('.')[2]}: {retry.error_message}".strip(": "),
        one.copy.record.topic,
        _at(one),
    )


def _at(one: WaitingCopy) -> str:
    record = one.copy.record
    return f"{record.topic}/{record.partition}/{record.offset}"


@dataclass(frozen=True, slots=True)
class WaitingRecordView:
    """One record that waits, and who could take it now.

    Args:
        at: its place: retry topic, partition, offset.
        able: processes that can be asked; `why_not` where there are none.
    """

    topic: str
    group: str
    at: str
    row: WaitingRow
    dead_letter: str
    able: Sequence[str]
    why_not: str
    key: Content
    value: Content


def waiting_record_view(
    owner: RetryOwner,
    waiting: WaitingCopy,
    able: Sequence[str],
    why_not: str,
    masks: Masks,
    now_ms: int,
) -> WaitingRecordView:
    """A record that waits with what its headers say, before something is done with it."""
    record = waiting.copy.record
    return WaitingRecordView(
        owner.topic,
        owner.group,
        _at(waiting),
        _row(waiting, now_ms),
        owner.dead_letter or owner.names.dead_letter,
        able,
        why_not,
        masks.key(record.key),
        masks.value(record.value),
    )
