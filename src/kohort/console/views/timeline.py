"""Screen 5, the rebalance timeline: a lane for each member, and what each rebalance was for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.console.views.figures import DASH, ago, clock, duration

if TYPE_CHECKING:
    from kohort.group.explain.timeline import Rebalance, RebalanceCause

LANES: Final = 24
WIDTH: Final = 960
LEFT: Final = 190
LANE: Final = 24
TOP: Final = 8
LEAST_PX: Final = 3.0


@dataclass(frozen=True, slots=True)
class Stay:
    """A member is in the group from one moment to another, in pixels."""

    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One member over the time of the timeline."""

    name: str
    y: float
    stays: Sequence[Stay]


@dataclass(frozen=True, slots=True)
class Gap:
    """A rebalance, in which no member of a classic group owns anything."""

    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A partition that changed hands."""

    partition: str
    source: str
    target: str
    needed: str


@dataclass(frozen=True, slots=True)
class RebalanceRow:
    """One rebalance as text."""

    number: str
    outcome: str
    when: str
    when_at: str
    causes: Sequence[str]
    joining: str
    settling: str
    slowest: str
    members: int
    came: str
    went: str
    moves: str
    needless: int
    listed: Sequence[MoveRow]
    inferred: str


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A group's rebalances, the newest first, and the lanes of its members."""

    group: str
    rows: Sequence[RebalanceRow]
    lanes: Sequence[Lane]
    lanes_more: int
    gaps: Sequence[Gap]
    height: float
    width: int
    begins: str
    ends: str
    without_owner: str


def timeline_view(group: str, rebalances: Sequence[Rebalance], now_ms: int) -> TimelineView:
    """The timeline of a group.

    Args:
        group: its id.
        rebalances: its rebalances, the oldest first.
        now_ms: milliseconds since 1970.
    """
    dated = [(at, one) for one in rebalances if (at := _at(one)) is not None]
    begin = min((at for at, _ in dated), default=now_ms)
    scale = (WIDTH - LEFT - 10) / max(1, now_ms - begin)

    def x(at_ms: int) -> float:
        return round(LEFT + (at_ms - begin) * scale, 1)

    spans, names = _spans(dated, now_ms)
    lanes = [
        Lane(
            names.get(member, member),
            TOP + n * LANE,
            [
                Stay(
                    x(a),
                    max(LEAST_PX, round((b - a) * scale, 1)),
                    f"in the group for {duration(b - a)}, from {clock(a)}",
                )
                for a, b in some
            ],
        )
        for n, (member, some) in enumerate(list(spans.items())[:LANES])
    ]
    gaps = [
        Gap(x(a), max(LEAST_PX, round((b - a) * scale, 1)), f"rebalancing for {duration(b - a)}")
        for at, one in dated
        if (a := one.began_ms or at) <= (b := one.settled_ms or now_ms)
    ]
    lost = sum(
        (one.settled_ms or now_ms) - one.began_ms
        for one in rebalances
        if one.protocol != "consumer" and one.began_ms is not None
    )
    return TimelineView(
        group,
        [_row(one, now_ms) for one in reversed(rebalances)],
        lanes,
        max(0, len(spans) - LANES),
        gaps,
        TOP * 2 + LANE * max(1, len(lanes)),
        WIDTH,
        clock(begin),
        clock(now_ms),
        duration(lost) if lost else DASH,
    )


def _at(one: Rebalance) -> int | None:
    return next((t for t in (one.settled_ms, one.joined_ms, one.began_ms) if t is not None), None)


def _spans(
    dated: Sequence[tuple[int, Rebalance]], now_ms: int
) -> tuple[dict[str, list[tuple[int, int]]], dict[str, str]]:
    """From when to when each member was in the group, by what came and went."""
    open_ones, names = dict[str, int](), dict[str, str]()
    spans: dict[str, list[tuple[int, int]]] = {}
    for at, one in dated:
        names |= one.names
        for member in one.went:
            since = open_ones.pop(member, dated[0][0])
            spans.setdefault(member, []).append((since, at))
        for member in one.came:
            open_ones.setdefault(member, at)
            spans.setdefault(member, [])
    for member, since in open_ones.items():
        spans.setdefault(member, []).append((since, now_ms))
    return spans, names


def _row(one: Rebalance, now_ms: int) -> RebalanceRow:
    word = "epoch" if one.protocol == "consumer" else "generation"
    number = "not yet" if one.generation is None else f"{word} {one.generation:,}"
    moves = DASH if one.moved is None else f"{one.moved:,} of {one.partitions:,} partitions"
    return RebalanceRow(
        number,
        one.outcome,
        ago(_at(one), now_ms),
        clock(_at(one)),
        [_cause(one, cause) for cause in one.causes] or ["not known"],
        duration(one.joining_ms),
        duration(one.settling_ms),
        _name(one, one.waited_for) if one.waited_for else DASH,
        one.members,
        ", ".join(_name(one, m) for m in one.came) or DASH,
        ", ".join(_name(one, m) for m in one.went) or DASH,
        moves,
        one.not_needed or 0,
        [
            MoveRow(
                f"{m.topic}-{m.partition}",
                _name(one, m.source),
                _name(one, m.target),
                DASH if m.needed is None else m.needed or "not needed",
            )
            for m in one.moves[:100]
        ],
        "read off __consumer_offsets; causes and moves are inferred" if one.from_log else "",
    )


def _cause(one: Rebalance, cause: RebalanceCause) -> str:
    from kohort.group.coordinator.state.rebalance_history import Trigger

    text = Trigger[cause.trigger.upper()].value
    if cause.member_id:
        text = f"{_name(one, cause.member_id)} {text}"
    return f"{text}: “{cause.reason}”" if cause.reason else text


def _name(one: Rebalance, member_id: str | None) -> str:
    if not member_id:
        return "nobody"
    client = one.names.get(member_id, "")
    same = list(one.names.values()).count(client) > 1
    return f"{client}…{member_id[-6:]}" if client and same else client or member_id
