"""A member's life beside its rounds: polls, subscriptions, commits, leaving (spec 1.2-1.10)."""

from __future__ import annotations

import pytest

from kohort.errors import ConfigError, ErrorCode
from kohort.group.assignors import make_assignors
from kohort.group.assignors.protocol import decode_subscription
from kohort.group.member.classic import ClassicMember
from kohort.group.member.classic_table import State
from kohort.group.member.config import MemberConfig
from kohort.group.member.effects import Assign, Fatal, FindCoordinator, Revoke, Send, Warn
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.leave_group_response import LeaveGroupResponse
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from tests.group.member_driver import Driver
from tests.known import of_type

E = ErrorCode
COOP = "cooperative-sticky"


def beating(d: Driver, ms: int, step: int = 1_000) -> None:
    """Let time pass with a coordinator that answers every heartbeat."""
    for _ in range(ms // step):
        d.later(step)
        if any(isinstance(e, Send) and type(e.message) is HeartbeatRequest for e in d.effects):
            d.beat()


# -- polls -----------------------------------------------------------------------------------------


def test_a_caller_that_does_not_poll_leaves() -> None:
    """Spec 1.3, B10: it leaves by itself, is told *lost*, and the text names the overdue poll."""
    d = Driver(max_poll_interval_ms=20_000).stable()
    beating(d, 19_000)
    late = d.sent[HeartbeatRequest]
    d.later(1_000)
    leave = d.request(LeaveGroupRequest).members[0]
    assert leave.member_id == "me"
    assert "no poll for 20000 ms (max.poll.interval.ms=20000)" in leave.reason
    assert "max.poll.records" in d.only(Warn).text
    lost = d.only(Revoke)
    assert (lost.lost, lost.partitions) == (True, {"t": (0, 1)})
    assert d.member.state is State.OVERDUE
    # Late heartbeats are ignored, none is sent, nothing happens until the next poll.
    assert d.call("answered", late.token, HeartbeatResponse(error_code=E.UNKNOWN_MEMBER_ID)) == []
    assert d.member.next_deadline() is None
    d.call("tick")
    assert d.effects == []
    d.now += 1
    d.call("polled")
    assert d.effects == []
    d.call("revoked", lost.token)
    assert d.request(JoinGroupRequest).member_id == ""


def test_a_poll_that_is_known_already_wakes_nobody() -> None:
    """B10: the shell reports the latest poll before each tick; only a new one brings it back."""
    d = Driver(max_poll_interval_ms=20_000).stable()
    last = d.now
    beating(d, 10_000)
    d.did(d.member.polled(last))
    d.later(10_000)
    assert d.member.state is State.OVERDUE
    d.steps()
    d.did(d.member.polled(last))
    assert (d.effects, d.member.state) == ([], State.OVERDUE)
    d.now += 1
    d.call("polled")
    d.request(JoinGroupRequest)


def test_steps_run_before_the_poll_are_enough() -> None:
    """B10: confirmed first, polled after: the poll alone makes it join."""
    d = Driver(max_poll_interval_ms=5_000).stable()
    d.later(5_000)
    d.call("revoked", d.only(Revoke).token)
    assert d.effects == []
    d.call("polled")
    d.request(JoinGroupRequest)


def test_only_a_tick_finds_the_caller_overdue() -> None:
    """B10: a hint or a new coordinator comes without the caller's latest poll, and nobody would
    see that the member has gone."""
    d = Driver(max_poll_interval_ms=5_000).stable()
    d.now += 5_000
    d.call("hurry")
    d.call("coordinator_found", 9)
    assert d.member.state is State.STABLE or d.member.state.name == "ACKNOWLEDGING"
    d.call("tick")
    assert d.member.overdue


def test_polling_keeps_it_a_member() -> None:
    """Spec 1.3: every poll starts the interval anew."""
    d = Driver(max_poll_interval_ms=5_000).stable()
    for _ in range(10):
        beating(d, 4_000)
        d.call("polled")
    assert d.member.state is State.STABLE


@pytest.mark.parametrize("where", ["finding", "joining", "syncing", "assigning", "revoking"])
def test_an_overdue_poll_in_the_middle_of_a_round(where: str) -> None:
    """Spec 1.3: whoever does not poll is no member, wherever its round stands."""
    d = Driver(max_poll_interval_ms=5_000)
    if where == "finding":
        d.subscribe()
    else:
        d.join()
    if where in {"syncing", "assigning"}:
        d.joined()
    if where == "assigning":
        d.synced({"t": [0]})
    if where == "revoking":
        d = Driver(max_poll_interval_ms=5_000).stable()
        d.subscribe("t u")
    d.later(5_000)
    assert d.member.state is State.OVERDUE
    assert d.member.assignment == {}
    assert bool(d.member.member_id) is False
    d.call("polled")
    if where in {"assigning", "revoking"}:
        d.call("revoked", max(e.token for e in d.log if isinstance(e, Revoke)))
    if where == "finding":
        d.call("coordinator_found", 1)
    assert d.member.state is State.JOINING


def test_a_static_member_that_is_overdue_does_not_leave() -> None:
    """KIP-345: the session timeout decides; it only stops."""
    d = Driver(max_poll_interval_ms=5_000, group_instance_id="i").stable()
    d.later(5_000)
    d.sent_none(LeaveGroupRequest)
    assert d.only(Revoke).lost
    assert d.member.state is State.OVERDUE


# -- subscriptions ---------------------------------------------------------------------------------


def test_a_new_subscription_rejoins() -> None:
    """Spec 1.9: a change ends in a rebalance, at once; the same subscription does not."""
    d = Driver().stable()
    d.subscribe("t")
    assert d.effects == []
    d.subscribe("t u")
    d.steps()
    join = d.request(JoinGroupRequest)
    assert decode_subscription("", join.protocols[0].metadata).topics == {"t", "u"}
    assert join.reason == "the subscription changed"


@pytest.mark.parametrize("when", ["join", "sync"])
def test_what_was_asked_for_an_older_subscription_is_dropped(when: str) -> None:
    """B38: subscribe(A) under way, then subscribe(B): A's assignment is ignored, B joins."""
    d = Driver(topics="a").join()
    if when == "sync":
        d.joined()
    d.subscribe("b")
    assert d.effects == []
    if when == "sync":
        d.synced({"a": [0]})
    else:
        d.joined()
    d.none(Assign)
    join = d.request(JoinGroupRequest)
    assert decode_subscription("", join.protocols[0].metadata).topics == {"b"}
    assert join.member_id == "me"


def test_a_subscription_that_changes_while_assigning() -> None:
    """B38: what was just assigned is given up again before a record is delivered."""
    d = Driver(topics="a").join()
    d.joined()
    d.synced({"a": [0]})
    d.subscribe("b")
    assert d.only(Revoke).partitions == {"a": (0,)}
    d.steps()
    d.request(JoinGroupRequest)


def test_a_subscription_that_changes_without_a_coordinator() -> None:
    """Spec 1.2: it goes on consuming, and rejoins when there is somebody to rejoin."""
    d = Driver().stable()
    d.call("coordinator_lost")
    d.subscribe("t u")
    d.none(Revoke)
    assert d.member.state is State.REDISCOVERING
    d.call("coordinator_found", 8)
    d.only(Revoke)
    d.steps()
    d.request(JoinGroupRequest)


def test_an_assignment_of_other_topics_is_not_taken() -> None:
    """G2: a leader that assigns what was not asked for is asked again, not obeyed."""
    d = Driver().join()
    d.joined()
    d.synced({"t": [0], "strange": [1]})
    assert "strange" in d.only(Warn).text
    d.none(Assign)
    d.later(200)
    assert d.sent[JoinGroupRequest].message
    assert d.member.state is State.JOINING


def test_unsubscribe_leaves_and_a_later_subscribe_joins_afresh() -> None:
    """Spec 1.9: revoked while still a member, then left; the next member id is new."""
    d = Driver().stable()
    d.call("unsubscribe")
    assert not d.only(Revoke).lost
    assert d.member.may_commit
    d.sent_none(LeaveGroupRequest)
    d.steps()
    assert d.request(LeaveGroupRequest).members[0].reason == "the consumer unsubscribed"
    assert d.member.state is State.DOWN
    assert d.member.next_deadline() is None
    d.subscribe("u")
    join = d.request(JoinGroupRequest)
    assert join.member_id == ""


def test_subscribe_while_unsubscribing() -> None:
    """What is subscribed last holds; the old membership ends first."""
    d = Driver().stable()
    d.call("unsubscribe")
    step = d.only(Revoke)
    d.subscribe("u")
    assert d.effects == []
    d.call("revoked", step.token)
    leave, join = d.effects
    assert isinstance(leave, Send)
    assert isinstance(join, Send)
    assert type(leave.message) is LeaveGroupRequest
    assert type(join.message) is JoinGroupRequest


def test_an_empty_subscription_is_a_member_without_partitions() -> None:
    """A pattern that matches nothing yet joins all the same."""
    d = Driver(topics="").join()
    assert (
        decode_subscription("", d.request(JoinGroupRequest).protocols[0].metadata).topics == set()
    )


# -- commits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION])
def test_a_commit_that_shows_it_was_expelled(code: int) -> None:
    """B40: it stops at once, not at the next heartbeat."""
    d = Driver().stable(generation=4)
    d.call("commit_refused", code, 4)
    assert d.only(Revoke).lost
    d.steps()
    d.request(JoinGroupRequest)


def test_a_commit_of_another_generation_says_nothing() -> None:
    """B30, C7: a late answer to an old commit must not reset the present generation."""
    d = Driver().stable(generation=4)
    for code in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.FENCED_INSTANCE_ID):
        assert d.call("commit_refused", code, 3) == []
    assert d.call("commit_refused", E.OFFSET_METADATA_TOO_LARGE, 4) == []
    assert d.member.state is State.STABLE


