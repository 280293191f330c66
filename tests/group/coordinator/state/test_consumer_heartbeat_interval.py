"""How soon a member of a consumer group is told to heartbeat again."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.group.coordinator.state.consumer_heartbeat_interval import (
    MOST_A_MS,
    SHORTEST_MS,
    Waits,
    waiting_interval_ms,
)
from kohort.group.coordinator.state.consumer_table import MemberState
from tests.group.consumer_harness import GROUP, INTERVAL_MS, SESSION_MS, ConsumerBench


def waits_of(bench: ConsumerBench) -> Any:
    return bench.shard._ws.waits


@pytest.mark.parametrize(
    ("waited", "waiting", "usual", "interval_ms"),
    [
        (0, 1, 5_000, SHORTEST_MS),
        (80, 1, 5_000, 10),
        (800, 1, 5_000, 100),
        (40_000, 1, 5_000, 5_000),
        (10**9, 1, 5_000, 5_000),
        (0, 1, 5, 5),
        (0, 1_000, 5_000, 1_000 // MOST_A_MS),
        (0, 1_000_000, 5_000, 5_000),
    ],
)
def test_an_eighth_of_the_wait_within_bounds(
    waited: int, waiting: int, usual: int, interval_ms: int
) -> None:
    assert waiting_interval_ms(waited, waiting, usual) == interval_ms


@pytest.mark.parametrize(("usual", "most"), [(100, 30), (5_000, 65), (15_000, 75)])
def test_who_is_held_up_for_minutes_makes_no_storm(usual: int, most: int) -> None:
    """Beyond the heartbeats that it would make anyhow; and what comes is seen soon enough."""
    waits, now_ms, beats = Waits(), 0, 0
    while now_ms < 300_000:
        waited_ms = now_ms
        now_ms += waits.interval_ms("g", "m", 7, usual, now_ms)
        beats += 1
        assert now_ms - waited_ms <= max(SHORTEST_MS, waited_ms / 8)
    assert beats <= 300_000 / usual + most


@pytest.mark.parametrize("members", [1, 100, 1_000, 10_000])
def test_all_who_wait_make_no_storm_together(members: int) -> None:
    """Of a group whose members all wait, in the first second, one after another."""
    waits, beats = Waits(), 0
    due = dict.fromkeys(range(members), 0)
    for member in due:
        waits.interval_ms("g", str(member), 1, 5_000, 0)
    for now_ms in range(1_000):
        for member in [m for m, at_ms in due.items() if at_ms <= now_ms]:
            due[member] = now_ms + waits.interval_ms("g", str(member), 1, 5_000, now_ms)
            beats += 1
    assert beats <= min(30 * members, (MOST_A_MS + 1) * 1_000 + members)


def test_whoever_waits_for_others_is_to_ask_sooner() -> None:
    """From the join on until it has what it waits for; the others keep to their interval."""
    bench = ConsumerBench()
    assert bench.enter("m1").heartbeat_interval_ms == INTERVAL_MS
    assert bench.enter("m2").heartbeat_interval_ms == SHORTEST_MS
    bench.advance(400)
    assert bench.keep("m2").heartbeat_interval_ms == 50
    answer = bench.keep("m1")  # to give something up, which it says as soon as it has
    assert (bench.current("m1").state, answer.heartbeat_interval_ms) == (
        MemberState.UNREVOKED,
        INTERVAL_MS,
    )
    bench.advance(400)
    assert bench.keep("m2").heartbeat_interval_ms == 100
    assert bench.follow("m1").heartbeat_interval_ms == INTERVAL_MS
    assert bench.keep("m2").heartbeat_interval_ms == INTERVAL_MS
    assert bench.keep("m2").heartbeat_interval_ms == INTERVAL_MS
    assert len(waits_of(bench)) == 0


def test_a_wait_begins_anew_with_the_epoch() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.advance(800)
    assert bench.keep("m2").heartbeat_interval_ms == 100
    bench.enter("m3")
    assert bench.keep("m2").heartbeat_interval_ms == SHORTEST_MS


def test_it_is_not_longer_than_the_groups_own() -> None:
    bench = ConsumerBench(
        group_consumer_heartbeat_interval_ms=7, group_consumer_min_heartbeat_interval_ms=1
    )
    bench.enter("m1")
    assert bench.enter("m2").heartbeat_interval_ms == 7


def test_nothing_is_remembered_of_who_is_gone() -> None:
    """Left, fenced, replaced; and with the group."""
    bench = ConsumerBench()
    bench.enter("m1")
    for n, leave in enumerate(("leave", "expire")):
        waiting = f"w{n}"
        assert bench.enter(waiting).heartbeat_interval_ms == SHORTEST_MS
        assert len(waits_of(bench)) == 1
        if leave == "leave":
            bench.beat(waiting, -1)
        else:
            for _ in range(9):
                bench.advance(SESSION_MS // 8)
                bench.follow("m1")
        assert len(waits_of(bench)) == 0
    bench.enter("s1", instance="i")
    assert len(waits_of(bench)) == 1
    bench.beat("s1", -2, instance="i")
    bench.enter("s2", instance="i")
    assert waits_of(bench)._groups[GROUP].keys() == {"s2"}


def test_a_new_coordinator_counts_from_what_it_hears() -> None:
    bench = ConsumerBench()
    bench.enter("m1")
    bench.enter("m2")
    bench.advance(4_000)
    assert bench.keep("m2").heartbeat_interval_ms == 500
    bench.failover()
    assert bench.keep("m2").heartbeat_interval_ms == SHORTEST_MS
