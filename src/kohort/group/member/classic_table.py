"""The member's machine as one literal table (spec 1.1-1.10); the diagrams are drawn from it.

Rules:
- A pair that is not in the table changes nothing: the event does not concern that state.
- Every way into a generation leads through DISCOVERING, which is left at once while a coordinator
  is known (spec 1.1), and every way out of one through a state that waits for the caller's thread
  to give up its partitions.
- Whether there is a coordinator is kept beside the state. Where it alone decides the state, the two
  are DISCOVERING (needs to join) and REDISCOVERING (a member that keeps consuming, spec 1.2).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from kohort.group.member.machine import machine_of


class State(enum.Enum):
    """What a member is doing; the value is the sentence that `health()` shows."""

    DOWN = "not subscribed"
    DISCOVERING = "looking for the coordinator in order to join"
    REVOKING = "waiting for the caller's poll to give up partitions before joining"
    JOINING = "waiting for the group to join"
    PLANNING = "leader: waiting for the partitions of the group's topics"
    SYNCING = "waiting for the assignment"
    ASSIGNING = "waiting for the caller's poll to take the assignment"
    STABLE = "member of the group"
    REDISCOVERING = "member, consuming on while it looks for the coordinator"
    OVERDUE = "left the group: no poll within max.poll.interval.ms; joins at the next poll"
    UNSUBSCRIBING = "waiting for the caller to give up partitions before unsubscribing"
    CLOSING = "waiting for the caller to give up partitions before leaving"
    LEAVING = "waiting for the coordinator to accept its leave"
    LEFT = "left permanently"
    FATAL = "stopped by an error that only a person can fix"


class Event(enum.Enum):
    """What can happen to a member, after answers have been classified."""

    SUBSCRIBE = "subscribed while down"
    COORDINATOR_FOUND = "a coordinator is known"
    COORDINATOR_LOST = "the coordinator is dead, moved, or silent for a session timeout"
    JOIN_AGAIN = "the join is to be sent again"
    JOINED = "join answered: a follower, or a leader that need not plan (KIP-814)"
    ELECTED = "join answered: the leader"
    PLANNED = "the leader has its plan"
    SYNCED = "the assignment has come"
    ASSIGNED = "the caller has taken the assignment"
    REJOIN = "a rebalance is on: requested by the coordinator, or by this member"
    LOST = "the coordinator does not know this member or generation (any more)"
    REVOKED = "the caller has given up the partitions"
    POLL_OVERDUE = "the caller has not polled for max.poll.interval.ms"
    POLLED = "the caller polls"
    UNSUBSCRIBE = "the caller unsubscribes"
    CLOSE = "the caller closes"
    GONE = "the leave is answered, or there is nobody to tell"
    FAIL = "an error that only a person can mend"


_S, _E = State, Event

_ALWAYS: Final[Mapping[Event, State]] = {
    _E.POLL_OVERDUE: _S.OVERDUE,
    _E.UNSUBSCRIBE: _S.UNSUBSCRIBING,
    _E.CLOSE: _S.CLOSING,
    _E.FAIL: _S.FATAL,
}
_OUT: Final[Mapping[Event, State]] = {_E.REJOIN: _S.REVOKING, _E.LOST: _S.REVOKING}

TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    _S.DOWN: {_E.SUBSCRIBE: _S.DISCOVERING, _E.CLOSE: _S.CLOSING},
    _S.DISCOVERING: {**_ALWAYS, **_OUT, _E.COORDINATOR_FOUND: _S.JOINING},
    _S.REVOKING: {**_ALWAYS, _E.LOST: _S.REVOKING, _E.REVOKED: _S.DISCOVERING},
    _S.JOINING: {
        **_ALWAYS,
        **_OUT,
        _E.JOIN_AGAIN: _S.JOINING,
        _E.JOINED: _S.SYNCING,
        _E.ELECTED: _S.PLANNING,
        _E.COORDINATOR_LOST: _S.DISCOVERING,
    },
    _S.PLANNING: {
        **_ALWAYS,
        **_OUT,
        _E.PLANNED: _S.SYNCING,
        _E.COORDINATOR_LOST: _S.DISCOVERING,
    },
    _S.SYNCING: {
        **_ALWAYS,
        **_OUT,
        _E.SYNCED: _S.ASSIGNING,
        _E.COORDINATOR_LOST: _S.DISCOVERING,
    },
    _S.ASSIGNING: {**_ALWAYS, **_OUT, _E.ASSIGNED: _S.STABLE},
    _S.STABLE: {**_ALWAYS, **_OUT, _E.COORDINATOR_LOST: _S.REDISCOVERING},
    _S.REDISCOVERING: {**_ALWAYS, _E.LOST: _S.REVOKING, _E.COORDINATOR_FOUND: _S.STABLE},
    _S.OVERDUE: {
        _E.POLLED: _S.REVOKING,
        _E.UNSUBSCRIBE: _S.UNSUBSCRIBING,
        _E.CLOSE: _S.CLOSING,
    },
    _S.UNSUBSCRIBING: {_E.REVOKED: _S.DOWN, _E.CLOSE: _S.CLOSING, _E.FAIL: _S.FATAL},
    _S.CLOSING: {_E.REVOKED: _S.LEAVING},
    _S.LEAVING: {_E.GONE: _S.LEFT},
    _S.LEFT: {},
    _S.FATAL: {_E.CLOSE: _S.CLOSING},
}

HEARTBEATING: Final = frozenset(
    {_S.REVOKING, _S.PLANNING, _S.ASSIGNING, _S.STABLE, _S.UNSUBSCRIBING, _S.CLOSING}
)
"""Where a member with a generation and a coordinator heartbeats: everywhere but between a join or
sync and its answer, when the coordinator holds its session open itself (spec 1.5, 2.3)."""

SEEKING: Final = frozenset(
    {
        _S.DISCOVERING,
        _S.REVOKING,
        _S.JOINING,
        _S.PLANNING,
        _S.SYNCING,
        _S.ASSIGNING,
        _S.STABLE,
        _S.REDISCOVERING,
        _S.UNSUBSCRIBING,
        _S.CLOSING,
    }
)
"""Where a member that has no coordinator looks for one."""

POLL_WATCHED: Final = frozenset(
    {
        _S.DISCOVERING,
        _S.REVOKING,
        _S.JOINING,
        _S.PLANNING,
        _S.SYNCING,
        _S.ASSIGNING,
        _S.STABLE,
        _S.REDISCOVERING,
    }
)
"""Where the caller must poll within `max.poll.interval.ms`."""

MACHINE: Final = machine_of(State, Event, TRANSITIONS, seeking=SEEKING, poll_watched=POLL_WATCHED)
