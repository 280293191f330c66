"""How much of what a test explores belongs to `make test`; `make test-all` does the rest.

A world, a history or a mutation more shows the same promise again. `@pytest.mark.rows(4)` leaves
four rows of a test in `make test`; the others become `extended`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

EXPLORE = "KOHORT_EXPLORE" in os.environ
EVERY_EXAMPLE = EXPLORE or "KOHORT_EVERY_EXAMPLE" in os.environ
_GOLDEN = 0.618033988749895


def chiefly(quick: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Parameters, all of them; those that are not quick are `extended`."""
    quick = list(quick)
    return [one if one in quick else pytest.param(one, marks=pytest.mark.extended) for one in every]


def examples(every: int) -> int:
    """How many examples of a property: a fifth, and all of them in `make test-all` and nightly."""
    return every if EVERY_EXAMPLE else max(10, every // 5)


def sample(rows: Sequence[Mapping[str, object]], count: int) -> list[int]:
    """Which rows represent all: each value of each parameter once, as far as `count` allows.

    Args:
        rows: the parameters of each row, by name.
        count: how many rows to choose.

    Returns:
        Their indices, in order. The same rows give the same choice; apart from new values, it is
        spread evenly.
    """
    chosen: list[int] = []
    seen: set[tuple[str, int]] = set()
    left = list(range(len(rows)))
    while left and len(chosen) < count:

        def rank(index: int) -> tuple[int, float]:
            new = sum((name, id(value)) not in seen for name, value in rows[index].items())
            return -new, index * _GOLDEN % 1

        best = min(left, key=rank)
        left.remove(best)
        chosen.append(best)
        seen.update((name, id(value)) for name, value in rows[best].items())
    return sorted(chosen)


def extend(items: Iterable[pytest.Item]) -> None:
    """Mark what `@pytest.mark.rows` leaves out of `make test`."""
    tests: defaultdict[object, list[pytest.Function]] = defaultdict(list)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        rest = {"extended", "nightly"}
        if isinstance(item, pytest.Function) and "rows" in marks and marks.isdisjoint(rest):
            tests[item.parent, item.originalname].append(item)
    for rows in tests.values():
        mark = rows[0].get_closest_marker("rows")
        assert mark is not None
        kept = sample([row.callspec.params for row in rows], *mark.args)
        for index in set(range(len(rows))).difference(kept):
            rows[index].add_marker(pytest.mark.extended)
