"""A KIP-848 member's life beside its rounds: polls, subscriptions, commits, leaving, errors."""

from __future__ import annotations

import pytest

from kohort.errors import (
    ConfigError,
    ConnectionFailedError,
    ErrorCode,
    FencedError,
    GroupError,
    UnsupportedVersionError,
)
from kohort.group.member.config import MemberConfig
from kohort.group.member.consumer import ConsumerMember
from kohort.group.member.consumer_table import State
from kohort.group.member.effects import Assign, Fatal, FindCoordinator, Revoke, Send, Warn
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest as Beat,
)
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from tests.group.consumer_member_driver import (
    INTERVAL_MS,
    ConsumerDriver,
    is_bare,
    is_full,
    owned,
)

E = ErrorCode


def beating(d: ConsumerDriver, ms: int) -> None:
    """Let time pass with a coordinator that answers every heartbeat."""
    for _ in range(ms // INTERVAL_MS):
        d.later(INTERVAL_MS)
        if d.beats:
            d.reply()


# -- polls -----------------------------------------------------------------------------------------


def test_a_caller_that_does_not_poll_leaves() -> None:
    """Spec 1.3, B10: it leaves by itself, is told *lost*, and is quiet until the next poll."""
    d = ConsumerDriver(max_poll_interval_ms=20_000).stable()
    beating(d, 19_000)
    d.later(1_000)
    leave = d.beats[0]
    assert (leave.member_epoch, leave.member_id) == (-1, "id0")
    assert "max.poll.records" in d.only(Warn).text
    lost = d.only(Revoke)
    assert (lost.lost, lost.partitions) == (True, {"t": (0, 1)})
    assert (d.member.state, d.member.overdue) == (State.OVERDUE, True)
    # Late answers are ignored, nothing is sent, nothing happens until the next poll.
    assert d.reply(error=E.UNKNOWN_MEMBER_ID) == []
    assert d.member.next_deadline() is None
    assert d.call("tick") == []
    d.now += 1
    d.call("polled")
    assert (d.effects, d.member.state) == ([], State.FENCED)
    d.call("revoked", lost.token)
    beat = d.sent_beat
    assert (beat.member_epoch, beat.member_id, owned(beat)) == (0, "id0", {})


def test_a_late_heartbeat_answer_does_not_bring_an_overdue_member_back() -> None:
    """B10: the answer of the heartbeat before the leave would hand the partitions back."""
    d = ConsumerDriver(max_poll_interval_ms=3_000).stable()
    d.later(1_000)
    late = d.sent[Beat].token
    d.later(2_000)
    assert d.member.overdue
    answer = ConsumerGroupHeartbeatResponse(member_epoch=1, heartbeat_interval_ms=100)
    assert d.call("answered", late, answer) == []
    assert (d.member.generation, d.member.overdue) == (-1, True)


def test_a_poll_that_is_known_already_wakes_nobody() -> None:
    """B10: the shell reports the latest poll before each tick; only a new one brings it back."""
    d = ConsumerDriver(max_poll_interval_ms=5_000).stable()
    last = d.now
    d.later(5_000)
    d.steps()
    d.did(d.member.polled(last))
    assert (d.effects, d.member.state) == ([], State.OVERDUE)
    d.now += 1
    d.call("polled")
    assert d.sent_beat.member_epoch == 0


def test_only_a_tick_finds_the_caller_overdue() -> None:
    """B10: a hint or a new coordinator comes without the caller's latest poll, and nobody would
    see that the member has gone."""
    d = ConsumerDriver(max_poll_interval_ms=5_000).stable()
    d.now += 5_000
    d.call("hurry")
    d.call("coordinator_found", 9)
    assert d.member.state is State.STABLE or d.member.state.name == "ACKNOWLEDGING"
    d.call("tick")
    assert d.member.overdue


def test_polling_keeps_it_a_member() -> None:
    """Spec 1.3: every poll starts the interval anew."""
    d = ConsumerDriver(max_poll_interval_ms=5_000).stable()
    for _ in range(10):
        beating(d, 4_000)
        d.call("polled")
    assert d.member.state is State.STABLE


@pytest.mark.parametrize("where", ["finding", "joining", "taking", "giving up"])
def test_an_overdue_poll_in_the_middle_of_a_round(where: str) -> None:
    """Spec 1.3: whoever does not poll is no member; it leaves if it has asked to be in."""
    d = ConsumerDriver(max_poll_interval_ms=5_000)
    if where == "finding":
        d.subscribe()
    elif where == "joining":
        d.join()
    elif where == "taking":
        d.join()
        d.reply({"t": [0]})
    else:
        d.stable()
        d.later(INTERVAL_MS)
        d.reply({}, 2)
    d.later(5_000)
    assert d.member.overdue
    assert [b.member_epoch for b in d.beats[-1:]] == ([] if where == "finding" else [-1])
    d.call("polled")
    for step in [e for e in d.log if isinstance(e, Revoke)][-1:]:
        d.call("revoked", step.token)
    if where == "finding":
        d.call("coordinator_found", 1)
    assert d.member.state is State.JOINING


def test_an_overdue_static_member_keeps_its_place() -> None:
    """KIP-848: epoch -2: it may be back; the session decides."""
    d = ConsumerDriver(max_poll_interval_ms=5_000, group_instance_id="i").stable()
    d.later(5_000)
    assert (d.beats[-1].member_epoch, d.beats[-1].instance_id) == (-2, "i")
    assert d.only(Revoke).lost


# -- subscriptions ---------------------------------------------------------------------------------


def test_a_new_subscription_is_told_at_once() -> None:
    """Spec 1.9: the change alone; nothing is given up before the coordinator says so."""
    d = ConsumerDriver("t", seen="t u").stable()
    assert d.subscribe("t") == []
    d.subscribe("u")
    beat = d.sent_beat
    assert (beat.subscribed_topic_names, beat.topic_partitions, beat.member_epoch) == (
        ["u"],
        None,
        1,
    )
    d.reply({}, 2)
    assert d.only(Revoke).partitions == {"t": (0, 1)}


def test_a_subscription_that_changes_during_a_heartbeat_goes_out_with_the_next() -> None:
    """B38: told again as soon as the one under way is answered."""
    d = ConsumerDriver("t").join()
    d.subscribe("t u")
    assert d.effects == []
    d.reply({})
    assert d.sent_beat.subscribed_topic_names == ["t", "u"]


def test_unsubscribing_gives_up_and_leaves() -> None:
    """Spec 1.9: *revoked*, with time to commit; then the leave; ready for another subscription."""
    d = ConsumerDriver().stable()
    d.call("unsubscribe")
    revoke = d.only(Revoke)
    assert (revoke.lost, revoke.partitions, d.beats) == (False, {"t": (0, 1)}, [])
    # The session is kept until the caller has committed; nothing new is taken in.
    d.later(INTERVAL_MS)
    assert is_bare(d.sent_beat)
    d.reply({"t": [0, 1, 2]}, 2)
    assert (d.effects, d.member.generation) == ([], 2)
    d.call("revoked", revoke.token)
    assert d.sent_beat.member_epoch == -1
    assert (d.member.state, d.member.is_out, d.member.subscription) == (State.DOWN, True, None)
    d.subscribe()
    assert d.sent_beat.member_epoch == 0


def test_subscribing_again_while_it_gives_up() -> None:
    """Spec 1.9: first the leave, then the join, in that order on one connection."""
    d = ConsumerDriver().stable()
    d.call("unsubscribe")
    revoke = d.only(Revoke)
    d.subscribe("u")
    d.call("revoked", revoke.token)
    beats = d.beats
    assert [b.member_epoch for b in beats] == [-1, 0]
    assert beats[1].subscribed_topic_names == ["u"]


# -- leaving ---------------------------------------------------------------------------------------


def test_closing_leaves_at_once() -> None:
    """Spec 1.10: give up, leave, done when that is answered."""
    d = ConsumerDriver().stable()
    d.call("close")
    revoke = d.only(Revoke)
    assert not revoke.lost
    d.call("revoked", revoke.token)
    assert (d.sent_beat.member_epoch, d.member.state) == (-1, State.LEAVING)
    d.reply()
    assert (d.member.state, d.member.is_out) == (State.LEFT, True)
    assert d.member.next_deadline() is None


def test_a_static_member_closes_with_epoch_minus_two() -> None:
    """KIP-848: its partitions wait for it for a session timeout (C11)."""
    d = ConsumerDriver(group_instance_id="i").stable()
    d.call("close")
    d.steps()
    assert (d.sent_beat.member_epoch, d.sent_beat.instance_id) == (-2, "i")
    d.reply(error=E.UNKNOWN_MEMBER_ID)
    assert d.member.state is State.LEFT


def test_closing_without_a_coordinator_is_done_at_once() -> None:
    """C11: nobody can be told."""
    d = ConsumerDriver().stable()
    d.call("coordinator_lost")
    d.call("close")
    d.steps()
    assert d.member.state is State.LEFT


def test_closing_while_the_leave_cannot_be_answered() -> None:
    """C11: the coordinator goes away before it answers the leave."""
    d = ConsumerDriver().stable()
    d.call("close")
    d.steps()
    d.call("coordinator_lost")
    assert d.member.state is State.LEFT


def test_closing_during_the_join_takes_the_join_back() -> None:
    """GL3: it may have been taken in; nobody shall wait for its session to end."""
    d = ConsumerDriver().join()
    d.call("close")
    assert (d.sent_beat.member_epoch, d.member.state) == (-1, State.LEAVING)


def test_fenced_while_it_closes_it_has_nobody_to_leave() -> None:
    """B10: not known any more, so no leave; the step that is open goes on."""
    d = ConsumerDriver().stable()
    d.call("close")
    revoke = d.only(Revoke)
    d.later(INTERVAL_MS)
    d.reply(error=E.UNKNOWN_MEMBER_ID)
    d.call("revoked", revoke.token)
    assert (d.effects, d.member.state) == ([], State.LEFT)


# -- commits ---------------------------------------------------------------------------------------


def test_a_commit_that_is_refused_for_its_member_ends_the_membership() -> None:
    """B40: an expelled member stops at once."""
    d = ConsumerDriver().stable()
    d.call("commit_refused", E.UNKNOWN_MEMBER_ID, 1)
    assert d.only(Revoke).lost
    assert d.member.state is State.FENCED


def test_a_commit_of_an_older_epoch_changes_nothing() -> None:
    """C7: what another epoch was told says nothing about this one."""
    d = ConsumerDriver().stable(generation=4)
    assert d.call("commit_refused", E.UNKNOWN_MEMBER_ID, 3) == []
    assert d.call("commit_refused", E.OFFSET_METADATA_TOO_LARGE, 4) == []
    assert d.member.state is State.STABLE


def test_a_stale_commit_makes_it_ask_for_the_epoch_at_once() -> None:
    """B11: the epoch has gone on; a heartbeat brings it, and the commit is sent again."""
    d = ConsumerDriver().stable()
    d.call("commit_refused", E.STALE_MEMBER_EPOCH, 1)
    assert is_bare(d.sent_beat)
    d.reply(epoch=2)
    assert (d.member.generation, d.member.state) == (2, State.STABLE)


def test_a_commit_that_names_another_coordinator() -> None:
    """Spec 1.8."""
    d = ConsumerDriver().stable()
    d.call("commit_refused", E.NOT_COORDINATOR, 1)
    assert d.effects == [FindCoordinator()]


def test_hurry() -> None:
    """A hint of news: heartbeat at once, or after the one under way, which may not know of it."""
    d = ConsumerDriver().stable()
    d.call("hurry")
    assert is_bare(d.sent_beat)
    assert d.call("hurry") == []
    d.reply()
    d.later(0)
    assert is_bare(d.sent_beat)
    d.reply()
    assert d.later(INTERVAL_MS - 1) == []


# -- errors that only a person can mend ------------------------------------------------------------

FATAL = {
    E.UNRELEASED_INSTANCE_ID: "died less than",
    E.UNSUPPORTED_ASSIGNOR: "has no assignor 'best'",
    E.INVALID_REGULAR_EXPRESSION: "RE2",
    E.GROUP_MAX_SIZE_REACHED: "group.max.size",
    E.GROUP_AUTHORIZATION_FAILED: "READ on the group",
    E.TOPIC_AUTHORIZATION_FAILED: "READ on the topic",
    E.INVALID_REQUEST: "The broker says: because",
    E.GROUP_ID_NOT_FOUND: "group_protocol=classic",
    E.INVALID_GROUP_ID: "group id",
}


@pytest.mark.parametrize("code", FATAL, ids=lambda c: E(c).name)
def test_fatal_answers_name_what_to_do(code: E) -> None:
    """Spec 1.8: raised to the caller, typed, with what can be done about it."""
    d = ConsumerDriver(group_remote_assignor="best").join()
    d.reply(error=code, error_message="because")
    error = d.only(Fatal).error
    assert isinstance(error, GroupError)
    assert error.code == code
    assert FATAL[code] in str(error)
    assert "because" in str(error)
    assert (d.member.state, d.member.error) == (State.FATAL, error)
    assert d.later(100_000) == []
    d.call("close")
    assert d.member.state is State.LEFT


def test_an_instance_that_was_taken_over_stops() -> None:
    """KIP-345: FENCED_INSTANCE_ID is for a person; what it owned is lost."""
    d = ConsumerDriver(group_instance_id="i").stable()
    d.later(INTERVAL_MS)
    d.reply(error=E.FENCED_INSTANCE_ID)
    assert isinstance(d.only(Fatal).error, FencedError)
    assert d.only(Revoke).lost
    d2 = ConsumerDriver(group_instance_id="i").stable()
    d2.call("commit_refused", E.FENCED_INSTANCE_ID, 1)
    assert isinstance(d2.only(Fatal).error, FencedError)


@pytest.mark.parametrize("pattern", [False, True])
def test_a_broker_without_the_protocol(pattern: bool) -> None:
    """KIP-848: a clear error that names the way out."""
    d = ConsumerDriver()
    d.call("subscribe_pattern", "a.*") if pattern else d.subscribe()
    d.call("coordinator_found", 7)
    d.fails(UnsupportedVersionError("broker 7 does not serve ConsumerGroupHeartbeat"))
    error = d.only(Fatal).error
    assert isinstance(error, UnsupportedVersionError)
    assert "group_protocol=classic" in str(error)
    assert ("patterns" in str(error)) is pattern
    again = ConsumerDriver().join()
    again.reply(error=E.UNSUPPORTED_VERSION)
    assert "group_protocol=classic" in str(again.only(Fatal).error)


def test_a_coordinator_that_may_not_be_found() -> None:
    """Spec 1.8: what time cannot mend is raised; the rest is tried again after a back-off."""
    d = ConsumerDriver()
    d.subscribe()
    d.call("coordinator_not_found", ConnectionFailedError("no"))
    assert d.effects == []
    d.later(100)
    assert d.effects == [FindCoordinator()]
    d.call("coordinator_not_found", GroupError(E.GROUP_AUTHORIZATION_FAILED, "no"))
    assert isinstance(d.only(Fatal).error, GroupError)


def test_another_coordinator_than_the_known_one() -> None:
    """C7: an answer of the old one does not count any more; the new one is told everything."""
    d = ConsumerDriver().stable()
    d.later(INTERVAL_MS)
    d.call("coordinator_found", 9)
    assert is_full(d.sent_beat)
    assert d.only(Send).node_id == 9
    assert d.call("coordinator_found", 9) == []


def test_two_brokers_that_point_at_each_other_are_not_asked_without_end() -> None:
    """KIP-580: looked for at once the first time, then with a back-off."""
    d = ConsumerDriver().stable()
    d.later(INTERVAL_MS)
    for wait in (0, 100, 200):
        d.reply(error=E.NOT_COORDINATOR)
        if wait:
            assert d.effects == []
            d.later(wait)
        assert d.effects == [FindCoordinator()]
        d.call("coordinator_found", 8)


def test_a_group_is_needed() -> None:
    with pytest.raises(ConfigError, match="group_id"):
        ConsumerMember(MemberConfig(), lambda: "id", lambda: 0.5)


def test_a_step_confirmed_twice_or_by_a_strange_token_changes_nothing() -> None:
    """C7."""
    d = ConsumerDriver().join()
    d.reply({"t": [0]})
    token = d.only(Assign).token
    assert d.call("assigned", token + 100) == []
    d.call("assigned", token)
    assert len(d.beats) == 1
    assert d.call("assigned", token) == []
