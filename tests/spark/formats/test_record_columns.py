"""Headers and timestamps of records as Arrow columns."""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")

from kohort.spark.formats import record_columns  # noqa: E402

HEADERS = [[("a", b"1"), ("b", None)], [], [("a", b""), ("a", b"2")]]


def test_headers_go_into_a_column_and_back() -> None:
    column = record_columns.header_column(HEADERS)
    assert column.type == record_columns.HEADERS
    assert column.to_pylist() == [[{"key": k, "value": v} for k, v in row] for row in HEADERS]
    assert record_columns.header_lists(column) == HEADERS
    assert record_columns.header_lists(column.slice(1)) == HEADERS[1:]
    assert (
        record_columns.header_lists(pa.chunked_array([column, column.slice(2)]))
        == HEADERS + HEADERS[2:]
    )
    assert record_columns.header_column([]).type == record_columns.HEADERS


def test_null_headers_are_none() -> None:
    column = pa.array([None, [{"key": "a", "value": b"1"}], None], record_columns.HEADERS)
    assert record_columns.header_lists(column) == [[], [("a", b"1")], []]
    assert record_columns.header_lists(column.slice(2)) == [[]]


def test_times_are_whole_milliseconds() -> None:
    times = pa.array([0, 1_700_000_000_123_999, None], record_columns.TIMESTAMP)
    assert record_columns.milliseconds(times) == [0, 1_700_000_000_123, -1]
