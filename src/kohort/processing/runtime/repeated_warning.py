"""When to repeat a warning about a lasting problem. Pure.

Rules:
- Log immediately when the problem starts or changes, then after 10, 20, 40 s and so on, finally
  every five minutes: a log shows that it lasts, and has room for other messages.
- That it is over is said once, if it was said that it began.
"""

from __future__ import annotations

from typing import Final

FIRST_MS: Final = 10_000
LONGEST_MS: Final = 300_000


class Complaint:
    """One thing that may go wrong for long."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._pause_ms = FIRST_MS
        self._again_ms = 0

    def is_due(self, text: str, now_ms: int) -> bool:
        """Whether it is to be said now that `text` is wrong (still, or newly)."""
        if text != self._text:
            self._text, self._pause_ms = text, FIRST_MS
        elif self._again_ms - self._pause_ms <= now_ms < self._again_ms:  # or the clock was set
            return False
        else:
            self._pause_ms = min(2 * self._pause_ms, LONGEST_MS)
        self._again_ms = now_ms + self._pause_ms
        return True

    def is_over(self) -> bool:
        """Nothing is wrong; True when that is to be said."""
        was, self._text = self._text is not None, None
        return was
