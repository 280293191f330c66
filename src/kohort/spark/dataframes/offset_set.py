"""The distinct offsets of a partition that a micro-batch deals with. Pure.

A batch may have a million of them: they are an array, where a Python set takes a hundred times the
memory and most of the driver's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OffsetSet:
    """Offsets, each once, in ascending order. Immutable."""

    __slots__ = ("_sorted",)

    def __init__(self, offsets: NDArray[np.int64]) -> None:
        ascending = bool((offsets[1:] > offsets[:-1]).all())
        self._sorted = offsets if ascending else np.unique(offsets)

    @classmethod
    def of(cls, offsets: Iterable[int]) -> OffsetSet:
        """The offsets of any collection."""
        return cls(np.array([*offsets], np.int64))

    @classmethod
    def of_runs(cls, firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> OffsetSet:
        """The offsets of runs, each of which begins at an offset and has so many."""
        before = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum()), dtype=np.int64)
        return cls(within + np.repeat(firsts - before, counts))

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[int]:
        return iter(self._sorted.tolist())

    def __contains__(self, offset: int) -> bool:
        at = int(np.searchsorted(self._sorted, offset))
        return at < len(self._sorted) and int(self._sorted[at]) == offset

    def __or__(self, other: OffsetSet) -> OffsetSet:
        return OffsetSet(np.concatenate([self._sorted, other._sorted]))

    def __sub__(self, other: OffsetSet) -> OffsetSet:
        return OffsetSet(np.setdiff1d(self._sorted, other._sorted, assume_unique=True))

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, OffsetSet) and np.array_equal(self._sorted, other._sorted)

    def __repr__(self) -> str:
        return f"OffsetSet({self._sorted.tolist()})"
