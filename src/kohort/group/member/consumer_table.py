"""The machine of a member under the consumer protocol (KIP-848) as one literal table.

Rules:
- A pair that is not in the table changes nothing: the event does not concern that state.
- A member owns partitions only between JOINED and the way out through FENCED, OVERDUE,
  UNSUBSCRIBING, CLOSING or FATAL; each of these waits for the caller's thread to give them up.
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
    JOINING = "waiting for the coordinator to take it into the group"
    STABLE = "member of the group"
    RECONCILING = "waiting for the caller's poll to give up or take partitions"
    ACKNOWLEDGING = "waiting for the coordinator to note what is owned"
    RESOLVING = "member, waiting for metadata of a topic that it was assigned"
    REDISCOVERING = "member, consuming on while it looks for the coordinator"
    FENCED = "out of the group: waiting for the caller's poll to give up what was lost"
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
    COORDINATOR_LOST = "the coordinator is dead, moved, or does not answer"
    JOINED = "the coordinator has taken the member into the group"
    TARGET = "partitions are to be given up or taken"
    TAKEN = "the caller owns its assignment, as far as its topics are known"
    UNRESOLVED = "a topic of the assignment is not known here yet"
    SETTLED = "the coordinator knows the owned partitions, and they are the whole assignment"
    LOST = "fenced, or unknown to the coordinator"
    REVOKED = "the caller has given up the partitions"
    POLL_OVERDUE = "the caller has not polled for max.poll.interval.ms"
    POLLED = "the caller polls"
    UNSUBSCRIBE = "the caller unsubscribes"
    CLOSE = "the caller closes"
    GONE = "the leave is answered, or there is nobody to tell"
    FAIL = "an error that only a person can mend"


_S, _E = State, Event

_OUT: Final[Mapping[Event, State]] = {
    _E.UNSUBSCRIBE: _S.UNSUBSCRIBING,
    _E.CLOSE: _S.CLOSING,
    _E.FAIL: _S.FATAL,
}
_ALWAYS: Final[Mapping[Event, State]] = {**_OUT, _E.POLL_OVERDUE: _S.OVERDUE}
_IN_GROUP: Final[Mapping[Event, State]] = {**_ALWAYS, _E.LOST: _S.FENCED}

TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    _S.DOWN: {_E.SUBSCRIBE: _S.DISCOVERING, _E.CLOSE: _S.CLOSING},
    _S.DISCOVERING: {**_ALWAYS, _E.COORDINATOR_FOUND: _S.JOINING},
    _S.JOINING: {
        **_IN_GROUP,
        _E.JOINED: _S.STABLE,
        _E.COORDINATOR_LOST: _S.DISCOVERING,
    },
    _S.STABLE: {
        **_IN_GROUP,
        _E.TARGET: _S.RECONCILING,
        _E.UNRESOLVED: _S.RESOLVING,
        _E.COORDINATOR_LOST: _S.REDISCOVERING,
    },
    _S.RECONCILING: {**_IN_GROUP, _E.TAKEN: _S.ACKNOWLEDGING},
    _S.ACKNOWLEDGING: {
        **_IN_GROUP,
        _E.TARGET: _S.RECONCILING,
        _E.UNRESOLVED: _S.RESOLVING,
        _E.SETTLED: _S.STABLE,
        _E.COORDINATOR_LOST: _S.REDISCOVERING,
    },
    _S.RESOLVING: {
        **_IN_GROUP,
        _E.TARGET: _S.RECONCILING,
        _E.SETTLED: _S.STABLE,
        _E.COORDINATOR_LOST: _S.REDISCOVERING,
    },
    _S.REDISCOVERING: {**_IN_GROUP, _E.COORDINATOR_FOUND: _S.ACKNOWLEDGING},
    _S.FENCED: {**_OUT, _E.REVOKED: _S.DISCOVERING},
    _S.OVERDUE: {
        _E.POLLED: _S.FENCED,
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
    {_S.STABLE, _S.RECONCILING, _S.ACKNOWLEDGING, _S.RESOLVING, _S.UNSUBSCRIBING, _S.CLOSING}
)
"""Where a member with an epoch and a coordinator heartbeats: until it has left, or is out (B10)."""

SEEKING: Final = frozenset(
    {
        _S.DISCOVERING,
        _S.JOINING,
        _S.STABLE,
        _S.RECONCILING,
        _S.ACKNOWLEDGING,
        _S.RESOLVING,
        _S.REDISCOVERING,
        _S.FENCED,
        _S.UNSUBSCRIBING,
        _S.CLOSING,
    }
)
"""Where a member that has no coordinator looks for one."""

SETTLING: Final = frozenset({_S.STABLE, _S.RECONCILING, _S.ACKNOWLEDGING, _S.RESOLVING})
"""The next state of a member after an assignment."""

POLL_WATCHED: Final = frozenset(
    {
        _S.DISCOVERING,
        _S.JOINING,
        _S.STABLE,
        _S.RECONCILING,
        _S.ACKNOWLEDGING,
        _S.RESOLVING,
        _S.REDISCOVERING,
    }
)
"""Where the caller must poll within `max.poll.interval.ms`."""

MACHINE: Final = machine_of(State, Event, TRANSITIONS, seeking=SEEKING, poll_watched=POLL_WATCHED)
