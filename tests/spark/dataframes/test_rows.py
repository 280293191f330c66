"""Rows with hidden columns as records and verdicts."""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow")

from kohort.spark.dataframes import rows  # noqa: E402
from kohort.spark.formats import record_columns  # noqa: E402

ORIGIN = {
    "topic": pa.array(["t", "u"]),
    "partition": pa.array([0, 3], pa.int32()),
    "offset": pa.array([7, 8], pa.int64()),
    "timestamp": pa.array([1_000_000, None], record_columns.TIMESTAMP),
    "timestampType": pa.array([0, 1], pa.int32()),
    "key": pa.array([b"k", None], pa.binary()),
}


def test_records_without_values_and_headers() -> None:
    assert list(rows.records(ORIGIN)) == [
        ("t", 0, 7, 1000, 0, b"k", None, []),
        ("u", 3, 8, -1, 1, None, None, []),
    ]


def test_records_of_a_struct_with_values_and_headers() -> None:
    columns = {
        **ORIGIN,
        "value": pa.array([b"v", b""], pa.binary()),
        "headers": record_columns.header_column([[("h", b"1")], []]),
    }
    struct = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    assert list(rows.records(rows.fields_of(struct.slice(1)))) == [
        ("u", 3, 8, -1, 1, None, b"", [])
    ]
    first, _ = rows.records(rows.fields_of(pa.chunked_array([struct])))
    assert first == ("t", 0, 7, 1000, 0, b"k", b"v", [("h", b"1")])


def test_verdicts() -> None:
    column = pa.array(
        [
            {"permanent": True, "reason": "no_airport", "message": "XYZ"},
            {"permanent": False, "reason": "late", "message": None},
        ]
    )
    assert list(rows.verdicts(column)) == [(True, "no_airport", "XYZ"), (False, "late", "")]
