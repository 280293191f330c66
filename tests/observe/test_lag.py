"""Lag in records and in time: what is known, and why the rest is not."""

from __future__ import annotations

import pytest

from kohort.observe.lag import Figure, Total, records_behind, time_behind, total, worst
from kohort.observe.snapshot import Seen

AT_7 = Seen(committed=7, first=0, stable=20, end=20, leader=1)
NOW = 100_000


def test_records() -> None:
    assert records_behind(AT_7) == Figure(13)
    assert records_behind(AT_7._replace(committed=20)) == Figure(0)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (AT_7._replace(committed=None), "nothing is committed yet"),
        (AT_7._replace(leader=None, end=None), "the partition has no leader"),
        (AT_7._replace(end=None), "its leader, broker 1, does not answer for it"),
        (AT_7._replace(exists=False), "the topic does not exist (any more)"),
        (AT_7._replace(committed=21), "the committed offset is past the log's end, 20"),
    ],
)
def test_unknown_is_not_zero(seen: Seen, reason: str) -> None:
    assert records_behind(seen) == Figure(None, reason)
    assert time_behind(seen, NOW, ends=[(1, 0), (2, 100)]) == Figure(None, reason)


def test_nothing_unread_is_no_time() -> None:
    assert time_behind(AT_7._replace(committed=20), NOW) == Figure(0)


def test_the_timestamp_of_the_record_is_exact() -> None:
    assert time_behind(AT_7, NOW, written_ms=40_000, ends=[(1, 0)]) == Figure(60_000)
    assert time_behind(AT_7, NOW, written_ms=NOW + 5) == Figure(0)


def test_history_tells_between_which_samples_it_was_written() -> None:
    ends = [(10_000, 3), (20_000, 7), (30_000, 9), (90_000, 20)]
    assert time_behind(AT_7, NOW, ends=ends) == Figure(80_000, within=10_000)


def test_nothing_is_extrapolated() -> None:
    """A record from before the history is as old as the history at least."""
    ends = [(40_000, 8), (90_000, 20)]
    expected = Figure(None, "written before the history begins", at_least=60_000)
    assert time_behind(AT_7, NOW, ends=ends) == expected
    assert time_behind(AT_7, NOW) == Figure(None, "no history yet")


def test_totals_count_what_they_lack() -> None:
    some = [Figure(3), Figure(None, "x"), Figure(4)]
    assert total(some) == Total(7, 1, True)
    assert total([Figure(None, "x")]) == Total(None, 1, True)
    assert total([]) == Total(0, 0, False)
    assert worst(some) == Total(4, 1, False)
    assert worst([Figure(3), Figure(None, "x", at_least=9)]) == Total(9, 1, True)
