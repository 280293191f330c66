"""The classic group's states, its transitions, and what each request is answered in each state.

Rules:
- Two literal tables drive the code: `TRANSITIONS` through `next_state`, `ANSWERS`
  through `answer`. The diagrams in `docs/diagrams/` are drawn from them.
- A transition that the table does not have is a bug of ours and raises.
- A state of None is a group that does not exist.
- "Member" rows hold once member id, instance id and generation have been found good; what is wrong
  with those is answered first (`FENCED_INSTANCE_ID`, then `UNKNOWN_MEMBER_ID`, then
  `ILLEGAL_GENERATION`). A missing or Dead group is answered before anything else is looked at.

Words: `Empty` has no members; in `PreparingRebalance` members (re)join; in `CompletingRebalance`
the new generation waits for its leader's assignment; `Stable`; `Dead` is on its way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.transition_table import follow


class GroupState(Enum):
    """State of a classic group; the value is the name that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slow


class GroupEvent(Enum):
    """What moves a group from state to state; the value labels the arrow in the diagram."""

    REBALANCE_STARTED = "member joins, leaves, dies or changes; leader rejoins"
    GENERATION_STARTED = "all have joined, or the time to join is over"
    DESERTED = "nobody is left when the join phase ends"
    ASSIGNED = "leader's SyncGroup"
    REMOVED = "deleted, expired or unloaded"

    __hash__ = object.__hash__


_S, _E = GroupState, GroupEvent

TRANSITIONS: Final[Mapping[tuple[GroupState, GroupEvent], GroupState]] = {
    (_S.EMPTY, _E.REBALANCE_STARTED): _S.PREPARING,
    (_S.STABLE, _E.REBALANCE_STARTED): _S.PREPARING,
    (_S.COMPLETING, _E.REBALANCE_STARTED): _S.PREPARING,
    (_S.PREPARING, _E.GENERATION_STARTED): _S.COMPLETING,
    (_S.PREPARING, _E.DESERTED): _S.EMPTY,
    (_S.COMPLETING, _E.ASSIGNED): _S.STABLE,
    (_S.EMPTY, _E.REMOVED): _S.DEAD,
    (_S.PREPARING, _E.REMOVED): _S.DEAD,
    (_S.COMPLETING, _E.REMOVED): _S.DEAD,
    (_S.STABLE, _E.REMOVED): _S.DEAD,
    (_S.DEAD, _E.REMOVED): _S.DEAD,
}


def next_state(state: GroupState, event: GroupEvent, group_id: str) -> GroupState:
    """The state that `event` leads to. Raises AssertionError where the table has none."""
    return follow(TRANSITIONS, state, event, f"classic group {group_id!r}")


class RequestKind(Enum):
    """The rows of the answer table."""

    HEARTBEAT = "Heartbeat"
    SYNC = "SyncGroup"
    JOIN_MEMBER = "JoinGroup, known member"
    LEAVE = "LeaveGroup, each member"
    COMMIT_SIMPLE = "OffsetCommit, no generation, no member"
    COMMIT_MEMBER = "OffsetCommit, member"
    TXN_COMMIT_SIMPLE = "TxnOffsetCommit, no generation, no member"
    TXN_COMMIT_MEMBER = "TxnOffsetCommit, member"
    FETCH = "OffsetFetch"
    DESCRIBE = "DescribeGroups"
    DELETE = "DeleteGroups"
    OFFSET_DELETE = "OffsetDelete"

    __hash__ = object.__hash__


class Step(Enum):
    """What a request leads to where it is not simply answered with an error code."""

    PARK = auto()
    """Wait: a JoinGroup for the end of the join phase, a SyncGroup for the leader's assignment."""
    PARK_IF_CHANGED = auto()
    """Unchanged protocols: the current generation at once; changed: rebalance, and wait."""
    PARK_IF_CHANGED_OR_LEADER = auto()
    """As PARK_IF_CHANGED; the leader's JoinGroup always rebalances."""
    ASSIGNMENT = auto()
    """The stored assignment at once."""
    REMOVE = auto()
    """The member goes; the join phase ends if it was the last one waited for."""
    REMOVE_AND_REBALANCE = auto()
    """The member goes, the others rebalance."""
    CREATE = auto()
    """A group without members comes to be."""
    ILLEGAL_GENERATION_OR_GROUP_ID_NOT_FOUND = auto()
    """ILLEGAL_GENERATION; from OffsetCommit v9 on, GROUP_ID_NOT_FOUND (KIP-848)."""
    STORE = auto()
    """The offsets are written."""
    SHOW = auto()
    """Described without subscriptions and assignments."""
    SHOW_ALL = auto()
    """Described with subscriptions and assignments."""
    SHOW_DEAD = auto()
    """Described as Dead; from DescribeGroups v6 on, GROUP_ID_NOT_FOUND."""
    READ = auto()
    """Committed offsets; -1 where there is none."""
    DELETE = auto()
    """Tombstones are written."""
    DELETE_UNSUBSCRIBED = auto()
    """Topics that the group subscribes to are refused one by one (GROUP_SUBSCRIBED_TO_TOPIC); a
    group that does not show its subscription is refused whole (NON_EMPTY_GROUP)."""

    __hash__ = object.__hash__


