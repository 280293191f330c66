"""The pure parts of the client under virtual time: versions, pipeline, metadata."""

from __future__ import annotations

import pytest

from kohort.client.cluster.in_flight import WAITING_MAX, PendingRequest, Pipeline
from kohort.client.cluster.metadata import (
    ALL,
    MAX_DOUBTS,
    ClusterMetadata,
    MetadataSchedule,
    Node,
    is_complete,
    merge,
    with_leader,
)
from kohort.client.cluster.version_negotiation import pick
from kohort.client.common.backoff import Backoff
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.errors import ProtocolError, UnsupportedVersionError, UsageError
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.known import fake, known


@pytest.mark.parametrize(
    ("theirs", "at_most", "expected"),
    [((0, 9), None, 4), ((0, 2), None, 2), ((3, 9), None, 4), ((0, 9), 1, 1), ((4, 4), None, 4)],
)
def test_the_newest_common_version_is_picked(theirs, at_most, expected):
    assert pick(HeartbeatRequest, {12: theirs}, "b", at_most) == expected


@pytest.mark.parametrize(("theirs", "at_most"), [((5, 9), None), ((3, 9), 2), ((-3, -1), None)])
def test_no_common_version_is_an_error(theirs, at_most):
    with pytest.raises(UnsupportedVersionError, match="Heartbeat"):
        pick(HeartbeatRequest, {12: theirs}, "b", at_most)


def request(deadline_ms: int = 100, answer=HeartbeatResponse) -> PendingRequest:
    return PendingRequest(
        HeartbeatRequest, answer, lambda v: HeartbeatRequest(), lambda a: None, deadline_ms
    )


def sent(pipeline: Pipeline, one: PendingRequest) -> int:
    pipeline.add(one)
    pipeline.waiting.popleft()
    return pipeline.sent(one, 4)


def test_answers_must_come_in_the_order_of_the_requests():
    pipeline = Pipeline()
    first, second = request(), request()
    one, two = sent(pipeline, first), sent(pipeline, second)
    assert one != two
    with pytest.raises(ProtocolError, match="correlation id"):
        pipeline.answered(two)
    assert pipeline.answered(one) is first
    assert pipeline.answered(two) is second
    with pytest.raises(ProtocolError, match="expected none"):
        pipeline.answered(two)


def test_a_request_without_answer_is_not_waited_for():
    pipeline = Pipeline()
    sent(pipeline, request(answer=fake(None)))
    assert len(pipeline) == 0


def test_overdue_requests_are_taken_out_apart():
    pipeline = Pipeline()
    flying, waiting, later = request(50), request(40), request(90)
    sent(pipeline, flying)
    pipeline.add(waiting)
    pipeline.add(later)
    assert pipeline.next_deadline() == 40
    assert pipeline.expire(39) == ([], [])
    assert pipeline.expire(40) == ([waiting], [])
    assert pipeline.next_deadline() == 50
    assert pipeline.expire(60) == ([], [flying])
    assert pipeline.take_all() == ([later], [])
    assert pipeline.next_deadline() is None


def test_the_line_is_bounded():
    pipeline = Pipeline()
    one = request()
    for _ in range(WAITING_MAX):
        pipeline.add(one)
    with pytest.raises(UsageError):
        pipeline.add(one)


def schedule() -> MetadataSchedule:
    return MetadataSchedule(1_000, Backoff(100, 400, lambda: 0.5))


def test_new_names_are_asked_for_at_once_and_fewer_names_are_not():
    s = schedule()
    assert s.next_deadline() is None
    assert s.watch(frozenset({"a", "b"}), 0)
    assert s.tick(0)
    s.answered(True, 5)
    assert not s.watch(frozenset({"a"}), 10)
    assert not s.tick(10)
    assert s.watch(ALL, 20)
    assert s.tick(20)
    s.answered(True, 25)
    assert not s.watch(frozenset({"z"}), 30)


def test_one_request_is_under_way_at_a_time_and_a_wish_meanwhile_is_not_forgotten():
    s = schedule()
    assert s.ask(0) == 1
    assert s.tick(0)
    assert not s.tick(0)
    assert s.ask(1) == 2  # the answer under way was asked for too early
    assert s.next_deadline() is None
    s.answered(True, 5)
    assert s.tick(5)
    assert s.sent == 2


def test_metadata_ages():
    s = schedule()
    s.ask(0)
    s.tick(0)
    s.answered(True, 10)
    assert s.next_deadline() == 1_010
    assert not s.tick(1_009)
    assert s.tick(1_010)


def test_failures_and_missing_leaders_back_off():
    s = schedule()
    s.ask(0)
    assert s.tick(0)
    s.failed(0)
    assert s.next_deadline() == 100
    assert s.tick(100)
    s.answered(False, 100)
    assert s.next_deadline() == 300
    assert s.tick(300)
    s.answered(True, 300)
    s.ask_soon(310)
    assert s.next_deadline() == 410
    s.ask_soon(320)  # a second hint does not push it away
    assert s.next_deadline() == 410
    assert s.tick(410)
    s.ask_soon(411)  # the answer under way may be too old
    s.answered(True, 420)
    assert not s.tick(420)
    assert s.tick(520)