def test_a_commit_during_the_next_join_says_nothing() -> None:
    """The join itself will tell; resetting it would start the round again."""
    d = Driver(COOP).stable(generation=4)
    d.subscribe("t u")
    assert d.call("commit_refused", E.ILLEGAL_GENERATION, 4) == []
    assert d.member.state is State.JOINING


def test_a_fenced_commit_is_fatal() -> None:
    d = Driver(group_instance_id="i").stable(generation=4)
    d.call("commit_refused", E.FENCED_INSTANCE_ID, 4)
    assert d.only(Revoke).lost
    d.only(Fatal)


def test_a_commit_that_hears_of_a_rebalance_or_of_another_coordinator() -> None:
    d = Driver().stable(generation=4)
    d.call("commit_refused", E.REBALANCE_IN_PROGRESS, 4)
    assert not d.only(Revoke).lost
    d = Driver().stable(generation=4)
    d.call("commit_refused", E.NOT_COORDINATOR, 4)
    d.only(FindCoordinator)
    assert d.member.state is State.REDISCOVERING


# -- leaving ---------------------------------------------------------------------------------------


def test_close_gives_up_then_leaves() -> None:
    """Spec 1.10: revoked (the caller may commit), heartbeats go on meanwhile, then the leave."""
    d = Driver().stable()
    d.call("close")
    step = d.only(Revoke)
    assert not step.lost
    assert d.member.may_commit
    d.later(3_000)
    d.request(HeartbeatRequest)
    d.beat(E.REBALANCE_IN_PROGRESS)
    assert d.effects == []
    d.call("revoked", step.token)
    assert d.request(LeaveGroupRequest).members[0].member_id == "me"
    assert d.member.state is State.LEAVING
    d.answer(LeaveGroupRequest, LeaveGroupResponse())
    assert d.member.state is State.LEFT
    assert d.call("close") == d.call("subscribe", ["t"]) == d.call("tick") == []


