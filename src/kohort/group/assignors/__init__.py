"""Partition assignors: Kafka's own by name, and the base class for a user's own.

from kohort.group.assignors import Assignor, GroupView, Plan

class Mine(Assignor):
    name = "mine"
    def assign(self, group: GroupView) -> Plan: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from kohort.group.assignors.range import RangeAssignor
from kohort.group.assignors.roundrobin import RoundRobinAssignor
from kohort.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

BUILT_IN: Final[dict[str, Callable[[], Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
"""Kafka's assignors by the name that is written in `partition.assignment.strategy`."""


def make_assignors(names: str | Iterable[str | Assignor]) -> list[Assignor]:
    """A fresh assignor for each name, in order; ready objects pass as they are.

    `names` may be one text with commas, as Kafka's configuration has it. Raises ConfigError for a
    name that is not known (naming the nearest), for none, and for one given twice.
    """
    wanted = names.split(",") if isinstance(names, str) else list(names)
    made: list[Assignor] = []
    for each in wanted:
        if isinstance(each, Assignor):
            made.append(each)
            continue
        name = each.strip()
        if name not in BUILT_IN:
            near = nearest(name, BUILT_IN)
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(BUILT_IN)}"
            raise ConfigError(f"unknown assignor {name!r}; {hint}")
        made.append(BUILT_IN[name]())
    if not made:
        raise ConfigError("no assignor is named; Kafka's default is range,cooperative-sticky")
    nameless = [type(each).__name__ for each in made if not each.name]
    if nameless:
        raise ConfigError(f"assignor {nameless[0]} has no name; set its class attribute `name`")
    if len({each.name for each in made}) != len(made):
        raise ConfigError(f"an assignor is named twice: {', '.join(each.name for each in made)}")
    return made


__all__ = [
    "BUILT_IN",
    "Assignor",
    "AssignorError",
    "GroupView",
    "MemberView",
    "Partitions",
    "Plan",
    "TopicView",
    "make_assignors",
]
