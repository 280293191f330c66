"""A member of the consumer protocol (KIP-848): joining, reconciling, acknowledging; B2-B9, C6."""

from __future__ import annotations

import pytest

from kohort.errors import ConnectionFailedError, ErrorCode, ProtocolError
from kohort.group.assignors import TopicView
from kohort.group.member.consumer_table import State
from kohort.group.member.effects import Assign, Fatal, FindCoordinator, Revoke, Send, WatchTopics
from kohort.wire import ZERO_UUID
from kohort.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest as Beat,
)
from tests.group.consumer_member_driver import (
    INTERVAL_MS,
    ConsumerDriver,
    is_bare,
    is_full,
    owned,
    topic_id,
    views,
)

E = ErrorCode


# -- joining ---------------------------------------------------------------------------------------


def test_the_first_heartbeat_says_everything() -> None:
    """KIP-848, KIP-1082: epoch 0, an id of its own making, nothing owned (`[]`, not null)."""
    d = ConsumerDriver(
        "t u",
        client_rack="r1",
        group_instance_id="i",
        group_remote_assignor="range",
        max_poll_interval_ms=7_000,
    )
    d.subscribe()
    assert d.effects == [FindCoordinator()]
    d.call("coordinator_found", 7)
    assert d.effects == [
        Send(
            1,
            Beat(
                group_id="g",
                member_id="id0",
                member_epoch=0,
                instance_id="i",
                rack_id="r1",
                rebalance_timeout_ms=7_000,
                subscribed_topic_names=["t", "u"],
                subscribed_topic_regex="",
                server_assignor="range",
                topic_partitions=[],
            ),
            7,
            30_000,
        )
    ]
    assert (d.member.state, d.member.generation, d.member.may_commit) == (State.JOINING, -1, False)


def test_what_is_assigned_is_taken_and_then_acknowledged() -> None:
    """B8: the coordinator is told what the caller has taken, once it has taken it."""
    d = ConsumerDriver().join()
    d.reply({"t": [1, 0]}, 3)
    assert d.effects == [Assign(2, {"t": (0, 1)}, {"t": (0, 1)}, 3)]
    assert d.member.state is State.RECONCILING
    d.steps()
    beat = d.sent_beat
    assert (beat.member_epoch, owned(beat)) == (3, {"t": [0, 1]})
    assert beat.rebalance_timeout_ms == -1
    assert beat.subscribed_topic_names is None
    assert d.member.state is State.ACKNOWLEDGING
    d.reply(epoch=3)
    assert (d.effects, d.member.state) == ([], State.STABLE)
    assert (d.member.assignment, d.member.rebalances) == ({"t": (0, 1)}, 1)


def test_a_member_without_partitions_is_told_so_once() -> None:
    """Spec 4.8: *assigned* is called at the end of every rebalance, with nothing if need be."""
    d = ConsumerDriver().join()
    d.reply({}, 1)
    assert d.effects == [Assign(2, {}, {}, 1)]
    d.steps()
    assert (d.effects, d.member.state) == ([], State.STABLE)


def test_a_steady_member_sends_bare_heartbeats_at_the_brokers_pace() -> None:
    """KIP-848: the interval is the broker's; what has not changed is left out."""
    d = ConsumerDriver().stable()
    d.later(INTERVAL_MS)
    assert is_bare(d.sent_beat)
    d.reply(interval=2_500)
    assert d.later(2_499) == []
    d.later(1)
    assert is_bare(d.sent_beat)


def test_a_new_member_asks_often_at_first() -> None:
    """What it is to have, others give up one by one; the wait doubles, and anew with each part."""
    d = ConsumerDriver(join_heartbeat_ms=100).join()
    d.reply({}, 1)
    d.steps()

    def waits(count: int) -> list[int]:
        found = []
        for _ in range(count):
            due = d.member.next_deadline()
            assert due is not None
            found.append(due - d.now)
            d.later(found[-1])
            d.reply()
        return found

    assert waits(3) == [100, 200, 400]
    d.later(800)
    d.reply({"t": [0]}, 1)
    d.steps()
    d.reply()
    assert waits(5) == [200, 400, 800, 1_000, 1_000]


