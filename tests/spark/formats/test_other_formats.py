"""JSON Schema with a registry, and Debezium's change events (spec 6.6)."""

from __future__ import annotations

import json
import re
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from kohort.errors import ConfigError
from tests.known import known
from tests.serdes.fake_registry import running

pa = pytest.importorskip("pyarrow")

ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "day": {"type": "string", "format": "date"},
        "at": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "to": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "either": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        "free": {"type": "object"},
        "ok": {"type": "boolean"},
    },
}


def test_a_json_schema_gives_the_columns() -> None:
    from kohort.spark.formats import ddl_of
    from kohort.spark.formats.json_schema import type_of

    assert ddl_of(type_of(json.dumps(ORDER))) == (
        "STRUCT<`id`: BIGINT, `price`: DOUBLE, `day`: DATE, `at`: TIMESTAMP, `raw`: BINARY, "
        "`to`: STRUCT<`city`: STRING>, `tags`: ARRAY<STRING>, `ok`: BOOLEAN>"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope", "no JSON Schema"),
        ('{"type": "string"}', "named properties"),
        ('{"$ref": "#/$defs/gone"}', "no JSON Schema"),
        ('{"$ref": "http://elsewhere/schema"}', "named properties"),
        ('{"$ref": "#"}', "named properties"),
    ],
)
def test_what_gives_no_columns_is_refused(text: str, message: str) -> None:
    from kohort.spark.formats.json_schema import type_of

    with pytest.raises(ConfigError, match=message):
        type_of(text)


def test_json_in_a_registrys_format() -> None:
    from kohort.spark.formats import Format, decoder_of

    with running() as registry:
        registry.add("t-value", {"schema": json.dumps(ORDER), "schemaType": "JSON"})
        registry.add("avro", {"schema": '"string"'})
        at: dict[str, Any] = {"registry": registry.url, "evolution": "rescue"}
        decoder = decoder_of(Format("value", "json", None, subject="t-value", **at))
        head = struct.pack(">bI", 0, 1)
        column = pa.array(
            [
                head + b'{"id": 1, "free": {"x": 1}}',
                None,
                b'{"id": 2}',
                b"\0",
                head + b"bad",
                head + b'{"id": 3}',
            ],
            pa.binary(),
        )
        for found in (decoder.decode(column), decoder.decode(column.slice(0, 6))):
            assert [r and r["id"] for r in found.values.to_pylist()] == [
                1,
                None,
                None,
                None,
                None,
                3,
            ]
            errors = known(found.errors).to_pylist()
            assert [e is not None for e in errors] == [False, False, True, True, True, False]
            assert "does not begin as a schema registry's" in errors[2]
            assert known(found.rescued).to_pylist() == ['{"free": {"x": 1}}', *[None] * 5]
        assert decoder.decode(column.slice(0, 2)).errors is None
        with pytest.raises(ConfigError, match="of kind AVRO, not JSON"):
            decoder_of(Format("value", "json", None, subject="avro", **at))


def test_change_events_with_and_without_their_schema() -> None:
    """A tombstone is a null row; what is no change event is the record's error."""
    from kohort.spark.formats import Format, decoder_of

    decoder = decoder_of(Format("value", "debezium", "id BIGINT, name STRING"))
    change = {
        "before": None,
        "after": {"id": 1, "name": "a"},
        "op": "c",
        "ts_ms": 5,
        "source": {"db": "shop", "table": "users", "lsn": 9},
        "transaction": None,
    }
    deleted = {"before": {"id": 1, "name": "a"}, "after": None, "op": "d", "ts_ms": 6}
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": deleted}
    values = [json.dumps(change).encode(), json.dumps(wrapped).encode(), None, b"bad"]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    first, second, tombstone, bad = decoded.values.to_pylist()
    assert (first["after"], first["op"], first["before"]) == ({"id": 1, "name": "a"}, "c", None)
    assert (first["source"]["db"], first["source"]["table"]) == ("shop", "users")
    assert (second["before"], second["op"], second["ts_ms"]) == ({"id": 1, "name": "a"}, "d", 6)
    assert (second["after"], tombstone, bad) == (None, None, None)
    assert [e is not None for e in known(decoded.errors).to_pylist()] == [False, False, False, True]
    assert decoded.values.type == decoder.type


