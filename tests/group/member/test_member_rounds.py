"""A member's rounds: find, join, sync, stay; every answer of the coordinator (spec 1.1-1.8)."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import (
    ConnectionFailedError,
    ErrorCode,
    FencedError,
    GroupError,
    KafkaTimeoutError,
    ProtocolError,
    UnsupportedVersionError,
)
from kohort.group.assignors import Assignor, GroupView, Partitions, Plan, TopicView
from kohort.group.assignors.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from kohort.group.member.classic_table import State
from kohort.group.member.effects import (
    Assign,
    Fatal,
    FindCoordinator,
    Revoke,
    Send,
    Warn,
    WatchTopics,
)
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse
from tests.group.member_driver import Driver, metadata
from tests.known import known, of_type

E = ErrorCode
COOP = "cooperative-sticky"


def test_the_four_phases() -> None:
    """Spec 1.1: find the coordinator, join, take the assignment, stay."""
    d = Driver(topics="b a", session_timeout_ms=9_000, client_rack="r1")
    d.subscribe()
    assert d.effects == [FindCoordinator()]
    d.call("coordinator_found", 7)
    join = d.request(JoinGroupRequest)
    assert (join.group_id, join.member_id, join.protocol_type) == ("g", "", "consumer")
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (9_000, 300_000)
    mine = decode_subscription("", join.protocols[0].metadata)
    assert (mine.topics, mine.rack, mine.owned) == ({"a", "b"}, "r1", {})
    assert d.sent[JoinGroupRequest].node_id == 7
    assert d.sent[JoinGroupRequest].timeout_ms == 305_000
    d.joined(4, member_id="me")
    sync = d.request(SyncGroupRequest)
    assert (sync.generation_id, sync.member_id, sync.assignments) == (4, "me", [])
    assert (sync.protocol_type, sync.protocol_name) == ("consumer", "range")
    d.synced({"a": [1, 0]})
    step = d.only(Assign)
    assert (step.added, step.assignment, step.generation) == ({"a": (0, 1)}, {"a": (0, 1)}, 4)
    assert d.member.state is State.ASSIGNING
    d.steps()
    assert d.member.state is State.STABLE
    assert d.member.assignment == {"a": (0, 1)}
    assert (d.member.generation, d.member.member_id, d.member.rebalances) == (4, "me", 1)


def test_a_known_coordinator_is_not_looked_for() -> None:
    """Spec 1.1: phase one is skipped while a coordinator is known."""
    d = Driver()
    d.call("coordinator_found", 3)
    d.subscribe()
    d.none(FindCoordinator)
    assert d.request(JoinGroupRequest)


def test_heartbeats_every_interval_and_not_before_the_answer() -> None:
    """Spec 1.3, 1.7: one at a time, with generation and member id."""
    d = Driver().stable(generation=6)
    d.later(2_999)
    d.none(Send)
    d.later(1)
    beat = d.request(HeartbeatRequest)
    assert (beat.generation_id, beat.member_id, beat.group_id) == (6, "me", "g")
    d.later(10_000)
    d.none(Send)
    d.beat()
    d.later(1)
    d.request(HeartbeatRequest)


def test_no_heartbeat_between_a_join_or_sync_and_its_answer() -> None:
    """Spec 1.5: the coordinator holds the session open itself (spec 2.3)."""
    d = Driver().join()
    d.later(60_000)
    d.none(Send)
    d.joined()
    d.later(60_000)
    d.none(Send)
    assert d.member.state is State.SYNCING


def test_heartbeats_go_on_while_the_caller_is_slow() -> None:
    """Spec 1.3, C12: waiting for the caller's listener kills no member."""
    d = Driver().stable()
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    assert d.member.state is State.REVOKING
    for _ in range(20):
        d.later(3_000)
        d.request(HeartbeatRequest)
        d.beat(E.REBALANCE_IN_PROGRESS)
        d.none(Revoke)
    assert d.member.state is State.REVOKING


