"""A gate before the loads of shards, for who wants to see what a loading coordinator answers.

Rules:
- Without holders a load passes at once; with several, it passes when the last one releases it.
"""

from __future__ import annotations

from collections.abc import Callable


class LoadBarrier:
    """Holds loads back, so that a test sees what a loading coordinator answers."""

    def __init__(self) -> None:
        self._holders = 0
        self._waiting: list[Callable[[], None]] = []

    def pass_on(self, load: Callable[[], None]) -> None:
        """Load now, or when the last holder has released the gate."""
        if self._holders:
            self._waiting.append(load)
        else:
            load()

    @property
    def held(self) -> bool:
        """Whether it is held."""
        return self._holders > 0

    def hold(self) -> None:
        """Nothing is loaded until it is released as often as it was held."""
        self._holders += 1

    def release(self) -> None:
        """Waiting loads pass, unless there is another holder. An extra release does nothing."""
        self._holders = max(0, self._holders - 1)
        if self._holders == 0:
            waiting, self._waiting = self._waiting, []
            for load in waiting:
                load()
