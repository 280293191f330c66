"""Waking those who wait, on threads of their own, for what the broker's thread sees.

Shell: threads, the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

_LOOK_S: Final = 0.05  # polls changes that send no notice
T = TypeVar("T")


class Notices:
    """Tells waiting threads that the broker has seen something.

    The lock is never held while `look` is called: that asks the broker's thread, which may be in
    `notify`.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting = 0
        self._sent = 0

    def notify(self) -> None:
        """Something was seen; on the broker's thread."""
        if self._waiting:
            with self._condition:
                self._sent += 1
                self._condition.notify_all()

    def until(self, look: Callable[[], T | None], timeout_s: float) -> T | None:
        """What `look` finds, as soon as it is not None; None when the time is over."""
        deadline = time.monotonic() + timeout_s
        with self._condition:
            self._waiting += 1
        try:
            while True:
                seen = self._sent
                result = look()
                left_s = deadline - time.monotonic()
                if result is not None or left_s <= 0:
                    return result
                with self._condition:
                    if self._sent == seen:
                        self._condition.wait(min(left_s, _LOOK_S))
        finally:
            with self._condition:
                self._waiting -= 1
