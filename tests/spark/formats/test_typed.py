"""The columns of records whose keys and values are decoded (spec 6.5, 6.6)."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ConfigError, DeserializationError

pa = pytest.importorskip("pyarrow")
SERVERS = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}


def batch(keys: list[bytes | None], values: list[bytes | None]) -> Any:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(100, 100 + count), pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


def options(**source_options: str) -> Any:
    from kohort.spark.options import parse_source

    return parse_source({**SERVERS, **source_options}, streaming=True)


def test_what_fails_is_a_row_with_reason_and_bytes() -> None:
    from kohort.spark.formats import Typed

    formats = options(
        valueFormat="json", valueSchema="n INT", keyFormat="json", keySchema="k STRING"
    ).formats
    assert formats.columns == ("_error", "_raw_key", "_raw_value")
    keys = [b'{"k": "a"}', b"bad", b"bad", None]
    found = Typed(formats).columns(batch(keys, [b'{"n": 1}', b'{"n": 2}', b"x", None]))
    assert found["value"].to_pylist() == [{"n": 1}, {"n": 2}, None, None]
    assert found["key"].to_pylist() == [{"k": "a"}, None, None, None]
    errors = found["_error"].to_pylist()
    assert (errors[0], errors[3]) == (None, None)
    assert errors[1].startswith("key: not JSON")
    assert "; value: not JSON" in errors[2]
    assert found["_raw_key"].to_pylist() == [None, b"bad", b"bad", None]
    assert found["_raw_value"].to_pylist() == [None, None, b"x", None]
    assert set(found) == set(Typed(formats).types)


def test_without_errors_the_columns_beside_are_null() -> None:
    from kohort.spark.formats import Typed

    formats = options(valueFormat="json", valueSchema="n INT", schemaEvolution="rescue").formats
    found = Typed(formats).columns(batch([None], [b'{"n": 1}']))
    assert formats.columns == ("_rescued", "_error", "_raw_value")
    assert [found[name].to_pylist() for name in formats.columns] == [[None]] * 3
    assert {name: found[name].type for name in found} == Typed(formats).types


def test_failfast_names_the_record() -> None:
    from kohort.spark.formats import Typed

    formats = options(valueFormat="json", valueSchema="n INT", mode="failfast").formats
    assert formats.columns == ()
    with pytest.raises(DeserializationError, match="t/3: the value of record 101 does not decode"):
        Typed(formats).columns(batch([None] * 3, [b'{"n": 1}', b"x", b"y"]))


@pytest.mark.parametrize(
    ("source_options", "message"),
    [
        ({"valueFormat": "jsn", "valueSchema": "n INT"}, "did you mean 'json'"),
        ({"valueFormat": "json"}, "needs valueSchema"),
        ({"valueSchema": "n INT"}, "needs valueFormat"),
        ({"mode": "PERMISSIVE"}, "give valueFormat"),
        (
            {"valueFormat": "json", "valueSchema": "n INT", "mode": "DROPMALFORMED"},
            "lose records silently",
        ),
        ({"valueFormat": "json", "valueSchema": "n INT", "mode": "x"}, "PERMISSIVE or FAILFAST"),
        ({"valueFormat": "json", "valueSchema": "n INT", "rangeMarkers": "true"}, "pipelines"),
        ({"valueFormat": "avro"}, "or schemaRegistry"),
        (
            {"valueFormat": "debezium", "valueSchema": "n INT", "schemaEvolution": "fail"},
            "for json",
        ),
        ({"valueFormat": "avro", "schemaRegistry": "http://r", "subscribe": "a,b"}, "valueSubject"),
        (
            {"valueFormat": "avro", "schemaRegistry": "http://r", "schemaEvolution": "rescue"},
            "json",
        ),
        ({"valueFormat": "json", "valueSchema": "n INT", "schemaEvolution": "widen"}, "for avro"),
        ({"keySubject": "k"}, "needs keyFormat"),
        ({"schemaRegistry": "http://r"}, "give valueFormat"),
        ({"valueFormat": "json", "valueSchema": "n INT", "columns": "_rescued"}, "_raw_value"),
    ],
)
def test_what_cannot_be_is_refused(source_options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options(**source_options)


def test_the_subject_is_that_of_the_only_topic() -> None:
    formats = options(valueFormat="avro", schemaRegistry="http://u:p@r").formats
    assert formats.value.subject == "t-value"
    assert "u:p" not in repr(formats)


def test_columns_chooses_among_them() -> None:
    chosen = options(valueFormat="json", valueSchema="n INT", columns="_error,value,offset")
    assert chosen.shown_columns == ("value", "offset", "_error")
