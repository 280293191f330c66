"""Sets of offsets as ranges: the records read of a partition are a few ranges, however many they
are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

Range = tuple[int, int]
"""From the first up to, but not including, the second."""


class Ranges:
    """A set of whole numbers."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __iter__(self) -> Iterator[Range]:
        return zip(self._starts, self._stops, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    @property
    def stop(self) -> int:
        """One more than the greatest; 0 of none."""
        return self._stops[-1] if self._stops else 0

    def add(self, start: int, stop: int) -> None:
        """Take a range in, joined with what it touches."""
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def within(self, start: int, stop: int) -> Iterator[Range]:
        """The parts of it that lie in a range."""
        for at in range(bisect_right(self._stops, start), len(self._starts)):
            low, high = max(start, self._starts[at]), min(stop, self._stops[at])
            if low >= high:
                return
            yield low, high

    def missing(self, start: int, stop: int) -> Iterator[Range]:
        """The parts of a range that are not in it."""
        for low, high in self.within(start, stop):
            if start < low:
                yield start, low
            start = high
        if start < stop:
            yield start, stop