def test_hurry_heartbeats_at_once() -> None:
    """A hint that the group has news is followed at once, or after the heartbeat under way.

    The answer of that one may be older than the news.
    """
    d = Driver().stable()
    d.call("hurry")
    d.request(HeartbeatRequest)
    d.call("hurry")
    d.none(Send)
    d.beat()
    d.later(0)
    d.request(HeartbeatRequest)
    d.beat()
    d.later(2_999)
    d.none(Send)


def test_no_answer_for_a_session_timeout() -> None:
    """Spec 1.4, 1.2: the coordinator is taken for dead and looked for; consuming goes on."""
    d = Driver(session_timeout_ms=10_000).stable()
    d.later(10_000)
    d.only(FindCoordinator)
    assert d.member.state is State.REDISCOVERING
    assert d.member.assignment == {"t": (0, 1)}
    d.none(Revoke)
    d.call("coordinator_found", 8)
    assert d.member.state is State.STABLE
    beat = d.request(HeartbeatRequest)
    assert (beat.generation_id, beat.member_id) == (1, "me")
    assert d.sent[HeartbeatRequest].node_id == 8


@pytest.mark.parametrize(
    "code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.REQUEST_TIMED_OUT]
)
def test_a_heartbeat_that_finds_nobody(code: int) -> None:
    """Spec 1.8: discover again, and go on consuming meanwhile."""
    d = Driver().stable()
    d.later(3_000)
    d.beat(code)
    d.only(FindCoordinator)
    d.none(Revoke)
    assert d.member.state is State.REDISCOVERING
    assert d.member.may_commit


