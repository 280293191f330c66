"""The states of a consumer group and of its members, and what each request leads to (KIP-848).

Rules:
- Three literal tables drive the code: `MEMBER_TRANSITIONS` through `next_state`,
  `ANSWERS` through `answer`, and `GROUP_TRANSITIONS`, which says between which states a group may
  be seen to move. The diagrams in `docs/diagrams/` are drawn from them.
- A group's state is not stored: `group_state` reads it off its epochs and its members.
- "Member" rows hold once member id, instance id and epoch have been found good.

Words: the *group epoch* rises when subscriptions or topics change; the *target* is what the
assignor made of an epoch; a member is led to it by its own heartbeats, and has reached it when it
is `STABLE` in the target's epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.transition_table import follow


class MemberState(Enum):
    """How far a member has come towards the target; the value is Kafka's, in the log."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127

    __hash__ = object.__hash__

    @classmethod
    def of(cls, value: int) -> MemberState:
        """The state that a record names; UNKNOWN for one of a newer broker's."""
        return _MEMBER_STATES.get(value, cls.UNKNOWN)


_MEMBER_STATES: Final = {state.value: state for state in MemberState}
MEMBER_STATE_WORDS: Final = {
    MemberState.STABLE: "has all of its target, in the target's epoch",
    MemberState.UNREVOKED: "was asked to give partitions up and has not confirmed it",
    MemberState.UNRELEASED: "waits for partitions that others have not given up yet",
    MemberState.UNKNOWN: "written by a newer broker; fenced, unless it owns nothing",
}


class MemberEvent(Enum):
    """What a heartbeat finds; the value labels the arrow in the diagram."""

    MUST_REVOKE = "the target removes partitions that the member still owns"
    STILL_OWNS = "the member has not given up what it was asked to"
    MUST_WAIT = "others hold partitions of its target"
    ARRIVED = "everything of the target is free and its own"

    __hash__ = object.__hash__


_M, _V = MemberState, MemberEvent

MEMBER_TRANSITIONS: Final[Mapping[tuple[MemberState, MemberEvent], MemberState]] = {
    (_M.STABLE, _V.MUST_REVOKE): _M.UNREVOKED,
    (_M.STABLE, _V.MUST_WAIT): _M.UNRELEASED,
    (_M.STABLE, _V.ARRIVED): _M.STABLE,
    (_M.UNREVOKED, _V.STILL_OWNS): _M.UNREVOKED,
    (_M.UNREVOKED, _V.MUST_REVOKE): _M.UNREVOKED,
    (_M.UNREVOKED, _V.MUST_WAIT): _M.UNRELEASED,
    (_M.UNREVOKED, _V.ARRIVED): _M.STABLE,
    (_M.UNRELEASED, _V.MUST_REVOKE): _M.UNREVOKED,
    (_M.UNRELEASED, _V.MUST_WAIT): _M.UNRELEASED,
    (_M.UNRELEASED, _V.ARRIVED): _M.STABLE,
    (_M.UNKNOWN, _V.MUST_REVOKE): _M.UNREVOKED,
    (_M.UNKNOWN, _V.MUST_WAIT): _M.UNRELEASED,
    (_M.UNKNOWN, _V.ARRIVED): _M.STABLE,
}


def next_state(state: MemberState, event: MemberEvent) -> MemberState:
    """The state that `event` leads to. Raises AssertionError where the table has none."""
    return follow(MEMBER_TRANSITIONS, state, event, "a consumer group's member")


