"""Rows of a pipeline's sources, decoded beside the values' bytes (spec 6.2, 6.5, 6.6)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")


def made(*sources: tuple[str, str, str]) -> Any:
    """A decoder of sources by name, schema and evolution, as a worker gets it."""
    from kohort.spark.formats import Format, RowFormat, Rows, SourceRows
    from kohort.spark.formats.rows import of_option, to_option

    rows = [
        SourceRows(name, (name, f"{name}.retry"), RowFormat.of(Format("value", "json", ddl, more)))
        for name, ddl, more in sources
    ]
    assert of_option(to_option(rows)) == tuple(rows)
    return pickle.loads(pickle.dumps(Rows(of_option(to_option(rows)))))


def decoded(rows: Any, *records: tuple[str, bytes | None]) -> tuple[list[Any], list[Any]]:
    topics, values = zip(*records, strict=True)
    batch = pa.RecordBatch.from_pydict(
        {"topic": pa.array(topics), "value": pa.array(values, pa.binary())}
    )
    columns = rows.columns(batch)
    assert {name: column.type for name, column in columns.items()} == rows.types
    return tuple(column.to_pylist() for column in columns.values())  # type: ignore[return-value]


def test_each_record_is_a_row_of_its_own_source() -> None:
    """Of its retry topics, too; the other sources' rows are null, and reasons stay in place."""
    rows, errors = decoded(
        made(("a", "n INT", "ignore"), ("b", "s STRING", "ignore")),
        ("b", b'{"s": "x"}'),
        ("a", b'{"n": 1}'),
        ("a.retry", b"bad"),
        ("b", b'{"s": 1}'),
        ("a", None),
        ("other", b'{"n": 2}'),
    )
    assert [row["a"] for row in rows] == [None, {"n": 1}, None, None, None, None]
    assert [row["b"] for row in rows] == [{"s": "x"}, None, None, None, None, None]
    assert [why is not None for why in errors] == [False, False, True, True, True, False]
    assert errors[3:5] == ["field s is not text", "the value is null"]


def test_what_the_columns_lack_is_rescued() -> None:
    rows, errors = decoded(
        made(("a", "n INT", "rescue")),
        ("a", b'{"n": 1, "x": 2}'),
        ("a", b'{"n": 1}'),
        ("a", b"bad"),
    )
    assert [row["a"] for row in rows] == [
        {"n": 1, "_rescued": '{"x": 2}'},
        {"n": 1, "_rescued": None},
        None,
    ]
    assert errors[:2] == [None, None]
    assert errors[2].startswith("not JSON")
