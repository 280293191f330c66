"""A gate before the loads of shards, for who wants to see what a loading coordinator answers.

Rules:
- With nobody at it a load passes at once; with several, the last one to leave lets it pass.
"""

from __future__ import annotations

from collections.abc import Callable


class LoadBarrier:
    """Holds loads back as long as somebody wants to look at what a loading coordinator answers."""

    def __init__(self) -> None:
        self._holders = 0
        self._waiting: list[Callable[[], None]] = []

    def pass_on(self, load: Callable[[], None]) -> None:
        """Load now, or when nobody holds the gate any more."""
        if self._holders:
            self._waiting.append(load)
        else:
            load()

    @property
    def held(self) -> bool:
        """Whether somebody holds it."""
        return self._holders > 0

    def hold(self) -> None:
        """Nothing is loaded until it is released as often as it was held."""
        self._holders += 1

    def release(self) -> None:
        """What waits is loaded, unless somebody else holds it. Once too often is nothing."""
        self._holders = max(0, self._holders - 1)
        if self._holders == 0:
            waiting, self._waiting = self._waiting, []
            for load in waiting:
                load()
