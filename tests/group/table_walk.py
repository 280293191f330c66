"""Walking a member's table by a shell's inputs: what holds for the tables of both protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from kohort.group.member.effects import Assign, Revoke, Send
from kohort.group.member.machine import Machine


class Walking:
    """Beside a driver: notes every move that its member makes."""

    member: Any
    log: list[Any]

    def note_moves(self) -> None:
        self.moves: list[tuple[Enum, Enum, Enum]] = []
        original = self.member._move

        def noted(event: Enum) -> bool:
            before = self.member.state
            moved = original(event)
            if moved:
                self.moves.append((before, event, self.member.state))
            else:
                assert self.member.state is before
            return moved

        self.member._move = noted

    def step(self, kind: type[Revoke] | type[Assign]) -> int:
        """The token of the latest step of this kind, 0 if there was none."""
        return max((e.token for e in self.log if isinstance(e, kind)), default=0)


def check_an_event(
    d: Any, machine: Machine[Any, Any], state: Enum, event: Enum, cause: Callable[[Any], object]
) -> None:
    """The table's own target where it has one; where it has none, the event changes nothing."""
    assert d.member.state is state
    d.moves.clear()
    cause(d)
    made = [to for before, what, to in d.moves if (before, what) == (state, event)]
    target = machine.transitions[state].get(event)
    if target is None:
        assert not made
    else:
        assert made[:1] == [target], d.moves


def check_whole(
    machine: Machine[Any, Any], states: type[Enum], events: type[Enum], heartbeating: frozenset[Any]
) -> None:
    """Every state stands in it, is reached from DOWN, and leads to LEFT or FATAL."""
    transitions: Mapping[Any, Mapping[Any, Any]] = machine.transitions
    assert set(transitions) == set(states)
    reached, todo = {states["DOWN"]}, [states["DOWN"]]
    while todo:
        new = set(transitions[todo.pop()].values()) - reached
        reached |= new
        todo += new
    assert reached == set(states)
    for state in set(states) - {states["LEFT"], states["LEAVING"], states["CLOSING"]}:
        assert transitions[state][events["CLOSE"]] is states["CLOSING"]
    assert heartbeating | machine.poll_watched <= machine.seeking


def check_at_rest(d: Any) -> None:
    """Whatever state it is left in, time alone brings it to rest or to a steady beat."""
    d.later(400_000)
    assert sum(isinstance(e, Send) for e in d.log) < 1_000