def test_a_loading_coordinator_answers_heartbeats() -> None:
    """Spec 2.12: told to wait is not told to go."""
    d = Driver().stable()
    d.later(3_000)
    d.beat(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert d.effects == []
    assert d.member.state is State.STABLE


def test_rebalance_in_progress_is_revoked_then_rejoined() -> None:
    """Spec 1.5: revoked, the caller may commit, then the same member id joins (spec 1.6)."""
    d = Driver().stable()
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    step = d.only(Revoke)
    assert (step.partitions, step.lost) == ({"t": (0, 1)}, False)
    assert d.member.may_commit
    d.sent_none(JoinGroupRequest)
    d.steps()
    join = d.request(JoinGroupRequest)
    assert join.member_id == "me"
    assert join.reason == "the coordinator announced a rebalance"
    assert not d.member.may_commit
    assert decode_subscription("", join.protocols[0].metadata).owned == {}


@pytest.mark.parametrize(
    ("code", "kept"), [(E.ILLEGAL_GENERATION, "me"), (E.UNKNOWN_MEMBER_ID, "")]
)
def test_a_lost_generation_is_lost_and_commits_nothing(code: int, kept: str) -> None:
    """Spec 1.5, 1.6: lost, no commit, and the id is forgotten only when it is unknown."""
    d = Driver().stable()
    d.later(3_000)
    d.beat(code)
    step = d.only(Revoke)
    assert (step.partitions, step.lost) == ({"t": (0, 1)}, True)
    assert not d.member.may_commit
    assert d.member.generation == -1
    d.steps()
    assert d.request(JoinGroupRequest).member_id == kept


@pytest.mark.parametrize("code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID])
def test_a_generation_lost_before_its_partitions_are_given_up(code: int) -> None:
    """Spec 1.5, C6: what the caller has not given up yet is lost, and it has to know that."""
    d = Driver().stable()
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    revoke = d.only(Revoke)
    assert (revoke.partitions, revoke.lost) == ({"t": (0, 1)}, False)
    d.later(3_000)
    d.beat(code)
    step = d.only(Revoke)
    assert (step.partitions, step.lost) == ({}, True)
    assert d.call("revoked", revoke.token) == []
    d.call("revoked", step.token)
    assert d.request(JoinGroupRequest)


@pytest.mark.parametrize("kind", ["range", COOP])
@pytest.mark.parametrize("code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID])
def test_a_generation_lost_in_the_middle_of_a_join(kind: str, code: int) -> None:
    """B34: an id lost mid-join also loses what is owned; nothing stale is claimed afterwards."""
    d = Driver(kind).stable()
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    d.steps()
    d.joined(error=code)
    if kind == COOP:
        assert d.only(Revoke).lost
        d.steps()
    join = d.request(JoinGroupRequest)
    mine = decode_subscription("", join.protocols[0].metadata)
    assert (mine.owned, mine.generation) == ({}, -1)


def test_member_id_required() -> None:
    """Spec 1.6 (KIP-394): join again at once with the id that was given."""
    d = Driver().join()
    d.joined(error=E.MEMBER_ID_REQUIRED, member_id="given")
    assert d.request(JoinGroupRequest).member_id == "given"


def test_an_endless_refusal_is_not_a_hot_loop() -> None:
    """A broker that refuses every join is asked at the pace of the back-off."""
    d = Driver().join()
    asked = 0
    for _ in range(10_000):
        d.joined(error=E.UNKNOWN_MEMBER_ID)
        waited = d.later(10)
        asked += sum(isinstance(e, Send) for e in waited)
        if JoinGroupRequest not in {type(e.message) for e in waited if isinstance(e, Send)}:
            continue
    assert asked < 110


@pytest.mark.parametrize("code", [E.COORDINATOR_LOAD_IN_PROGRESS, E.REBALANCE_IN_PROGRESS])
def test_a_join_that_must_wait(code: int) -> None:
    """Spec 1.8, B22: back off, doubling up to the bound, and ask the same coordinator again."""
    d = Driver().join()
    for wait in (100, 200, 400, 800, 1_000, 1_000):
        d.joined(error=code)
        d.none(FindCoordinator, Send)
        d.later(wait - 1)
        d.none(Send)
        d.later(1)
        d.request(JoinGroupRequest)


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE])
def test_a_join_at_the_wrong_broker(code: int) -> None:
    """Spec 1.8: discover again, at once the first time, then backing off."""
    d = Driver().join()
    d.joined(error=code)
    d.only(FindCoordinator)
    d.call("coordinator_found", 7)
    d.joined(error=code)
    d.none(FindCoordinator)
    d.later(100)
    d.only(FindCoordinator)
    assert d.member.state is State.DISCOVERING


@pytest.mark.parametrize("kind", ["range", COOP])
def test_a_coordinator_that_dies_during_the_join(kind: str) -> None:
    """B31: the member id is kept, or the old one would hold up the group for a session timeout."""
    d = Driver(kind).stable()
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    d.steps()
    d.answer(JoinGroupRequest, ConnectionFailedError("cut"))
    d.only(FindCoordinator)
    assert d.member.state is State.DISCOVERING
    assert d.member.assignment == ({"t": (0, 1)} if kind == COOP else {})
    d.call("coordinator_found", 9)
    join = d.request(JoinGroupRequest)
    assert join.member_id == "me"
    owned = decode_subscription("", join.protocols[0].metadata).owned
    assert owned == d.member.assignment


def test_a_lost_connection_overtakes_every_answer() -> None:
    """C7: what was asked on the old connection does not count any more."""
    d = Driver().join()
    d.call("coordinator_lost")
    d.joined(9)
    assert d.member.generation == -1
    assert d.member.state is State.DISCOVERING


@pytest.mark.parametrize(
    "code",
    [
        E.INCONSISTENT_GROUP_PROTOCOL,
        E.GROUP_AUTHORIZATION_FAILED,
        E.FENCED_INSTANCE_ID,
        E.GROUP_MAX_SIZE_REACHED,
        E.INVALID_SESSION_TIMEOUT,
        E.INVALID_GROUP_ID,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.UNSUPPORTED_VERSION,
        E.UNKNOWN_SERVER_ERROR,
    ],
)
def test_errors_that_only_a_person_can_mend(code: int) -> None:
    """Spec 1.8: fatal, raised to the caller with what to do about it."""
    d = Driver(group_instance_id="i").join()
    d.joined(error=code)
    error = d.only(Fatal).error
    assert isinstance(error, FencedError if code == E.FENCED_INSTANCE_ID else GroupError)
    assert E(code).name in str(error)
    assert "'g'" in str(error)
    assert len(str(error).split(": ")[-1]) > 20
    assert d.member.error is error
    assert d.member.state is State.FATAL
    assert d.member.next_deadline() is None


@pytest.mark.parametrize("code", [E.FENCED_INSTANCE_ID, E.GROUP_AUTHORIZATION_FAILED])
def test_a_fatal_heartbeat_stops_consuming(code: int) -> None:
    """C11, KIP-345: a fenced twin must not go on consuming."""
    d = Driver(group_instance_id="i").stable()
    d.later(3_000)
    d.beat(code)
    assert d.only(Revoke).lost
    assert d.effects[-1] == Fatal(known(d.member.error))
    d.call("subscribe", ["other"])
    d.call("polled")
    assert d.effects == []


def test_a_call_that_cannot_be_spoken_is_fatal() -> None:
    """The broker is too old or breaks the format: trying again would not help."""
    d = Driver().join()
    d.answer(JoinGroupRequest, UnsupportedVersionError("too old"))
    assert isinstance(d.only(Fatal).error, UnsupportedVersionError)
    d = Driver().join()
    d.answer(JoinGroupRequest, HeartbeatResponse())
    assert isinstance(d.only(Fatal).error, ProtocolError)


@pytest.mark.parametrize(("generation", "protocol"), [(-1, "range"), (1, "mine"), (1, "")])
def test_a_join_answer_that_makes_no_sense(generation: int, protocol: str) -> None:
    """B9: a success with generation -1 would make the next heartbeat a leave; it is refused.

    Twice it may have been damaged on its way; the third time it is the broker.
    """
    d = Driver().join()
    for _ in range(2):
        d.joined(generation, protocol=protocol)
        assert "The broker breaks the protocol" in d.only(Warn).text
        d.later(1_000)
        d.request(JoinGroupRequest)
    d.joined(generation, protocol=protocol)
    assert "The broker breaks the protocol" in str(d.only(Fatal).error)


@pytest.mark.parametrize(
    "answer",
    [
        {"member_id": "mf"},
        {"leader": "other", "members": {"me": metadata("t")}},
        {"leader": "me", "members": {"mf": metadata("t")}},
        {"leader": "me", "members": {"me": metadata("u")}},
        {"leader": "me", "members": {"me": metadata("t")}, "skip_assignment": True},
    ],
    ids=["another member", "another leader", "leader is no member", "other topics", "no plan"],
)
def test_a_damaged_join_answer_is_not_believed(answer: dict[str, Any]) -> None:
    """One flipped bit that still decodes would leave the member without partitions for ever."""
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    d.joined(member_id="me", error=E.MEMBER_ID_REQUIRED)
    d.joined(**answer)  # pyright: ignore[reportArgumentType]
    d.sent_none(SyncGroupRequest)
    d.later(1_000)
    d.request(JoinGroupRequest)
    lead(d, {"me": metadata("t")})
    d.synced({"t": [0]})
    assert d.only(Assign).assignment == {"t": (0,)}


def test_an_assignment_that_does_not_decode_is_asked_for_again() -> None:
    """It ends the membership only when it comes three times in a row."""
    d = Driver().join()
    for generation in (1, 2, 3):
        d.joined(generation)
        d.answer(SyncGroupRequest, SyncGroupResponse(assignment=b"\0\0\0"))
        d.steps()
        if generation < 3:
            d.none(Fatal)
            d.later(1_000)
            d.request(JoinGroupRequest)
    d.only(Fatal)


def test_a_leader_knows_what_it_planned_for_itself() -> None:
    """What its sync brings back is that, or the answer was damaged."""
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t")})
    d.synced({"t": [64]})
    d.none(Assign)
    d.later(1_000)
    d.request(JoinGroupRequest)


@pytest.mark.parametrize("kind", ["range", COOP])
def test_a_sync_in_the_next_rebalance(kind: str) -> None:
    """B32: joined g2, but its sync is refused; the claim is still that of g1."""
    d = Driver(kind).stable(generation=1)
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    d.steps()
    d.joined(2, protocol=kind)
    d.synced(error=E.REBALANCE_IN_PROGRESS)
    mine = decode_subscription("", d.request(JoinGroupRequest).protocols[0].metadata)
    assert mine.generation == 1
    assert mine.owned == ({"t": (0, 1)} if kind == COOP else {})


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION])
def test_a_sync_of_a_lost_generation(code: int) -> None:
    d = Driver(COOP).stable(generation=1)
    d.call("subscribe", ["t", "u"])
    d.joined(2, protocol=COOP)
    d.synced(error=code)
    assert d.only(Revoke).lost
    assert d.member.state is State.REVOKING


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE])
def test_a_sync_at_a_broker_that_moved_on(code: int) -> None:
    d = Driver().join()
    d.joined()
    d.synced(error=code)
    d.only(FindCoordinator)
    assert (d.member.state, d.member.member_id) == (State.DISCOVERING, "me")


