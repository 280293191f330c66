"""JSON values as Arrow columns (spec 6.5, 6.6): no record changes what becomes of another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples

pa = pytest.importorskip("pyarrow")

SCHEMA = (
    "id BIGINT, name STRING, price DOUBLE, ok BOOLEAN, day DATE, at TIMESTAMP, data BINARY, "
    "total DECIMAL(10,2), small TINYINT, deep STRUCT<x: INT, tags: ARRAY<STRING>>"
)
WITH_A_MAP = f"{SCHEMA}, more MAP<STRING, STRUCT<n: INT>>"
"""Values of such a type are parsed by another parser, which takes and refuses the same."""
GOOD = (
    b'{"id": 1, "name": "a", "price": 1, "ok": true, "day": "2026-01-02"}',
    b'{"at": "2026-01-02T03:04:05Z", "data": "aGk=", "total": 12.50, "small": -3}',
    b'{"at": "2026-01-02 03:04:05+02:00", "total": "0.5", "deep": {"x": 1, "tags": ["a", null]}}',
    b' {"at": "2026-01-02T03:04:05.5",\n "deep": null, "other": [1, {"b": 2}]} \n',
    b"{}",
    b'{"name": "\\u00e9\xc3\xa9", "deep": {}, "price": -1.5e3}',
    b'{"at": "2026-01-02T03:04:05.123456789Z"}',
    b'{"at": "2026-01-02T03:04:05.1234567-02:00"}',
    b'{"at": "1969-12-31T23:59:59.9999999"}',
    b'{"at": "2026-01-02"}',
    b'{"at": "2026-01-02t03:04:05z"}',
    b'{"at": "2026-01-02T03-05"}',
)
BAD = {
    b"": "not JSON",
    b"nope": "not JSON",
    b"null": "not a JSON object",
    b"[1]": "not a JSON object",
    b"{}{}": "not JSON",
    b'{"id": 1},"x":{"id": 2}': "not JSON",
    b'{"id": 1': "not JSON",
    b'"}': "not JSON",
    b',"id":2}': "not JSON",
    b'{"id": "1"}': "field id is not a whole number",
    b'{"id": 1.0}': "field id is not a whole number",
    b'{"id": true}': "field id is not a whole number",
    b'{"id": 12345678901234567890}': "12345678901234567890|too large",
    b'{"small": 300}': "300",
    b'{"ok": 1}': "field ok is not true or false",
    b'{"name": 5}': "field name is not text",
    b'{"deep": {"tags": ["a", 1]}}': r"field deep.tags\[\] is not text",
    b'{"deep": 1}': "field deep is not a JSON object",
    b'{"day": "yesterday"}': "yesterday",
    b'{"at": "soon"}': "soon",
    b'{"data": "%"}': "base64",
    b'{"total": 1.255}': "1.255|data loss",
    b'{"name": "\xff"}': "utf-8",
    b'{"name": "a\nb"}': "not JSON",
    b'{"name": "\\ud800"}': "surrogate",
    b'{"id": 1, "id": 2}': "twice",
}


def decoder(unknown: str = "ignore", schema: str = SCHEMA) -> Any:
    from kohort.spark.formats import Format, decoder_of

    return decoder_of(Format("value", "json", schema, unknown))


def column(values: list[bytes | None]) -> Any:
    return pa.array(values, pa.binary())


@pytest.mark.parametrize("schema", [SCHEMA, WITH_A_MAP])
def test_values_become_typed_columns(schema: str) -> None:
    decoded = decoder(schema=schema).decode(column(list(GOOD)))
    rows = decoded.values.to_pylist()
    assert decoded.errors is None
    assert decoded.rescued is None
    assert (rows[0]["id"], rows[0]["price"], str(rows[0]["day"])) == (1, 1.0, "2026-01-02")
    assert [str(row["at"]) for row in rows[1:4]] == [
        "2026-01-02 03:04:05+00:00",
        "2026-01-02 01:04:05+00:00",
        "2026-01-02 03:04:05.500000+00:00",
    ]
    assert (rows[1]["data"], str(rows[1]["total"]), rows[1]["small"]) == (b"hi", "12.50", -3)
    assert rows[2]["deep"] == {"x": 1, "tags": ["a", None]}
    assert rows[4] == dict.fromkeys(rows[4])
    assert rows[5]["name"] == "éé"
    assert [str(row["at"]) for row in rows[6:]] == [
        "2026-01-02 03:04:05.123456+00:00",
        "2026-01-02 05:04:05.123456+00:00",
        "1969-12-31 23:59:59.999999+00:00",
        "2026-01-02 00:00:00+00:00",
        "2026-01-02 03:04:05+00:00",
        "2026-01-02 08:00:00+00:00",
    ]
    assert decoded.values.type == decoder(schema=schema).type


def test_a_time_without_zone_takes_no_zone() -> None:
    texts = ["2026-01-02T03:04:05.123456789", "2026-01-02t03:04", "2026-01-02", "2026-01-02T03Z"]
    values = column([json.dumps({"at": text}).encode() for text in texts])
    decoded = decoder(schema="at TIMESTAMP_NTZ").decode(values)
    assert [row and str(row["at"]) for row in decoded.values.to_pylist()] == [
        "2026-01-02 03:04:05.123456",
        "2026-01-02 03:04:00",
        "2026-01-02 00:00:00",
        None,
    ]
    assert "expected no zone offset" in decoded.errors[3].as_py()


@pytest.mark.parametrize("schema", [SCHEMA, WITH_A_MAP])
@pytest.mark.parametrize("value", BAD, ids=repr)
def test_what_does_not_decode_says_why(value: bytes, schema: str) -> None:
    decoded = decoder(schema=schema).decode(column([value]))
    assert decoded.values.to_pylist() == [None]
    assert decoded.errors is not None
    with pytest.raises(ValueError, match=BAD[value]):
        raise ValueError(decoded.errors[0].as_py())


@settings(max_examples=examples(30))
@given(st.lists(st.sampled_from([*GOOD, *BAD, None]), max_size=12), st.booleans())
def test_a_record_never_changes_what_becomes_of_another(
    values: list[bytes | None], with_a_map: bool
) -> None:
    """In a batch each value is what it is alone; a tombstone is a null row without an error."""
    reading = decoder(schema=WITH_A_MAP if with_a_map else SCHEMA)
    together = reading.decode(column(values))
    alone = [reading.decode(column([value])) for value in values]
    assert together.values.to_pylist() == [a.values[0].as_py() for a in alone]
    errors = [None] * len(values) if together.errors is None else together.errors.to_pylist()
    assert errors == [a.errors and a.errors[0].as_py() for a in alone]
    for value, error in zip(values, errors, strict=True):
        assert (error is not None) == (value in BAD)


@settings(max_examples=examples(50))
@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"{}", b'{"id":', b"}"]), max_size=6))
def test_hostile_bytes_never_shift_their_neighbours(values: list[bytes]) -> None:
    mixed: list[bytes | None] = []
    for number, value in enumerate(values):
        mixed += [value, b'{"id": %d}' % number]
    rows = decoder(schema="id BIGINT").decode(column(mixed)).values.to_pylist()
    assert [row["id"] for row in rows[1::2]] == list(range(len(values)))


def test_a_slice_is_decoded_as_its_rows() -> None:
    whole = column([None, b"x", *GOOD, b"y", None])
    decoded = decoder().decode(whole.slice(1, 4))
    assert (
        decoded.values.to_pylist()[1:]
        == decoder().decode(column(list(GOOD[:3]))).values.to_pylist()
    )
    assert [e is not None for e in decoded.errors.to_pylist()] == [True, False, False, False]


def test_unknown_fields_are_the_records_error_when_asked_for() -> None:
    """`schemaEvolution=fail`, in nested structs, too."""
    values = column([b'{"id": 1}', b'{"id": 2, "new": 1}', b'{"deep": {"new": 1}}'])
    decoded = decoder("fail").decode(values)
    assert [r and r["id"] for r in decoded.values.to_pylist()] == [1, None, None]
    assert decoded.errors.to_pylist() == [
        None,
        "field new is not in the schema",
        "field deep.new is not in the schema",
    ]


def test_unknown_fields_are_rescued_as_json() -> None:
    """`schemaEvolution=rescue`: what the schema lacks, at its place."""
    values = column(
        [
            b'{"id": 1}',
            None,
            b"bad",
            b'{"id": 2, "new": {"a": "\xc3\xa9"}}',
            b'{"deep": {"x": 1, "y": [2]}}',
        ]
    )
    decoded = decoder("rescue").decode(values)
    assert [r and r["id"] for r in decoded.values.to_pylist()] == [1, None, None, 2, None]
    rescued = [text and json.loads(text) for text in decoded.rescued.to_pylist()]
    assert rescued == [None, None, None, {"new": {"a": "é"}}, {"deep": {"y": [2]}}]
    assert decoder("rescue").decode(column([b'{"id": 1}'])).rescued is None


def test_objects_become_maps() -> None:
    """Keys in their order; what a value of the map lacks is null, what it has more is rescued."""
    values = column([b'{"more": {"b": {"n": 1}, "a": {"x": 2}, "c": null}}', b'{"more": null}'])
    decoded = decoder("rescue", WITH_A_MAP).decode(values)
    assert decoded.errors is None
    maps = [row["more"] for row in decoded.values.to_pylist()]
    assert maps == [[("b", {"n": 1}), ("a", {"n": None}), ("c", None)], None]
    assert json.loads(decoded.rescued[0].as_py()) == {"more": {"a": {"x": 2}}}
    bad = decoder(schema=WITH_A_MAP).decode(
        column([b'{"more": {"a": {"n": "x"}}}', b'{"more": 1}'])
    )
    assert bad.errors.to_pylist() == [
        "field more.a.n is not a whole number",
        "field more is not a JSON object",
    ]


def test_a_map_of_other_keys_is_refused_before_anything_is_read() -> None:
    from kohort.errors import ConfigError

    with pytest.raises(ConfigError, match=r"deep\.m: the names in a JSON object are text"):
        decoder(schema="deep STRUCT<m: MAP<INT, INT>>")


def test_a_decoder_is_sent_to_executors() -> None:
    import pickle

    sent = pickle.loads(pickle.dumps(decoder("rescue")))
    assert sent.decode(column([b'{"id": 5}'])).values[0].as_py()["id"] == 5
