"""What all exporters have in common: whose metrics, and which of them.

Rules:
- Where a name is there in several depths (all topics, one topic), only the deepest goes out, so
  that a sum over the labels counts nothing twice.
- NaN is not exported: an absent series says that nothing is known.
- Clients of one id in one process would be one series: the second is called `id-2`, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from kohort.metrics.registry import Family, Measured, Sample, Tags

CLIENT_ID = "client-id"


class Client(Protocol):
    """A Consumer, a Producer, an Admin, an App."""

    @property
    def measured(self) -> Measured:
        """Its metrics."""
        ...


class Clients:
    """The clients of one exporter; add and remove them as they come and go."""

    def __init__(self, clients: Iterable[Client] = ()) -> None:
        self._names: dict[Client, dict[str, str]] = {}
        for client in clients:
            self.add(client)

    def add(self, client: Client) -> None:
        """Export this one, too."""
        if client not in self._names:
            self._names[client] = {}

    def remove(self, client: Client) -> None:
        """This one is closed: its series end."""
        self._names.pop(client, None)

    def families(self) -> list[Family]:
        """Every name that any of them may have."""
        return list(dict.fromkeys(f for client in self._names for f in client.measured.families()))

    def samples(self, key: Callable[[Family], object]) -> list[Sample]:
        """What goes out now; families of one `key` are one name of the exporter's."""
        every = [
            Sample(family, self._named(client, tags), value)
            for client in list(self._names)
            for family, tags, value in client.measured.samples()
            if not math.isnan(value)
        ]
        depths: dict[object, int] = {}
        for family, tags, _ in every:
            depths[key(family)] = max(depths.get(key(family), 0), len(tags))
        return [sample for sample in every if len(sample.tags) == depths[key(sample.family)]]

    def _named(self, client: Client, tags: Tags) -> Tags:
        return tuple(
            (name, self._name(client, value) if name == CLIENT_ID else value)
            for name, value in tags
        )

    def _name(self, client: Client, client_id: str) -> str:
        mine = self._names.get(client, {})
        if client_id not in mine:
            taken = {name for names in self._names.values() for name in names.values()}
            name, number = client_id, 1
            while name in taken:
                number += 1
                name = f"{client_id}-{number}"
            mine[client_id] = name
        return mine[client_id]