def test_a_shorter_interval_for_a_while_leaves_the_pace_where_it_was() -> None:
    """The coordinator lets it ask often while it waits; what it has then, others may soon want."""
    d = ConsumerDriver(join_heartbeat_ms=100).join()
    d.reply({}, 1, interval=10)
    d.steps()
    for _ in range(20):
        assert d.member.next_deadline() == d.now + 10
        d.later(10)
        d.reply(interval=10)
    d.later(10)
    d.reply({"t": [0]}, 1)
    d.steps()
    d.reply()
    due = d.member.next_deadline()
    assert due is not None
    assert due <= d.now + 200


def test_a_member_that_owns_nothing_asks_sooner() -> None:
    """No fetch of its waits, whose early end would tell it of news."""
    d = ConsumerDriver(idle_heartbeat_ms=400).join()
    d.reply({}, 1)
    d.steps()
    for _ in range(3):
        assert d.member.next_deadline() == d.now + 400
        d.later(400)
        d.reply()
    d.later(400)
    d.reply({"t": [0]}, 1)
    d.steps()
    d.reply()
    assert d.member.next_deadline() == d.now + INTERVAL_MS


def test_an_interval_of_nothing_is_no_hot_loop() -> None:
    """B9: an interval of 0 or below changes nothing."""
    d = ConsumerDriver().join()
    d.reply({}, 1, interval=0)
    d.steps()
    d.later(4_999)
    assert d.effects == []
    d.later(1)
    assert is_bare(d.sent_beat)
    d.reply(interval=-5)
    assert d.member.next_deadline() == d.now + 5_000


@pytest.mark.parametrize("epoch", [0, -1, -2])
def test_an_epoch_that_no_member_has_is_refused(epoch: int) -> None:
    """B9: epoch -1 taken over would make the next heartbeat a leave."""
    d = ConsumerDriver().stable()
    d.later(INTERVAL_MS)
    for _ in range(2):  # it may have been damaged on its way: everything is asked for again
        d.reply({"t": [0, 1]}, epoch)
        assert (d.effects, d.member.generation) == ([], 1)
        d.later(1_000)
        assert is_full(d.sent_beat)
    d.reply({"t": [0, 1]}, epoch)
    assert isinstance(d.only(Fatal).error, ProtocolError)
    assert d.only(Revoke).lost
    assert d.beats == []


def test_one_answer_that_makes_no_sense_heals() -> None:
    d = ConsumerDriver().stable()
    for _ in range(5):
        d.later(INTERVAL_MS)
        d.reply({"t": [-1]})
        d.later(1_000)
        d.reply({"t": [0, 1]})
        d.none(Fatal)
    assert d.member.state is State.STABLE


def test_partitions_named_twice_are_one() -> None:
    """B9: [0, 0], or one topic in two entries, must not take a partition a second time."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    d.reply(ids={topic_id("t"): [0, 0]})
    assert (d.effects, d.member.state) == ([], State.STABLE)


def test_a_negative_partition_is_refused() -> None:
    """B9: never taken; the third time in a row it is the broker's fault."""
    d = ConsumerDriver().join()
    for _ in range(2):
        d.reply({"t": [-1]})
        d.none(Fatal, Assign)
        d.later(1_000)
        assert is_full(d.sent_beat)
    d.reply({"t": [-1]})
    assert isinstance(d.only(Fatal).error, ProtocolError)


# -- reconciling -----------------------------------------------------------------------------------


