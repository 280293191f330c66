"""Handlers of signals for the length of a block.

Rules:
- A handler may run between any two steps of the main thread, within another handler too: what it
  does must take no lock that may be held then. Setting an attribute, `Consumer.wakeup`, and
  `SimpleQueue.put` are safe; an `Event`, a `Condition` and `print` are not.

Shell: signals.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

TO_END = (signal.SIGINT, signal.SIGTERM)
"""What asks a program to end."""


@contextmanager
def handled(by: Callable[[int], object], numbers: tuple[int, ...] = TO_END) -> Generator[None]:
    """Within the block `by(number)` handles these signals; on the main thread only."""
    before = {number: signal.signal(number, lambda n, _: by(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
