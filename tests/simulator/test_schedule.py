"""Virtual time: order, cancelling, and chance from the seed alone (spec 9.1)."""

from __future__ import annotations

import pytest

from kohort.simulator.schedule import Schedule


def test_events_run_by_time_and_then_in_the_order_given():
    schedule, seen = Schedule(1), []
    schedule.at(20, seen.append, "late")
    schedule.at(10, seen.append, "first")
    schedule.at(10, seen.append, "second")
    while schedule.step():
        seen.append(schedule.now_ms)
    assert seen == ["first", 10, "second", 10, "late", 20]


def test_the_past_is_now():
    schedule, seen = Schedule(1, start_ms=100), []
    schedule.at(50, seen.append, "x")
    assert schedule.step()
    assert seen == ["x"]
    assert schedule.now_ms == 100


def test_cancelled_events_do_not_happen_and_do_not_count():
    schedule, seen = Schedule(1), []
    handles = [schedule.after(n, seen.append, n) for n in range(5_000)]
    for handle in handles[:-1]:
        handle.cancel()
        handle.cancel()
    assert len(schedule) == 1
    assert schedule.next_ms == 4_999
    schedule.run_until(10_000)
    handles[-1].cancel()
    assert seen == [4_999]
    assert schedule.now_ms == 10_000
    assert len(schedule) == 0


def test_the_seed_decides_and_purposes_do_not_disturb_each_other():
    one, two = Schedule(7), Schedule(7)
    one.split("network").random()
    assert one.random.random() == two.random.random()
    assert one.split("network").random() == two.split("network").random()
    assert one.split("network").random() != one.split("disk").random()
    assert Schedule(8).random.random() != Schedule(7).random.random()


def test_a_world_that_runs_away_is_stopped():
    schedule = Schedule(1, limit=3)
    for _ in range(3):
        schedule.after(1, print)
    with pytest.raises(OverflowError):
        schedule.after(1, print)