def test_a_static_member_closes_without_leaving() -> None:
    """KIP-345, C11: its partitions wait for its return."""
    d = Driver(group_instance_id="i").stable()
    d.call("close")
    d.steps()
    d.sent_none(LeaveGroupRequest)
    assert d.member.state is State.LEFT


def test_close_before_there_is_a_member() -> None:
    """C11: nobody to tell, so it is over at once."""
    d = Driver()
    d.call("close")
    assert (d.effects, d.member.state) == ([], State.LEFT)
    d = Driver()
    d.subscribe()
    d.call("close")
    assert d.member.state is State.LEFT


@pytest.mark.parametrize("where", ["join", "sync"])
def test_close_in_the_middle_of_a_round(where: str) -> None:
    """C11: nothing to wait for; a member id that is known is given back."""
    d = Driver().stable()
    d.subscribe("t u")
    d.steps()
    if where == "sync":
        d.joined(2)
    d.call("close")
    d.request(LeaveGroupRequest)
    d.synced({"t": [0]}) if where == "sync" else d.joined(2)
    assert d.effects == []
    assert d.member.state is State.LEAVING


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID])
def test_close_of_a_member_that_is_gone(code: int) -> None:
    """C11: expelled or fenced while closing: nothing to leave, no error to raise."""
    d = Driver(group_instance_id="i" if code == E.FENCED_INSTANCE_ID else None).stable()
    d.call("close")
    step = d.only(Revoke)
    d.later(3_000)
    d.beat(code)
    d.none(Fatal)
    d.call("revoked", step.token)
    assert (d.effects, d.member.state) == ([], State.LEFT)


def test_close_when_the_coordinator_goes() -> None:
    """C11: a leave that nobody will answer is over."""
    d = Driver().stable()
    d.call("close")
    d.steps()
    d.call("coordinator_lost")
    assert d.member.state is State.LEFT
    d = Driver().stable()
    d.call("close")
    step = d.only(Revoke)
    d.call("coordinator_lost")
    d.call("revoked", step.token)
    assert d.member.state is State.LEFT


def test_close_after_a_fatal_error() -> None:
    d = Driver(group_instance_id="i").stable()
    d.later(3_000)
    d.beat(E.FENCED_INSTANCE_ID)
    step = d.only(Revoke)
    d.call("close")
    d.call("revoked", step.token)
    assert (d.effects, d.member.state) == ([], State.LEFT)


def test_static_members_say_who_they_are() -> None:
    """KIP-345: the instance id is in every request that has the field."""
    d = Driver(group_instance_id="i").stable()
    d.later(3_000)
    for kind in (JoinGroupRequest, SyncGroupRequest, HeartbeatRequest):
        assert of_type(d.sent[kind].message, kind).group_instance_id == "i"
    assert d.member.group_instance_id == "i"


# -- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_id": ""}, "needs a group"),
        ({"session_timeout_ms": 0}, "session_timeout_ms is 0"),
        ({"heartbeat_interval_ms": 45_000}, "must be below session_timeout_ms"),
    ],
)
def test_configuration_that_cannot_work(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemberConfig(**{"group_id": "g", **wrong})  # type: ignore[arg-type]


def test_assignors_are_needed_and_named_once() -> None:
    for assignors in ([], make_assignors("range") + make_assignors("range")):
        with pytest.raises(ConfigError, match="partition_assignment_strategy"):
            ClassicMember(MemberConfig(group_id="g"), assignors, lambda: 0.5)
