"""Ctrl-C while queries run: the first stops them in order, the second ends the program at once.

Shell: signal handlers of the process.

Rules:
- pyspark's own handler calls the JVM while the main thread may be in another call, which breaks the
  connection. A Python exception in the middle of a call does, too. So the first signal only notes
  that the run shall stop, and KeyboardInterrupt is raised when it has.
- A batch that is cut off fails. That is expected, so py4j does not report it.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_PY4J: Final = "py4j"


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Generator[None]:
    """Within it, the first SIGINT calls `stop`; KeyboardInterrupt is raised at the end.

    SIGTERM does the same where the program handles it. In another thread than the main one, which
    gets no signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopped = False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        stop()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = [number for number, handler in before.items() if callable(handler)]
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number])
    if stopped:
        raise KeyboardInterrupt


@contextmanager
def quiet_py4j() -> Generator[None]:
    """Within it, py4j does not log the failures of calls that are cut off."""
    logger = logging.getLogger(_PY4J)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
