"""Partition assignors: Kafka's own by name, and the base class for a user's own.

from kohort.group.assignors import Assignor, GroupView, Plan

class Mine(Assignor):
    name = "mine"
    def assign(self, group: GroupView) -> Plan: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kohort.config import nearest
from kohort.errors import ConfigError
from kohort.group.assignors.base import (
    Assignor,
    AssignorError,
    GroupView,
    MemberView,
    Partitions,
    Plan,
    TopicView,
)
from kohort.group.assignors.range import RangeAssignor, ServerRangeAssignor
from kohort.group.assignors.roundrobin import RoundRobinAssignor
from kohort.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kohort.group.assignors.uniform import UniformAssignor

BUILT_IN: Final[dict[str, Callable[[], Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
"""Kafka's assignors by the name that is written in `partition.assignment.strategy`."""

SERVER_SIDE: Final[dict[str, Callable[[], Assignor]]] = {
    "uniform": UniformAssignor,
    "range": ServerRangeAssignor,
}
"""Kafka's assignors of KIP-848, by the name that is written in `group.consumer.assignors`."""


def make_server_assignors(names: str | Iterable[str | Assignor]) -> list[Assignor]:
    """As `make_assignors`, for the broker: the names are those of `SERVER_SIDE`."""
    return _made(names, SERVER_SIDE, "uniform,range")


def make_assignors(names: str | Iterable[str | Assignor]) -> list[Assignor]:
    """A fresh assignor for each name, in order; ready objects pass as they are.

    `names` may be one text with commas, as Kafka's configuration has it. Raises ConfigError for a
    name that is not known (naming the nearest), for none, and for one given twice.
    """
    return _made(names, BUILT_IN, "range,cooperative-sticky")


def _made(
    names: str | Iterable[str | Assignor],
    known: Mapping[str, Callable[[], Assignor]],
    default: str,
) -> list[Assignor]:
    wanted = names.split(",") if isinstance(names, str) else list(names)
    made: list[Assignor] = []
    for each in wanted:
        if isinstance(each, Assignor):
            made.append(each)
            continue
        name = each.strip()
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"unknown assignor {name!r}; {hint}")
        made.append(known[name]())
    if not made:
        raise ConfigError(f"no assignor is named; Kafka's default is {default}")
    nameless = [type(each).__name__ for each in made if not each.name]
    if nameless:
        raise ConfigError(f"assignor {nameless[0]} has no name; set its class attribute `name`")
    if len({each.name for each in made}) != len(made):
        raise ConfigError(f"an assignor is named twice: {', '.join(each.name for each in made)}")
    return made


__all__ = [
    "BUILT_IN",
    "SERVER_SIDE",
    "Assignor",
    "AssignorError",
    "GroupView",
    "MemberView",
    "Partitions",
    "Plan",
    "TopicView",
    "make_assignors",
    "make_server_assignors",
]
