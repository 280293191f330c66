"""JSON Schema with a registry, and Debezium's change events (spec 6.6)."""

from __future__ import annotations

import json
import struct
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
