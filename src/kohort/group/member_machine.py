"""A member's table of transitions, and the states and events that every such table has.

Rules: `member_table` and `consumer_member_table` hold the tables, each with states and events of
its own; `member_base` goes by a `Machine` and so by either.
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
