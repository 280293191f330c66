"""The fetch planner: what is asked, what an answer counts for (spec 4.3, 4.4; C7, C8, F1, F4)."""

from __future__ import annotations

from typing import Self

import pytest

from kohort.client.common.offset_reset import ResetPolicy
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.plan.fetch_planner import (
    AHEAD_SETS,
    LOCAL_TIMES,
    QUICK_WAIT_MS,
    SPARE,
    FetchLimits,
    FetchOrder,
    FetchPlanner,
    FetchResult,
)
from kohort.client.consumer.plan.positions import DENIED_RETRY_MS, Phase, Position, Positions
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchBuilder

LIMITS = FetchLimits(
    fetch_max_bytes=50 << 20,
    partition_max_bytes=1 << 20,
    min_bytes=1,
    max_wait_ms=500,
    buffer_bytes=64 << 20,
    backoff_ms=100,
    replica_ms=60_000,
)
DATA = b"x" * 1000


class World:
    """A planner over `count` partitions at offset 0; `leaders` says who leads which."""

    def __init__(self, count: int = 4, nodes: int = 1, limits: FetchLimits = LIMITS) -> None:
        self.positions = Positions(ResetPolicy.parse("earliest"))
        self.tps = [TopicPartition("t", n) for n in range(count)]
        self.positions.add(self.tps, 0)
        for tp in self.tps:
            self.positions.seek(tp, 0, -1, 0)
        self.leaders: dict[TopicPartition, int] = {tp: n % nodes for n, tp in enumerate(self.tps)}
        self.planner = FetchPlanner(self.positions, limits)

    def plan(self, now: int = 0) -> list[FetchOrder]:
        return self.planner.plan(self.leaders.get, now)

    def one(self, now: int = 0) -> FetchOrder:
        (order,) = self.plan(now)
        return order

    def answer(self, order: FetchOrder, *partitions: int, now: int = 0, data: bytes = DATA):
        results = [self.result(n, data) for n in partitions]
        return self.planner.arrived(order.token, results, now)

    def result(self, n: int, data: bytes = DATA, error: int = 0) -> FetchResult:
        return FetchResult(self.tps[n], error, 100, 100, 0, data)

    def read(self, n: int, count: int = 10) -> None:
        """The reader has read all that is buffered of a partition."""
        position = self.positions.get(self.tps[n])
        self.positions.advance(position, position.offset + count, 0)
        self.positions.release_buffer(position)


def batch(first: int, count: int = 10, value: bytes = b"v") -> bytes:
    builder = BatchBuilder(max_bytes=1 << 20)
    for n in range(count):
        builder.append(n, None, value)
    return builder.build(base_offset=first)


def asked(order: FetchOrder) -> set[int]:
    return {part.tp.partition for part in order.parts}


def test_one_order_a_node_with_all_its_partitions() -> None:
    """Spec 4.3."""
    world = World(4, nodes=2)
    first, second = world.plan()
    assert (first.node, asked(first)) == (0, {0, 2})
    assert (second.node, asked(second)) == (1, {1, 3})
    assert world.plan() == [], "a request for them is under way"


def test_unread_data_is_not_asked_for_again() -> None:
    """Spec 4.3: while unread, and while under way; what was read goes out on the second lane."""
    world = World(3)
    first = world.one()
    world.answer(first, 0, 1)
    second = world.one()
    assert asked(second) == {2}
    world.read(0)
    third = world.one()
    assert asked(third) == {0}
    assert {second.lane, third.lane} == {0, 1}
    assert third.parts[0].offset == 10
    world.read(1)
    assert world.plan() == [], "both lanes are taken"
    world.answer(third)
    assert asked(world.one()) == {0, 1}


def test_idle_partitions_do_not_hold_back_a_busy_one() -> None:
    """While something is unread, an order waits at the broker for a moment only."""
    world = World(3)
    first = world.one()
    assert first.max_wait_ms == 500
    world.answer(first, 0)
    second = world.one()
    assert second.max_wait_ms == QUICK_WAIT_MS
    world.answer(second)
    assert world.plan() == [], "nothing came: wait for the reader, do not spin"
    assert world.planner.polled()
    assert asked(world.one()) == {1, 2}
    assert not world.planner.polled()


