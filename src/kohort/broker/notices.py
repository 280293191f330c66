"""Waking those who wait, on threads of their own, for what the broker's thread sees.

Shell: threads, the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Notices:
    """Tells waiting threads that the broker has seen something."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting = 0

    def tell(self) -> None:
        """Something was seen; on the broker's thread."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def until(self, look: Callable[[], T | None], timeout_s: float) -> T | None:
        """What `look` finds, as soon as it is not None; None when the time is over."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._waiting += 1
            try:
                while (found := look()) is None:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return None
                    self._condition.wait(min(left_s, 0.05))
                return found
            finally:
                self._waiting -= 1
