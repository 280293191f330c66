"""Bugs that other implementations of KIP-848 had, replayed: B1 to B12 of the corpus."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.assignors.base import Assignor, GroupView, Plan
from kohort.group.coordinator.state.consumer_table import ConsumerState, MemberState
from tests.group.consumer_harness import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerBench,
    assignment_of,
    code,
)

C = ErrorCode
ALL = {"t": [0, 1, 2, 3, 4, 5]}


class Fixed(Assignor):
    """The plan that the test writes down."""

    name = "fixed"

    def __init__(self, **plan: list[int]) -> None:
        self.plan = plan

    def assign(self, group: GroupView) -> Plan:
        del group
        return Plan({m: {"t": numbers} for m, numbers in self.plan.items() if numbers})


def test_b1_what_is_being_given_up_and_given_back_has_one_owner() -> None:
    """KAFKA-16147: its owner is it, until it has said that it gave it up."""
    fixed = Fixed(m1=[], m2=[0, 1])
    bench = ConsumerBench(topics={"t": 2}, consumer_assignors=(fixed,))
    fixed.plan = {"m2": [0, 1]}
    bench.enter("m2")
    fixed.plan = {"m1": [0], "m2": [1]}
    bench.enter("m1")
    bench.keep("m2")
    assert bench.pending("m2") == {"t": [0]}
    fixed.plan = {"m2": [0, 1]}
    bench.keep("m1", topics=[])  # the assignor gives it back before it was acknowledged
    assert bench.consumers.owner(b"t".ljust(16, b"-"), 0) == "m2"
    fixed.plan = {"m1": [0], "m2": [1]}
    answer = bench.keep("m1", topics=["t"])
    assert assignment_of(answer) is None
    assert bench.assigned("m1") == {}
    fixed.plan = {"m2": [0, 1]}
    bench.keep("m1", topics=[])
    assert assignment_of(bench.follow("m2")) == {"t": [0, 1]}


def test_b2_stale_or_missing_words_do_not_give_up_partitions() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.keep("m1")
    full = {"topics": ["t"], "rebalance_ms": REBALANCE_MS}
    for _ in range(3):
        bench.keep("m1")  # keep-alive
        bench.keep("m1", owned=ALL, **full)  # full, with what it had before
        assert bench.pending("m1") == {"t": [3, 4, 5]}
        assert assignment_of(bench.keep("m2")) is None
    bench.follow("m1")
    bench.keep("m2")
    bench.enter("m3")  # takes something of m1, which is in epoch 2, and was in epoch 1
    bench.keep("m1")
    pending = bench.pending("m1")
    assert pending
    late = bench.beat("m1", 1, owned={"t": [0]}, **full)  # older than what it was given since
    assert code(late) in (C.NONE, C.FENCED_MEMBER_EPOCH)
    assert bench.pending("m1") == pending


def test_b2_a_late_heartbeat_of_the_previous_epoch_gives_nothing_up() -> None:
    bench = ConsumerBench(topics={"t": 2})
    bench.enter("m1")
    bench.enter("m2")
    bench.settle_all()
    bench.beat("m2", -1)
    bench.follow("m1")  # epoch 3, with what m2 had; the previous epoch is 2
    assert bench.assigned("m1") == {"t": [0, 1]}
    bench.enter("m2")
    late = bench.beat("m1", 2, owned={"t": [0]})
    assert code(late) is C.NONE
    assert bench.current("m1").state is MemberState.UNREVOKED
    assert assignment_of(bench.keep("m2")) is None


def test_b3_two_heartbeats_in_one_revocation() -> None:
    """The second is told what holds now, and the member ends with what it was given."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.keep("m1")
    bench.beat("m2", -1)
    answer = bench.keep("m1", owned=ALL)
    assert (answer.member_epoch, answer.assignment) == (1, None)  # first it gives up
    assert assignment_of(bench.follow("m1")) == ALL
    assert bench.consumers.state() is ConsumerState.STABLE


def test_b4_nothing_is_an_assignment_and_no_change_is_none() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    emptied = bench.keep("m1", topics=[])
    assert assignment_of(emptied) == {}  # everything is to be given up
    assert bench.keep("m1").assignment is None
    assert code(bench.follow("m1")) is C.NONE
    assert bench.current("m1").state is MemberState.STABLE