class ConsumerState(Enum):
    """State of a consumer group; the value is the name that clients are shown."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"

    __hash__ = object.__hash__


class ConsumerEvent(Enum):
    """What moves a group; the value labels the arrow in the diagram."""

    ASSIGNED = "heartbeat: the target is made for the group's epoch"
    RECONCILED = "heartbeat: the last member has reached the target"
    EPOCH_RAISED = "a member left or was fenced; the target is yet to follow"
    DESERTED = "the last member left or was fenced"
    REMOVED = "deleted, expired, or converted to a classic group"

    __hash__ = object.__hash__


_C, _G = ConsumerState, ConsumerEvent

GROUP_TRANSITIONS: Final[Mapping[tuple[ConsumerState, ConsumerEvent], ConsumerState]] = {
    (_C.EMPTY, _G.ASSIGNED): _C.RECONCILING,
    (_C.EMPTY, _G.RECONCILED): _C.STABLE,
    (_C.EMPTY, _G.REMOVED): _C.DEAD,
    (_C.ASSIGNING, _G.ASSIGNED): _C.RECONCILING,
    (_C.ASSIGNING, _G.RECONCILED): _C.STABLE,
    (_C.ASSIGNING, _G.DESERTED): _C.EMPTY,
    (_C.ASSIGNING, _G.REMOVED): _C.DEAD,
    (_C.RECONCILING, _G.RECONCILED): _C.STABLE,
    (_C.RECONCILING, _G.EPOCH_RAISED): _C.ASSIGNING,
    (_C.RECONCILING, _G.DESERTED): _C.EMPTY,
    (_C.RECONCILING, _G.REMOVED): _C.DEAD,
    (_C.STABLE, _G.ASSIGNED): _C.RECONCILING,
    (_C.STABLE, _G.EPOCH_RAISED): _C.ASSIGNING,
    (_C.STABLE, _G.DESERTED): _C.EMPTY,
    (_C.STABLE, _G.REMOVED): _C.DEAD,
}


class Holder(Enum):
    """What a requested group id refers to: the columns of the answer table."""

    MISSING = "(missing)"
    CLASSIC_EMPTY = "classic, Empty"
    CLASSIC = "classic, members"
    EMPTY = "consumer, Empty"
    MEMBERS = "consumer, members"

    __hash__ = object.__hash__


class RequestKind(Enum):
    """The rows of the answer table."""

    JOIN = "ConsumerGroupHeartbeat, epoch 0"
    HEARTBEAT = "ConsumerGroupHeartbeat, member"
    LEAVE = "ConsumerGroupHeartbeat, epoch -1 or -2"
    DESCRIBE = "ConsumerGroupDescribe"
    CLASSIC_JOIN = "JoinGroup"
    CLASSIC_SYNC = "SyncGroup, member"
    CLASSIC_HEARTBEAT = "Heartbeat, member"
    CLASSIC_LEAVE = "LeaveGroup, each member"
    CLASSIC_DESCRIBE = "DescribeGroups"

    __hash__ = object.__hash__


class Step(Enum):
    """What a request leads to where it is not simply answered with an error code."""

    CREATE = auto()
    """A consumer group comes to be, with this member."""
    REPLACE = auto()
    """Tombstones for the empty group of the other kind, and a new group in its place."""
    UPGRADE = auto()
    """The live classic group becomes a consumer group, if `group.consumer.migration.policy` and its
    members allow; GROUP_ID_NOT_FOUND if not."""
    ADMIT = auto()
    """The member is taken in, or its word is taken, and it is led towards the target."""
    REMOVE = auto()
    """The member goes; the group's epoch rises, or the group is converted (downgrade)."""
    SHOW = auto()
    """Described with epochs, subscriptions, assignments and targets."""
    CLASSIC_RULES = auto()
    """Served by the classic group's own table."""
    SHOW_DEAD = auto()
    """Described as Dead; from DescribeGroups v6 on, GROUP_ID_NOT_FOUND."""

    __hash__ = object.__hash__


Answer = ErrorCode | Step
_NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
_UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
_S = Step


def _row(*answers: Answer) -> Mapping[Holder, Answer]:
    return dict(zip(Holder, answers, strict=True))


# fmt: off
ANSWERS: Final[Mapping[RequestKind, Mapping[Holder, Answer]]] = {
    #                                   missing           classic, Empty    classic, members
    #                                   consumer, Empty   consumer, members
    RequestKind.JOIN:              _row(_S.CREATE,        _S.REPLACE,       _S.UPGRADE,
                                        _S.ADMIT,         _S.ADMIT),
    RequestKind.HEARTBEAT:         _row(_NOT_FOUND,       _NOT_FOUND,       _NOT_FOUND,
                                        _UNKNOWN,         _S.ADMIT),
    RequestKind.LEAVE:             _row(_NOT_FOUND,       _NOT_FOUND,       _NOT_FOUND,
                                        _UNKNOWN,         _S.REMOVE),
    RequestKind.DESCRIBE:          _row(_NOT_FOUND,       _NOT_FOUND,       _NOT_FOUND,
                                        _S.SHOW,          _S.SHOW),
    RequestKind.CLASSIC_JOIN:      _row(_S.CLASSIC_RULES, _S.CLASSIC_RULES, _S.CLASSIC_RULES,
                                        _S.REPLACE,       _S.ADMIT),
    RequestKind.CLASSIC_SYNC:      _row(_S.CLASSIC_RULES, _S.CLASSIC_RULES, _S.CLASSIC_RULES,
                                        _UNKNOWN,         _S.ADMIT),
    RequestKind.CLASSIC_HEARTBEAT: _row(_S.CLASSIC_RULES, _S.CLASSIC_RULES, _S.CLASSIC_RULES,
                                        _UNKNOWN,         _S.ADMIT),
    RequestKind.CLASSIC_LEAVE:     _row(_S.CLASSIC_RULES, _S.CLASSIC_RULES, _S.CLASSIC_RULES,
                                        _UNKNOWN,         _S.REMOVE),
    RequestKind.CLASSIC_DESCRIBE:  _row(_S.CLASSIC_RULES, _S.CLASSIC_RULES, _S.CLASSIC_RULES,
                                        _S.SHOW_DEAD,     _S.SHOW_DEAD),
}
# fmt: on


def answer(kind: RequestKind, holder: Holder) -> Answer:
    """The answer to `kind`, or its effect, when the group id refers to `holder`."""
    return ANSWERS[kind][holder]
