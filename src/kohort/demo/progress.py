"""The demonstration's progress: a bar on a terminal, a line now and then elsewhere.

Shell: clock.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from kohort.spark import Progress

LINE_EVERY_S = 5.0


class Bar:
    """Shows how many inputs are handled, how many wait for a retry, how many have failed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rich: Any = None
        self._task: Any = None
        self._printed_at = 0.0

    def __enter__(self) -> Self:
        if self._out.isatty():
            self._rich = _rich_bar(self._out)
            self._rich.start()
            self._task = self._rich.add_task(
                "flights and weather", total=None, retrying=0, failed=0
            )
        return self

    def show(self, progress: Progress, expected: int | None) -> None:
        """Take the present progress.

        Args:
            expected: the number of inputs in the end; None while it is not known.
        """
        if self._rich is not None:
            self._rich.update(
                self._task,
                completed=progress.done,
                total=expected,
                retrying=progress.retrying,
                failed=progress.failed,
            )
            return
        now = time.monotonic()
        if now - self._printed_at >= LINE_EVERY_S:
            self._printed_at = now
            of = "" if expected is None else f" of {expected:,}"
            print(
                f"    {progress.done:>9,}{of} handled, "
                f"{progress.retrying:,} waiting for a retry, {progress.failed:,} failed",
                file=self._out,
                flush=True,
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._rich is not None:
            self._rich.stop()


def _rich_bar(out: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[retrying]} waiting for a retry, {task.fields[failed]} failed"),
        TimeElapsedColumn(),
        console=Console(file=out),
    )