def test_b5_an_assignment_that_was_lost_is_sent_again() -> None:
    """KAFKA-16367: to a full request; to one of the epoch before, too."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.keep("m1")
    bench.follow("m1")
    bench.keep("m2")  # the answer with t 3 to 5 is lost on the way
    again = bench.keep("m2", topics=["t"], owned={}, rebalance_ms=REBALANCE_MS)
    assert assignment_of(again) == {"t": [3, 4, 5]}
    bench.beat("m1", -1)
    bench.keep("m2")  # epoch 3, everything; lost
    assert assignment_of(bench.beat("m2", 2, owned={"t": [3, 4, 5]})) == ALL


def test_b6_a_fenced_member_joins_again_under_its_id() -> None:
    """KAFKA-19233: whatever epoch is known here."""
    bench = ConsumerBench()
    bench.enter("m1")
    for _ in range(5):
        bench.enter("m2")
        bench.beat("m2", -1)
    bench.settle_all()
    assert bench.current("m1").epoch == 11
    assert code(bench.beat("m1", 99)) is C.FENCED_MEMBER_EPOCH
    answer = bench.enter("m1")
    assert (code(answer), answer.member_epoch, assignment_of(answer)) == (C.NONE, 11, ALL)


def test_b7_an_echo_of_a_topic_nobody_knows_changes_nothing() -> None:
    bench = ConsumerBench()
    bench.enter("m1", None, regex="t.*")
    bench.make("t2", 1)
    bench.keep("m1")
    echo = bench.keep("m1", owned={**bench.assigned("m1"), "unknown": [0, 7]})
    assert (code(echo), echo.assignment) == (C.NONE, None)
    assert bench.assigned("m1") == {**ALL, "t2": [0]}


def test_b8_a_moved_coordinator_keeps_epochs_and_assignment() -> None:
    """The member goes on where it was; so does its OffsetFetch (B8), with the same epoch."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.commit(4, "m1", 1)
    bench.failover()
    assert (code(bench.keep("m1")), bench.fetch()) == (C.NONE, (4, C.NONE))
    assert bench.consumers.state() is ConsumerState.STABLE


def test_b9_no_good_answer_can_be_taken_for_another() -> None:
    """A success has an epoch above zero, and an interval; partitions are given once, ascending."""
    bench = ConsumerBench()
    for answer in (bench.enter("m1"), bench.keep("m1"), bench.keep("m1", topics=["t", "u"])):
        assert answer.member_epoch > 0
        assert answer.heartbeat_interval_ms > 0
        for numbers in (assignment_of(answer) or {}).values():
            assert numbers == sorted(set(numbers))
    assert bench.beat("m1", -1).member_epoch == -1


def test_b10_who_left_or_was_fenced_is_gone_until_it_joins() -> None:
    """KAFKA-15818: late heartbeats are refused; the next join is taken."""
    bench = ConsumerBench()
    bench.enter("m1")
    bench.beat("m1", -1)  # no poll in time: it leaves by itself
    assert code(bench.beat("m1", 1)) is C.UNKNOWN_MEMBER_ID
    assert code(bench.beat("m1", -1)) is C.UNKNOWN_MEMBER_ID
    assert assignment_of(bench.enter("m1")) == ALL
    bench.advance(SESSION_MS)
    assert code(bench.beat("m1", 3)) is C.UNKNOWN_MEMBER_ID
    assert assignment_of(bench.enter("m1")) == ALL


def test_b11_a_commit_and_a_heartbeat_may_cross() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.beat("m2", -1)
    bench.keep("m1")
    assert bench.current("m1").epoch == 3
    assert bench.commit(7, "m1", 1) is C.NONE  # sent in epoch 1, which it had the partition in
    assert bench.fetch() == (7, C.NONE)


def test_b12_a_topic_made_while_a_heartbeat_fails_is_not_forgotten() -> None:
    fixed = Fixed(m1=[0, 1])
    bench = ConsumerBench(topics={"t": 2}, consumer_assignors=(fixed,))
    bench.enter("m1")
    bench.make("t", 3)
    assert code(bench.keep("m1")) is C.UNKNOWN_SERVER_ERROR  # the assignor forgot the new one
    fixed.plan = {"m1": [0, 1, 2]}
    assert assignment_of(bench.keep("m1")) == {"t": [0, 1, 2]}
