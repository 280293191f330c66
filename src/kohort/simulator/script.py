"""A plan's steps, one after the other: each waits for its time or its condition.

Rules:
- `at N: …` happens N ms after the beginning, `after N: …` N ms after the step before it, and
  `when …: …` as soon as the condition holds; a step without any of these follows at once.
- A condition is looked at from the moment when the step before it has happened, after every event.
- A condition that does not come about within its time (`within N` before the colon, else a minute)
  is a broken expectation, not a step left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kohort.errors import ConfigError
from kohort.simulator.actions import ACTIONS
from kohort.simulator.conditions import CONDITIONS
from kohort.simulator.grammar import Sentence

if TYPE_CHECKING:
    from kohort.simulator.world import World

PATIENCE_MS = 60_000
_AT = re.compile(r"at (\d+): (.*)")
_AFTER = re.compile(r"after (\d+): (.*)")
_WHEN = re.compile(r"when (.*?)(?: within (\d+))?: (.*)")


@dataclass(frozen=True)
class Step:
    """One step: when, and what."""

    text: str
    action: Sentence
    at_ms: int | None = None
    after_ms: int | None = None
    condition: Sentence | None = None
    within_ms: int = PATIENCE_MS


def parse_step(text: str) -> Step:
    """A step out of its sentence. Raises ConfigError."""
    if match := _AT.fullmatch(text):
        return Step(text, ACTIONS.parse(match[2]), at_ms=int(match[1]))
    if match := _AFTER.fullmatch(text):
        return Step(text, ACTIONS.parse(match[2]), after_ms=int(match[1]))
    if match := _WHEN.fullmatch(text):
        within_ms = int(match[2]) if match[2] else PATIENCE_MS
        condition = CONDITIONS.parse(match[1])
        return Step(text, ACTIONS.parse(match[3]), condition=condition, within_ms=within_ms)
    if ":" in text:
        raise ConfigError(f"{text!r}: a step begins with `at N:`, `after N:` or `when …:`")
    return Step(text, ACTIONS.parse(text))


class Script:
    """The steps of one run and how far it has come."""

    def __init__(self, world: World, steps: tuple[str, ...]) -> None:
        self._world = world
        self._steps = [parse_step(text) for text in steps]
        self._next = 0
        self._met: Callable[[], bool] | None = None
        self._armed_ms = 0
        self.over = not steps
        self.missed: str | None = None
        """The step whose condition did not come about in time."""
        self._arm()

    def _arm(self) -> None:
        """Get ready for the next step."""
        schedule = self._world.schedule
        self._met, self._armed_ms = None, schedule.now_ms
        if self._next >= len(self._steps):
            self.over = True
            return
        step = self._steps[self._next]
        if step.condition is not None:
            self._met = step.condition.call(self._world, *step.condition.args)
            schedule.after(step.within_ms, self._too_late, self._next)
            return
        when_ms = schedule.now_ms + (step.after_ms or 0) if step.at_ms is None else step.at_ms
        schedule.at(when_ms, self._do, self._next)

    def look(self) -> None:
        """After every event: has the condition come about?"""
        while self._met is not None and self._met():
            self._do(self._next)

    def _do(self, number: int) -> None:
        if number != self._next or self.over:
            return
        step = self._steps[number]
        self._next += 1
        if step.action.text != "nothing":
            self._world.journal.tell(f"*** {step.action.text}")
            self._world.checks.happens(step.action.text)
        step.action.call(self._world, *step.action.args)
        self._arm()

    def _too_late(self, number: int) -> None:
        if number == self._next and not self.over:
            self.missed, self.over = self._steps[number].text, True
