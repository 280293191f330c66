"""The rows that Spark is given, as Arrow (spec 6.7)."""

from __future__ import annotations

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [[], []],
        [None, []],
        [[("a", b"1")], [("b", None)]],
        [[("a", b"1"), ("a", b"")], [], None, [("b", None)]],
    ],
)
@pytest.mark.parametrize("skipped", [0, 1])
def test_no_headers_are_null(headers: list[Any], skipped: int) -> None:
    """As the JVM connector shows them; also of a slice."""
    from kohort.spark import arrow

    lists = [r and [{"key": k, "value": v} for k, v in r] for r in headers]
    shown = arrow.none_as_null(pa.array(lists, arrow.HEADERS).slice(skipped))
    assert shown.type == arrow.HEADERS
    assert shown.to_pylist() == [r or None for r in lists[skipped:]]


def test_range_markers_carry_the_plan_of_a_task() -> None:
    from kohort.spark import arrow
    from kohort.spark.offsets import Range

    spans = [
        Range("t", 1, 5, 9, "id", True, 1_700_000_000_123),
        Range("u", 0, 0, 2, "", False),
    ]
    assert arrow.read_markers(arrow.markers(spans)) == spans