def test_partitions_that_are_read_up_leave_a_connection_to_the_others() -> None:
    """Spec 4.3: an order for them alone waits at the broker, so one at a time is enough."""
    world = World(4)
    first = world.one()
    end = [world.result(n, batch(90)) for n in range(3)]
    world.planner.arrived(first.token, [*end, world.result(3, batch(0, 1, bytes(500_000)))], 0)
    world.planner.arrived(world.one().token, [world.result(3, batch(1, 1, bytes(500_000)))], 0)
    world.read(0, 100)
    waiting = world.one()
    assert asked(waiting) == {0, 3}
    world.read(1, 100)
    assert world.plan() == [], "the other connection is for what has more"
    world.read(3, 1)
    world.answer(waiting)
    assert world.planner.polled()
    assert asked(world.one()) == {0, 1, 3}


def test_long_polls_of_idle_partitions_do_not_hold_up_a_seek() -> None:
    """Spec 4.2: both connections wait for what has been read up; a third takes what has more."""
    world = World(3)
    end = [world.result(n, b"") for n in range(3)]
    for position in world.positions:
        world.positions.seek(position.tp, 100, -1, 0)
    world.planner.arrived(world.one().token, end[:2], 0)
    world.positions.pause([world.tps[2]])
    first = world.one()
    world.positions.resume([world.tps[2]])
    world.positions.get(world.tps[2]).high_watermark = 100
    second = world.one()
    assert (asked(first), asked(second)) == ({0, 1}, {2})
    assert {first.max_wait_ms, second.max_wait_ms} == {500}
    world.positions.seek(world.tps[0], 0, -1, 1)
    third = world.one()
    assert (asked(third), third.lane, third.max_wait_ms) == ({0}, SPARE, QUICK_WAIT_MS)
    world.positions.seek(world.tps[1], 0, -1, 1)
    assert world.plan() == [], "one at a time"
    world.answer(third, 0, data=batch(0))
    assert asked(world.one()) == {1}


def test_paused_partitions_are_not_asked_and_do_not_make_others_hurry() -> None:
    """Spec 4.4, C10."""
    world = World(2)
    first = world.one()
    world.answer(first, 0)
    world.positions.pause([world.tps[0]])
    order = world.one()
    assert (asked(order), order.max_wait_ms) == ({1}, 500)
    assert world.positions.get(world.tps[0]).buffer is not None
    world.read(0)
    world.answer(order)
    assert asked(world.one()) == {1}


def test_an_answer_after_a_seek_is_dropped() -> None:
    """C7, B51."""
    world = World(2)
    order = world.one()
    world.positions.seek(world.tps[0], 55, -1, 1)
    fresh = world.one()
    assert [(part.tp.partition, part.offset) for part in fresh.parts] == [(0, 55)]
    arrival = world.answer(order, 0, 1)
    assert [position.tp.partition for position in arrival.ready] == [1]
    position = world.positions.get(world.tps[0])
    assert (position.buffer, position.in_flight) == (None, fresh.token)


def test_an_answer_for_an_earlier_ownership_is_dropped() -> None:
    """C1, C7: revoked and assigned again while the fetch was under way."""
    world = World(1)
    order = world.one()
    world.positions.remove(world.tps)
    world.positions.add(world.tps, 1)
    world.positions.seek(world.tps[0], 0, -1, 1)
    assert world.answer(order, 0).ready == []
    assert world.positions.get(world.tps[0]).buffer is None
    assert asked(world.one()) == {0}


def test_an_answer_comes_once_and_names_only_what_was_asked() -> None:
    """F1."""
    world = World(2)
    world.positions.pause([world.tps[1]])
    order = world.one()
    assert len(world.answer(order, 0, 1).ready) == 1
    assert world.positions.get(world.tps[1]).buffer is None
    assert world.answer(order, 0).ready == []


def test_budget_is_never_exceeded() -> None:
    """F4: buffered (paused too) and under way together stay within the budget."""
    world = World(8, limits=LIMITS._replace(buffer_bytes=3 << 20))
    big = b"x" * (1 << 20)
    for n in range(3):
        order = world.one()
        assert order.max_bytes == 1 << 20
        world.answer(order, n, data=big)
    world.positions.pause(world.tps[:2])
    assert world.plan() == []
    world.read(0)
    assert world.one().max_bytes == 1 << 20


def test_an_order_brings_a_quarter_of_the_budget_at_most() -> None:
    """F4: so that others are on their way, and something is read, while it is waited for."""
    world = World(100)
    order = world.one()
    assert (len(order.parts), order.max_bytes) == (100, 16 << 20)
    world = World(100, limits=LIMITS._replace(fetch_max_bytes=5 << 20))
    assert world.one().max_bytes == 5 << 20


