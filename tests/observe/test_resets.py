"""Places of a reset: none is taken for another, none is outside the log (spec 8.2)."""

from __future__ import annotations

import pytest

from kohort import TopicPartition
from kohort.errors import ConfigError, UsageError
from kohort.observe.resets import Place, again_and_skipped, parse_place, targets

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place("earliest")),
        ("42", Place("offset", 42)),
        ("-10", Place("last", 10)),
        ("shift:+5", Place("shift", 5)),
        ("shift:-5", Place("shift", -5)),
        ("@-2h", Place("time", 0, 10_000_000 - 7_200_000)),
        ("@1970-01-01T00:00:01", Place("time", 0, 1_000)),
    ],
)
def test_how_places_are_written(text: str, place: Place) -> None:
    assert parse_place(text, 10_000_000) == place


@pytest.mark.parametrize("text", ["", "never", "+5", "shift:", "--5", "@yesterday", "1" * 19])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_place(text, 0)


def test_targets() -> None:
    at, firsts, ends = {A: 50, B: 10}, {A: 20, B: 0}, {A: 100, B: 10}

    def to(place: Place, times: dict[TopicPartition, int] | None = None) -> list[int]:
        return list(targets(place, at, firsts, ends, times or {}).values())

    assert to(Place("earliest")) == [20, 0]
    assert to(Place("latest")) == [100, 10]
    assert to(Place("last", 30)) == [70, 0]
    assert to(Place("shift", -40)) == [20, 0]
    assert to(Place("shift", 3)) == [53, 10]
    assert to(Place("time", time_ms=5), {A: 33}) == [33, 10]
    with pytest.raises(UsageError, match="t-1"):
        to(Place("offset", 40))
    assert list(targets(Place("latest"), at, {A: 0}, {A: 9}, {})) == [A]


@pytest.mark.parametrize(
    ("current", "new", "figures"),
    [
        (50, 20, (30, 0)),
        (20, 50, (0, 30)),
        (5, 10, (0, 0)),
        (5, 40, (0, 30)),
        (900, 100, (0, 0)),
        (900, 10, (90, 0)),
        (50, 900, (0, 50)),
    ],
)
def test_what_is_not_in_the_log_is_neither_read_again_nor_skipped(
    current: int, new: int, figures: tuple[int, int]
) -> None:
    assert again_and_skipped(current, new, first=10, end=100) == figures
