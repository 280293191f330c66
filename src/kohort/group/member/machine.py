"""A member's table of transitions, and the states and events that every such table has.

Rules: `classic_table` and `consumer_table` hold the tables, each with its own states and
events; those that `Machine` names have the same names in both. `base` uses a `Machine`, and
so works with either.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


@dataclass(frozen=True)
class Machine(Generic[S, E]):
    """A table, where a member seeks a coordinator and must be polled, and the names in common."""

    transitions: Mapping[S, Mapping[E, S]]
    seeking: frozenset[S]
    poll_watched: frozenset[S]
    out: frozenset[S]
    """Where there is nothing left to leave."""
    down: S
    discovering: S
    joining: S
    overdue: S
    closing: S
    subscribe: E
    found: E
    lost: E
    """The coordinator is."""
    poll_overdue: E
    polled: E
    unsubscribe: E
    close: E
    gone: E
    fail: E


def machine_of(
    states: type[S],
    events: type[E],
    transitions: Mapping[S, Mapping[E, S]],
    *,
    seeking: frozenset[S],
    poll_watched: frozenset[S],
) -> Machine[S, E]:
    """A table's machine; the names in common are found in its enums."""
    return Machine(
        transitions,
        seeking,
        poll_watched,
        out=frozenset(states[name] for name in ("DOWN", "LEFT", "FATAL")),
        down=states["DOWN"],
        discovering=states["DISCOVERING"],
        joining=states["JOINING"],
        overdue=states["OVERDUE"],
        closing=states["CLOSING"],
        subscribe=events["SUBSCRIBE"],
        found=events["COORDINATOR_FOUND"],
        lost=events["COORDINATOR_LOST"],
        poll_overdue=events["POLL_OVERDUE"],
        polled=events["POLLED"],
        unsubscribe=events["UNSUBSCRIBE"],
        close=events["CLOSE"],
        gone=events["GONE"],
        fail=events["FAIL"],
    )