def change(**row: Any) -> dict[str, Any]:
    return {"before": None, "after": row, "op": "c"}


def wrapped(event: dict[str, Any]) -> bytes:
    return json.dumps({"schema": {"type": "struct", "fields": []}, "payload": event}).encode()


def decoded_changes(ddl: str, *values: bytes) -> Any:
    from kohort.spark.formats import Format, decoder_of

    decoder = decoder_of(Format("value", "debezium", ddl))
    return decoder.decode(pa.array(values, pa.binary()))


def test_times_and_decimals_that_debezium_writes_as_text() -> None:
    """With isostring a day names the zone UTC, as everything does."""
    row = {
        "day": "2017-09-15Z",
        "at": "2019-07-09T02:28:57.1234Z",
        "price": "1.50",
        "days": ["2017-09-15Z"],
    }
    ddl = "day DATE, at TIMESTAMP, price DECIMAL(10,2), days ARRAY<DATE>"
    values = json.dumps(change(**row)).encode(), wrapped(change(**{**row, "day": "2017-09-15"}))
    decoded = decoded_changes(ddl, *values)
    assert decoded.errors is None
    expected = {
        "day": date(2017, 9, 15),
        "at": datetime(2019, 7, 9, 2, 28, 57, 123400, UTC),
        "price": Decimal("1.50"),
        "days": [date(2017, 9, 15)],
    }
    assert decoded.values.field("after").to_pylist() == [expected] * 2


TIMES = r"time\.precision\.mode=isostring"
DECIMALS = r"decimal\.handling\.mode=string"


@pytest.mark.parametrize(
    ("row", "field", "setting"),
    [
        ({"day": 17424}, "day", TIMES),
        ({"at": 1562639337123400}, "at", TIMES),
        ({"local": 1562639337123400}, "local", TIMES),
        ({"price": "AJY="}, "price", DECIMALS),
        ({"price": {"scale": 2, "value": "AJY="}}, "price", DECIMALS),
        ({"days": [None, 17424]}, r"days\[\]", TIMES),
        ({"by": {"name": {"day": 17424}}}, r"by\.name\.day", TIMES),
    ],
)
def test_the_error_of_a_change_names_debeziums_setting(
    row: dict[str, Any], field: str, setting: str
) -> None:
    """By default times are numbers and decimals base64, which their columns do not take."""
    ddl = (
        "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(10,2), days ARRAY<DATE>, "
        "by MAP<STRING, STRUCT<day: DATE>>"
    )
    deleted = {"before": row, "op": "d"}
    for schema in (ddl, ddl.partition(", by ")[0]) if "by" not in row else (ddl,):
        values = json.dumps(change(**row)).encode(), wrapped(change(**row)), wrapped(deleted)
        errors = known(decoded_changes(schema, *values).errors).to_pylist()
        for place, error in zip(("after", "payload.after", "payload.before"), errors, strict=True):
            assert re.search(rf"; Debezium writes field {place}\.{field} .*{setting}", error), error


@pytest.mark.parametrize(
    "value",
    [
        b"bad",
        b"[]",
        b'{"after": 1}',
        b'{"after": {"day": "no day"}}',
        b'{"after": {"day": true}}',
        b'{"after": {"price": "a price"}}',
        b'{"after": {"price": [1]}}',
        b'{"payload": [1]}',
    ],
)
def test_other_errors_of_a_change_name_no_setting(value: bytes) -> None:
    [error] = known(decoded_changes("day DATE, price DECIMAL(10,2)", value).errors).to_pylist()
    assert "Debezium" not in error


@pytest.mark.parametrize("format_", ["json", "debezium"])
@pytest.mark.parametrize(
    "ddl", ["{}", "a STRUCT<b: {}>", "a ARRAY<{}>", "a MAP<STRING, {}>"], ids=["", "in", "of", "by"]
)
def test_json_has_no_intervals(format_: str, ddl: str) -> None:
    from kohort.spark.formats import Format, decoder_of

    interval = "INTERVAL DAY TO SECOND"
    schema = ddl.format(interval) if "a " in ddl else f"a {interval}"
    with pytest.raises(ConfigError, match=r"a.*: JSON has no intervals: .*BIGINT or STRING"):
        decoder_of(Format("value", format_, schema))
