"""Exponential back-off with jitter. Pure: the randomness is handed in.

The wait doubles from `first_ms` to `max_ms` and is spread by plus or minus 20 %, so that clients
which failed together do not come back together (KIP-580).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_JITTER: Final = 0.2
_DOUBLINGS_MAX: Final = 30


class Backoff:
    """Counts failures and says how long to wait after each."""

    __slots__ = ("_first_ms", "_max_ms", "_uniform", "failures")

    def __init__(self, first_ms: int, max_ms: int, uniform: Callable[[], float]) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._uniform = uniform
        """Draws from [0, 1)."""
        self.failures = 0

    def another(self) -> Backoff:
        """One of the same settings."""
        return Backoff(self._first_ms, self._max_ms, self._uniform)

    def succeeded(self) -> None:
        """Start over."""
        self.failures = 0

    def failed(self) -> int:
        """One more failure; milliseconds to wait before the next try."""
        wait_ms = min(self._max_ms, self._first_ms << min(self.failures, _DOUBLINGS_MAX))
        self.failures += 1
        return round(wait_ms * (1 - _JITTER + 2 * _JITTER * self._uniform()))
