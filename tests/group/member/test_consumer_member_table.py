"""Every event in every state of the KIP-848 member's table, by inputs that a shell really makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import ErrorCode, GroupError
from kohort.group.member.consumer_table import (
    HEARTBEATING,
    MACHINE,
    SETTLING,
    Event,
    State,
)
from kohort.group.member.effects import Assign, Revoke
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest as Beat,
)
from tests.group.consumer_member_driver import INTERVAL_MS, ConsumerDriver
from tests.group.table_walk import Walking, check_an_event, check_at_rest, check_whole

E = ErrorCode


class Walker(Walking, ConsumerDriver):
    """A driver that notes every move its member makes."""

    def __init__(self) -> None:
        super().__init__("t", max_poll_interval_ms=60_000)
        self.note_moves()

    def answer_last(
        self, parts: dict[str, list[int]] | None = None, epoch: int = 2, **more: Any
    ) -> None:
        """Answer whatever was sent last."""
        if Beat in self.sent:
            self.reply(parts, epoch, **more)


def _reconciling(d: Walker) -> None:
    d.join()
    d.reply({"t": [0, 1]})


def _acknowledging(d: Walker) -> None:
    _reconciling(d)
    d.steps()


def _resolving(d: Walker) -> None:
    d.stable({"t": [0, 1], "strange": [0]})


def _fenced(d: Walker) -> None:
    d.stable()
    d.call("commit_refused", E.UNKNOWN_MEMBER_ID, 1)


def _overdue(d: Walker) -> None:
    d.stable()
    d.later(60_000)


def _unsubscribing(d: Walker) -> None:
    d.stable()
    d.call("unsubscribe")


def _closing(d: Walker) -> None:
    d.stable()
    d.call("close")


def _leaving(d: Walker) -> None:
    _closing(d)
    d.steps()


def _left(d: Walker) -> None:
    _leaving(d)
    d.answer_last()


def _fatal(d: Walker) -> None:
    d.join()
    d.reply(error=E.GROUP_AUTHORIZATION_FAILED)


def _rediscovering(d: Walker) -> None:
    d.stable()
    d.call("coordinator_lost")


INTO: dict[State, Callable[[Walker], object]] = {
    State.DOWN: lambda d: None,
    State.DISCOVERING: lambda d: d.subscribe(),
    State.JOINING: lambda d: d.join(),
    State.STABLE: lambda d: d.stable(),
    State.RECONCILING: _reconciling,
    State.ACKNOWLEDGING: _acknowledging,
    State.RESOLVING: _resolving,
    State.REDISCOVERING: _rediscovering,
    State.FENCED: _fenced,
    State.OVERDUE: _overdue,
    State.UNSUBSCRIBING: _unsubscribing,
    State.CLOSING: _closing,
    State.LEAVING: _leaving,
    State.LEFT: _left,
    State.FATAL: _fatal,
}


def _beat(d: Walker) -> None:
    d.later(INTERVAL_MS) if d.member.state in HEARTBEATING else None


def _target(d: Walker) -> None:
    _beat(d)
    d.answer_last({"t": [3]})


def _unresolved(d: Walker) -> None:
    _beat(d)
    d.answer_last({"t": [0, 1], "strange": [0]})


def _settled(d: Walker) -> None:
    _beat(d)
    d.answer_last({"t": [0, 1]})


def _lost(d: Walker) -> None:
    _beat(d)
    d.answer_last(error=E.FENCED_MEMBER_EPOCH)
    d.call("commit_refused", E.UNKNOWN_MEMBER_ID, d.member.generation)


def _fail(d: Walker) -> None:
    d.call("coordinator_not_found", GroupError(E.GROUP_AUTHORIZATION_FAILED, "no"))
    _beat(d)
    d.answer_last(error=E.FENCED_INSTANCE_ID)
    d.call("commit_refused", E.FENCED_INSTANCE_ID, d.member.generation)


def _overdue_now(d: Walker) -> None:
    d.now += 60_000
    d.call("tick")


CAUSE: dict[Event, Callable[[Walker], object]] = {
    Event.SUBSCRIBE: lambda d: d.call("subscribe", ["t"]),
    Event.COORDINATOR_FOUND: lambda d: d.call("coordinator_found", 11),
    Event.COORDINATOR_LOST: lambda d: d.call("coordinator_lost"),
    Event.JOINED: lambda d: d.answer_last({}, 1),
    Event.TARGET: _target,
    Event.TAKEN: lambda d: d.call("assigned", d.step(Assign)),
    Event.UNRESOLVED: _unresolved,
    Event.SETTLED: _settled,
    Event.LOST: _lost,
    Event.REVOKED: lambda d: d.call("revoked", d.step(Revoke)),
    Event.POLL_OVERDUE: _overdue_now,
    Event.POLLED: lambda d: d.call("polled"),
    Event.UNSUBSCRIBE: lambda d: d.call("unsubscribe"),
    Event.CLOSE: lambda d: d.call("close"),
    Event.GONE: lambda d: d.answer_last(),
    Event.FAIL: _fail,
}


@pytest.mark.parametrize("state", State, ids=lambda s: s.name)
@pytest.mark.parametrize("event", Event, ids=lambda e: e.name)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    """The table's own target where it has one; where it has none, the event changes nothing."""
    d = Walker()
    INTO[state](d)
    check_an_event(d, MACHINE, state, event, CAUSE[event])


def test_the_table_is_whole() -> None:
    """Every state stands in it, is reached from DOWN, and leads to LEFT or FATAL."""
    check_whole(MACHINE, State, Event, HEARTBEATING)
    assert SETTLING <= HEARTBEATING


@pytest.mark.parametrize("state", State, ids=lambda s: s.name)
def test_no_state_asks_to_be_called_without_end(state: State) -> None:
    """Whatever state it is left in, time alone brings it to rest or to a steady beat."""
    d = Walker()
    INTO[state](d)
    check_at_rest(d)
