"""A line on the terminal that says how many records a long command has moved, and how fast.

Rules: it is on standard error, and only where a person looks at it: standard error is a terminal
and the records themselves do not scroll past there.

Shell: clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

EVERY_S: Final = 0.5
CLEAR_LINE: Final = "\r\x1b[K"


class Progress:
    """Counts records, and rewrites one line.

    Args:
        out: the terminal; None shows nothing.
        clock: seconds that only grow.
    """

    def __init__(self, out: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._begun = self._shown = clock()
        self._count = self._count_before = 0

    def add(self, count: int) -> None:
        """So many more records have been moved."""
        self._count += count
        if self._out is None:
            return
        now = self._clock()
        if now - self._shown < EVERY_S:
            return
        rate = (self._count - self._count_before) / (now - self._shown)
        self._shown, self._count_before = now, self._count
        self._out.write(f"{CLEAR_LINE}{self._count:,} records, {rate:,.0f}/s")
        self._out.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._out is not None and self._shown != self._begun:
            self._out.write(CLEAR_LINE)
            self._out.flush()


def progress(records_pass_by: bool) -> Progress:
    """The line of a command; none when the records themselves are on the terminal."""
    person = sys.stderr is not None and sys.stderr.isatty()  # None: it was closed before we began
    return Progress(sys.stderr if person and not records_pass_by else None)