def test_a_sync_while_the_coordinator_loads() -> None:
    d = Driver().join()
    d.joined()
    d.synced(error=E.COORDINATOR_LOAD_IN_PROGRESS)
    d.none(Send)
    d.later(100)
    assert d.request(JoinGroupRequest).member_id == "me"


@pytest.mark.parametrize("code", [E.FENCED_INSTANCE_ID, E.INCONSISTENT_GROUP_PROTOCOL])
def test_a_sync_that_is_fatal(code: int) -> None:
    d = Driver(group_instance_id="i").join()
    d.joined()
    d.synced(error=code)
    d.only(Fatal)


def test_a_heartbeat_error_of_the_generation_before() -> None:
    """B30: it arrives after the join of the next one and must not reset it."""
    d = Driver().stable(generation=5)
    d.later(3_000)
    old = d.sent[HeartbeatRequest]
    d.call("subscribe", ["t", "u"])
    d.steps()
    d.joined(6)
    for code in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID):
        assert d.call("answered", old.token, HeartbeatResponse(error_code=code)) == []
    assert (d.member.generation, d.member.state) == (6, State.SYNCING)


def test_an_answer_counts_once() -> None:
    """C7: a second answer with the same token is dropped."""
    d = Driver().join()
    d.joined()
    d.joined(error=E.UNKNOWN_MEMBER_ID)
    assert (d.effects, d.member.state) == ([], State.SYNCING)


