"""How a literal table of transitions is followed: of the coordinators, and of a producer.

Rules: a table maps (state, event) to the next state. A pair that it does not have is a bug of ours,
never something that a client can bring about, and raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def follow(table: Mapping[tuple[S, E], S], state: S, event: E, of: str) -> S:
    """The state that `event` leads to. Raises AssertionError where the table has none.

    `of` says whose state it is, for the error.
    """
    target = table.get((state, event))
    if target is None:
        raise AssertionError(
            f"{of}: {event.name} in {state.name} is not a transition of its table; this is a bug "
            "in kohort, please report it"
        )
    return target
