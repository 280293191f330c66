"""How far a group is behind, in records and in time.

Rules:
- An unknown figure is None with its reason, never 0 and never a guess (spec 8.3).
- Time is how long ago the oldest unread record was written. Its own timestamp is exact. Else the
  history of the log's end shows between which two samples it was written; a record that is older
  than the history has at least that age, and no more is claimed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kohort.observe.snapshot import Seen

Point = tuple[int, int]
"""A moment in milliseconds since 1970, and the end of a log then."""


class Figure(NamedTuple):
    """A number, or why there is none.

    Attributes:
        value: records or milliseconds; None when it is not known.
        reason: why it is not known; empty for a known one.
        at_least: what an unknown number is not below; None when even that is not known.
        within: by how much a known number may be too large; 0 for an exact one.
    """

    value: int | None
    reason: str = ""
    at_least: int | None = None
    within: int = 0


ZERO: Final = Figure(0)
_END_OF: Final = itemgetter(1)


def records_behind(seen: Seen) -> Figure:
    """Records from the committed offset to the end of the log.

    Args:
        seen: the partition and what the group has committed there.

    Returns:
        The count, or why it is not known.
    """
    if not seen.exists:
        return Figure(None, "the topic does not exist (any more)")
    if seen.leader is None:
        return Figure(None, "the partition has no leader")
    if seen.end is None:
        return Figure(None, f"its leader, broker {seen.leader}, does not answer for it")
    if seen.committed is None:
        return Figure(None, "nothing is committed yet")
    if seen.committed > seen.end:
        return Figure(None, f"the committed offset is past the log's end, {seen.end:,}")
    return Figure(seen.end - seen.committed) if seen.end > seen.committed else ZERO


def time_behind(
    seen: Seen, now_ms: int, *, written_ms: int | None = None, ends: Sequence[Point] = ()
) -> Figure:
    """How long ago the oldest unread record was written.

    Args:
        seen: the partition and what the group has committed there.
        now_ms: the time of the look, in milliseconds since 1970.
        written_ms: the timestamp of the record at the committed offset, when it was read.
        ends: the history of the log's end, which never decreases, the oldest first.

    Returns:
        Milliseconds, or why they are not known.
    """
    lag = records_behind(seen)
    if not lag.value:
        return lag
    if written_ms is not None and written_ms >= 0:
        return Figure(max(0, now_ms - written_ms))
    assert seen.committed is not None
    return _by_history(seen.committed, now_ms, ends)


def _by_history(committed: int, now_ms: int, ends: Sequence[Point]) -> Figure:
    """The record at `committed` was written after the last sample whose end is not past it."""
    if not ends:
        return Figure(None, "no history yet")
    later = bisect_right(ends, committed, key=_END_OF)
    if not later:
        age = max(0, now_ms - ends[0][0])
        return Figure(None, "written before the history begins", at_least=age)
    after_ms = ends[later - 1][0]
    by_ms = ends[later][0] if later < len(ends) else now_ms
    return Figure(max(0, now_ms - after_ms), within=max(0, by_ms - after_ms))


@dataclass(frozen=True, slots=True)
class Total:
    """The sum or the maximum of several figures.

    Attributes:
        value: of those that are known; None when none is.
        unknown: how many are not known.
        at_least: True when an unknown one may be, or a known bound is, above `value`.
    """

    value: int | None
    unknown: int
    at_least: bool


def total(figures: Iterable[Figure]) -> Total:
    """The sum of what is known."""
    listed = list(figures)
    known = [f.value for f in listed if f.value is not None]
    unknown = len(listed) - len(known)
    return Total(sum(known) if known or not listed else None, unknown, unknown > 0)


def worst(figures: Iterable[Figure]) -> Total:
    """The largest of what is known, bounds included."""
    listed = list(figures)
    known = [f.value for f in listed if f.value is not None]
    bounds = [f.at_least for f in listed if f.value is None and f.at_least is not None]
    unknown = sum(f.value is None for f in listed)
    largest = max([*known, *bounds], default=None)
    bound = bool(bounds) and largest == max(bounds)
    return Total(0 if not listed else largest, unknown, bound)
