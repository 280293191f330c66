"""Many seeds: run them in one process or several, and count what became of them.

Shell: the clock, processes.
"""

from __future__ import annotations

import gc
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import click

from kohort.cli.common.option_rules import refuse_beside

_PROGRESS_S = 2.0
_AHEAD = 8
"""Seeds given to each process beyond the one it works at."""
_SEEDS_A_PROCESS = 300
"""Then others begin: threads and tracebacks of killed programs keep some of the worlds alive."""
_ALLOCATIONS_A_COLLECTION = 20_000


@contextmanager
def quiet_logging() -> Generator[None]:
    """Within it nothing is logged: what simulated clients and brokers log is in their stories."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def refuse_ignored(seed: int | None, minutes: float | None) -> None:
    """Raise click.UsageError for options of many seeds beside `--seed`, or beside `--minutes`."""
    if seed is not None:
        refuse_beside("--seed", ("seeds", "minutes", "first", "jobs"), "runs one seed")
    if minutes is not None:
        refuse_beside("--minutes", ("seeds",), "runs as many seeds as there is time for")


class Counted(Protocol):
    """What a tally needs of an outcome."""

    @property
    def failed(self) -> bool: ...

    @property
    def events(self) -> int: ...


T = TypeVar("T")


def outcomes(
    numbers: Iterable[int],
    run: Callable[[int], T],
    jobs: int,
    until_s: float | None,
    prepare: Callable[[], object] = int,
) -> Iterator[T]:
    """The outcomes of seeds in their order.

    Args:
        numbers: the seeds.
        run: runs one seed; it is pickled when there are several processes.
        jobs: how many processes.
        until_s: on the monotonic clock, when to begin no more seeds; None for never.
        prepare: called first in each further process.
    """
    in_time = itertools.takewhile(
        lambda _: until_s is None or time.monotonic() < until_s, iter(numbers)
    )
    if jobs == 1:
        yield from map(run, in_time)
        return
    while (first := next(in_time, None)) is not None:
        block = itertools.islice(in_time, jobs * _SEEDS_A_PROCESS - 1)
        yield from _in_processes(itertools.chain([first], block), run, jobs, prepare)


def _in_processes(
    numbers: Iterable[int], run: Callable[[int], T], jobs: int, prepare: Callable[[], object]
) -> Iterator[T]:
    from concurrent.futures import Future, ProcessPoolExecutor

    with ProcessPoolExecutor(jobs, initializer=_begin, initargs=(prepare,)) as pool:
        under_way: deque[Future[T]] = deque()
        try:
            for number in numbers:
                under_way.append(pool.submit(run, number))
                if len(under_way) >= jobs * _AHEAD:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()


def _begin(prepare: Callable[[], object]) -> None:
    """In a further process: a run makes much that lives long and little that is garbage."""
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION, 10, 10)
    prepare()


class Tally:
    """Counts seeds and failures, and prints progress from time to time."""

    def __init__(self) -> None:
        self._began_s = self._shown_s = time.monotonic()
        self.seeds = self.failed = self.events = 0

    def count(self, outcome: Counted) -> None:
        """One more."""
        self.seeds += 1
        self.failed += outcome.failed
        self.events += outcome.events
        if time.monotonic() - self._shown_s >= _PROGRESS_S:
            self._shown_s = time.monotonic()
            click.echo(self._line(), err=True)

    def close(self) -> None:
        """Print the totals."""
        click.echo(self._line(), err=True)

    def _line(self) -> str:
        seconds = max(1e-6, time.monotonic() - self._began_s)
        return (
            f"{self.seeds} seeds, {self.failed} failed; {self.seeds / seconds:.1f} seeds/s, "
            f"{self.events / seconds:,.0f} events/s"
        )
