"""The commit lane: order, identity, retries, text (spec 4.5; C5, C7, CL2, B29, B40-B42, B49)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.plan.commit_queue import (
    NO_MEMBER,
    CommitDone,
    CommitJob,
    CommitQueue,
    CommitRefused,
    CommitSend,
    CoordinatorLost,
    Identity,
)
from kohort.errors import (
    BrokerError,
    CommitFailedError,
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
    UsageError,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = Identity(3, "m-1")
Answer = Mapping[TopicPartition, int] | KohortError


def job(*offsets: tuple[TopicPartition, int], until: int = 10_000, version: int = 1) -> CommitJob:
    return CommitJob(
        {tp: OffsetAndMetadata(offset) for tp, offset in offsets},
        {tp: version for tp, _ in offsets},
        until,
    )


class World:
    """A lane with an owner map and a helper to send."""

    def __init__(self) -> None:
        self.lane = CommitQueue("g", backoff_ms=100)
        self.owned: dict[TopicPartition, int] = {P0: 1, P1: 1}
        self.identity: Identity | None = ME

    def next(self, now: int = 0, known: bool = True) -> list[object]:
        effects = self.lane.next(self.identity, self.owned.get, now, coordinator_known=known)
        return list(effects)

    def sent(self, now: int = 0) -> CommitSend:
        (effect,) = self.next(now)
        assert isinstance(effect, CommitSend)
        return effect


def ok(send: CommitSend) -> Mapping[TopicPartition, int]:
    return dict.fromkeys(send.offsets, 0)


def test_one_at_a_time_and_later_ones_go_together() -> None:
    """C5: no commit overtakes a later one; an answer finishes exactly the jobs it carried."""
    world = World()
    first, second, third = job((P0, 1)), job((P0, 2)), job((P0, 3), (P1, 9))
    world.lane.submit(first)
    send = world.sent()
    world.lane.submit(second)
    world.lane.submit(third)
    assert world.next() == []
    assert world.lane.answered(send.token, ok(send), 1) == [CommitDone(first, None)]
    send = world.sent()
    assert {tp: o.offset for tp, o in send.offsets.items()} == {P0: 3, P1: 9}
    done = world.lane.answered(send.token, ok(send), 2)
    assert done == [CommitDone(second, None), CommitDone(third, None)]
    assert world.lane.idle


def test_nothing_to_commit_is_done_and_leaves_no_trace() -> None:
    """B63: an empty commit must not leave the lane taken."""
    world = World()
    empty = job()
    assert world.lane.submit(empty) == [CommitDone(empty, None)]
    assert world.lane.idle
    assert not world.lane.automatic_pending


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_moved_coordinator_is_found_again_and_the_commit_sent_again(code: int) -> None:
    """CL2, B41."""
    world = World()
    one = job((P0, 5))
    world.lane.submit(one)
    send = world.sent()
    assert world.lane.answered(send.token, {P0: code}, 10) == [CoordinatorLost()]
    assert world.next(50) == []
    assert world.next(200, known=False) == []
    again = world.sent(200)
    assert again.offsets == send.offsets
    assert again.token != send.token
    assert world.lane.answered(again.token, ok(again), 201) == [CommitDone(one, None)]


def test_lost_connection_keeps_the_order() -> None:
    """B49: after a lost connection the earlier offset is not applied after the later one."""
    world = World()
    one, two = job((P0, 100)), job((P0, 200))
    world.lane.submit(one)
    send = world.sent()
    world.lane.submit(two)
    lost = ConnectionFailedError("cut")
    assert world.lane.answered(send.token, lost, 0) == [CoordinatorLost()]
    again = world.sent(100)
    assert again.offsets[P0].offset == 200
    assert world.lane.answered(send.token, ok(send), 101) == [], "an old answer is dropped"
    assert len(world.lane.answered(again.token, ok(again), 102)) == 2


def test_loading_coordinator_is_waited_for() -> None:
    world = World()
    world.lane.submit(job((P0, 5)))
    send = world.sent()
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.lane.answered(send.token, {P0: code}, 0) == []
    assert world.lane.next_deadline(0) == 100
    assert world.next(99) == []
    assert isinstance(world.next(100)[0], CommitSend)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_unknown_member_is_told_and_says_what_to_do(code: int) -> None:
    """B40: the consumer does not go on as a zombie; spec 4.5, the text names who and why."""
    world = World()
    one = job((P0, 5))
    world.lane.submit(one)
    send = world.sent()
    done, lost = world.lane.answered(send.token, {P0: code}, 1)
    assert lost == CommitRefused(code, ME)
    assert isinstance(done, CommitDone)
    assert isinstance(done.error, CommitFailedError)
    for part in ("'g'", "'m-1'", "generation 3", "max_poll_interval_ms"):
        assert part in str(done.error)


def test_rebalance_in_progress_says_to_poll() -> None:
    world = World()
    world.lane.submit(job((P0, 5)))
    send = world.sent()
    done, refused = world.lane.answered(send.token, {P0: ErrorCode.REBALANCE_IN_PROGRESS}, 1)
    assert refused == CommitRefused(ErrorCode.REBALANCE_IN_PROGRESS, ME)
    assert isinstance(done, CommitDone)
    assert "call poll()" in str(done.error)


def test_a_stale_epoch_is_renewed_and_the_commit_sent_again() -> None:
    """B11, KIP-848: told to the member; sent again at once when the epoch has gone on."""
    world = World()
    world.lane.submit(job((P0, 5)))
    first = world.sent()
    stale = {P0: int(ErrorCode.STALE_MEMBER_EPOCH)}
    assert world.lane.answered(first.token, stale, 10) == [
        CommitRefused(ErrorCode.STALE_MEMBER_EPOCH, ME)
    ]
    assert world.next(11) == []
    world.identity = Identity(4, "m-1")
    again = world.sent(12)
    assert (again.identity, again.offsets) == (Identity(4, "m-1"), first.offsets)
    (done,) = world.lane.answered(again.token, {P0: 0}, 20)
    assert isinstance(done, CommitDone)
    assert done.error is None


def test_a_stale_epoch_that_does_not_go_on_is_tried_after_a_back_off() -> None:
    """B11: a member that hears nothing new tries again, slowly, until the time is up."""
    world = World()
    world.lane.submit(job((P0, 5), until=1_000))
    stale = {P0: int(ErrorCode.STALE_MEMBER_EPOCH)}
    world.lane.answered(world.sent().token, stale, 10)
    assert world.lane.next_deadline(10) == 110
    assert world.next(109) == []
    world.lane.answered(world.sent(110).token, stale, 950)
    (done,) = world.next(1_000)
    assert isinstance(done, CommitDone)
    assert isinstance(done.error, KafkaTimeoutError)


def test_a_stale_commit_of_a_partition_that_was_given_up_fails() -> None:
    """B11, C7: the next epoch covers what is still owned under the same assignment, no more."""
    world = World()
    world.lane.submit(job((P0, 5), (P1, 6)))
    stale = dict.fromkeys((P0, P1), int(ErrorCode.STALE_MEMBER_EPOCH))
    world.lane.answered(world.sent().token, stale, 10)
    world.identity = Identity(4, "m-1")
    del world.owned[P1]
    (done,) = world.next(12)
    assert isinstance(done, CommitDone)
    assert isinstance(done.error, CommitFailedError)
    assert "t-1" in str(done.error)


def test_what_was_given_up_is_not_committed() -> None:
    """C7: a commit for a partition that was revoked while it waited fails, the others go on."""
    world = World()
    gone, kept = job((P0, 5)), job((P1, 6))
    world.lane.submit(gone)
    world.lane.submit(kept)
    del world.owned[P0]
    done, send = world.next()
    assert isinstance(done, CommitDone)
    assert done.job is gone
    assert "t-0 was given up" in str(done.error)
    assert isinstance(send, CommitSend)
    assert set(send.offsets) == {P1}


def test_not_a_member_fails_at_once() -> None:
    world = World()
    world.identity = None
    world.lane.submit(job((P0, 5)))
    (done,) = world.next()
    assert isinstance(done, CommitDone)
    assert isinstance(done.error, CommitFailedError)


def test_without_membership_commits_go_as_nobody() -> None:
    """Spec 2.7, B21: `assign` commits with generation -1 and no member id."""
    world = World()
    world.identity = NO_MEMBER
    world.lane.submit(job((P0, 5)))
    assert world.sent().identity == Identity(-1, "", None)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({P0: int(ErrorCode.NOT_COORDINATOR)}, "(last: NOT_COORDINATOR)"),
        ({P0: int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)}, "(last: COORDINATOR_LOAD_IN_PROGRESS)"),
        (ConnectionFailedError("node 1 is gone"), "(last: node 1 is gone)"),
        ({P0: 0}, ""),
    ],
)
def test_what_held_a_commit_back_is_told_when_its_time_is_up(last: Answer, message: str) -> None:
    """And not what held back one before it, which was made in the end."""
    world = World()
    world.lane.submit(job((P0, 5), until=1_000))
    world.lane.answered(world.sent().token, {P0: int(ErrorCode.NOT_COORDINATOR)}, 10)
    world.lane.answered(world.sent(200).token, last, 200)
    world.lane.submit(job((P0, 6), until=1_000))
    done = [effect for effect in world.next(1_000) if isinstance(effect, CommitDone)]
    assert len(done) == (1 if last == {P0: 0} else 2)
    for each in done:
        assert isinstance(each.error, KafkaTimeoutError)
        assert str(each.error).endswith(f"may be made again{' ' if message else ''}{message}")


def test_time_is_up() -> None:
    world = World()
    one = job((P0, 5), until=50)
    world.lane.submit(one)
    send = world.sent()
    later = job((P0, 6))
    world.lane.submit(later)
    (done,) = world.next(50)
    assert isinstance(done, CommitDone)
    assert isinstance(done.error, KafkaTimeoutError)
    assert not world.lane.idle, "the lane stays taken until the answer or the end of the connection"
    assert world.lane.answered(send.token, ok(send), 60) == []
    assert world.sent(61).offsets[P0].offset == 6


def test_one_refused_partition_fails_only_its_jobs() -> None:
    world = World()
    one, two = job((P0, 5)), job((P1, 6))
    world.lane.submit(one)
    world.lane.submit(two)
    send = world.sent()
    codes = {P0: int(ErrorCode.OFFSET_METADATA_TOO_LARGE), P1: 0}
    first, second = world.lane.answered(send.token, codes, 1)
    assert isinstance(first, CommitDone)
    assert isinstance(first.error, BrokerError)
    assert "t-0" in str(first.error)
    assert second == CommitDone(two, None)


UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
BY_NAME_OR_ID = pytest.mark.parametrize(
    "unknown",
    [UNKNOWN, int(ErrorCode.UNKNOWN_TOPIC_ID)],
    ids=["UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID"],
)
GONE = TopicPartition("gone", 0)


@BY_NAME_OR_ID
def test_a_topic_that_is_not_known_holds_up_no_other_commit(unknown: int) -> None:
    """All commits of the lane waited for it, until their time was up."""
    world = World()
    gone, other = job((GONE, 5), version=0), job((P1, 6))
    world.owned[GONE] = 0
    for each in (gone, other):
        world.lane.submit(each)
    send = world.sent()
    assert world.lane.answered(send.token, {GONE: unknown, P1: 0}, 0) == [CommitDone(other, None)]
    assert world.lane.owing
    world.lane.submit(later := job((P0, 7)))
    send = world.sent(100)
    assert set(send.offsets) == {GONE, P0}
    done = world.lane.answered(send.token, {GONE: 0, P0: 0}, 101)
    assert done == [CommitDone(gone, None), CommitDone(later, None)], "it was a new one"


def test_what_was_committed_is_not_set_back_by_the_rest_of_its_commit() -> None:
    """C5: the part of a job that was accepted is not sent again, or it would undo later ones."""
    world = World()
    world.owned[GONE] = 1
    world.lane.submit(both := job((GONE, 5), (P0, 5)))
    assert not world.lane.answered(world.sent().token, {GONE: UNKNOWN, P0: 0}, 0)
    world.lane.submit(later := job((P0, 9)))
    send = world.sent(100)
    assert send.offsets[P0].offset == 9
    done = world.lane.answered(send.token, {GONE: UNKNOWN, P0: 0}, 101)
    assert done == [CommitDone(later, None)]
    del world.owned[P0]
    send = world.sent(300)
    assert set(send.offsets) == {GONE}
    assert world.lane.answered(send.token, {GONE: 0}, 301) == [CommitDone(both, None)]


@BY_NAME_OR_ID
@pytest.mark.parametrize(("missing", "ends_ms"), [(True, 200), (False, 5_000)])
def test_a_commit_for_a_topic_that_is_gone_ends(missing: bool, ends_ms: int, unknown: int) -> None:
    """At once when metadata says so, too; else when a new topic would be known everywhere."""
    world = World()
    world.owned[GONE] = 1
    world.lane.submit(one := job((GONE, 5), (P0, 5), until=60_000))
    now, effects = 0, list[object]()
    while not effects:
        send = world.sent(now := now + 200)
        answer = dict.fromkeys(send.offsets, 0) | {GONE: unknown}
        effects += world.lane.answered(send.token, answer, now, lambda _: missing)
    assert now == 200 + ends_ms
    (done,) = effects
    assert isinstance(done, CommitDone)
    assert done.job is one
    assert isinstance(done.error, BrokerError)
    assert done.error.code == unknown
    assert "gone-0" in str(done.error)
    assert world.lane.idle


def test_ten_thousand_commits_wait_no_more_no_recursion() -> None:
    """B42: a lost coordinator with thousands of queued commits; each is answered once."""
    world = World()
    jobs = [job((P0, n)) for n in range(10_000)]
    for one in jobs:
        assert world.lane.submit(one) == []
    (refused,) = world.lane.submit(job((P0, 10_001)))
    assert isinstance(refused, CommitDone)
    assert isinstance(refused.error, UsageError)
    send = world.sent()
    assert world.lane.answered(send.token, ConnectionFailedError("cut"), 0) == [CoordinatorLost()]
    send = world.sent(100)
    assert [
        d.job for d in world.lane.answered(send.token, ok(send), 1) if isinstance(d, CommitDone)
    ] == jobs


def test_closing_fails_what_is_left() -> None:
    world = World()
    one, two = job((P0, 1)), job((P0, 2))
    world.lane.submit(one)
    world.sent()
    world.lane.submit(two)
    assert [
        effect.job
        for effect in world.lane.abandon(UsageError("closed"))
        if isinstance(effect, CommitDone)
    ] == [one, two]


@given(st.lists(st.sampled_from(["submit", "send", "ok", "cut", "moved", "late"]), max_size=60))
def test_offsets_are_applied_in_the_order_of_the_calls(steps: list[str]) -> None:
    """C5, as a model: what the broker has never goes back, whatever is lost on the way.

    A cut connection may or may not have delivered its request; here it always has (the worse case).
    """
    world, applied, issued = World(), [0], 0
    under_way: CommitSend | None = None
    unfinished: set[int] = set()
    now = 0
    for step in steps:
        now += 200
        if step == "submit":
            issued += 1
            one = job((P0, issued), until=10**9)
            unfinished.add(id(one))
            world.lane.submit(one)
        elif step == "send" and under_way is None:
            effects = world.next(now)
            under_way = next((e for e in effects if isinstance(e, CommitSend)), None)
            if under_way is not None:
                applied.append(under_way.offsets[P0].offset)
        elif under_way is not None and step in ("ok", "cut", "moved"):
            answer = {
                "ok": ok(under_way),
                "cut": ConnectionFailedError("cut"),
                "moved": {P0: int(ErrorCode.NOT_COORDINATOR)},
            }[step]
            for effect in world.lane.answered(under_way.token, answer, now):
                if isinstance(effect, CommitDone):
                    assert effect.error is None
                    assert applied[-1] >= effect.job.offsets[P0].offset
            under_way = None
    assert applied == sorted(applied)