def test_time_runs_out_on_a_heartbeat() -> None:
    """No answer in time is no coordinator (spec 1.4)."""
    d = Driver().stable()
    d.later(3_000)
    d.answer(HeartbeatRequest, KafkaTimeoutError("30 s"))
    d.only(FindCoordinator)
    assert d.member.state is State.REDISCOVERING


def test_looking_for_a_coordinator_backs_off() -> None:
    """B41: a lookup that failed is made again, at the pace of the back-off."""
    d = Driver()
    d.subscribe()
    for wait in (100, 200, 400, 800, 1_000):
        d.call("coordinator_not_found", ConnectionFailedError("nobody"))
        d.later(wait - 1)
        d.none(FindCoordinator)
        d.later(1)
        d.only(FindCoordinator)
    d.call("coordinator_not_found", GroupError(E.GROUP_AUTHORIZATION_FAILED, "no"))
    assert isinstance(d.only(Fatal).error, GroupError)


# -- cooperative -----------------------------------------------------------------------------------


def test_eager_unless_all_assignors_are_cooperative() -> None:
    """KIP-429, as Java decides: the default `range,cooperative-sticky` is eager."""
    assert not Driver("range,cooperative-sticky").member.cooperative
    assert not Driver("sticky").member.cooperative
    assert Driver(COOP).member.cooperative


def test_cooperative_goes_on_consuming_and_gives_up_only_what_moves() -> None:
    """KIP-429: nothing is revoked before the join, the difference after it; then it rejoins."""
    d = Driver(COOP).stable({"t": [0, 1, 2]}, generation=3)
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    d.none(Revoke)
    mine = decode_subscription("", d.request(JoinGroupRequest).protocols[0].metadata)
    assert (mine.owned, mine.generation) == ({"t": (0, 1, 2)}, 3)
    d.joined(4, protocol=COOP)
    d.synced({"t": [0, 3]})
    gone, taken = d.effects
    assert isinstance(gone, Revoke)
    assert isinstance(taken, Assign)
    assert (gone.partitions, gone.lost) == ({"t": (1, 2)}, False)
    assert (taken.added, taken.assignment) == ({"t": (3,)}, {"t": (0, 3)})
    d.call("revoked", gone.token)
    assert d.effects == []
    d.call("assigned", taken.token)
    join = d.request(JoinGroupRequest)
    assert decode_subscription("", join.protocols[0].metadata).owned == {"t": (0, 3)}
    assert "gave up 2 partitions" in join.reason
    d.joined(5, protocol=COOP)
    d.synced({"t": [0, 3]})
    assert d.only(Assign).added == {}
    d.none(Revoke)
    d.steps()
    assert d.member.state is State.STABLE


