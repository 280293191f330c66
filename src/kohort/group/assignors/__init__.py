"""Partition assignors: Kafka's own and two of ours by name, and the base class for a user's own.

One file a strategy. `sticky` and `CooperativeStickyAssignor` plan in `sticky_plan`, by the numbers
of `sticky_counts`. Nothing here does I/O or reads a clock.

from kohort.group.assignors import Assignor, GroupView, Plan

class Mine(Assignor):
    name = "mine"
    def assign(self, group: GroupView) -> Plan: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Final

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
from kohort.group.assignors.rack_aware import RackAwareAssignor
from kohort.group.assignors.range import RangeAssignor, ServerRangeAssignor
from kohort.group.assignors.roundrobin import RoundRobinAssignor
from kohort.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kohort.group.assignors.uniform import UniformAssignor
from kohort.group.assignors.weighted import WeightedAssignor
from kohort.setting_keys import nearest

BUILT_IN: Final[dict[str, Callable[[], Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
    "rack-aware": RackAwareAssignor,
    "weighted": WeightedAssignor,
}
"""A member's assignors by the name that is written in `partition.assignment.strategy`.

The first four are Kafka's.
"""

SERVER_SIDE: Final[dict[str, Callable[[], Assignor]]] = {
    "uniform": UniformAssignor,
    "range": ServerRangeAssignor,
    "rack-aware": RackAwareAssignor,
}
"""A broker's assignors by the name that is written in `group.consumer.assignors` (KIP-848).

The first two are Kafka's.
"""

WITH_ARGUMENT: Final[dict[str, Callable[[str], Assignor]]] = {
    "weighted": WeightedAssignor.from_text,
}
"""The parameter after a name and a colon: `weighted:4`."""


def make_assignors(names: str | Iterable[str | Assignor]) -> list[Assignor]:
    """A fresh assignor for each name, in order; ready objects pass as they are.

    `names` may be one text with commas, as Kafka's configuration has it. `weighted:4` is the
    weighted one with a weight; `package.module:Class` is a class of one's own, made without
    arguments. Raises ConfigError for a name that is not known (naming the nearest), for none, and
    for one given twice.
    """
    return _made(names, BUILT_IN, "range,cooperative-sticky")


def make_server_assignors(names: str | Iterable[str | Assignor]) -> list[Assignor]:
    """As `make_assignors`, for the broker: the names are those of `SERVER_SIDE`."""
    return _made(names, SERVER_SIDE, "uniform,range")


def _made(
    names: str | Iterable[str | Assignor],
    known: Mapping[str, Callable[[], Assignor]],
    default: str,
) -> list[Assignor]:
    entries = names.split(",") if isinstance(names, str) else list(names)
    made = [each if isinstance(each, Assignor) else _one(each.strip(), known) for each in entries]
    if not made:
        raise ConfigError(f"no assignor is named; Kafka's default is {default}")
    nameless = [type(each).__name__ for each in made if not each.name]
    if nameless:
        raise ConfigError(f"assignor {nameless[0]} has no name; set its class attribute `name`")
    if len({each.name for each in made}) != len(made):
        raise ConfigError(f"an assignor is named twice: {', '.join(each.name for each in made)}")
    return made


def _one(text: str, known: Mapping[str, Callable[[], Assignor]]) -> Assignor:
    name, colon, rest = text.partition(":")
    if name in known:
        if not colon:
            return known[name]()
        if name not in WITH_ARGUMENT:
            raise ConfigError(f"assignor {name!r} takes nothing behind a colon: {text!r}")
        return WITH_ARGUMENT[name](rest)
    if colon:
        return _imported(text, name, rest)
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}, or module:Class"
    raise ConfigError(f"unknown assignor {name!r}; {hint}")


def _imported(text: str, module: str, attribute: str) -> Assignor:
    """An assignor of one's own, by where it is."""
    try:
        imported = getattr(import_module(module), attribute)
        made = imported() if isinstance(imported, type) else imported
    except Exception as error:  # a user's own module: name any error that it raises
        raise ConfigError(
            f"assignor {text!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, Assignor):
        raise ConfigError(f"{text!r} is no Assignor but {type(made).__name__}")
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
    "RackAwareAssignor",
    "TopicView",
    "WeightedAssignor",
    "make_assignors",
    "make_server_assignors",
]
