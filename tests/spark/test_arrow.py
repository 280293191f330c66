"""The rows that Spark is given, as Arrow (Spark reference 1)."""

from __future__ import annotations

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    "given",
    [
        [],
        [[], []],
        [None, []],
        [[("a", b"1")], [("b", None)]],
        [[("a", b"1"), ("a", b"")], [], None, [("b", None)]],
    ],
)
@pytest.mark.parametrize("skipped", [0, 1])
def test_no_headers_are_null(given: list[Any], skipped: int) -> None:
    """As the JVM connector shows them; also of a slice."""
    from kohort.spark import arrow

    lists = [r and [{"key": k, "value": v} for k, v in r] for r in given]
    shown = arrow.none_as_null(pa.array(lists, arrow.HEADERS).slice(skipped))
    assert shown.type == arrow.HEADERS
    assert shown.to_pylist() == [r or None for r in lists[skipped:]]