def test_partitions_change_hands_step_by_step() -> None:
    """KIP-848, C6: give up, tell, take, tell; only the differences, what is kept is not touched."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [1, 2]}, 2)
    assert d.effects == [Revoke(5, {"t": (0,)}, False, "reassigned in epoch 2")]
    revoke = d.only(Revoke)
    d.later(INTERVAL_MS)
    # While it waits for the caller, what is being given up is still owned: left out as before.
    assert is_bare(d.sent_beat)
    d.reply(epoch=2)
    d.call("revoked", revoke.token)
    assert owned(d.sent_beat) == {"t": [1]}
    d.none(Assign)
    d.reply(epoch=2)
    assign = d.only(Assign)
    assert (assign.added, assign.assignment) == ({"t": (2,)}, {"t": (1, 2)})
    d.call("assigned", assign.token)
    assert owned(d.sent_beat) == {"t": [1, 2]}
    d.reply(epoch=2)
    assert d.member.state is State.STABLE


def test_a_revocation_alone_ends_with_an_empty_assignment_step() -> None:
    """Spec 4.8: the rebalance is over: *assigned* with nothing new; acknowledged once."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [1]}, 1)
    d.steps()
    assert owned(d.sent_beat) == {"t": [1]}
    assert d.member.state is State.ACKNOWLEDGING
    d.reply(epoch=2)
    assign = d.only(Assign)
    assert (assign.added, assign.assignment) == ({}, {"t": (1,)})
    d.call("assigned", assign.token)
    assert (d.effects, d.member.state) == ([], State.STABLE)


def test_an_acknowledgement_waits_for_the_heartbeat_under_way() -> None:
    """B3: never two under way; what changed meanwhile goes out with the answer of the first."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [1]}, 1)
    revoke = d.only(Revoke)
    d.later(INTERVAL_MS)
    assert is_bare(d.sent_beat)
    d.call("revoked", revoke.token)
    assert d.beats == []
    d.reply(epoch=1)
    assert owned(d.sent_beat) == {"t": [1]}


def test_an_assignment_that_comes_during_a_step_is_reached_after_it() -> None:
    """B3: told to take P2 and, before the caller did, to give P1 up: P1 is not held for ever."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1, 2]}, 2)
    first = d.only(Assign)
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 2]}, 2)
    assert d.effects == []
    d.call("assigned", first.token)
    revoke = d.only(Revoke)
    assert (revoke.partitions, revoke.lost) == ({"t": (1,)}, False)
    assert d.beats == []
    d.call("revoked", revoke.token)
    assert owned(d.sent_beat) == {"t": [0, 2]}
    d.reply(epoch=2)
    d.call("assigned", max(e.token for e in d.log if isinstance(e, Assign)))
    assert d.member.assignment == {"t": (0, 2)}
    assert d.member.state is State.STABLE


def test_what_is_taken_and_given_up_again_is_acknowledged() -> None:
    """B3: P2 is to be given up before it was taken: in the end it owns what it had told last, and
    the coordinator, which waits for the word, must hear it all the same."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1, 2]}, 2)
    first = d.only(Assign)
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1]}, 2)
    d.call("assigned", first.token)
    revoke = d.only(Revoke)
    assert revoke.partitions == {"t": (2,)}
    d.call("revoked", revoke.token)
    assert owned(d.sent_beat) == {"t": [0, 1]}


def test_what_is_taken_and_given_up_during_a_heartbeat_is_acknowledged() -> None:
    """B3: a heartbeat that was under way meanwhile said nothing of it; the next one does."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1, 2]}, 2)
    first = d.only(Assign)
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1]}, 2)
    d.later(INTERVAL_MS)
    assert is_bare(d.sent_beat)
    d.call("assigned", first.token)
    d.call("revoked", d.only(Revoke).token)
    assert d.beats == []
    d.reply(epoch=2)
    assert owned(d.sent_beat) == {"t": [0, 1]}