@pytest.mark.parametrize(
    ("count", "least", "each"),
    [(1, 4 << 20, 4 << 20), (3, 4 << 20, (4 << 20) // 3), (8, 4 << 20, 1 << 20), (1, 0, 1 << 20)],
)
def test_few_partitions_are_asked_for_more_each(count: int, least: int, each: int) -> None:
    """An order costs the same however much it brings; with a size of the user's (0) it is kept."""
    world = World(count, limits=LIMITS._replace(order_least_bytes=least))
    assert {part.max_bytes for part in world.one().parts} == {each}


class InFile:
    """A record set that is not here yet."""

    end_offset = 10

    def __len__(self) -> int:
        return 1000

    def read(self, *, whole: bool = False) -> tuple[bytes, Self | None] | None:
        return None


def test_what_stays_in_the_brokers_files_may_be_more() -> None:
    """ADR 0015: while a node's answers leave it there; with a size of the user's that is kept."""
    for least, times in ((4 << 20, LOCAL_TIMES), (0, 1)):
        world = World(1, limits=LIMITS._replace(order_least_bytes=least))
        each = max(least, 1 << 20)
        first = world.one()
        assert first.max_bytes == each
        there = FetchResult(world.tps[0], 0, 100, 100, 0, InFile())
        world.planner.arrived(first.token, [there], 0)
        order = world.one()
        assert (order.max_bytes, order.parts[0].max_bytes) == (each * times, each * times)
        world.answer(order, 0, data=batch(10))
        world.read(0)
        assert world.one().max_bytes == each, "they are sent again"


def test_no_small_orders_while_there_is_much_to_read() -> None:
    """F4: the reader comes back for more when there is room for an answer worth its costs."""
    world = World(64, limits=LIMITS._replace(buffer_bytes=16 << 20))
    half = batch(0, 1, bytes(500_000))
    for n in range(3):
        order = world.one()
        assert order.max_bytes == 4 << 20
        world.answer(order, *range(8 * n, 8 * n + 8), data=half)
    order = world.one()
    world.answer(order, 24, 25, data=half)
    assert world.plan() == [], "3 MB are left"
    world.read(0)
    world.read(1)
    assert world.plan() != []


def test_paused_data_and_a_long_poll_do_not_keep_others_waiting() -> None:
    """Spec 4.2: what waits for records at one node says nothing of how busy the reader is."""
    world = World(4, nodes=2, limits=LIMITS._replace(buffer_bytes=16 << 20))
    for position in world.positions:
        position.high_watermark = 0 if world.leaders[position.tp] else 100
    busy, waiting = sorted(world.plan(), key=lambda order: order.node)
    assert (busy.idle, waiting.idle) == (False, True)
    world.answer(busy, 0, data=bytes(14 << 20))
    world.positions.pause(world.tps[:1])
    assert asked(world.one()) == {2}


def test_an_order_names_no_more_than_may_find_room_in_its_answer() -> None:
    """F1: the least recently served of those with records, and all that nothing is known of."""
    world = World(101)
    first = world.one()
    assert len(first.parts) == 101
    seen = [world.result(n, batch(0, 1, bytes(1_000_000))) for n in range(16)]
    unread = [world.result(n, b"") for n in range(16, 100)]
    world.planner.arrived(first.token, [*seen, *unread], 1)
    second = world.one()
    assert (len(second.parts), second.backlog) == (85, 84), "and of 100 nothing is known"
    world.answer(second, *range(20, 24), now=2)
    third = world.one()
    assert third.backlog == 8
    assert 100 in asked(third)
    world.answer(third, *sorted(asked(third) - {100}), now=3)
    assert world.one().backlog == 16, "there was room for all of them"


def test_partitions_that_wait_for_records_do_not_hold_the_room_for_others() -> None:
    """F4: a node with many partitions that are read up, and one with something to read."""
    world = World(33, nodes=2, limits=LIMITS._replace(buffer_bytes=32 << 20))
    for position in world.positions:
        position.high_watermark = 0 if world.leaders[position.tp] else 100
    busy, waiting = sorted(world.plan(), key=lambda order: order.node)
    assert (busy.max_bytes, waiting.max_bytes) == (8 << 20, 1 << 20)


def ahead_of_a_new_leader() -> tuple[World, Position, FetchOrder]:
    """Two batches are unread, and a request behind them is under way, when the leader changes."""
    world = World(1)
    position = world.positions.get(world.tps[0])
    world.answer(world.one(), 0, data=batch(0))
    world.answer(world.one(), 0, data=batch(10))
    order = world.one()
    position.offset_epoch = 0
    world.positions.leader_moved(world.tps[0], 1, can_validate=True, now_ms=1)
    return world, position, order


def test_a_request_ahead_that_fails_after_a_new_leader_came_is_over() -> None:
    """The position would ask for less now; it was never asked for again."""
    world, position, ahead = ahead_of_a_new_leader()
    world.positions.validated(world.tps[0], position.stamp, 2)
    world.read(0)
    world.planner.failed(ahead.token, 3)
    assert world.plan(102) == []
    assert world.one(103).parts[0].offset == 10


def test_what_is_behind_unread_data_is_asked_for_ahead() -> None:
    """Spec 4.3: from where the unread data ends, one order at a time, and so many sets at most."""
    world = World(1)
    for n in range(AHEAD_SETS):
        order = world.one()
        assert [part.offset for part in order.parts] == [n * 10]
        assert world.plan() == [], "a request for it is under way"
        world.answer(order, 0, data=batch(n * 10))
    assert world.plan() == [], "enough is unread"
    world.read(0)
    assert world.one().parts[0].offset == 30


def test_nothing_is_asked_for_ahead_at_the_end_of_the_log() -> None:
    """It would wait at the broker, where the reader may soon want to ask for everything."""
    world = World(1)
    world.planner.arrived(world.one().token, [world.result(0, batch(90))], 0)
    assert world.plan() == []
    world = World(1, limits=LIMITS._replace(committed_only=True))
    data = FetchResult(world.tps[0], 0, 100, 10, 0, batch(0))
    world.planner.arrived(world.one().token, [data], 0)
    assert world.plan() == [], "nothing behind the last stable offset can be read"


def test_with_many_partitions_little_is_asked_for_ahead() -> None:
    """Their unread data is enough to read while the next order is under way."""
    world = World(8)
    world.answer(world.one(), *range(8), data=batch(0, 1, bytes(500_000)))
    assert world.plan() == []


@pytest.mark.parametrize(
    "error", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
)
def test_a_refusal_ahead_waits_until_what_is_before_it_has_been_read(error: int) -> None:
    """C8, GL1: data that is here is handed out, and the position decides what happens then."""
    world = World(1)
    position = world.positions.get(world.tps[0])
    world.answer(world.one(), 0, data=batch(0))
    world.planner.arrived(world.one().token, [world.result(0, b"", error)], 5)
    assert (position.phase, position.offset) == (Phase.FETCHING, 0)
    assert position.buffer is not None
    assert world.plan(200) == []
    world.read(0)
    assert world.planner.polled()
    order = world.one(200)
    assert order.parts[0].offset == 10
    world.planner.arrived(order.token, [world.result(0, b"", error)], 205)
    assert position.phase is not Phase.FETCHING or position.error is not None


def test_a_partition_without_a_right_goes_on_once_it_is_there() -> None:
    """C8: as in Java, a right that is missing for a moment does not stop the partition."""
    world = World(1)
    position = world.positions.get(world.tps[0])
    denied = world.result(0, b"", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    world.planner.arrived(world.one().token, [denied], 5)
    assert isinstance(position.error, BrokerError)
    assert (position.known, bool(world.positions.denials)) == (True, True)
    assert world.plan(5 + DENIED_RETRY_MS - 1) == []
    world.planner.arrived(world.one(5 + DENIED_RETRY_MS).token, [denied], 1_010)
    assert world.positions.denials
    world.answer(world.one(3_000), 0, data=batch(0))
    assert (position.error, bool(world.positions.denials)) == (None, False)
    assert position.buffer is not None


def test_what_was_asked_ahead_of_a_new_leader_is_dropped() -> None:
    """KIP-320: the old leader's log may end before it."""
    world, position, late = ahead_of_a_new_leader()
    assert world.answer(late, 0, data=batch(20)).ready == []
    assert (position.behind, world.positions.buffered_bytes) == ([], len(batch(0)))
    world.positions.validated(world.tps[0], position.stamp, 2)
    assert world.planner.polled(), "nothing came of a quick order"
    assert world.plan() == [], "where what is left ends is found out by reading it"
    world.read(0)
    assert world.one().parts[0].offset == 10


def test_paused_partitions_cannot_stop_the_others() -> None:
    """GL5: when they hold the whole budget, one small order at a time goes out all the same."""
    world = World(3, limits=LIMITS._replace(buffer_bytes=1 << 20))
    order = world.one()
    world.answer(order, 0, data=b"x" * (1 << 20))
    world.positions.pause(world.tps[:1])
    order = world.one()
    assert asked(order) == {1, 2}
    assert order.max_bytes == 16 * 1024
    world.answer(order, 1)
    assert world.plan() == [], "now there is something to read"


def test_least_recently_served_first() -> None:
    """A small limit serves every partition in turn."""
    world = World(3)
    order = world.one(0)
    world.answer(order, 0, now=10)
    world.read(0)
    assert [part.tp.partition for part in world.one(10).parts] == [1, 2, 0]


def test_bounded_fetch() -> None:
    """D3: of retry topics and ranges, nothing at or beyond the bound is fetched."""
    world = World(2)
    world.positions.get(world.tps[0]).end = 10
    world.positions.get(world.tps[1]).end = 0
    order = world.one()
    assert asked(order) == {0}
    world.answer(order, 0)
    world.read(0, 10)
    assert world.plan() == []
    world.positions.get(world.tps[0]).end = None
    assert asked(world.one()) == {0}


def test_out_of_range_at_the_leader_resets() -> None:
    """C8."""
    world = World(1)
    order = world.one()
    out = world.result(0, b"", ErrorCode.OFFSET_OUT_OF_RANGE)
    world.planner.arrived(order.token, [out], 5)
    assert world.positions.get(world.tps[0]).phase is Phase.AWAITING_RESET


def test_out_of_range_at_a_follower_asks_the_leader() -> None:
    """KIP-392: a follower may be behind; only the leader's word counts."""
    world = World(1)
    position = world.positions.get(world.tps[0])
    order = world.one()
    hint = FetchResult(world.tps[0], 0, 100, 100, 0, b"", preferred_replica=7)
    world.planner.arrived(order.token, [hint], 5)
    order = world.one(6)
    assert order.node == 7
    out = world.result(0, b"", ErrorCode.OFFSET_OUT_OF_RANGE)
    world.planner.arrived(order.token, [out], 10)
    assert position.phase is Phase.FETCHING
    assert world.plan(50) == []
    assert world.one(110).node == 0


def test_a_follower_is_preferred_for_so_long_only() -> None:
    """KIP-392: after `metadata.max.age.ms` the leader is asked again, who may name another."""
    world = World(1)
    order = world.one()
    hint = FetchResult(world.tps[0], 0, 100, 100, 0, b"", preferred_replica=7)
    world.planner.arrived(order.token, [hint], 5)
    order = world.one(60_004)
    assert order.node == 7
    world.planner.arrived(order.token, [], 60_004)
    assert world.one(60_005).node == 0


def test_a_lost_connection_is_tried_again_and_resets_nothing() -> None:
    """C8: no reset on a transport error."""
    world = World(2)
    order = world.one()
    world.planner.failed(order.token, 0)
    assert world.plan(99) == []
    assert world.planner.next_deadline(0) == 100
    assert asked(world.one(100)) == {0, 1}


def test_a_back_off_that_has_ended_hides_none_that_has_not() -> None:
    """A paused partition is not asked for when its back-off ends; the timer is for the other."""
    world = World(2, nodes=2)
    first, second = world.plan()
    world.planner.failed(first.token, 0)
    world.positions.get(world.tps[0]).paused = True
    world.planner.failed(second.token, 150)
    assert world.plan(150) == []
    assert world.planner.next_deadline(150) == 250
    assert asked(world.one(250)) == {1}


def test_moved_leader_asks_for_metadata() -> None:
    world = World(1)
    order = world.one()
    moved = world.result(0, b"", ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.planner.arrived(order.token, [moved], 0).stale_metadata
    world.leaders = {}
    assert world.plan(100) == []
    assert world.planner.needs_metadata


def test_a_damaged_log_stops_the_partition_with_its_place() -> None:
    """F6: when it is so again; the first time it is fetched once more."""
    world = World(2)
    position = world.positions.get(world.tps[0])
    bad = world.result(0, b"", ErrorCode.CORRUPT_MESSAGE)
    world.planner.arrived(world.one().token, [bad, world.result(1)], 0)
    assert position.phase is Phase.FETCHING
    world.planner.arrived(world.one(position.retry_at_ms).token, [bad, world.result(1)], 0)
    assert position.phase is Phase.FAILED
    assert "t-0 at offset 0" in str(position.error)
