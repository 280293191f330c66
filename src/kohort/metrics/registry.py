"""A client's metrics by name: measured by sensors, or looked up on request.

Rules:
- A metric is a family (group, name) with tags. Families are known from the start, so that exporters
  can announce them; which tags there are may change at any time.
- The families of a group that have fewer tags are sums of those that have more (all topics, one
  topic): both are here, as in Java; an exporter that sums by itself takes the finer ones alone.
- What grows with what others name (topics, nodes) is bounded: past `MAX_TAGS` the one that was
  silent the longest goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from kohort.metrics.sensor import Sensor, View

MAX_TAGS: Final = 1_000

Tags = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """One metric's name, group and description."""

    group: str
    name: str
    description: str

    @property
    def is_counter(self) -> bool:
        """Whether it only ever grows."""
        return self.name.endswith(("-total", "_total"))  # as in Java, and an App's own


class MetricName(NamedTuple):
    """What a number is of."""

    group: str
    name: str
    tags: Tags
    description: str


class Sample(NamedTuple):
    """One number of a family."""

    family: Family
    tags: Tags
    value: float


class Measured(Protocol):
    """Any object with metrics: a Consumer, a Producer, an App."""

    def samples(self) -> list[Sample]:
        """All of them now."""
        ...

    def families(self) -> list[Family]:
        """Every name there may be."""
        ...


Read = Callable[[int], Iterable[Sample]]


class Registry:
    """Everything that is measured of one client."""

    def __init__(self) -> None:
        self._families: list[Family] = []
        self._reads: list[Read] = []

    def add(self, families: Iterable[Family], read: Read) -> None:
        """Let `read(now_ms)` tell samples of these families."""
        self._families += families
        self._reads.append(read)

    def sensors(self, group: str, views: Mapping[str, tuple[View, str]]) -> Sensors:
        """A kind of sensor: each view of it is a family (name -> what is shown, description)."""
        sensors = Sensors(group, views)
        self.add(sensors.families, sensors.read)
        return sensors

    def families(self) -> list[Family]:
        """Every family."""
        return list(self._families)

    def samples(self, now_ms: int) -> list[Sample]:
        """Every number at this time."""
        return [sample for read in self._reads for sample in read(now_ms)]


def by_name(samples: Iterable[Sample]) -> dict[MetricName, float]:
    """The same numbers by name."""
    return {
        MetricName(family.group, family.name, tags, family.description): value
        for family, tags, value in samples
    }


class Sensors:
    """Sensors of one kind, by tags."""

    __slots__ = ("_by_tags", "_views", "families")

    def __init__(self, group: str, views: Mapping[str, tuple[View, str]]) -> None:
        self.families = [Family(group, name, text) for name, (_, text) in views.items()]
        self._views = [view for view, _ in views.values()]
        self._by_tags: dict[Tags, Sensor] = {}

    def of(self, tags: Tags) -> Sensor:
        """The sensor with these tags; the one asked for longest ago gives way to a new one."""
        by_tags = self._by_tags
        sensor = by_tags.pop(tags, None)
        if sensor is None:
            if len(by_tags) >= MAX_TAGS:
                del by_tags[next(iter(by_tags))]
            sensor = Sensor()
        by_tags[tags] = sensor
        return sensor

    def forget(self, tags: Tags) -> None:
        """What these tags name is gone."""
        self._by_tags.pop(tags, None)

    def read(self, now_ms: int) -> Iterable[Sample]:
        """Every view of every sensor."""
        for tags, sensor in list(self._by_tags.items()):
            for family, view in zip(self.families, self._views, strict=True):
                yield Sample(family, tags, view.of(sensor, now_ms))