Answer = ErrorCode | Step
_GONE = ErrorCode.COORDINATOR_NOT_AVAILABLE
_UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
_REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
_FULL = ErrorCode.NON_EMPTY_GROUP
_NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
_COLUMNS = (None, _S.EMPTY, _S.PREPARING, _S.COMPLETING, _S.STABLE, _S.DEAD)


def _row(*answers: Answer) -> Mapping[GroupState | None, Answer]:
    return dict(zip(_COLUMNS, answers, strict=True))


# fmt: off
ANSWERS: Final[Mapping[RequestKind, Mapping[GroupState | None, Answer]]] = {
    #                                   missing       Empty         Preparing     Completing
    #                                   Stable        Dead
    RequestKind.HEARTBEAT:         _row(_UNKNOWN,     _UNKNOWN,     _REBALANCING, ErrorCode.NONE,
                                        ErrorCode.NONE, _GONE),
    RequestKind.SYNC:              _row(_UNKNOWN,     _UNKNOWN,     _REBALANCING, Step.PARK,
                                        Step.ASSIGNMENT, _GONE),
    RequestKind.JOIN_MEMBER:       _row(_UNKNOWN,     _UNKNOWN,     Step.PARK,
                                        Step.PARK_IF_CHANGED,
                                        Step.PARK_IF_CHANGED_OR_LEADER, _GONE),
    RequestKind.LEAVE:             _row(_UNKNOWN,     _UNKNOWN,     Step.REMOVE,
                                        Step.REMOVE_AND_REBALANCE,
                                        Step.REMOVE_AND_REBALANCE, _GONE),
    RequestKind.COMMIT_SIMPLE:     _row(Step.CREATE,  Step.STORE,   _UNKNOWN,     _UNKNOWN,
                                        _UNKNOWN,     _GONE),
    RequestKind.COMMIT_MEMBER:     _row(Step.ILLEGAL_GENERATION_OR_GROUP_ID_NOT_FOUND,
                                        _UNKNOWN,     Step.STORE,   _REBALANCING,
                                        Step.STORE,   _GONE),
    RequestKind.TXN_COMMIT_SIMPLE: _row(Step.CREATE,  Step.STORE,   Step.STORE,   Step.STORE,
                                        Step.STORE,   _GONE),
    RequestKind.TXN_COMMIT_MEMBER: _row(ErrorCode.ILLEGAL_GENERATION,
                                        _UNKNOWN,     Step.STORE,   Step.STORE,
                                        Step.STORE,   _GONE),
    RequestKind.FETCH:             _row(Step.READ,    Step.READ,    Step.READ,    Step.READ,
                                        Step.READ,    Step.READ),
    RequestKind.DESCRIBE:          _row(Step.SHOW_DEAD, Step.SHOW,  Step.SHOW,    Step.SHOW,
                                        Step.SHOW_ALL, Step.SHOW_DEAD),
    RequestKind.DELETE:            _row(_NOT_FOUND,   Step.DELETE,  _FULL,        _FULL,
                                        _FULL,        _NOT_FOUND),
    RequestKind.OFFSET_DELETE:     _row(_NOT_FOUND,   Step.DELETE,  Step.DELETE_UNSUBSCRIBED,
                                        Step.DELETE_UNSUBSCRIBED,
                                        Step.DELETE_UNSUBSCRIBED, _NOT_FOUND),
}
# fmt: on


def answer(kind: RequestKind, state: GroupState | None) -> Answer:
    """What `kind` is answered, or leads to, in `state` (None: the group does not exist)."""
    return ANSWERS[kind][state]
