"""Screen 1, the groups: who is behind, is it growing, since when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kohort.console.views.figures import (
    DASH,
    Paging,
    Shown,
    age,
    ago,
    clock,
    count,
    duration,
    paging,
    rate,
    records,
    spark,
    whole,
)
from kohort.observe.overview import GroupLine, Health
from kohort.observe.trend import Direction, Sample

if TYPE_CHECKING:
    from kohort.observe.trend import Trend

ROWS: Final = 50
SORTS: Final[Mapping[str, Callable[[GroupLine], Any]]] = {
    "severity": lambda line: line.severity,
    "name": lambda line: line.group,
    "lag": lambda line: -(line.lag.value or 0),
    "age": lambda line: -(line.time_lag.value or 0),
    "members": lambda line: -(line.members or 0),
    "trend": lambda line: -(line.trend.per_s or 0.0),
}


@dataclass(frozen=True, slots=True)
class TrendShown:
    """A trend as text: an arrow, the change a second, and its meaning."""

    arrow: str
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group."""

    group: str
    state: str
    protocol: str
    members: str
    partitions: int
    lag: Shown
    time_lag: Shown
    trend: TrendShown
    spark: str
    health: str
    why: str
    since: str
    since_at: str
    changed: str
    changed_at: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the big numbers above the table; `to` is the query that it leads to."""

    name: str
    number: str
    tone: str
    to: str


@dataclass(frozen=True, slots=True)
class GroupsView:
    """The groups page."""

    rows: Sequence[GroupRow]
    paging: Paging
    tiles: Sequence[Tile]
    q: str
    sort: str
    health: str
    sorts: Sequence[str]
    healths: Sequence[str]


def groups_view(
    found: Sequence[GroupLine],
    samples: Callable[[str], Sequence[Sample]],
    query: Mapping[str, str],
    now_ms: int,
) -> GroupsView:
    """The groups page for a query.

    Args:
        found: a line for each group, the worst first.
        samples: tells the history of a group.
        query: `q` (part of a name), `health`, `sort`, `page`.
        now_ms: milliseconds since 1970.

    Returns:
        One page of rows, and the tiles over all groups.
    """
    q, health = query.get("q", "").strip(), query.get("health", "")
    sort = query.get("sort", "severity")
    sort = sort if sort in SORTS else "severity"
    lines = [
        line
        for line in found
        if q.lower() in line.group.lower() and (not health or line.health == health)
    ]
    if sort != "severity":
        lines.sort(key=SORTS[sort])
    place = paging(len(lines), whole(query.get("page", ""), 1), ROWS)
    rows = [_row(line, samples(line.group), now_ms) for line in lines[place.first : place.last]]
    return GroupsView(
        rows, place, _tiles(found), q, sort, health, tuple(SORTS), tuple(h.value for h in Health)
    )


def _tiles(lines: Sequence[GroupLine]) -> list[Tile]:
    healths = Counter(line.health for line in lines)
    lag = sum(line.lag.value or 0 for line in lines)
    stuck, behind = healths[Health.STUCK], healths[Health.BEHIND]
    fine = healths[Health.READ] + healths[Health.MOVING]
    return [
        Tile("groups", count(len(lines)), "", ""),
        Tile("stuck", count(stuck), "bad" if stuck else "", "stuck"),
        Tile("falling behind", count(behind), "warn" if behind else "", "falling behind"),
        Tile("moving or caught up", count(fine), "good" if fine else "", ""),
        Tile("records behind", count(lag), "", ""),
    ]


def _row(line: GroupLine, samples: Sequence[Sample], now_ms: int) -> GroupRow:
    return GroupRow(
        group=line.group,
        state=line.state or DASH,
        protocol=" ".join(part for part in (line.group_type, line.protocol) if part) or DASH,
        members=count(line.members),
        partitions=line.partitions,
        lag=records(line.lag),
        time_lag=age(line.time_lag),
        trend=trend_shown(line.trend),
        spark=spark([sample.lag for sample in samples]),
        health=line.health.value,
        why=line.why,
        since=duration(None if line.since_ms is None else max(0, now_ms - line.since_ms)),
        since_at=clock(line.since_ms),
        changed=ago(line.changed_ms, now_ms),
        changed_at=clock(line.changed_ms),
    )


def trend_shown(trend: Trend) -> TrendShown:
    """A trend as an arrow, a rate and a sentence."""
    if trend.direction is Direction.UNKNOWN:
        return TrendShown("", DASH, trend.reason)
    over = f"over the last {duration(trend.over_ms)}"
    rates = f"{rate(trend.written_per_s)} written, {rate(trend.done_per_s)} committed, {over}"
    if trend.direction is Direction.STEADY:
        return TrendShown("→", "steady", rates)
    if trend.direction is Direction.GROWING:
        return TrendShown("↗", f"+{rate(trend.per_s)}", f"growing: {rates}")
    ends = f"caught up in {duration(trend.caught_up_in_ms)} at this rate"
    return TrendShown("↘", rate(trend.per_s), f"shrinking: {rates}; {ends}")