def test_hints_that_each_answer_gives_again_back_off():
    """A listener that misses a leader gives its hint while the next request is under way: a
    request for each round trip, for as long as the leader is missing.
    """
    s, now_ms = schedule(), 0
    s.ask(now_ms)
    while now_ms < 10_000:
        assert s.tick(now_ms)
        s.ask_soon(now_ms + 1)
        s.answered(False, now_ms + 2)
        now_ms = known(s.next_deadline())
    assert s.sent < 40


def test_a_hint_meanwhile_does_not_push_a_wish_away():
    s = schedule()
    s.ask(0)
    assert s.tick(0)
    s.ask_soon(1)
    assert s.ask(2) == 2
    s.answered(False, 3)
    assert s.tick(3)


def answer(epoch: int = 1, leader: int = 1, error: int = 0, topic_id: bytes = b"i" * 16):
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2]
    )
    topic = MetadataResponseTopic(
        name="t", topic_id=topic_id, error_code=error, partitions=[] if error else [partition]
    )
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=9, rack="r")], topics=[topic]
    )


def test_snapshots_never_change_and_count_up():
    empty = ClusterMetadata()
    first = merge(empty, answer())
    assert (empty.version, first.version) == (0, 1)
    assert empty.topics == {}
    assert first.nodes[1] == Node(1, "h", 9, "r")
    assert str(first.nodes[1]) == "broker 1 (h:9)"
    with pytest.raises(TypeError):
        first.topics["x"] = first.topics["t"]  # type: ignore[index]


def test_epochs_never_go_back_within_a_topic_id():
    first = merge(ClusterMetadata(), answer(epoch=5))
    assert merge(first, answer(epoch=4, leader=2)).leader_epoch("t", 0) == 5
    assert (
        known(merge(first, answer(epoch=-1, leader=2)).partition("t", 0)).leader == 2
    )  # unknown epoch
    assert merge(first, answer(epoch=1, topic_id=b"j" * 16)).leader_epoch("t", 0) == 1


def test_a_leader_whose_address_is_not_known_is_no_leader():
    metadata = merge(ClusterMetadata(), answer(leader=2))
    assert known(metadata.partition("t", 0)).leader == 2
    assert metadata.leader("t", 0) == -1
    assert with_leader(metadata, "t", 0, 2, 1, []) is metadata
    assert with_leader(metadata, "x", 0, 2, 9, []) is metadata
    moved = with_leader(metadata, "t", 0, 2, 2, [Node(2, "h2", 9)])
    assert moved.leader("t", 0) == 2
    assert metadata.leader("t", 0) == -1


@pytest.mark.parametrize(
    ("response", "complete"),
    [
        (answer(), True),
        (answer(leader=-1), False),
        (answer(error=3), False),
        (answer(error=5), False),
        (answer(error=17), True),
    ],
)
def test_what_may_pass_is_asked_for_again_soon(response, complete):
    assert is_complete(merge(ClusterMetadata(), response)) is complete


def test_values_are_tuples_with_words():
    assert str(TopicPartition("t", 3)) == "t-3"
    assert TopicPartition("t", 3) == ("t", 3)
    assert OffsetAndMetadata(5) == (5, "", -1)


def partitions_answer(*numbers: int, epoch: int = 0) -> MetadataResponse:
    """An answer about topic t, with these partition numbers."""
    partitions = [
        MetadataResponsePartition(partition_index=n, leader_id=1, leader_epoch=epoch)
        for n in numbers
    ]
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=1)],
        topics=[MetadataResponseTopic(name="t", topic_id=bytes(15) + b"1", partitions=partitions)],
    )


def test_an_absurd_partition_number_is_dropped_and_asked_for_again() -> None:
    """A producer has a queue for each number up to the largest: it would take all memory."""
    damaged = merge(ClusterMetadata(), partitions_answer(0, 2_147_483_646, 2))
    assert list(damaged.topics["t"].partitions) == [0, 2]
    assert not is_complete(damaged)
    assert list(merge(ClusterMetadata(), partitions_answer(0, -1)).topics["t"].partitions) == [0]
    assert is_complete(merge(damaged, partitions_answer(0, 1, 2)))


def test_an_epoch_that_only_one_answer_has_named_is_forgotten() -> None:
    """A broker may lag, and what it says is not believed; but not all of them, and not for ever."""
    now = merge(merge(ClusterMetadata(), partitions_answer(0)), partitions_answer(0, epoch=1 << 30))
    for _ in range(MAX_DOUBTS - 1):
        now = merge(now, partitions_answer(0, epoch=3))
        assert now.leader_epoch("t", 0) == 1 << 30
    assert merge(now, partitions_answer(0, epoch=3)).leader_epoch("t", 0) == 3


def test_hints_that_bring_nothing_new_come_less_often() -> None:
    """A partition that does not exist is asked for at every turn: that must not be a hot loop."""
    s = MetadataSchedule(60_000, Backoff(100, 1_000, lambda: 0.5))
    now, waits = 0, []
    for _ in range(6):
        s.ask_soon(now)
        due = s.next_deadline()
        assert due is not None
        waits.append(due - now)
        now = due
        assert s.tick(now)
        s.answered(True, now, news=False)
    assert waits == [100, 200, 400, 800, 1_000, 1_000]
    s.ask_soon(now + 6_000)
    assert s.next_deadline() == now + 6_100
