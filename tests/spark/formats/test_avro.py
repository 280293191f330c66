"""Avro values as Arrow columns (spec 6.5, 6.6), by `fastavro`, which writes and reads them, too."""

from __future__ import annotations

import io
import json
import pickle
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.errors import ConfigError, ConnectionFailedError
from tests.effort import examples
from tests.known import known
from tests.serdes.fake_registry import Registry, running

pa = pytest.importorskip("pyarrow")
fastavro = pytest.importorskip("fastavro")
pytest.importorskip("kohort.spark.formats._avro")

EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "namespace": "a.b",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": "string"},
        {"name": "real", "type": "double"},
        {"name": "single", "type": "float"},
        {"name": "ok", "type": "boolean"},
        {"name": "maybe", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micros", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
        {"name": "raw", "type": "bytes"},
        {"name": "numbers", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "either", "type": ["null", "int", "string"]},
        {"name": "wide", "type": ["int", "long"]},
        {
            "name": "money",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {
            "name": "deep",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Deep",
                    "fields": [
                        {"name": "x", "type": "int"},
                        {"name": "again", "type": "Colour"},
                        {
                            "name": "items",
                            "type": {
                                "type": "array",
                                "items": {
                                    "type": "record",
                                    "name": "Item",
                                    "fields": [{"name": "n", "type": "string"}],
                                },
                            },
                        },
                    ],
                },
            ],
        },
    ],
}
DDL = (
    "STRUCT<`id`: BIGINT, `text`: STRING, `real`: DOUBLE, `single`: FLOAT, `ok`: BOOLEAN, "
    "`maybe`: STRING, `at`: TIMESTAMP, `micros`: TIMESTAMP, `day`: DATE, `colour`: STRING, "
    "`code`: BINARY, `raw`: BINARY, `numbers`: ARRAY<INT>, `counts`: MAP<STRING, BIGINT>, "
    "`either`: STRUCT<`member0`: INT, `member1`: STRING>, `wide`: BIGINT, `money`: DECIMAL(10,2), "
    "`deep`: STRUCT<`x`: INT, `again`: STRING, `items`: ARRAY<STRUCT<`n`: STRING>>>>"
)
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(  # noqa: DTZ001
    lambda at: at.replace(tzinfo=UTC, microsecond=at.microsecond // 1000 * 1000)
)
VALUES = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "text": st.text(max_size=5),
        "real": st.floats(width=64),
        "single": st.floats(width=32),
        "ok": st.booleans(),
        "maybe": st.none() | st.text(max_size=5),
        "at": TIMES,
        "micros": TIMES,
        "day": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
        "colour": st.sampled_from(["RED", "BLUE"]),
        "code": st.binary(min_size=3, max_size=3),
        "raw": st.binary(max_size=5),
        "numbers": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
        "either": st.none() | st.integers(0, 9) | st.text(max_size=3),
        "wide": st.integers(0, 2**40),
        "money": st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents) / 100),
        "deep": st.none()
        | st.fixed_dictionaries(
            {
                "x": st.integers(0, 9),
                "again": st.sampled_from(["RED", "BLUE"]),
                "items": st.lists(st.fixed_dictionaries({"n": st.text(max_size=3)}), max_size=2),
            }
        ),
    }
)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decoder(schema: Any, **format_: Any) -> Any:
    from kohort.spark.formats import Format, decoder_of

    return decoder_of(Format("value", "avro", schema and json.dumps(schema), **format_))


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": n, "type": t} for n, t in fields],
    }


def as_arrow(value: dict[str, Any]) -> dict[str, Any]:
    """What `to_pylist` shows of a value."""
    either = value["either"]
    members = (
        either
        if either is None
        else {
            "member0": either if isinstance(either, int) else None,
            "member1": either if isinstance(either, str) else None,
        }
    )
    return {**value, "counts": list(value["counts"].items()), "either": members}


@settings(max_examples=examples(60))
@given(st.lists(st.none() | st.binary(max_size=8) | VALUES, max_size=5))
def test_values_are_what_fastavro_wrote(values: list[Any]) -> None:
    """Every type; a tombstone is null, and bytes that do not decode leave no trace."""
    from kohort.spark.formats import ddl_of

    reading = decoder(EVERYTHING)
    assert ddl_of(reading.type) == DDL
    data = [written(EVERYTHING, v) if isinstance(v, dict) else v for v in values]
    decoded = reading.decode(pa.array(data, pa.binary()))
    decoded.values.validate(full=True)
    assert repr(decoded.values.to_pylist()) == repr(
        pa.array(
            [as_arrow(v) if isinstance(v, dict) else None for v in values], reading.type
        ).to_pylist()
    )
    errors = [None] * len(values) if decoded.errors is None else decoded.errors.to_pylist()
    assert [e is not None for e in errors] == [isinstance(v, bytes) for v in values]