def test_a_partition_given_back_during_its_revocation_is_taken_again() -> None:
    """B1's other side: what was given up is given up; it is taken anew, with callbacks."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [0]}, 1)
    revoke = d.only(Revoke)
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1]}, 2)
    assert d.effects == []
    d.call("revoked", revoke.token)
    assert owned(d.sent_beat) == {"t": [0]}
    d.reply(epoch=2)
    assign = d.only(Assign)
    assert (assign.added, assign.assignment) == ({"t": (1,)}, {"t": (0, 1)})


def test_an_empty_assignment_is_one() -> None:
    """B4: non-null and empty: give up everything and say so; null is no change."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({}, 2)
    revoke = d.only(Revoke)
    assert revoke.partitions == {"t": (0, 1)}
    d.call("revoked", revoke.token)
    assert owned(d.sent_beat) == {}
    assert d.sent_beat.topic_partitions == []


def test_a_full_heartbeat_in_the_middle_of_a_revocation_names_what_is_still_held() -> None:
    """B2: what the caller is still reading is never left out, however the heartbeat comes about."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply({"t": [1, 2]}, 2)
    d.call("coordinator_lost")
    d.call("coordinator_found", 8)
    beat = d.sent_beat
    assert is_full(beat)
    assert owned(beat) == {"t": [0, 1]}
    assert (beat.member_epoch, beat.member_id) == (2, "id0")
    assert d.member.state is State.RECONCILING


def test_a_heartbeat_in_the_middle_of_an_assignment_says_nothing_of_it() -> None:
    """B8: what waits for the caller is not acknowledged."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1]}, 2)
    d.later(INTERVAL_MS)
    assert is_bare(d.sent_beat)


def test_a_full_heartbeat_in_the_middle_of_an_assignment_names_what_may_be_taken() -> None:
    """G1: told that P1 is not owned, the coordinator gives it to another while we take it."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    d.reply({"t": [0, 1]}, 2)
    d.call("coordinator_lost")
    d.call("coordinator_found", 8)
    assert owned(d.sent_beat) == {"t": [0, 1]}
    d.call("assigned", max(e.token for e in d.log if isinstance(e, Assign)))
    assert (d.effects, d.member.state) == ([], State.ACKNOWLEDGING)
    d.reply({"t": [0]}, 3)
    assert d.only(Revoke).partitions == {"t": (1,)}


# -- lost answers ----------------------------------------------------------------------------------


def test_after_a_lost_answer_everything_is_said_again() -> None:
    """B5: the answer may have carried the assignment: only a full request brings it again."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    assert is_bare(d.sent_beat)
    d.fails(ConnectionFailedError("cut"))
    assert d.effects == [FindCoordinator()]
    assert d.member.state is State.REDISCOVERING
    d.call("coordinator_found", 7)
    beat = d.sent_beat
    assert is_full(beat)
    assert owned(beat) == {"t": [0]}
    assert d.member.state is State.ACKNOWLEDGING
    d.reply({"t": [0, 1]}, 2)
    assert d.only(Assign).added == {"t": (1,)}


def test_after_a_lost_join_it_joins_again_as_the_same() -> None:
    """KIP-1082: the id is its own, so a join that was answered into the void leaves no ghost."""
    d = ConsumerDriver().join()
    d.fails(ConnectionFailedError("cut"))
    d.call("coordinator_found", 7)
    beat = d.sent_beat
    assert (beat.member_epoch, beat.member_id, is_full(beat)) == (0, "id0", True)


def test_a_late_answer_of_the_old_connection_is_dropped() -> None:
    """C7: it belongs to a coordinator that is not ours any more."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    token = d.sent[Beat].token
    d.call("coordinator_lost")
    d.sent[Beat] = d.sent[Beat].__class__(token, d.sent[Beat].message, 7, 1)
    assert d.reply({"t": []}, 9) == []
    assert d.member.generation == 1


def test_a_loading_coordinator_is_asked_again_in_full() -> None:
    """COORDINATOR_LOAD_IN_PROGRESS: the same node, after a back-off, and a full request."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    d.reply(error=E.COORDINATOR_LOAD_IN_PROGRESS)
    assert (d.effects, d.member.state) == ([], State.STABLE)
    d.later(100)
    assert is_full(d.sent_beat)
    d.reply(error=E.COORDINATOR_LOAD_IN_PROGRESS)
    d.later(199)
    assert d.effects == []
    d.later(1)
    assert is_full(d.sent_beat)
    d.reply({"t": [0]})
    assert d.member.state is State.STABLE


