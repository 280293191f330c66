"""Screen 11, a plan: what more or fewer members, or another assignor, would move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.console.views.figures import count

if TYPE_CHECKING:
    from kohort.group.assignors.measure import Move
    from kohort.observe.assignment_preview import Planned

MOVES_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class MemberLine:
    """One member before and after."""

    name: str
    before: str
    after: str
    change: str
    assignment: str


@dataclass(frozen=True, slots=True)
class MoveLine:
    """One partition that changes hands."""

    partition: str
    donor: str
    recipient: str
    needed: bool


@dataclass(frozen=True, slots=True)
class PlanView:
    """What would come of a change."""

    group: str
    assignor: str
    assignors: Sequence[str]
    without: str
    joining: str
    note: str
    members: Sequence[MemberLine]
    moves: Sequence[MoveLine]
    total: int
    avoidable: int
    least: str
    most: str


def plan_view(
    group: str,
    query: Mapping[str, str],
    assignors: Sequence[str],
    plan: Planned | None,
    moved: Sequence[Move] = (),
    note: str = "",
) -> PlanView:
    """The page of a plan; `note` says why there is none.

    Args:
        group: its name.
        query: what was asked for.
        assignors: names to choose from.
        plan: what was planned.
        moved: partitions that change hands.
        note: why it could not be planned.
    """
    lines = [] if plan is None else _members(plan)
    sizes = [] if plan is None else [_size(plan.after.get(name, {})) for name in plan.after]
    return PlanView(
        group,
        plan.scene.assignor if plan else query.get("assignor", ""),
        assignors,
        query.get("without", ""),
        query.get("with", ""),
        note,
        lines,
        [
            MoveLine(f"{m.topic}-{m.partition}", m.source or "–", m.target or "–", m.needed)
            for m in moved[:MOVES_SHOWN]
        ],
        len(moved),
        sum(not m.needed for m in moved),
        count(min(sizes, default=None)),
        count(max(sizes, default=None)),
    )


def _members(plan: Planned) -> list[MemberLine]:
    lines: list[MemberLine] = []
    for name in sorted({*plan.before, *plan.after}):
        before, after = plan.before.get(name), plan.after.get(name)
        had, has = _size(before or {}), _size(after or {})
        text = " ".join(f"{t}({','.join(map(str, n))})" for t, n in sorted((after or {}).items()))
        change = "leaves" if after is None else "joins" if before is None else f"{has - had:+d}"
        lines.append(
            MemberLine(
                name,
                count(None if before is None else had),
                count(None if after is None else has),
                change if change != "+0" else "–",
                text or "–",
            )
        )
    return lines


def _size(assignment: Mapping[str, Sequence[int]]) -> int:
    return sum(map(len, assignment.values()))