@settings(max_examples=examples(60))
@given(VALUES, st.data())
def test_a_broken_value_never_touches_its_neighbours(value: Any, data: Any) -> None:
    whole = written(EVERYTHING, value)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    column = pa.array([whole, cut, bytes(flipped), whole + b"\0", whole], pa.binary())
    decoded = decoder(EVERYTHING).decode(column)
    decoded.values.validate(full=True)
    first, _, _, longer, last = (repr(row) for row in decoded.values.to_pylist())
    assert first == last != "None"
    assert longer == "None"
    assert decoded.errors[1].as_py() == "it is cut off"
    assert decoded.errors[3].as_py() == "bytes are left over"


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        (record(("n", "int")), b"\x80\x80\x80\x80\x10", "more than 32 bits"),
        (record(("n", "long")), b"\xff" * 11, "longer than ten bytes"),
        (record(("n", "boolean")), b"\x02", "neither 0 nor 1"),
        (record(("n", "string")), b"\x02\xff", "not UTF-8"),
        (record(("n", "string")), b"\x06\xed\xa0\x80", "not UTF-8"),
        (record(("n", "string")), b"\x04\xc0\x80", "not UTF-8"),
        (record(("n", "bytes")), b"\x01", "cut off"),
        (record(("n", ["null", "int"])), b"\x04", "no such branch"),
        (record(("n", {"type": "array", "items": "null"})), b"\xfe\xff\xff\xff\x0f", "longer than"),
        (record(("n", {"type": "array", "items": "int"})), b"\xff" * 9 + b"\x01\0", "longer than"),
        (record(("n", {"type": "enum", "name": "E", "symbols": ["A"]})), b"\x02", "no such symbol"),
        (record(("n", MONEY)), b"\x06\x01\xe2\x40", "more digits than its precision"),
        (record(("n", MONEY)), b"\x04\x27\x10", "more digits than its precision"),
        (record(("n", MONEY)), b"\x04\xd8\xf0", "more digits than its precision"),
        (record(("n", MONEY)), b"\x20\x80" + bytes(15), "more digits than its precision"),
        (record(("n", {**MONEY, "precision": 38})), b"\x20\x7f" + bytes(15), "precision"),
    ],
)
def test_hostile_bytes_are_the_records_error(schema: Any, data: bytes, reason: str) -> None:
    decoded = decoder(schema).decode(pa.array([data], pa.binary()))
    assert decoded.values.to_pylist() == [None]
    assert reason in decoded.errors[0].as_py()


@pytest.mark.parametrize("precision", [4, 18, 19, 20, 38])
def test_a_decimal_has_as_many_digits_as_its_precision(precision: int) -> None:
    most, least = (Decimal((sign, (9,) * precision, -2)) for sign in (0, 1))
    schema = record(("n", {**MONEY, "precision": precision}))
    data = [written(schema, {"n": n}) for n in (most, least, Decimal(0), Decimal("-0.01"))]
    decoded = decoder(schema).decode(pa.array(data, pa.binary()))
    assert decoded.errors is None
    assert [row["n"] for row in decoded.values.to_pylist()] == [most, least, 0, Decimal("-0.01")]


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    return struct.pack(">bI", 0, schema_id) + written(schema, value)


V1 = record(("id", "int"), ("old", "string"))
V2 = record(("new", ["null", "double"]), ("id", "long"))


def registered(registry: Registry, *schemas: Any) -> list[int]:
    return [registry.add("t-value", {"schema": json.dumps(s)}) for s in schemas]


def test_each_value_is_read_by_the_schema_that_it_was_written_with() -> None:
    """Evolution: columns are the newest version's; each schema is asked for once."""
    with running() as registry:
        one, two = registered(registry, V1, V2)
        reading = decoder(None, registry=registry.url, subject="t-value")
        sent = pickle.loads(pickle.dumps(reading))
        registry.asked.clear()
        data = [
            framed(two, V2, {"id": 1, "new": 0.5}),
            framed(one, V1, {"id": 2, "old": "x"}),
            None,
            framed(two, V2, {"id": 3, "new": None}),
            b"\1\0\0\0\1",
            b"\0\0\0\0\x63..",
            b"\0",
        ]
        decoded = sent.decode(pa.array(data, pa.binary()))
        assert decoded.values.to_pylist() == [
            {"new": 0.5, "id": 1},
            {"new": None, "id": 2},
            None,
            {"new": None, "id": 3},
            None,
            None,
            None,
        ]
        errors = decoded.errors.to_pylist()
        assert errors[:4] == [None] * 4
        assert "does not begin as a schema registry's" in errors[4]
        assert "Schema not found" in errors[5]
        sent.decode(pa.array(data[:4], pa.binary()))
        assert registry.asked == [
            f"GET /schemas/ids/{two}",
            f"GET /schemas/ids/{one}",
            "GET /schemas/ids/99",
        ]