def test_cooperative_gives_up_unsubscribed_topics_before_it_joins() -> None:
    """KIP-429: only partitions of topics that are not wanted any more."""
    d = Driver(COOP, topics="t u").stable({"t": [0], "u": [1]})
    d.subscribe("t")
    assert d.only(Revoke).partitions == {"u": (1,)}
    d.steps()
    mine = decode_subscription("", d.request(JoinGroupRequest).protocols[0].metadata)
    assert (mine.topics, mine.owned) == ({"t"}, {"t": (0,)})


def test_a_retained_partition_is_added_again_after_eager_revoking() -> None:
    """C6: the callbacks are exact differences: eager gives up all, so all is added again."""
    d = Driver().stable()
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    d.steps()
    d.joined(2)
    d.synced({"t": [1, 2]})
    assert d.only(Assign).added == {"t": (1, 2)}


def test_a_loss_while_an_assignment_waits_for_the_caller() -> None:
    """C1, C6: the caller runs assigned, then lost, and delivers nothing in between."""
    d = Driver().join()
    d.joined()
    d.synced({"t": [0]})
    waiting = d.only(Assign)
    d.later(3_000)
    d.beat(E.UNKNOWN_MEMBER_ID)
    lost = d.only(Revoke)
    assert (lost.lost, lost.partitions) == (True, {"t": (0,)})
    assert d.call("assigned", waiting.token) == []
    d.call("revoked", lost.token)
    d.request(JoinGroupRequest)


def test_a_rebalance_while_an_assignment_waits_for_the_caller() -> None:
    """The next rebalance does not wait for a slow listener to be told of the last one."""
    d = Driver().join()
    d.joined()
    d.synced({"t": [0]})
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    assert not d.only(Revoke).lost
    assert d.member.may_commit
    d.steps()
    d.request(JoinGroupRequest)


# -- the leader ------------------------------------------------------------------------------------


def lead(d: Driver, members: dict[str, bytes], generation: int = 1, **more: Any) -> None:
    d.joined(generation, leader="me", members=members, **more)


def plan_of(d: Driver) -> dict[str, Partitions]:
    sync = d.request(SyncGroupRequest)
    return {each.member_id: decode_assignment(each.assignment)[0] for each in sync.assignments}


def test_the_leader_assigns() -> None:
    """Spec 2.5: the plan of all goes with the leader's sync."""
    d = Driver()
    d.call("topics_changed", {"t": TopicView(3)})
    d.join()
    lead(d, {"me": metadata("t"), "you": metadata("t"), "idle": metadata("")})
    assert plan_of(d) == {"me": {"t": (0, 1)}, "you": {"t": (2,)}, "idle": {}}


def test_everybody_is_in_the_leaders_sync() -> None:
    """B37: also who gets nothing, and one entry a member id however often it is listed."""
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t"), "you": metadata("t")})
    assert plan_of(d) == {"me": {"t": (0,)}, "you": {}}


def test_the_leader_waits_for_topics_that_it_does_not_know() -> None:
    """The group reads more topics than the leader does: they are watched first."""
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t"), "you": metadata("t u")})
    assert d.only(WatchTopics).topics == {"u"}
    assert d.member.state is State.PLANNING
    d.later(3_000)
    d.request(HeartbeatRequest)
    d.call("topics_changed", {"t": TopicView(1), "u": TopicView(2)})
    assert plan_of(d) == {"me": {"t": (0,)}, "you": {"u": (0, 1)}}


