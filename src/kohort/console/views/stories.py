"""Screen 13, the player: scenarios and random worlds of the simulator, one line after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.console.views.figures import count
from kohort.console.views.timeline import Lane, Stay

if TYPE_CHECKING:
    from kohort.simulator.plan import Plan
    from kohort.simulator.runs.replay import Moment
    from kohort.simulator.scenario import Scenario

AROUND: Final = 25
"""Lines shown before and after the present one."""
WIDTH: Final = 960
LEFT: Final = 60
LANE: Final = 24
TOP: Final = 8
LEAST_PX: Final = 2.0


@dataclass(frozen=True, slots=True)
class StoryRow:
    """One scenario of the list."""

    name: str
    about: str
    proves: str
    bug: str


@dataclass(frozen=True, slots=True)
class StoriesView:
    """The scenarios that match, and what a random world is limited to."""

    control: str
    q: str
    rows: Sequence[StoryRow]
    total: int
    faults: Sequence[str]


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One line of a story."""

    number: int
    at: str
    text: str
    kind: str
    now: bool


@dataclass(frozen=True, slots=True)
class Owner:
    """What a consumer owns at the present line."""

    name: str
    partitions: str
    count: int
    change: str


@dataclass(frozen=True, slots=True)
class StoryView:
    """A story at one of its lines.

    Attributes:
        number: of the present line, from 1.
        runs: the variants and seeds of a scenario, empty for a random world.
        next_step: the number of the next line at which the plan does something; 0: none.
    """

    name: str
    about: str
    world: str
    runs: Sequence[str]
    run: int
    number: int
    total: int
    next_step: int
    at: str
    text: str
    tone: str
    ending: str
    lanes: Sequence[Lane]
    steps: Sequence[Stay]
    playhead: float
    height: int
    width: int
    ends: str
    owners: Sequence[Owner]
    lines: Sequence[StoryLine]


def stories_view(
    scenarios: Sequence[Scenario], query: Mapping[str, str], faults: Sequence[str], control: str
) -> StoriesView:
    """The list of stories.

    Args:
        scenarios: all that there are.
        query: `q`, words that the name, the text, the promise or the bug have.
        faults: what may go wrong in a random world.
        control: the control port; "" where there is none.
    """
    words = query.get("q", "").lower().split()
    rows = [
        StoryRow(one.name, _first_sentence(one.about), "/".join(one.plan.proves), one.bug)
        for one in scenarios
    ]
    chosen = [
        row
        for row in rows
        if all(word in f"{row.name} {row.about} {row.proves} {row.bug}".lower() for word in words)
    ]
    return StoriesView(control, query.get("q", ""), chosen, len(rows), faults)


def _first_sentence(about: str) -> str:
    return about.split(". ")[0].strip().rstrip(".").replace("\n", " ")


def story_view(
    plan: Plan, moments: Sequence[Moment], at: int, runs: Sequence[str], run: int
) -> StoryView:
    """A story at a line.

    Args:
        plan: what was simulated.
        moments: its lines; there is at least one, the ending.
        at: the present line, from 1; beyond the story's ends it is the nearest one.
        runs: the names of a scenario's runs.
        run: which of them it is, from 0.
    """
    number = min(max(1, at), len(moments))
    now, last = moments[number - 1], moments[-1]
    before = moments[max(0, number - 2)].owned
    scale = (WIDTH - LEFT - 10) / max(1, last.at_ms)
    consumers = [each.name for each in plan.consumers]
    begin = max(0, number - 1 - AROUND)
    return StoryView(
        plan.name,
        plan.about,
        _world(plan),
        runs,
        run,
        number,
        len(moments),
        next((n for n, one in enumerate(moments[number:], number + 1) if one.kind == "step"), 0),
        f"{count(now.at_ms)} ms",
        now.text,
        "stuck" if now.kind == "broken" else "caught-up" if now.kind == "end" else "waiting",
        "a promise is broken" if last.kind == "broken" else "every promise holds",
        [
            Lane(name, TOP + n * LANE, _stays(name, moments, scale))
            for n, name in enumerate(consumers)
        ],
        [
            Stay(_x(one.at_ms, scale), 1.0, f"{count(one.at_ms)} ms: {one.text}")
            for one in moments
            if one.kind in ("step", "broken")
        ],
        _x(now.at_ms, scale),
        TOP * 2 + LANE * max(1, len(consumers)),
        WIDTH,
        f"{count(last.at_ms)} ms",
        [_owner(name, before.get(name, ()), now.owned.get(name, ())) for name in consumers],
        [
            StoryLine(n, f"{count(one.at_ms)} ms", one.text, one.kind, n == number)
            for n, one in enumerate(moments[begin : number + AROUND], begin + 1)
        ],
    )


def _world(plan: Plan) -> str:
    topics = ", ".join(f"{name} x {n}" for name, n in sorted(plan.topics.items()))
    who = ", ".join(f"{c.name} ({c.protocol}, {c.assignor})" for c in plan.consumers)
    return f"{plan.nodes} nodes · {topics} · {who}"


def _x(at_ms: int, scale: float) -> float:
    return round(LEFT + at_ms * scale, 1)


def _stays(name: str, moments: Sequence[Moment], scale: float) -> list[Stay]:
    """From when to when a consumer owned which partitions, in pixels."""
    stays: list[Stay] = []
    since, owned = 0, tuple[str, ...]()
    for one in (*moments, None):
        has = tuple(one.owned.get(name, ())) if one is not None else ()
        if has == owned:
            continue
        end_ms = one.at_ms if one is not None else moments[-1].at_ms
        if owned:
            width = max(LEAST_PX, round((end_ms - since) * scale, 1))
            title = f"owns {', '.join(owned)} from {count(since)} to {count(end_ms)} ms"
            stays.append(Stay(_x(since, scale), width, title))
        since, owned = end_ms, has
    return stays


def _owner(name: str, had: Sequence[str], has: Sequence[str]) -> Owner:
    came, went = [p for p in has if p not in had], [p for p in had if p not in has]
    change = " ".join([*(f"+{p}" for p in came), *(f"−{p}" for p in went)])
    return Owner(name, ", ".join(has) or "–", len(has), change or "–")