def test_policies_of_evolution() -> None:
    """`fail` is the record's error; `widen` has the columns of every version."""
    with running() as registry:
        one, two = registered(registry, V1, V2)
        at = {"registry": registry.url, "subject": "t-value"}
        data = pa.array(
            [framed(one, V1, {"id": 2, "old": "x"}), framed(two, V2, {"id": 2**40, "new": 1.0})],
            pa.binary(),
        )
        strict = decoder(None, evolution="fail", **at).decode(data)
        assert strict.values.to_pylist() == [None, {"new": 1.0, "id": 2**40}]
        assert "field old of the value is not in the schema" in strict.errors[0].as_py()
        wide = decoder(None, evolution="widen", **at).decode(data)
        assert wide.errors is None
        assert wide.values.to_pylist() == [
            {"new": None, "id": 2, "old": "x"},
            {"new": 1.0, "id": 2**40, "old": None},
        ]
        registered(registry, record(("id", "string")))
        with pytest.raises(ConfigError, match="column id is string in one version"):
            decoder(None, evolution="widen", **at)


def test_a_schema_that_does_not_fit_the_columns_is_the_records_error() -> None:
    with running() as registry:
        (one,) = registered(registry, record(("id", "string")))
        from kohort.spark.formats import Format, decoder_of

        reading = decoder_of(Format("value", "avro", "id BIGINT", registry=registry.url))
        decoded = reading.decode(
            pa.array([framed(one, record(("id", "string")), {"id": "x"})], pa.binary())
        )
        assert (
            "field id was written as string, which is not read as int64"
            in known(decoded.errors)[0].as_py()
        )


def test_an_id_that_no_registry_knows_is_the_records_error() -> None:
    """Also the first time: each task has a cache of its own, and would raise again."""
    with running() as registry:
        from kohort.spark.formats import Format, decoder_of

        reading = decoder_of(Format("value", "avro", "id BIGINT", registry=registry.url))
        decoded = reading.decode(pa.array([b"\0\0\0\0\x09"], pa.binary()))
        assert "Schema not found" in known(decoded.errors)[0].as_py()


def test_a_registry_that_does_not_answer_is_raised() -> None:
    """Spec 6.5: the query's trouble, never a record's; and it is asked again before that."""
    from kohort.spark.formats.avro import AvroDecoder
    from kohort.spark.formats.patience import PatientRegistry

    with running() as registry:
        (one,) = registered(registry, V1)
        registry.fail_with = 503
        patient = PatientRegistry(registry.url, patience_s=0.3)
        reading = AvroDecoder(decoder(V1).type, registry=patient)
        column = pa.array([framed(one, V1, {"id": 1, "old": "x"})], pa.binary())
        with pytest.raises(ConnectionFailedError, match="no schema registry answers"):
            reading.decode(column)
        assert len(registry.asked) > 1
        registry.fail_with = None
        assert reading.decode(column).values.to_pylist() == [{"id": 1, "old": "x"}]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('{"type": "array", "items": "int"}', "must be a record"),
        ('{"type": "record"}', "no Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "Gone"}]}', "Gone"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}',
            "refers to itself",
        ),
        ("id BIGINT", "needs schemaRegistry"),
    ],
)
def test_what_is_no_schema_is_refused(schema: str, message: str) -> None:
    from kohort.spark.formats import Format, decoder_of

    with pytest.raises(ConfigError, match=message):
        decoder_of(Format("value", "avro", schema))


