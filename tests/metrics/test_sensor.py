"""Sensors: windows as Java's defaults have them, under a clock that the test moves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.metrics.sensor import WINDOW_MS, Sensor, View


def test_nothing_is_known_before_the_first_value() -> None:
    sensor = Sensor()
    assert sensor.rate(5) == 0
    for view in (View.AVG, View.MAX, View.AGO):
        assert math.isnan(view.of(sensor, 5))


def test_average_maximum_and_totals() -> None:
    sensor = Sensor()
    for value, at_ms in ((3, 1_000), (9, 2_000), (6, 3_000)):
        sensor.record(value, at_ms)
    assert View.AVG.of(sensor, 3_000) == 6
    assert View.MAX.of(sensor, 3_000) == 9
    assert View.COUNT.of(sensor, 3_000) == 3
    assert View.SUM.of(sensor, 3_000) == 18
    assert View.SUM_NS.of(sensor, 3_000) == 18_000_000
    assert View.AGO.of(sensor, 7_500) == 4


def test_a_rate_is_over_a_whole_window_at_least_so_that_a_start_is_no_burst() -> None:
    sensor = Sensor()
    for _ in range(30):
        sensor.record(2, 1_000)
    assert View.RATE.of(sensor, 1_000) == pytest.approx(1)
    assert View.SUM_RATE.of(sensor, 1_000) == pytest.approx(2)
    assert View.HOURLY.of(sensor, 1_000) == pytest.approx(3_600)


def test_of_late_is_this_window_and_the_one_before() -> None:
    sensor = Sensor()
    sensor.record(10, 0)
    sensor.record(2, WINDOW_MS + 5)
    assert sensor.avg(WINDOW_MS + 5) == 6
    assert sensor.max(WINDOW_MS + 5) == 10
    sensor.record(4, 2 * WINDOW_MS + 5)
    assert sensor.avg(2 * WINDOW_MS + 5) == 3
    assert sensor.max(2 * WINDOW_MS + 5) == 4


def test_what_is_long_ago_is_not_of_late() -> None:
    sensor = Sensor()
    sensor.record(10, 100)
    assert sensor.avg(100 + WINDOW_MS) == 10
    assert math.isnan(sensor.avg(100 + 2 * WINDOW_MS))
    assert sensor.rate(100 + 2 * WINDOW_MS) == 0
    assert (sensor.count, sensor.total) == (1, 10)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50_000)), min_size=1, max_size=50))
def test_of_late_is_never_more_than_ever(steps: list[tuple[int, int]]) -> None:
    sensor, now_ms, largest = Sensor(), 0, 0
    for value, pause_ms in steps:
        now_ms += pause_ms
        sensor.record(value, now_ms)
        largest = max(largest, value)
        assert value <= sensor.max(now_ms) <= largest
        assert sensor.rate(now_ms) * WINDOW_MS / 1_000 <= sensor.count + 1e-9
        assert sensor.sum_rate(now_ms) * WINDOW_MS / 1_000 <= sensor.total + 1e-6
    assert sensor.count == len(steps)
