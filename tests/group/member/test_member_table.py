"""Every event in every state of the member's table, by the inputs that a shell really makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import ErrorCode, GroupError
from kohort.group.assignors import TopicView
from kohort.group.member.classic_table import HEARTBEATING, MACHINE, Event, State
from kohort.group.member.effects import Assign, Revoke
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.leave_group_response import LeaveGroupResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from tests.group.member_driver import Driver, metadata
from tests.group.table_walk import Walking, check_an_event, check_at_rest, check_whole

E = ErrorCode
COOP = "cooperative-sticky"


class Walker(Walking, Driver):
    """A driver that notes every move its member makes."""

    def __init__(self, assignors: str = "range", **config: Any) -> None:
        super().__init__(assignors, max_poll_interval_ms=60_000, **config)
        self.note_moves()

    def reply(self, kind: type, answer: object) -> None:
        if kind in self.sent:
            self.call("answered", self.sent[kind].token, answer)


def _revoking(d: Walker) -> None:
    d.stable()
    d.subscribe("t u")


def _overdue(d: Walker) -> None:
    d.stable()
    d.later(60_000)


def _leading(d: Walker) -> None:
    d.join()
    d.joined(leader="me", members={"me": metadata("t")})


def _closing(d: Walker) -> None:
    d.stable()
    d.call("close")


def _leaving(d: Walker) -> None:
    _closing(d)
    d.steps()


def _discovering(d: Walker) -> None:
    """In the middle of a rebalance, so that there is a generation to lose."""
    d.stable()
    d.subscribe("t u")
    d.call("coordinator_lost")


def _overdue_now(d: Walker) -> None:
    d.now += 60_000
    d.call("tick")


def _left(d: Walker) -> None:
    _leaving(d)
    d.reply(LeaveGroupRequest, LeaveGroupResponse())


def _fatal(d: Walker) -> None:
    d.join()
    d.joined(error=E.GROUP_AUTHORIZATION_FAILED)


def _syncing(d: Walker) -> None:
    d.join()
    d.joined()


def _assigning(d: Walker) -> None:
    _syncing(d)
    d.synced({"t": [0]})


def _rediscovering(d: Walker) -> None:
    d.stable()
    d.call("coordinator_lost")


def _unsubscribing(d: Walker) -> None:
    d.stable()
    d.call("unsubscribe")


INTO: dict[State, Callable[[Walker], object]] = {
    State.DOWN: lambda d: None,
    State.DISCOVERING: _discovering,
    State.REVOKING: _revoking,
    State.JOINING: lambda d: d.join(),
    State.PLANNING: _leading,
    State.SYNCING: _syncing,
    State.ASSIGNING: _assigning,
    State.STABLE: lambda d: d.stable(),
    State.REDISCOVERING: _rediscovering,
    State.OVERDUE: _overdue,
    State.UNSUBSCRIBING: _unsubscribing,
    State.CLOSING: _closing,
    State.LEAVING: _leaving,
    State.LEFT: _left,
    State.FATAL: _fatal,
}


def _refuse(d: Walker, code: int) -> None:
    """Whatever is under way, or the next heartbeat, or a commit, is answered with `code`."""
    d.joined(error=code) if JoinGroupRequest in d.sent else None
    if SyncGroupRequest in d.sent:
        d.synced(error=code)
    d.call("hurry")
    d.reply(HeartbeatRequest, HeartbeatResponse(error_code=code))
    d.call("commit_refused", code, d.member.generation)


def _rejoin(d: Walker) -> None:
    d.call("subscribe", ["t", "wanted"])
    if SyncGroupRequest in d.sent:
        d.synced(error=E.REBALANCE_IN_PROGRESS)
    if JoinGroupRequest in d.sent:
        d.joined(5)


def _fail(d: Walker) -> None:
    d.call("coordinator_not_found", GroupError(E.GROUP_AUTHORIZATION_FAILED, "no"))
    _refuse(d, E.FENCED_INSTANCE_ID)


CAUSE: dict[Event, Callable[[Walker], object]] = {
    Event.SUBSCRIBE: lambda d: d.call("subscribe", ["t"]),
    Event.COORDINATOR_FOUND: lambda d: d.call("coordinator_found", 11),
    Event.COORDINATOR_LOST: lambda d: d.call("coordinator_lost"),
    Event.JOIN_AGAIN: lambda d: (
        d.joined(error=E.COORDINATOR_LOAD_IN_PROGRESS) if JoinGroupRequest in d.sent else None
    ),
    Event.JOINED: lambda d: d.joined() if JoinGroupRequest in d.sent else None,
    Event.ELECTED: lambda d: (
        d.joined(leader="me", members={"me": metadata("t")}) if JoinGroupRequest in d.sent else None
    ),
    Event.PLANNED: lambda d: d.call("topics_changed", {"t": TopicView(2)}),
    Event.SYNCED: lambda d: d.synced({"t": [1]}) if SyncGroupRequest in d.sent else None,
    Event.ASSIGNED: lambda d: d.call("assigned", d.step(Assign)),
    Event.REJOIN: _rejoin,
    Event.LOST: lambda d: _refuse(d, E.UNKNOWN_MEMBER_ID),
    Event.REVOKED: lambda d: d.call("revoked", d.step(Revoke)),
    Event.POLL_OVERDUE: _overdue_now,
    Event.POLLED: lambda d: d.call("polled"),
    Event.UNSUBSCRIBE: lambda d: d.call("unsubscribe"),
    Event.CLOSE: lambda d: d.call("close"),
    Event.GONE: lambda d: d.reply(LeaveGroupRequest, LeaveGroupResponse()),
    Event.FAIL: _fail,
}


@pytest.mark.parametrize("state", State, ids=lambda s: s.name)
@pytest.mark.parametrize("event", Event, ids=lambda e: e.name)
def test_every_event_in_every_state(state: State, event: Event) -> None:
    """The table's own target where it has one; where it has none, the event changes nothing."""
    d = Walker(COOP if state is State.DISCOVERING else "range")
    INTO[state](d)
    check_an_event(d, MACHINE, state, event, CAUSE[event])


def test_the_table_is_whole() -> None:
    """Every state stands in it, is reached from DOWN, and leads to LEFT or FATAL."""
    check_whole(MACHINE, State, Event, HEARTBEATING)


@pytest.mark.parametrize("state", State, ids=lambda s: s.name)
def test_no_state_asks_to_be_called_without_end(state: State) -> None:
    """Whatever state it is left in, time alone brings it to rest or to a steady beat."""
    d = Walker(COOP if state is State.DISCOVERING else "range")
    INTO[state](d)
    check_at_rest(d)
