"""Simulated stories as the console plays them: one run at a time, the last few kept.

Shell: threads (a lock).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.errors import KohortError

if TYPE_CHECKING:
    from kohort.simulator.plan import Plan
    from kohort.simulator.runs.replay import Moment
    from kohort.simulator.runs.simulation import Outcome

KEPT: Final = 8
WAIT_S: Final = 20.0


@dataclass(frozen=True)
class Story:
    """A run and its moments."""

    outcome: Outcome
    moments: Sequence[Moment]


class Player:
    """Runs plans and keeps the last few, because every step of a story is a page of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Story] = OrderedDict()

    def story(self, plan: Plan) -> Story:
        """The story of a plan. Raises KohortError when it takes too long or another one runs."""
        from kohort.simulator.runs.apart import run_apart
        from kohort.simulator.runs.replay import moments

        if not self._lock.acquire(timeout=WAIT_S):
            raise KohortError("another story is being simulated; reload in a moment")
        try:
            key = repr(plan)
            if key not in self._kept:
                outcome = run_apart(plan)
                self._kept[key] = Story(outcome, moments(outcome))
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]
        finally:
            self._lock.release()
