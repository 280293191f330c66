"""What to produce next: the year in event time, and each late observation once it is really late.

Rules:
- Pure: it gets the topics' contents and the pipeline's position, and returns the records to
  produce. After a kill it gets the same again and continues where the topics end.
- The year goes out in stages of a month: the month's weather, and its flights once that weather
  has been read, so that only what is really late makes a flight wait.
- A late observation goes out only when every flight that needs it has been tried once, and then
  after a delay of its own (up to `max_lateness_ms`): so that it is late at any speed of the
  machine, and yet comes before those flights have used up their retries.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

from kohort.demo.flights_data import FLIGHT_PARTITIONS, Event, LateObservation, Year

_DAY_MS = 86_400_000
MAX_LATENESS_MS = 4_000
"""With the retry topics `1s 1s 3s 3s 3s 6s`: a quarter of the 17 s until a flight gives up."""


@dataclass(frozen=True, slots=True)
class Produced:
    """The topics' contents: flights by partition, observations by key."""

    flights: Mapping[int, int] = field(default_factory=dict[int, int])
    weather: Set[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Stage:
    """A month of the year: its punctual weather goes out first, then its flights."""

    weather: list[Event]
    flights: list[Event]


class Feed:
    """The records that are still to be produced, and when the late ones may go."""

    def __init__(
        self, year: Year, produced: Produced, max_lateness_ms: int = MAX_LATENESS_MS
    ) -> None:
        self._max_lateness_ms = max(1, max_lateness_ms)
        flights = _after(year.flights, produced.flights)
        weather = [e for e in year.weather if e.key not in produced.weather]
        self.stages = _stages(weather, flights)
        """What comes in time, in order; the caller produces it."""
        self._held = [o for o in year.late if o.event.key not in produced.weather]
        self._due: list[tuple[int, bytes, Event]] = []

    @property
    def held(self) -> int:
        """Late observations that are still kept back."""
        return len(self._held) + len(self._due)

    def late(self, committed: Mapping[int, int], now_ms: int) -> list[Event]:
        """The late observations to produce now.

        `committed` is, by partition of `flights`, the offset that the pipeline's group has
        committed.
        """
        still_held: list[LateObservation] = []
        for observation in self._held:
            if _tried(observation, committed):
                event = observation.event
                due_ms = now_ms + zlib.crc32(event.value) % self._max_lateness_ms
                heapq.heappush(self._due, (due_ms, event.key or b"", event))
            else:
                still_held.append(observation)
        self._held = still_held
        out: list[Event] = []
        while self._due and self._due[0][0] <= now_ms:
            out.append(heapq.heappop(self._due)[2])
        return out


def _tried(observation: LateObservation, committed: Mapping[int, int]) -> bool:
    return all(committed.get(p, 0) >= offset for p, offset in observation.wanted_by.items())


def _after(flights: list[Event], produced: Mapping[int, int]) -> list[Event]:
    """The flights that are not in the topic yet: of each partition those past its end."""
    to_skip = [produced.get(partition, 0) for partition in range(FLIGHT_PARTITIONS)]
    out: list[Event] = []
    for event in flights:
        if to_skip[event.partition]:
            to_skip[event.partition] -= 1
        else:
            out.append(event)
    return out


def _stages(weather: list[Event], flights: list[Event]) -> list[Stage]:
    """Both streams cut into months of event time."""
    months: dict[tuple[int, int], Stage] = {}
    for event in weather:
        months.setdefault(_month(event), Stage([], [])).weather.append(event)
    for event in flights:
        months.setdefault(_month(event), Stage([], [])).flights.append(event)
    return [months[month] for month in sorted(months)]


def _month(event: Event) -> tuple[int, int]:
    return _month_of_day(event.timestamp_ms // _DAY_MS)


@cache
def _month_of_day(day: int) -> tuple[int, int]:
    when = datetime.fromtimestamp(day * _DAY_MS / 1000, UTC)
    return when.year, when.month