@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE])
def test_a_moved_coordinator_is_looked_for_at_once(code: int) -> None:
    """Spec 1.2, 1.8: it goes on consuming meanwhile."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    d.reply(error=code)
    assert d.effects == [FindCoordinator()]
    assert d.member.state is State.REDISCOVERING
    assert d.member.assignment == {"t": (0,)}
    d.call("coordinator_found", 8)
    assert d.only(Send).node_id == 8


# -- fenced ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID, E.GROUP_ID_NOT_FOUND])
def test_a_fenced_member_gives_up_what_is_lost_and_joins_again(code: int) -> None:
    """B6, B10: *lost*, no heartbeat until the caller has given it up, then epoch 0, the same id."""
    d = ConsumerDriver().stable({"t": [0, 1]})
    d.later(INTERVAL_MS)
    d.reply(error=code)
    revoke = d.only(Revoke)
    assert (revoke.lost, revoke.partitions) == (True, {"t": (0, 1)})
    assert (d.member.state, d.member.generation) == (State.FENCED, -1)
    assert d.later(10 * INTERVAL_MS) == []
    d.call("revoked", revoke.token)
    beat = d.sent_beat
    assert (beat.member_epoch, beat.member_id, owned(beat)) == (0, "id0", {})
    assert is_full(beat)
    d.reply({"t": [1]}, 5)
    assert d.only(Assign).added == {"t": (1,)}


def test_a_revocation_under_way_when_it_is_fenced_is_lost_too() -> None:
    """C6: *lost* if and only if the epoch was lost: the step that waits must hear of it."""
    d = ConsumerDriver().stable({"t": [0]})
    d.later(INTERVAL_MS)
    d.reply({}, 2)
    first = d.only(Revoke)
    d.later(INTERVAL_MS)
    d.reply(error=E.FENCED_MEMBER_EPOCH)
    second = d.only(Revoke)
    assert (second.lost, second.partitions) == (True, {})
    d.call("revoked", first.token)
    assert d.effects == []
    d.call("revoked", second.token)
    assert d.sent_beat.member_epoch == 0


def test_fenced_while_it_joins_it_becomes_somebody_else() -> None:
    """B6: a coordinator that holds the old epoch against epoch 0 must not refuse it for ever."""
    d = ConsumerDriver().join()
    d.reply(error=E.FENCED_MEMBER_EPOCH)
    assert (d.sent_beat.member_id, d.sent_beat.member_epoch) == ("id1", 0)
    d.reply(error=E.FENCED_MEMBER_EPOCH)
    assert d.beats == []
    d.later(100)
    assert d.sent_beat.member_id == "id2"


# -- topics that are not known yet -----------------------------------------------------------------


def test_a_topic_that_is_not_known_is_waited_for_and_not_acknowledged() -> None:
    """B7: no partition of it is owned or echoed; metadata is asked for; then it is taken."""
    d = ConsumerDriver("t u", seen="t").join()
    d.reply({"t": [0], "u": [1]}, 1)
    assert d.effects == [
        WatchTopics(frozenset(), frozenset({topic_id("u")})),
        Assign(2, {"t": (0,)}, {"t": (0,)}, 1),
    ]
    d.steps()
    assert owned(d.sent_beat) == {"t": [0]}
    d.reply()
    assert d.member.state is State.RESOLVING
    d.later(INTERVAL_MS)
    assert is_bare(d.sent_beat)
    d.reply()
    d.see("t u")
    assert d.effects == [
        WatchTopics(frozenset()),
        Assign(5, {"u": (1,)}, {"t": (0,), "u": (1,)}, 1),
    ]
    d.steps()
    assert owned(d.sent_beat) == {"t": [0], "u": [1]}
    d.reply()
    assert d.member.state is State.STABLE


def test_while_nothing_of_the_first_assignment_is_known_nobody_is_called() -> None:
    """B7: the caller hears of the assignment when there is something to take."""
    d = ConsumerDriver("t", seen="").join()
    d.reply({"t": [0]}, 1)
    assert d.effects == [WatchTopics(frozenset(), frozenset({topic_id("t")}))]
    assert d.member.state is State.RESOLVING
    d.see("t")
    assert d.only(Assign).added == {"t": (0,)}


def test_an_unknown_topic_that_is_taken_back_is_forgotten() -> None:
    """B7: the coordinator may change its mind first."""
    d = ConsumerDriver("t u", seen="t").stable({"t": [0], "u": [0]})
    assert d.member.state is State.RESOLVING
    d.later(INTERVAL_MS)
    d.reply({"t": [0]}, 2)
    assert d.effects == [WatchTopics(frozenset())]
    assert d.member.state is State.STABLE


def test_a_topic_recreated_is_given_up_and_taken_again() -> None:
    """KIP-516: the same name with another id is another topic; its old position means nothing."""
    d = ConsumerDriver().stable({"t": [0]})
    new = b"\7" * 16
    d.call("topics_changed", {"t": TopicView(4, topic_id=new)})
    assert d.effects == []
    d.later(INTERVAL_MS)
    d.reply(ids={new: [0]}, epoch=2)
    assert d.only(Revoke).partitions == {"t": (0,)}
    d.steps()
    assert owned(d.sent_beat) == {}
    d.reply(epoch=2)
    assert d.only(Assign).added == {"t": (0,)}


def test_topics_without_an_id_are_not_known() -> None:
    """KIP-516: sixteen zero bytes are no id."""
    d = ConsumerDriver(seen="").join()
    d.call("topics_changed", {"t": TopicView(1, topic_id=ZERO_UUID), "u": None})
    d.reply({"t": [0]})
    assert d.member.state is State.RESOLVING


# -- patterns --------------------------------------------------------------------------------------


def test_a_pattern_is_the_brokers_to_match() -> None:
    """KIP-848: the expression goes out; names of what comes back are watched by the member."""
    d = ConsumerDriver(seen="")
    d.call("subscribe_pattern", "a.*")
    d.call("coordinator_found", 7)
    beat = d.sent_beat
    assert (beat.subscribed_topic_names, beat.subscribed_topic_regex) == ([], "a.*")
    d.reply({"ab": [0]})
    assert d.only(WatchTopics).ids == {topic_id("ab")}
    d.call("topics_changed", views("ab"))
    assert d.only(WatchTopics) == WatchTopics(frozenset({"ab"}))
    assert d.only(Assign).added == {"ab": (0,)}
    assert (d.member.pattern, d.member.subscription) == ("a.*", frozenset())


def test_from_a_pattern_to_names_and_back() -> None:
    """KIP-848: null would mean "as before": the old kind is cleared in so many words."""
    d = ConsumerDriver(seen="ab")
    d.call("subscribe_pattern", "a.*")
    d.call("coordinator_found", 7)
    d.reply({})
    d.steps()
    d.call("subscribe", ["ab"])
    beat = d.sent_beat
    assert (beat.subscribed_topic_names, beat.subscribed_topic_regex) == (["ab"], "")
    d.reply()
    d.call("subscribe_pattern", "b")
    beat = d.sent_beat
    assert (beat.subscribed_topic_names, beat.subscribed_topic_regex) == ([], "b")
    assert d.member.pattern == "b"
