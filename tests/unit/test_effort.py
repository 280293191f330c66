"""Rows of a test that represent the others (CONTRIBUTING.md, "What runs when")."""

from __future__ import annotations

import pytest

from tests.effort import sample


def test_each_value_of_each_parameter_is_in_the_sample() -> None:
    rows = [{"seed": seed, "order": order} for order in ("key", "none", "all") for seed in range(9)]
    chosen = [rows[index] for index in sample(rows, 9)]
    assert {row["order"] for row in chosen} == {"key", "none", "all"}
    assert {row["seed"] for row in chosen} == set(range(9))


def test_a_sample_is_spread_and_the_same_each_time() -> None:
    rows = [{"name": str(number)} for number in range(100)]
    chosen = sample(rows, 10)
    assert chosen == sample(rows, 10)
    assert all(any(n // 20 == fifth for n in chosen) for fifth in range(5))
    assert sample(rows[:3], 10) == [0, 1, 2]


@pytest.mark.rows(2)
@pytest.mark.parametrize("number", range(5))
def test_other_rows_are_extended(request: pytest.FixtureRequest, number: int) -> None:
    """Planted as a mark that is never added, three of them fail."""
    kept = request.node.get_closest_marker("extended") is None
    assert kept == (number in sample([{"number": n} for n in range(5)], 2))