DEFAULTS: dict[str, Any] = {
    "text": ("string", "é"),
    "number": ("long", -70_000),
    "real": ("double", 1.5),
    "single": ("float", 2),
    "ok": ("boolean", True),
    "raw": ("bytes", "\u00ff\u0000"),
    "code": ({"type": "fixed", "name": "Code", "size": 2}, "ab"),
    "maybe": (["null", "int"], None),
    "either": (["int", "null"], 7),
    "day": ({"type": "int", "logicalType": "date"}, 1),
    "colour": ({"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}, "BLUE"),
    "numbers": ({"type": "array", "items": "int"}, [1, 2]),
    "counts": ({"type": "map", "values": "long"}, {"a": 1}),
    "deep": (
        {
            "type": "record",
            "name": "Deep",
            "fields": [
                {"name": "x", "type": "int"},
                {"name": "y", "type": "string", "default": "why"},
            ],
        },
        {"x": 5},
    ),
}


def test_what_the_writer_lacks_has_the_readers_default() -> None:
    """Of every type; bytes are a character each, and a branch of a union is the first that fits.
    Without a default it is null.
    """
    from kohort.spark.formats import Format, decoder_of

    new = [{"name": n, "type": t, "default": d} for n, (t, d) in DEFAULTS.items()]
    reader = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, *new]}
    old = record(("id", "long"))
    with running() as registry:
        one, _ = registered(registry, old, reader)
        reading = decoder(None, registry=registry.url, subject="t-value")
        decoded = reading.decode(pa.array([framed(one, old, {"id": 1})] * 2, pa.binary()))
        assert decoded.errors is None
        expected = {
            **{name: default for name, (_, default) in DEFAULTS.items()},
            "id": 1,
            "raw": b"\xff\0",
            "code": b"ab",
            "day": date(1970, 1, 2),
            "counts": [("a", 1)],
            "deep": {"x": 5, "y": "why"},
        }
        assert decoded.values.to_pylist() == [expected] * 2
        plain = decoder_of(Format("value", "avro", "id BIGINT, text STRING", registry=registry.url))
        rows = plain.decode(pa.array([framed(one, old, {"id": 1})], pa.binary())).values
        assert rows.to_pylist() == [{"id": 1, "text": None}]


def test_a_column_is_found_by_its_alias() -> None:
    """In nested records, items and branches, too; its own name comes first."""
    inner = {**record(("a", "int")), "name": "Item"}
    old = record(("old", "string"), ("items", {"type": "array", "items": ["null", inner]}))
    renamed = {**inner, "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}
    reader = {
        **old,
        "fields": [
            {"name": "new", "type": "string", "aliases": ["older", "old"], "default": "none"},
            {"name": "items", "type": {"type": "array", "items": ["null", renamed]}},
        ],
    }
    with running() as registry:
        one, two = registered(registry, old, reader)
        reading = decoder(None, registry=registry.url, subject="t-value")
        data = [
            framed(one, old, {"old": "x", "items": [{"a": 1}, None]}),
            framed(two, reader, {"new": "y", "items": [{"b": 2}]}),
        ]
        decoded = reading.decode(pa.array(data, pa.binary()))
        assert decoded.errors is None
        assert decoded.values.to_pylist() == [
            {"new": "x", "items": [{"b": 1}, None]},
            {"new": "y", "items": [{"b": 2}]},
        ]


def test_a_default_that_does_not_fit_is_the_records_error() -> None:
    reader = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "n", "type": "int", "default": "seven"},
        ],
    }
    old, new = record(("id", "long")), record(("id", "long"), ("n", "int"))
    with running() as registry:
        one, two = registered(registry, old, reader)
        reading = decoder(None, registry=registry.url, subject="t-value")
        data = [framed(one, old, {"id": 1}), framed(two, new, {"id": 2, "n": 3})]
        decoded = reading.decode(pa.array(data, pa.binary()))
        assert decoded.values.to_pylist() == [None, {"id": 2, "n": 3}]
        assert "the default of field n does not fit its type" in decoded.errors[0].as_py()


A, B, C = (
    {**record((field, "int")), "name": name, "namespace": "n"}
    for name, field in (("A", "x"), ("B", "y"), ("C", "z"))
)

ONE = {**record(("member0", "int")), "name": "One"}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}