def test_the_leader_does_not_wait_for_ever() -> None:
    """GL4: after the request timeout it plans with what it knows, and rejoins to know more."""
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t"), "you": metadata("u")})
    d.later(29_999)
    d.sent_none(SyncGroupRequest)
    d.later(1)
    assert plan_of(d) == {"me": {"t": (0,)}, "you": {}}
    d.synced({"t": [0]})
    d.steps()
    d.call("topics_changed", {"t": TopicView(1), "u": TopicView(2)})
    d.steps()
    assert d.request(JoinGroupRequest).reason == "topic 'u' went from 0 to 2 partitions"


def test_a_topic_that_does_not_exist_holds_up_nobody() -> None:
    d = Driver(topics="t nope")
    d.join()
    lead(d, {"me": metadata("t nope")})
    d.call("topics_changed", {"t": TopicView(1), "nope": None})
    assert plan_of(d) == {"me": {"t": (0,)}}


def leading() -> Driver:
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t")})
    d.synced({"t": [0]})
    d.steps()
    return d


def test_the_leader_watches_topics() -> None:
    """Spec 1.9: new partitions and new topics end in a rejoin; racks and repeats do not."""
    d = leading()
    d.call("topics_changed", {"t": TopicView(1, (frozenset("r"),)), "other": TopicView(4)})
    assert d.effects == []
    d.call("topics_changed", {"t": TopicView(2)})
    d.steps()
    assert "from 1 to 2 partitions" in d.request(JoinGroupRequest).reason


def test_a_change_during_the_rebalance_is_not_forgotten() -> None:
    """B12's kind: seen while syncing, acted on when stable, against what was planned for."""
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t")})
    d.call("topics_changed", {"t": TopicView(5)})
    d.synced({"t": [0]})
    d.steps()
    assert d.only(Revoke).reason == "topic 't' went from 1 to 5 partitions"


def test_followers_do_not_watch() -> None:
    """Spec 1.9: only the leader does; who has led knows what it planned for, and leads no more."""
    d = leading()
    d.later(3_000)
    d.beat(E.REBALANCE_IN_PROGRESS)
    d.steps()
    d.joined(2)
    d.synced({"t": [0]})
    d.steps()
    assert (d.member.is_leader, d.member.state) == (False, State.STABLE)
    d.call("topics_changed", {"t": TopicView(9)})
    assert d.effects == []


def test_who_leads_no_more_watches_no_more() -> None:
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1), "u": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t"), "you": metadata("u")})
    assert d.only(WatchTopics).topics == {"u"}
    d.synced(error=E.REBALANCE_IN_PROGRESS)
    d.joined(2)
    assert d.only(WatchTopics).topics == frozenset()


