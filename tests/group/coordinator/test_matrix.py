"""What every request is answered in every state (spec 2.2), walked pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.classic_table import (
    ANSWERS,
    TRANSITIONS,
    GroupEvent,
    GroupState,
    RequestKind,
    Step,
    next_state,
)
from kohort.group.coordinator.state.effects import RequestContext
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from tests.group.harness import GROUP, Bench, consumer

S, C = GroupState, ErrorCode
STATES = (None, S.EMPTY, S.PREPARING, S.COMPLETING, S.STABLE, S.DEAD)
PARKED = "parked"


class Place:
    """A group in a given state, with one member of it (where it has any) and its generation."""

    def __init__(self, state: GroupState | None) -> None:
        self.bench = bench = Bench()
        self.member, self.generation = "m", 0
        if state in (S.EMPTY, S.DEAD):
            bench.new_member_id()
        if state is S.DEAD:
            request = DeleteGroupsRequest(groups_names=[GROUP])
            context = RequestContext("kill", 2, "c", "h")
            bench.shard.handle(request, context, bench.now_ms)  # and not replayed yet
        if state in (S.PREPARING, S.COMPLETING, S.STABLE):
            ids = bench.form(2, protocols=consumer("t"))
            self.member, self.generation = ids[1], 1
            if state is not S.COMPLETING:
                bench.settle(ids)
            if state is S.PREPARING:
                bench.join(ids[0], protocols=consumer("t"))  # the leader rejoins
        assert bench.state is state

    def join(self) -> object:
        return self.answer(self.bench.join(self.member, protocols=consumer("t")))

    def sync(self) -> object:
        return self.answer(self.bench.sync(self.member, self.generation))

    def answer(self, token: int) -> object:
        code = self.bench.code(token)
        return PARKED if code is None else code


def heartbeat(place: Place) -> object:
    return place.bench.heartbeat(place.member, place.generation)


def leave(place: Place) -> object:
    request = LeaveGroupRequest(
        group_id=GROUP, members=[MemberIdentity(member_id=place.member, group_instance_id=None)]
    )
    answer = place.bench.ask(request, 5)
    return ErrorCode(answer.error_code or answer.members[0].error_code)


def commit_simple(place: Place) -> object:
    return place.bench.commit(5)


def commit_member(place: Place) -> object:
    return place.bench.commit(5, place.member, place.generation)


def commit_member_v8(place: Place) -> object:
    return place.bench.commit(5, place.member, place.generation, version=8)


def txn_simple(place: Place) -> object:
    return place.bench.txn_commit(5, 1)


def txn_member(place: Place) -> object:
    return place.bench.txn_commit(5, 1, place.member, place.generation)


def fetch(place: Place) -> object:
    return place.bench.fetch()


def describe(place: Place) -> object:
    old = place.bench.ask(DescribeGroupsRequest(groups=[GROUP]), 5).groups[0]
    new = place.bench.ask(DescribeGroupsRequest(groups=[GROUP]), 6).groups[0]
    assert (old.group_state, old.error_code) == (new.group_state, 0)
    shown = any(m.member_metadata or m.member_assignment for m in new.members)
    return new.group_state, ErrorCode(new.error_code), shown


def delete(place: Place) -> object:
    answer = place.bench.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    return ErrorCode(answer.results[0].error_code)


def offset_delete(place: Place) -> object:
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
        )
        for name in ("t", "other")
    ]
    answer = place.bench.ask(OffsetDeleteRequest(group_id=GROUP, topics=topics), 0)
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return [ErrorCode(t.partitions[0].error_code) for t in answer.topics]


UNKNOWN, GONE, REBALANCING = (
    C.UNKNOWN_MEMBER_ID,
    C.COORDINATOR_NOT_AVAILABLE,
    C.REBALANCE_IN_PROGRESS,
)
NOT_FOUND, FULL, SUBSCRIBED = C.GROUP_ID_NOT_FOUND, C.NON_EMPTY_GROUP, C.GROUP_SUBSCRIBED_TO_TOPIC
NOTHING = (-1, C.NONE)
# fmt: off
TABLE: dict[Callable[[Place], object], tuple[object, ...]] = {
    #               missing, Empty, PreparingRebalance, CompletingRebalance, Stable, Dead
    heartbeat:     (UNKNOWN, UNKNOWN, REBALANCING, C.NONE, C.NONE, GONE),
    Place.sync:    (UNKNOWN, UNKNOWN, REBALANCING, PARKED, C.NONE, GONE),
    Place.join:    (UNKNOWN, UNKNOWN, C.NONE, C.NONE, C.NONE, GONE),
    leave:         (UNKNOWN, UNKNOWN, C.NONE, C.NONE, C.NONE, GONE),
    commit_simple: (C.NONE, C.NONE, UNKNOWN, UNKNOWN, UNKNOWN, GONE),
    commit_member: (NOT_FOUND, UNKNOWN, C.NONE, REBALANCING, C.NONE, GONE),
    commit_member_v8: (C.ILLEGAL_GENERATION, UNKNOWN, C.NONE, REBALANCING, C.NONE, GONE),
    txn_simple:    (C.NONE, C.NONE, C.NONE, C.NONE, C.NONE, GONE),
    txn_member:    (C.ILLEGAL_GENERATION, UNKNOWN, C.NONE, C.NONE, C.NONE, GONE),
    fetch:         (NOTHING,) * 6,
    describe:      (("Dead", NOT_FOUND, False), ("Empty", C.NONE, False),
                    ("PreparingRebalance", C.NONE, False), ("CompletingRebalance", C.NONE, False),
                    ("Stable", C.NONE, True), ("Dead", NOT_FOUND, False)),
    delete:        (NOT_FOUND, C.NONE, FULL, FULL, FULL, NOT_FOUND),
    offset_delete: (NOT_FOUND, [C.NONE, C.NONE], *([SUBSCRIBED, C.NONE],) * 3, NOT_FOUND),
}
# fmt: on
CASES = [
    pytest.param(ask, state, row[i], id=f"{ask.__name__}-{state.value if state else 'missing'}")
    for ask, row in TABLE.items()
    for i, state in enumerate(STATES)
]


@pytest.mark.parametrize(("ask", "state", "expected"), CASES)
def test_answer(ask: Callable[[Place], object], state: GroupState | None, expected: object) -> None:
    assert ask(Place(state)) == expected


ROWS = {
    heartbeat: RequestKind.HEARTBEAT,
    Place.sync: RequestKind.SYNC,
    Place.join: RequestKind.JOIN_MEMBER,
    leave: RequestKind.LEAVE,
    commit_simple: RequestKind.COMMIT_SIMPLE,
    commit_member: RequestKind.COMMIT_MEMBER,
    txn_simple: RequestKind.TXN_COMMIT_SIMPLE,
    txn_member: RequestKind.TXN_COMMIT_MEMBER,
    delete: RequestKind.DELETE,
    offset_delete: RequestKind.OFFSET_DELETE,
}


@pytest.mark.parametrize("ask", ROWS, ids=lambda ask: ask.__name__)
def test_the_documented_table_says_what_is_answered(ask: Callable[[Place], object]) -> None:
    """The table that the diagrams are drawn from and the one above agree in every error code."""
    for state, observed in zip(STATES, TABLE[ask], strict=True):
        documented = ANSWERS[ROWS[ask]][state]
        if isinstance(documented, ErrorCode):
            assert documented is observed
        elif documented is not Step.ILLEGAL_GENERATION_OR_GROUP_ID_NOT_FOUND:
            assert observed in (C.NONE, PARKED) or isinstance(observed, list)


def test_join_of_a_member_parks_in_preparing_until_all_have_joined() -> None:
    """Three members: the second rejoins and waits for the third."""
    bench = Bench()
    ids = bench.stable(3)
    bench.join(ids[0])
    assert bench.code(bench.join(ids[1])) is None
    last = bench.join(ids[2])
    assert bench.code(last) is ErrorCode.NONE


def test_preparing_commit_with_another_generation() -> None:
    place = Place(S.PREPARING)
    assert place.bench.commit(5, place.member, 0) is C.ILLEGAL_GENERATION


@pytest.mark.parametrize("state", [S.PREPARING, S.COMPLETING, S.STABLE])
def test_wrong_generation_and_unknown_member(state: GroupState) -> None:
    """Spec 2.7: member before generation, generation before state."""
    place = Place(state)
    bench = place.bench
    for generation in (0, 2, -1):
        assert bench.heartbeat(place.member, generation) is C.ILLEGAL_GENERATION
        assert bench.code(bench.sync(place.member, generation)) is C.ILLEGAL_GENERATION
        assert bench.commit(1, place.member, generation) is C.ILLEGAL_GENERATION
        assert bench.txn_commit(1, 1, place.member, generation) is C.ILLEGAL_GENERATION
    assert bench.heartbeat("nobody", 1) is UNKNOWN
    assert bench.code(bench.sync("nobody", 1)) is UNKNOWN
    assert bench.code(bench.join("nobody", protocols=consumer("t"))) is UNKNOWN
    assert bench.commit(1, "nobody", 1) is UNKNOWN
    assert bench.txn_commit(1, 1, "nobody", 1) is UNKNOWN


def test_the_tables_are_whole() -> None:
    """Every row has every state; every state is left and reached; only Dead is never left."""
    for row in ANSWERS.values():
        assert set(row) == set(STATES)
        assert all(isinstance(a, ErrorCode | Step) for a in row.values())
    assert set(ANSWERS) == set(RequestKind)
    assert set(TRANSITIONS.values()) | {S.EMPTY} == set(GroupState)
    assert {event for _, event in TRANSITIONS} == set(GroupEvent)
    assert {t for (s, _), t in TRANSITIONS.items() if s is S.DEAD} == {S.DEAD}


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("event", GroupEvent)
def test_transition(state: GroupState, event: GroupEvent) -> None:
    """Every (state, event) pair: a transition, or an error that names both."""
    target = TRANSITIONS.get((state, event))
    if target is not None:
        assert next_state(state, event, "g") is target
        return
    with pytest.raises(AssertionError, match=rf"{event.name} in {state.name}"):
        next_state(state, event, "g")


def test_edge_checks() -> None:
    """Spec 2.2: what is refused before the group is looked at."""
    bench = Bench()
    bench.check = False
    assert bench.code(bench.join(group="")) is C.INVALID_GROUP_ID
    assert bench.code(bench.join(session_ms=5_999)) is C.INVALID_SESSION_TIMEOUT
    assert bench.code(bench.join(session_ms=1_800_001)) is C.INVALID_SESSION_TIMEOUT
    assert bench.code(bench.join(protocols=())) is C.INCONSISTENT_GROUP_PROTOCOL
    assert bench.code(bench.join(protocol_type="")) is C.INCONSISTENT_GROUP_PROTOCOL
    assert bench.code(bench.join(instance="")) is C.INVALID_REQUEST
    assert bench.code(bench.join(group="g" * 9_000)) is C.INVALID_GROUP_ID
    assert bench.code(bench.join(protocols=[("p" * 9_000, b"")])) is C.INCONSISTENT_GROUP_PROTOCOL
    assert bench.state is None
    assert bench.log == []  # bad input changes nothing
    assert bench.commit(1, group="") is C.NONE
    assert bench.ask(HeartbeatRequest(), 4).error_code == C.INVALID_GROUP_ID
    assert bench.ask(SyncGroupRequest(), 4).error_code == C.INVALID_GROUP_ID
    assert bench.txn_commit(1, 1, group="") is C.INVALID_GROUP_ID
    assert bench.ask(LeaveGroupRequest(), 5).error_code == C.INVALID_GROUP_ID
    assert bench.ask(OffsetDeleteRequest(), 0).error_code == C.INVALID_GROUP_ID
    place = Place(S.COMPLETING)
    others: list[dict[str, Any]] = [{"protocol": None}, {"protocol_type": None}, {"protocol": "x"}]
    for names in others:
        token = place.bench.sync(place.member, 1, **names)
        assert place.bench.code(token) is C.INCONSISTENT_GROUP_PROTOCOL
    old = place.bench.sync(place.member, 1, version=4, protocol=None, protocol_type=None)
    assert place.bench.code(old) is None
