"""Trends and histories: nothing is made of samples that do not tell (spec 8.3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kohort.observe.trend import Direction, Ends, Sample, Series, trend


def sample(at_s: float, lag: int | None, written: int = 0, done: int = 0) -> Sample:
    return Sample(round(at_s * 1000), lag, None, written, done)


def test_a_lag_that_grows() -> None:
    found = trend([sample(0, 100, 1_000, 900), sample(60, 700, 2_200, 1_500)])
    assert found.direction is Direction.GROWING
    assert (found.per_s, found.written_per_s, found.done_per_s) == (10.0, 20.0, 10.0)
    assert found.caught_up_in_ms is None


def test_a_lag_that_shrinks_says_when_it_is_gone() -> None:
    found = trend([sample(0, 900), sample(60, 300)])
    assert found.direction is Direction.SHRINKING
    assert found.caught_up_in_ms == 30_000


def test_a_lag_that_hardly_changes_is_steady() -> None:
    assert trend([sample(0, 10_000), sample(60, 10_100)]).direction is Direction.STEADY


def test_what_does_not_tell_has_a_reason_and_no_figure() -> None:
    for samples, reason in (
        ([], "no sample yet"),
        ([sample(0, 5), sample(60, None)], "not known"),
        ([sample(0, 5), sample(3, 500)], "too short"),
    ):
        found = trend(samples)
        assert found.direction is Direction.UNKNOWN
        assert reason in found.reason
        assert found.per_s is found.caught_up_in_ms is None


def test_only_the_window_counts() -> None:
    found = trend([sample(0, 0), sample(1_000, 5_000), sample(1_060, 4_000)], window_ms=100_000)
    assert found.direction is Direction.SHRINKING


@given(st.lists(st.integers(1, 50), max_size=600))
def test_a_series_is_bounded_and_keeps_first_and_last(steps: list[int]) -> None:
    series, at_ms = Series(most=16), 0
    for step in steps:
        at_ms += step
        series.add(Sample(at_ms, step, None, None, None))
    assert len(series.samples) <= 16
    times = [s.at_ms for s in series.samples]
    assert times == sorted(set(times))
    if steps:
        assert times[0] == steps[0]
        assert times[-1] == sum(steps)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=300))
def test_ends_never_lie(steps: list[tuple[int, int]]) -> None:
    """Thinned or not: at each kept moment the log ended where the point says."""
    ends, at_ms, end, truth = Ends(most=8), 0, 0, {}
    for step, more in steps:
        at_ms, end = at_ms + step, end + more
        truth[at_ms] = end
        ends.add(at_ms, end)
    assert len(ends.points) <= 8
    assert all(truth[at] == e for at, e in ends.points)
    if truth:
        assert ends.points[0][0] == min(truth)
        assert ends.points[-1] == (at_ms, end)


def test_a_log_that_ends_earlier_begins_its_history_again() -> None:
    ends = Ends()
    ends.add(1, 100)
    ends.add(2, 5)
    assert ends.points == [(2, 5)]
