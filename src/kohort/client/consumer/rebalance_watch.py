"""When a member's rebalances begin and end, seen from its states alone. Pure.

Rules:
- A rebalance begins when the member leaves its stable state (or a start from nothing), and ends
  when it is stable again. Losing sight of the coordinator while consuming on is not one.
- One that ends outside of the group was not completed; giving up on purpose ends it the same way.
"""

from __future__ import annotations

from typing import Final

from kohort.metrics.events import RebalanceBegun, RebalanceEnded

_AT_REST: Final = frozenset({"STABLE", "REDISCOVERING"})
_OUTSIDE: Final = frozenset(
    {"DOWN", "OVERDUE", "UNSUBSCRIBING", "CLOSING", "LEAVING", "LEFT", "FATAL"}
)


class RebalanceWatch:
    """Of one member, classic or of the consumer protocol: their states share these names."""

    __slots__ = ("_begun_ms",)

    def __init__(self) -> None:
        self._begun_ms: int | None = None

    def seen(self, state: str, reason: str, now_ms: int) -> RebalanceBegun | RebalanceEnded | None:
        """The member is in this state now."""
        if state in _AT_REST or state in _OUTSIDE:
            if self._begun_ms is None:
                return None
            took_ms, self._begun_ms = now_ms - self._begun_ms, None
            return RebalanceEnded(reason, took_ms, state in _AT_REST)
        if self._begun_ms is None:
            self._begun_ms = now_ms
            return RebalanceBegun(reason)
        return None