def evolved(old: Any, new: Any, *values: Any, at: str = "p") -> Any:
    """Values that were written with an old schema, read with the subject's newest."""
    with running() as registry:
        one, _ = registered(registry, old, new)
        reading = decoder(None, registry=registry.url, subject="t-value")
        data = [framed(one, old, {at: value} if at else value) for value in values]
        return reading.decode(pa.array(data, pa.binary()))


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (["null", A], ["null", A, B], {"x": 7}, {"member0": {"x": 7}, "member1": None}),
        (["null", A], ["null", A, B], None, None),
        (A, ["null", A, B], {"x": 7}, {"member0": {"x": 7}, "member1": None}),
        (B, ["null", A, B], {"y": 7}, {"member0": None, "member1": {"y": 7}}),
        ([A, B], [B, A], ("n.A", {"x": 7}), {"member0": None, "member1": {"x": 7}}),
        ([A, B], [A, B, "null", C], ("n.B", {"y": 7}), {"member1": {"y": 7}}),
        ([A, B, C], [C, A], ("n.C", {"z": 7}), {"member0": {"z": 7}, "member1": None}),
        ("string", ["string", "int"], "a", {"member0": "a", "member1": None}),
        ("int", ["string", "int"], 7, {"member0": None, "member1": 7}),
        ("int", ["string", "double"], 7, {"member0": None, "member1": 7.0}),
        (["int", "string"], ["string", "long"], 7, {"member0": None, "member1": 7}),
        ("null", ["string", "int"], None, None),
        (
            {"type": "array", "items": A},
            {"type": "array", "items": [B, A]},
            [{"x": 7}],
            [{"member0": None, "member1": {"x": 7}}],
        ),
        ([A, B], ["null", A], ("n.A", {"x": 7}), {"x": 7}),
        (["null", ONE], ["null", ONE], {"member0": 7}, {"member0": 7}),
        (["string", "int", A], ["null", "string"], "a", "a"),
        (["string", "int", B], "double", 7, 7.0),
        (["null", "int", B], ["int", "long"], 7, 7),
        (["string", "null", A], ["null", A], {"x": 7}, {"x": 7}),
        ([COLOUR, "int"], "string", "RED", "RED"),
        (COLOUR, ["int", "string"], "RED", {"member0": None, "member1": "RED"}),
    ],
)
def test_a_branch_is_read_into_its_member_in_the_readers_union(
    old: Any, new: Any, value: Any, expected: Any
) -> None:
    decoded = evolved(record(("p", old)), record(("p", new)), value)
    assert decoded.errors is None
    (row,) = decoded.values.to_pylist()
    if isinstance(expected, dict):
        expected = dict.fromkeys(row["p"]) | expected
    assert row == {"p": expected}


def test_a_root_is_read_into_its_member_in_the_readers_union() -> None:
    decoded = evolved(A, [B, A], {"x": 7}, at="")
    assert decoded.errors is None
    assert decoded.values.to_pylist() == [{"member0": None, "member1": {"x": 7}}]


def test_members_of_a_union_have_defaults_and_aliases() -> None:
    new = {
        **A,
        "name": "N",
        "aliases": ["A"],
        "fields": [
            {"name": "w", "type": "long", "aliases": ["x"]},
            {"name": "more", "type": "string", "default": "none"},
        ],
    }
    decoded = evolved(record(("p", [A, B])), record(("p", [new, B])), ("n.A", {"x": 7}))
    assert decoded.errors is None
    assert decoded.values.to_pylist() == [
        {"p": {"member0": {"w": 7, "more": "none"}, "member1": None}}
    ]


@pytest.mark.parametrize("new", [[A, B], ["null", A], A])
def test_a_branch_that_the_reader_lacks_is_the_records_error(new: Any) -> None:
    old, values = record(("p", [A, C])), [("n.A", {"x": 7}), ("n.C", {"z": 7})]
    decoded = evolved(old, record(("p", new)), *values)
    assert decoded.errors[0].as_py() is None
    assert (
        decoded.errors[1].as_py() == "a branch of its union is not in the schema that it is read by"
    )
    assert decoded.values.to_pylist()[1] is None
    alone = evolved(record(("p", C)), record(("p", [A, B])), {"z": 7})
    assert "field p was written as record" in alone.errors[0].as_py()


@pytest.mark.parametrize("old", [["null", A], A, [A, B, C]])
def test_columns_of_another_union_are_the_records_error(old: Any) -> None:
    ddl = "p STRUCT<member0: STRUCT<x: INT>, member1: STRUCT<y: INT>>"
    with running() as registry:
        from kohort.spark.formats import Format, decoder_of

        (one,) = registered(registry, record(("p", old)))
        reading = decoder_of(Format("value", "avro", ddl, registry=registry.url))
        value = ("n.A", {"x": 7}) if isinstance(old, list) else {"x": 7}
        decoded = reading.decode(
            pa.array([framed(one, record(("p", old)), {"p": value})], pa.binary())
        )
        assert "field p was written as" in known(decoded.errors)[0].as_py()


@pytest.mark.parametrize(
    ("old", "new"), [([A, B], [A, B, C]), (["null", A], [A, B]), ([A, B], [B, A])]
)
def test_versions_with_other_unions_are_not_widened(old: Any, new: Any) -> None:
    with running() as registry:
        registered(registry, record(("p", old)), record(("p", new)))
        with pytest.raises(ConfigError, match=r"column p is .* give valueSchema"):
            decoder(None, evolution="widen", registry=registry.url, subject="t-value")
