"""Durations as people read them."""

from __future__ import annotations

import pytest

from kohort.config import format_elapsed


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (5_412, "5.4s"),
        (59_999, "59.9s"),
        (60_000, "1m"),
        (61_500, "1m1s"),
        (3_599_999, "59m59s"),
        (3_600_000, "1h"),
        (9_000_001, "2h30m"),
        (86_399_999, "23h59m"),
        (86_400_000, "1d"),
        (273_600_000, "3d4h"),
        (8_640_000_000, "100d"),
    ],
)
def test_how_long_something_has_lasted(ms: int, text: str) -> None:
    """Two units at most: nobody wants to read 5412ms, or count zeros."""
    assert format_elapsed(ms) == text
