"""Notices when the wall clock is set. Pure.

Rules:
- Between two looks a wall clock advances as a steady one does. Where it does not, it was set (NTP,
  by hand), or the machine was suspended, which a steady clock does not count.
- What is done at intervals follows the steady clock; only what is due by a broker's timestamp
  follows the wall clock.
- Less than a second is no step: two clocks are not read at the same instant, and no wait becomes
  noticeably longer. Many small steps are one when they add up to a second.
"""

from __future__ import annotations

from typing import Final

LEAST_STEP_MS: Final = 1_000


class ClockSteps:
    """How far the wall clock is ahead of the steady one, and what has changed that."""

    def __init__(self) -> None:
        self._ahead_ms: int | None = None

    def step_ms(self, wall_ms: int, steady_ms: int) -> int:
        """By how much the wall clock was set since the last step; negative: back; 0: it was not."""
        ahead_ms = wall_ms - steady_ms
        step_ms = 0 if self._ahead_ms is None else ahead_ms - self._ahead_ms
        if self._ahead_ms is not None and abs(step_ms) < LEAST_STEP_MS:
            return 0
        self._ahead_ms = ahead_ms
        return step_ms
