"""One thing that is measured: how often, how much, the largest; ever, and of late. Pure.

Rules:
- "Of late" is the present window of 30 seconds and the one before it, as Java's defaults
  (`metrics.sample.window.ms`, `metrics.num.samples`) have it.
- An average or a maximum of nothing is NaN; a rate of nothing is 0.
- A sensor is fed by one thread. Others may read it meanwhile and see a value or two less.
"""

from __future__ import annotations

import enum
import math
from typing import Final

WINDOW_MS: Final = 30_000
NOTHING: Final = math.nan
NEVER: Final = -1


class Sensor:
    """Takes values, with the time at which they came."""

    __slots__ = (
        "_before",
        "_count",
        "_count_before",
        "_max",
        "_max_before",
        "_start_ms",
        "_sum",
        "_sum_before",
        "count",
        "last_ms",
        "total",
    )

    def __init__(self) -> None:
        self.count = 0
        """How many values ever."""
        self.total = 0.0
        """Their sum."""
        self.last_ms = NEVER
        """When the last one came."""
        self._start_ms = 0
        self._before = False
        self._count = self._count_before = 0
        self._sum = self._sum_before = 0.0
        self._max = self._max_before = NOTHING

    def record(self, value: float, now_ms: int, times: int = 1) -> None:
        """Take one value (or the sum of `times` values)."""
        if now_ms - self._start_ms >= WINDOW_MS or self.last_ms == NEVER:
            self._roll(now_ms)
        self.last_ms = now_ms
        self.count += times
        self.total += value
        self._count += times
        self._sum += value
        if not value <= self._max:  # NaN at first
            self._max = value

    def _roll(self, now_ms: int) -> None:
        gone = now_ms - self._start_ms
        fresh = self.last_ms == NEVER
        if fresh or gone >= 2 * WINDOW_MS:
            self._count_before, self._sum_before, self._max_before = 0, 0.0, NOTHING
            self._start_ms = now_ms
            self._before = False
        else:
            self._count_before, self._sum_before = self._count, self._sum
            self._max_before = self._max
            self._start_ms += WINDOW_MS
            self._before = True
        self._count, self._sum, self._max = 0, 0.0, NOTHING

    def _recent(self, now_ms: int) -> tuple[int, float, float]:
        """Count, sum and maximum of late."""
        age_ms = now_ms - self._start_ms
        if self.last_ms == NEVER or age_ms >= 2 * WINDOW_MS:
            return 0, 0.0, NOTHING
        if age_ms >= WINDOW_MS:  # the present window is over: it is the one before
            return self._count, self._sum, self._max
        largest = self._max if self._max >= self._max_before else self._max_before
        largest = self._max if math.isnan(largest) else largest
        return self._count + self._count_before, self._sum + self._sum_before, largest

    def _span_ms(self, now_ms: int) -> int:
        """The time that `_recent` covers, at least a window so that a start is no burst."""
        age_ms = now_ms - self._start_ms
        return max(WINDOW_MS, age_ms + (WINDOW_MS if self._before and age_ms < WINDOW_MS else 0))

    def avg(self, now_ms: int) -> float:
        """The average of late; NaN when there was nothing."""
        count, total, _ = self._recent(now_ms)
        return total / count if count else NOTHING

    def max(self, now_ms: int) -> float:
        """The largest of late; NaN when there was nothing."""
        return self._recent(now_ms)[2]

    def rate(self, now_ms: int) -> float:
        """Values a second of late."""
        return self._recent(now_ms)[0] * 1_000 / self._span_ms(now_ms)

    def sum_rate(self, now_ms: int) -> float:
        """Their sum a second of late."""
        return self._recent(now_ms)[1] * 1_000 / self._span_ms(now_ms)

    def ago_s(self, now_ms: int) -> float:
        """Whole seconds since the last value; NaN before the first."""
        return NOTHING if self.last_ms == NEVER else (now_ms - self.last_ms) // 1_000


class View(enum.Enum):
    """A statistic of a sensor; the value is its description."""

    COUNT = "how many"
    RATE = "how many a second of late"
    HOURLY = "how many an hour, by the rate of late"
    SUM = "the sum"
    SUM_NS = "the sum of milliseconds, in nanoseconds"
    SUM_RATE = "the sum a second of late"
    AVG = "the average of late"
    MAX = "the largest of late"
    AGO = "seconds since the last one"

    def of(self, sensor: Sensor, now_ms: int) -> float:
        """The number."""
        match self:
            case View.COUNT:
                return float(sensor.count)
            case View.RATE:
                return sensor.rate(now_ms)
            case View.HOURLY:
                return sensor.rate(now_ms) * 3_600
            case View.SUM:
                return sensor.total
            case View.SUM_NS:
                return sensor.total * 1_000_000
            case View.SUM_RATE:
                return sensor.sum_rate(now_ms)
            case View.AVG:
                return sensor.avg(now_ms)
            case View.MAX:
                return sensor.max(now_ms)
            case View.AGO:
                return sensor.ago_s(now_ms)
