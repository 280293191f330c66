"""How a group's lag has changed: its direction, rates, and when it is caught up.

Rules: two samples that are too near to each other tell nothing, and no figure is made of them. A
history is thinned as it ages, so that hours of it stay small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

WINDOW_MS: Final = 600_000
LEAST_MS: Final = 20_000
"""A trend needs samples so far apart."""
STEADY_SHARE: Final = 0.02
"""A lag that changes by less, of its largest value in the window, is steady."""
STEADY_RECORDS: Final = 10


class Sample(NamedTuple):
    """A group's figures at one moment; None where they are not known.

    Attributes:
        at_ms: milliseconds since 1970.
        lag: records behind, over all partitions.
        time_lag_ms: age of the oldest unread record.
        written: the sum of the ends of its partitions.
        done: the sum of its committed offsets.
    """

    at_ms: int
    lag: int | None
    time_lag_ms: int | None
    written: int | None
    done: int | None


class Direction(StrEnum):
    """What a lag does."""

    GROWING = "growing"
    SHRINKING = "shrinking"
    STEADY = "steady"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Trend:
    """A lag over a window.

    Attributes:
        direction: what it does.
        per_s: by how many records a second it changes; None when not known.
        written_per_s: records written a second.
        done_per_s: records committed a second.
        caught_up_in_ms: when the lag is 0 at this rate; None when it does not shrink.
        over_ms: the width of the window.
        reason: why nothing is known; empty otherwise.
    """

    direction: Direction
    per_s: float | None = None
    written_per_s: float | None = None
    done_per_s: float | None = None
    caught_up_in_ms: int | None = None
    over_ms: int = 0
    reason: str = ""


def trend(samples: Sequence[Sample], window_ms: int = WINDOW_MS) -> Trend:
    """The trend of the samples in the last `window_ms`.

    Args:
        samples: the oldest first.
        window_ms: how far to look back from the last one.

    Returns:
        The trend; of unknown direction, with the reason, where the samples do not tell.
    """
    if not samples:
        return Trend(Direction.UNKNOWN, reason="no sample yet")
    last = samples[-1]
    if last.lag is None:
        return Trend(Direction.UNKNOWN, reason="the lag is not known")
    inside = [s for s in samples if s.at_ms >= last.at_ms - window_ms and s.lag is not None]
    first = inside[0]
    over_ms = last.at_ms - first.at_ms
    if over_ms < LEAST_MS:
        return Trend(Direction.UNKNOWN, over_ms=over_ms, reason="watched for too short a time")
    seconds = over_ms / 1000
    assert first.lag is not None
    change = last.lag - first.lag
    written = _per_s(first.written, last.written, seconds)
    done = _per_s(first.done, last.done, seconds)
    largest = max(s.lag or 0 for s in inside)
    if abs(change) <= max(STEADY_RECORDS, largest * STEADY_SHARE):
        return Trend(Direction.STEADY, change / seconds, written, done, None, over_ms)
    if change > 0:
        return Trend(Direction.GROWING, change / seconds, written, done, None, over_ms)
    left_ms = round(last.lag * over_ms / -change)
    return Trend(Direction.SHRINKING, change / seconds, written, done, left_ms, over_ms)


def _per_s(first: int | None, last: int | None, seconds: float) -> float | None:
    return None if first is None or last is None else max(0, last - first) / seconds


@dataclass(slots=True)
class Series:
    """Samples of one group, thinned as they age: at most `most` of them.

    When it is full, every second sample of the older half goes.
    """

    most: int = 240
    samples: list[Sample] = field(default_factory=list[Sample])

    def add(self, sample: Sample) -> None:
        """Add a sample that is younger than all others; an older one is left out."""
        if self.samples and sample.at_ms <= self.samples[-1].at_ms:
            return
        self.samples.append(sample)
        if len(self.samples) > self.most:
            half = len(self.samples) // 2
            self.samples = self.samples[:half:2] + self.samples[half:]


@dataclass(slots=True)
class Ends:
    """Where one log ended when: the history that tells the age of a record.

    A point is kept when the end has changed; when it is full, every second one of the older half
    goes, and ages there become less exact, never wrong.
    """

    most: int = 64
    points: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def add(self, at_ms: int, end: int) -> None:
        """Add where the log ends now."""
        if self.points and end < self.points[-1][1]:
            self.points = []  # the topic was made again
        if len(self.points) > 1 and self.points[-1][1] == self.points[-2][1] == end:
            # The latest moment at which it still ended there bounds the next record from below.
            self.points[-1] = (at_ms, end)
            return
        self.points.append((at_ms, end))
        if len(self.points) > self.most:
            half = len(self.points) // 2
            self.points = [*self.points[:1], *self.points[1:half:2], *self.points[half:]]
