"""How much of what a test explores belongs to `make test`; `make test-all` does the rest.

A world, a history or a mutation more shows the same promise again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

EXPLORE = "KOHORT_EXPLORE" in os.environ


def seeds(quick: int, every: int) -> list[Any]:
    """Parameters 0 to `every`; from `quick` on they are `extended`."""
    more = (pytest.param(seed, marks=pytest.mark.extended) for seed in range(quick, every))
    return [*range(quick), *more]


def chiefly(quick: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Parameters, all of them; those that are not quick are `extended`."""
    quick = list(quick)
    return [one if one in quick else pytest.param(one, marks=pytest.mark.extended) for one in every]


def examples(every: int) -> int:
    """How many examples of a property: a third, and every one where KOHORT_EXPLORE is set."""
    return every if EXPLORE else every // 3
