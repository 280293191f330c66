"""A run to step through: the lines of its story, and what each consumer owns after each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohort.simulator.invariants import PROMISES
from kohort.simulator.runs.report import joined
from kohort.simulator.runs.simulation import Outcome

STEP = "*** "
_OWNS = re.compile(r"(\w+) (is assigned|gives up|has lost) (.+)")
_ENDS = re.compile(r"\*\*\* (?:crash|restart) (\w+)")


@dataclass(frozen=True)
class Moment:
    """One line of a story.

    Attributes:
        at_ms: when, in virtual milliseconds.
        text: what happened.
        kind: `step` of the plan, `assignment`, `broken` (an invariant), `end`, or `event`.
        owned: the partitions of each consumer from now on, by the consumer's name.
    """

    at_ms: int
    text: str
    kind: str
    owned: Mapping[str, Sequence[str]]


def moments(outcome: Outcome) -> list[Moment]:
    """The story of a run, the first line first; the last one is how it ended.

    Args:
        outcome: a run that kept its story.
    """
    owned: dict[str, tuple[str, ...]] = {each.name: () for each in outcome.plan.consumers}
    made: list[Moment] = []
    for at_ms, text in joined(outcome.story):
        kind = "step" if text.startswith(STEP) else "event"
        if ends := _ENDS.fullmatch(text):
            owned = {**owned, ends[1]: ()}
        elif (change := _OWNS.fullmatch(text)) and change[1] in owned:
            kind, had, named = "assignment", owned[change[1]], change[3].split(", ")
            kept = [each for each in had if each not in named]
            now = kept + named if change[2] == "is assigned" else kept
            owned = {**owned, change[1]: tuple(sorted(now))}
        made.append(Moment(at_ms, text.removeprefix(STEP), kind, owned))
    if outcome.code is None:
        text = f"all held; trace {outcome.digest}"
        return [*made, Moment(outcome.at_ms, text, "end", owned)]
    what = f"{outcome.code} ({PROMISES.get(outcome.code, 'the story')}): {outcome.what.strip()}"
    return [*made, Moment(outcome.at_ms, what, "broken", owned)]
