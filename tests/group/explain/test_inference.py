"""What can be told of a rebalance from `__consumer_offsets` alone, and what is only inferred."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kohort.errors import DecodeError
from kohort.group.assignors.protocol import encode_assignment, encode_subscription
from kohort.group.coordinator.state.classic_records import (
    StoredGroup,
    StoredMember,
    group_record,
    group_tombstone,
)
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.group.coordinator.state.topics_image import NO_TOPICS
from kohort.group.explain.inference import Inference
from kohort.group.explain.timeline import Rebalance, merged
from tests.group.consumer_harness import ConsumerBench
from tests.group.explain.test_timeline import assign, causes, memory_of, moved, reads
from tests.group.harness import GROUP, Bench

T0 = 1_700_000_000_000


def member(name: str, topics: tuple[str, ...], *parts: int, instance: str | None = None):
    return StoredMember(
        name,
        instance,
        "app",
        "/10.0.0.1",
        60_000,
        10_000,
        encode_subscription(topics, None, {}, -1, None),
        encode_assignment({"t": parts} if parts else {}),
    )


def kafka(generation: int, at_ms: int, *members: StoredMember) -> StoredGroup:
    """A generation as Apache Kafka writes it: once, with its assignment."""
    leader = members[0].member_id if members else None
    protocol = "range" if members else None
    return StoredGroup(
        "consumer", generation, protocol, leader, at_ms, {m.member_id: m for m in members}
    )


def read(*stored: tuple[StoredGroup | None, int]) -> list[Rebalance]:
    reader = Inference(GROUP, NO_TOPICS)
    for group, at_ms in stored:
        record = group_tombstone(GROUP) if group is None else group_record(GROUP, group)
        reader.take(record, at_ms)
        reader.take(group_record("another", kafka(9, at_ms, member("x", ("t",), 0))), at_ms)
    return reader.rebalances()


def test_a_group_of_apache_kafka() -> None:
    """Members and moves are exact; causes are what differs; when it began is not known."""
    a, b = member("a", ("t",), 0, 1, 2, 3), member("b", ("t",), 2, 3)
    first, second, third, fourth = read(
        (kafka(0, T0), T0),
        (kafka(1, T0 + 3_000, a), T0 + 3_100),
        (kafka(2, T0 + 5_000, member("a", ("t",), 0, 1), b), T0 + 5_200),
        (kafka(3, T0 + 9_000, member("a", ("t",), 0, 1), b), T0 + 9_050),
        (kafka(4, T0 + 9_900), T0 + 9_900),
    )
    assert causes(first) == [("joined", "a")]
    assert (first.began_ms, first.joining_ms, first.settling_ms) == (None, None, 100)
    assert first.inferred == ("causes", "joined_ms")
    assert first.from_log
    assert causes(second) == [("joined", "b")]
    assert moved(second) == [(2, "a", "b", "balance"), (3, "a", "b", "balance")]
    assert causes(third) == [("unknown", "")]
    assert (third.moved, third.names["a"]) == (0, "app")
    assert causes(fourth) == [("gone", "a"), ("gone", "b")]
    assert (fourth.outcome, fourth.members) == ("empty", 0)


def test_subscriptions_static_members_and_gaps() -> None:
    a, b = member("a", ("t",), 0, 1), member("b", ("t",), 2, instance="i")
    back = replace_member(b, "b2", ("t", "u"))
    first, second = read((kafka(7, T0, a, b), T0), (kafka(9, T0, a, back), T0))
    assert first.gap == 6
    assert (second.gap, second.inferred) == (1, ("causes", "joined_ms", "moves"))
    assert causes(second) == [("subscription", "b2")]
    assert (second.moved, second.came, second.went) == (0, (), ())


def replace_member(old: StoredMember, member_id: str, topics: tuple[str, ...]) -> StoredMember:
    return old._replace(
        member_id=member_id, subscription=encode_subscription(topics, None, {}, -1, None)
    )


def test_a_group_that_was_deleted_and_made_anew() -> None:
    a = member("a", ("t",), 0)
    _, second = read((kafka(5, T0, a), T0), (None, T0), (kafka(1, T0, a), T0))
    assert (second.generation, second.gap, causes(second)) == (1, 0, [("joined", "a")])
    assert second.moves[0].source is None


def log_of(bench: Bench) -> list[Rebalance]:
    reader = Inference(GROUP, getattr(bench, "image", NO_TOPICS))
    for entry in bench.log:
        if entry.record is not None:
            reader.take(entry.record, T0)
    return reader.rebalances()


def same_facts(inferred: list[Rebalance], exact: list[Rebalance]) -> None:
    """What a log tells is what the coordinator knows, causes and times apart."""
    assert len(inferred) == len(exact)
    for read, known in zip(inferred, exact, strict=True):
        for name in ("generation", "outcome", "members", "came", "went", "moves", "partitions"):
            assert getattr(read, name) == getattr(known, name), name


def test_the_log_of_our_own_coordinator_agrees_with_its_memory() -> None:
    bench = Bench()
    a, b = bench.form(2, protocols=reads("t"))
    assign(bench, {a: {"t": (0, 1)}, b: {"t": (2, 3)}})
    bench.leave(b)
    bench.join(a, protocols=reads("t"))
    bench.join(a, protocols=reads("t"))
    assign(bench, {a: {"t": (0, 1, 2, 3)}})
    bench.leave(a)
    same_facts(log_of(bench), memory_of(bench))
    assert {one.inferred for one in log_of(bench)[:-1]} == {("causes",)}


def test_consumer_groups_are_told_out_of_their_records() -> None:
    """Epochs, targets and who has reached them are in the log, with their times."""
    bench = ConsumerBench()
    bench.enter("a")
    bench.follow("a")
    bench.enter("b")
    bench.settle_all()
    bench.make("t", 7)
    bench.settle_all()
    bench.keep("a", topics=["t", "u"])
    bench.settle_all()
    bench.beat("b", -1)
    bench.settle_all()
    found, exact = log_of(bench), memory_of(bench)
    same_facts(found, exact)
    assert [causes(one) for one in found] == [
        [("joined", "a")],
        [("joined", "b")],
        [("topics", "")],
        [("subscription", "a")],
        [("gone", "b")],
    ]
    assert [one.waited_for for one in found] == [one.waited_for for one in exact]


def test_the_coordinators_word_counts_where_both_know() -> None:
    first, second, third = read(
        *((kafka(n, T0 + n, member("a", ("t",), 0)), T0 + n) for n in (1, 2, 3))
    )
    exact = replace(third, began_ms=T0 + 3, from_log=False, inferred=())
    assert merged([exact], [first, second, third]) == [first, second, exact]
    assert merged([], [first]) == [first]


def test_damaged_records_are_an_error() -> None:
    reader = Inference(GROUP, NO_TOPICS)
    key = group_record(GROUP, kafka(1, T0)).key
    with pytest.raises(DecodeError):
        reader.take(GroupRecord(key, b"\x00\x03\xff"), T0)