def came_back(planned: dict[str, list[int]] | None) -> Driver:
    """A static leader told to skip the assignment (KIP-814), and what it finds in the group."""
    d = Driver(group_instance_id="i", topics="t u")
    d.call("topics_changed", {"t": TopicView(2), "u": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t u")}, skip_assignment=True)
    assert d.request(SyncGroupRequest).assignments == []
    d.synced({"t": [0]})
    d.steps()
    assert d.request(DescribeGroupsRequest).groups == ["g"]
    d.call("coordinator_lost")
    d.call("coordinator_found", 8)
    assert d.request(DescribeGroupsRequest).groups == ["g"]
    assert d.member.state is State.STABLE
    if planned is None:
        d.answer(DescribeGroupsRequest, UnsupportedVersionError("too old"))
    else:
        members = [DescribedGroupMember(member_assignment=encode_assignment(planned))]
        group = DescribedGroup(group_id="g", members=members)
        d.answer(DescribeGroupsRequest, DescribeGroupsResponse(groups=[group]))
    return d


@pytest.mark.parametrize("planned", [None, {"t": [0, 1], "u": [0]}])
def test_a_leader_that_came_back_does_not_plan(planned: dict[str, list[int]] | None) -> None:
    """KIP-814: no plan is sent, but topics are watched from then on."""
    d = came_back(planned)
    assert d.effects == []
    d.call("topics_changed", {"t": TopicView(2), "u": TopicView(3)})
    assert "topic 'u' went from 1 to 3" in d.only(Revoke).reason


def test_a_leader_that_came_back_sees_what_changed_while_it_was_away() -> None:
    """Spec 1.9: the plan was made for fewer partitions than there are now (KIP-814 misses that)."""
    d = came_back({"t": [0, 1]})
    assert "topic 'u' went from 0 to 1" in d.only(Revoke).reason


def test_a_leaders_broken_assignor_is_fatal_and_leaves() -> None:
    """The others get another leader instead of waiting for this one's sync."""

    class Broken(Assignor):
        name = "broken"

        def assign(self, group: GroupView) -> Plan:
            return Plan({})

    d = Driver([Broken()])
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t")}, protocol="broken")
    assert d.request(LeaveGroupRequest).members[0].member_id == "me"
    assert "nobody gets 't' partitions [0]" in str(d.only(Fatal).error)


def test_an_assignor_is_told_what_its_member_got() -> None:
    """A user's `on_assignment` has the assignment and generation; when it raises, that is fatal."""
    calls: list[object] = []

    class Mine(Assignor):
        name = "mine"

        def on_assignment(
            self, assignment: Partitions, user_data: bytes | None, generation: int
        ) -> None:
            calls.append((assignment, user_data, generation))
            if generation == 2:
                raise KeyError("gone")

    d = Driver([Mine()]).stable()
    assert calls == [({"t": (0, 1)}, None, 1)]
    d.call("subscribe", ["t", "u"])
    d.steps()
    d.joined(2, protocol="mine")
    d.synced({"t": [0]})
    assert "on_assignment() with KeyError" in str(d.only(Fatal).error)
    d.request(LeaveGroupRequest)


def test_members_that_cannot_be_read_are_warned_of() -> None:
    d = Driver()
    d.call("topics_changed", {"t": TopicView(1)})
    d.join()
    lead(d, {"me": metadata("t"), "bad": b"\x00\x03\x7f"})
    assert "'bad'" in d.only(Warn).text
    assert plan_of(d) == {"me": {"t": (0,)}, "bad": {}}


def test_a_cooperative_member_hears_of_the_second_phase_soon() -> None:
    """KIP-429: what it is to get, others give up first. It asks soon, then ever less often."""
    driver = Driver("cooperative-sticky", join_heartbeat_ms=100).stable({})
    beats: list[int] = []
    began = driver.now
    for _ in range(7):
        due = driver.member.next_deadline()
        assert due is not None
        driver.later(due - driver.now)
        driver.request(HeartbeatRequest)
        beats.append(driver.now - began)
        driver.beat()
    assert beats == [100, 300, 700, 1_500, 3_100, 6_100, 9_100]
    driver.later(3_000)
    driver.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    assert driver.member.state is State.JOINING


def test_an_eager_member_heartbeats_in_its_interval() -> None:
    driver = Driver("range").stable()
    due = driver.member.next_deadline()
    assert due == driver.now + 3_000


def test_a_member_that_owns_nothing_heartbeats_sooner() -> None:
    """No fetch of its waits, whose early end would tell it of news; and the others wait for it."""
    driver = Driver("range", idle_heartbeat_ms=400).stable({})
    beats: list[int] = []
    for _ in range(3):
        due = driver.member.next_deadline()
        assert due is not None
        beats.append(due - driver.now)
        driver.later(beats[-1])
        driver.beat()
    assert beats == [400, 400, 400]
    driver = Driver("range", idle_heartbeat_ms=400).stable()
    assert driver.member.next_deadline() == driver.now + 3_000
    driver = Driver("range", idle_heartbeat_ms=4_000).stable({})
    assert driver.member.next_deadline() == driver.now + 3_000


def test_a_hint_that_comes_during_the_sync_is_not_lost() -> None:
    """The next rebalance may begin before this member has heard how this one ended."""
    driver = Driver("range").join()
    driver.joined()
    driver.call("hurry")
    driver.sent_none(HeartbeatRequest)
    driver.synced({"t": [0]})
    driver.steps()
    driver.later(0)
    beat = of_type(driver.sent[HeartbeatRequest].message, HeartbeatRequest)
    assert beat.generation_id == 1
    driver.beat()
    driver.later(2_999)
    driver.sent_none(HeartbeatRequest)
