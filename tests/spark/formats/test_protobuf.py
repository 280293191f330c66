"""Protobuf messages as Arrow columns (spec 6.5, 6.6), written by Google's own library."""

from __future__ import annotations

import base64
import pickle
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any

import pytest

from kohort.errors import ConfigError
from tests.serdes.fake_registry import running

pa = pytest.importorskip("pyarrow")
pytest.importorskip("ptars")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")


def field(message: Any, name: str, kind: str, **more: Any) -> None:
    """One more field, numbered on."""
    number = len(message.field) + 1
    made = message.field.add(name=name, number=number)
    made.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    made.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    if more.pop("repeated", False):
        made.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    for key, value in more.items():
        setattr(made, key, value)


def orders(*, newer: bool = False) -> Any:
    """A file with an order in a message around it, which a newer version adds a field to."""
    file = descriptor_pb2.FileDescriptorProto(
        name="orders.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    colour = file.enum_type.add(name="Colour")
    colour.value.add(name="RED", number=0)
    colour.value.add(name="BLUE", number=1)
    file.message_type.add(name="First")
    field(file.message_type[0], "n", "int32")
    order = file.message_type.add(name="Around").nested_type.add(name="Order")
    item = order.nested_type.add(name="Item")
    field(item, "name", "string")
    counts = order.nested_type.add(name="CountsEntry")
    counts.options.map_entry = True
    field(counts, "key", "string")
    field(counts, "value", "int32")
    inside = ".shop.Around.Order."
    field(order, "id", "int64")
    field(order, "big", "uint64")
    field(order, "wide", "uint32")
    field(order, "city", "string")
    field(order, "amount", "double")
    field(order, "colour", "enum", type_name=".shop.Colour")
    field(order, "at", "message", type_name=".google.protobuf.Timestamp")
    field(order, "items", "message", type_name=f"{inside}Item", repeated=True)
    field(order, "counts", "message", type_name=f"{inside}CountsEntry", repeated=True)
    order.oneof_decl.add(name="_maybe")
    field(order, "maybe", "int32", proto3_optional=True, oneof_index=0)
    if newer:
        field(order, "more", "string")
    return file


def message(file: Any, name: str) -> Any:
    """The class of a message."""
    from google.protobuf import descriptor_pool, message_factory, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    stamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamps)
    pool.Add(stamps)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def text(*files: Any) -> str:
    made = descriptor_pb2.FileDescriptorSet(file=files)
    return base64.b64encode(made.SerializeToString()).decode()


def decoder(schema: str | None, name: str | None = None, **format_: Any) -> Any:
    from kohort.spark.formats import Format, decoder_of

    return decoder_of(Format("value", "protobuf", schema, message=name, **format_))


DDL = (
    "STRUCT<`id`: BIGINT, `big`: DECIMAL(20,0), `wide`: BIGINT, `city`: STRING, "
    "`amount`: DOUBLE, `colour`: STRING, `at`: TIMESTAMP, `items`: ARRAY<STRUCT<`name`: STRING>>, "
    "`counts`: MAP<STRING, INT>, `maybe`: INT>"
)
ORDER = "shop.Around.Order"


def test_messages_become_typed_columns() -> None:
    """Everything set, nothing set, none, and bytes that are no message."""
    from kohort.spark.formats import ddl_of

    reading = pickle.loads(pickle.dumps(decoder(text(orders()), ORDER)))
    assert ddl_of(reading.type) == DDL
    order = message(orders(), ORDER)(
        id=-5,
        big=2**64 - 1,
        wide=2**32 - 1,
        city="é",
        amount=0.5,
        colour=1,
        counts={"a": 1},
        maybe=0,
    )
    order.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 6))  # noqa: DTZ001 - it is in UTC
    order.items.add(name="x")
    data = [order.SerializeToString(), b"", None, b"\xff\xff", order.SerializeToString()]
    decoded = reading.decode(pa.array(data, pa.binary()))
    whole = {
        "id": -5,
        "big": Decimal(2**64 - 1),
        "wide": 2**32 - 1,
        "city": "é",
        "amount": 0.5,
        "colour": "BLUE",
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "items": [{"name": "x"}],
        "counts": [("a", 1)],
        "maybe": 0,
    }
    empty = {
        "id": 0,
        "big": Decimal(0),
        "wide": 0,
        "city": "",
        "amount": 0.0,
        "colour": "RED",
        "at": None,
        "items": [],
        "counts": [],
        "maybe": None,
    }
    assert decoded.values.to_pylist() == [whole, empty, None, None, whole]
    assert decoded.errors.to_pylist() == [None, None, None, f"not a {ORDER}", None]
    assert decoded.values.type == reading.type


def test_messages_in_a_registrys_format() -> None:
    """Of every version by the newest descriptor; another message of the file is an error."""
    old, new = orders(), orders(newer=True)
    with running() as registry:
        for file in (old, new):
            registry.add(
                "t-value",
                {
                    "schemaType": "PROTOBUF",
                    "schema": base64.b64encode(file.SerializeToString()).decode(),
                },
            )
        reading = decoder(None, ORDER, registry=registry.url, subject="t-value")
        place = b"\x04\x02\x00"  # two steps: message 1 of the file, message 0 in it
        before = message(old, ORDER)(id=1).SerializeToString()
        after = message(new, ORDER)(id=2, more="x").SerializeToString()
        registry.asked.clear()
        head = struct.pack(">bI", 0, 1)
        data = [
            head + place + before,
            head + place + after,
            head + b"\0" + before,
            b"bad",
            None,
            head + place + b"\xff",
        ]
        decoded = reading.decode(pa.array(data, pa.binary()))
        rows = decoded.values.to_pylist()
        assert [row and (row["id"], row["more"]) for row in rows] == [
            (1, ""),
            (2, "x"),
            None,
            None,
            None,
            None,
        ]
        errors = decoded.errors.to_pylist()
        assert errors[:2] + errors[4:5] == [None] * 3
        assert errors[2] == "it is another message of its file"
        assert "does not begin as a schema registry's" in errors[3]
        assert errors[5] == f"not a {ORDER}"
        assert registry.asked == ["GET /schemas/ids/1"], "once, for the place of the message"
        first = decoder(None, registry=registry.url, subject="t-value")
        found = first.decode(pa.array([head + b"\0" + b"\x08\x07"], pa.binary()))
        assert found.values.to_pylist() == [{"n": 7}]


def test_a_message_may_have_moved_within_its_file() -> None:
    """Its number counts in the file that it was written with, and so does another's."""
    old = descriptor_pb2.FileDescriptorProto(name="m.proto", package="m", syntax="proto3")
    old.message_type.add(name="Order").field.add(name="n", number=1, type=5, label=1)
    new = descriptor_pb2.FileDescriptorProto(name="m.proto", package="m", syntax="proto3")
    new.message_type.add(name="Header").field.add(name="n", number=1, type=5, label=1)
    new.message_type.add().CopyFrom(old.message_type[0])
    with running() as registry:
        for file in (old, new):
            text = base64.b64encode(file.SerializeToString()).decode()
            registry.add("t-value", {"schemaType": "PROTOBUF", "schema": text})
        first, second, third = (struct.pack(">bI", 0, number) for number in (1, 2, 3))
        body = b"\x08\x07"
        data = [first + b"\0" + body, second + b"\x02\x02" + body, second + b"\0" + body]
        column = pa.array([*data, third + b"\0" + body], pa.binary())
        # The old file has no Header: there the newest one's number counts.
        for name, expected in (("m.Order", [7, 7, None]), ("m.Header", [7, None, 7])):
            reading = decoder(None, name, registry=registry.url, subject="t-value")
            decoded = pickle.loads(pickle.dumps(reading)).decode(column)
            values = [row and row["n"] for row in decoded.values.to_pylist()]
            assert values == [*expected, None]
            assert decoded.errors.to_pylist()[3].startswith("schema 3: the schema registry")


def around_itself() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    file.message_type.add(name="Tree")
    field(file.message_type[0], "below", "message", type_name=".p.Tree")
    return file


@pytest.mark.parametrize(
    ("schema", "name", "reason"),
    [
        ("???", None, "must be a FileDescriptorSet in base64"),
        (text(), None, "without a file"),
        (text(orders()), "shop.Order", f"no message shop.Order; it has shop.First, .*{ORDER}"),
    ],
)
def test_what_gives_no_columns_is_refused(schema: str, name: str | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        decoder(schema, name)


def test_a_message_that_holds_itself_has_bytes_below() -> None:
    reading = decoder(text(around_itself()))
    assert reading.type == pa.struct([("below", pa.binary())])
    tree = message(around_itself(), "p.Tree")
    inner = tree(below=tree())
    decoded = reading.decode(pa.array([tree(below=inner).SerializeToString()], pa.binary()))
    assert decoded.values.to_pylist() == [{"below": inner.SerializeToString()}]


def from_the_library(name: str) -> Any:
    """One of Google's own files, as the installed library has it."""
    file = descriptor_pb2.FileDescriptorProto()
    import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(file)
    return file


def from_another_release(name: str) -> Any:
    """One of Google's own files, with the options that an older release has."""
    file = from_the_library(name)
    file.options.go_package = f"github.com/golang/protobuf/ptypes/{name}"
    return file


def importing(*names: str) -> Any:
    """The orders' file with more imports."""
    file = orders()
    file.dependency.extend(names)
    return file


STAMPS = from_another_release("timestamp")
API = "google/protobuf/api.proto"
OTHER = descriptor_pb2.FileDescriptorProto(name="other.proto", dependency=[API])


@pytest.mark.parametrize(
    "files",
    [
        (STAMPS, orders()),
        (STAMPS, orders(), STAMPS, orders()),
        (STAMPS, importing(API)),
        (STAMPS, OTHER, from_another_release("any"), importing("other.proto")),
        (STAMPS, from_another_release("any"), importing(API)),
    ],
    ids=["whole", "twice", "one lacking", "out of order", "one lacking above"],
)
def test_googles_files_may_be_those_of_another_release(files: tuple[Any, ...]) -> None:
    """The set's own count, on the driver and on executors; what it lacks is the library's."""
    order = message(orders(), ORDER)(id=7)
    order.at.FromDatetime(datetime(2026, 1, 2))  # noqa: DTZ001 - it is in UTC
    reading = decoder(text(*files), ORDER)
    for each in (reading, pickle.loads(pickle.dumps(reading))):
        decoded = each.decode(pa.array([order.SerializeToString()], pa.binary()))
        assert decoded.errors is None
        assert decoded.values.field("id").to_pylist() == [7]
        assert decoded.values.field("at").to_pylist() == [datetime(2026, 1, 2, tzinfo=UTC)]


def test_a_set_that_lacks_an_import_is_refused_by_the_names_of_both() -> None:
    for lacking in ("google/type/date.proto", "google/protobuf/nowhere.proto"):
        with pytest.raises(ConfigError, match=f"orders.proto imports {lacking}"):
            decoder(text(STAMPS, importing(lacking)), ORDER)


def test_two_files_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"two files called orders\.proto"):
        decoder(text(orders(newer=True), orders()), ORDER)


def test_a_descriptor_set_beside_a_registry_says_the_columns() -> None:
    """A schema whose imports the registry does not give is read by a set that has them."""
    dates = descriptor_pb2.FileDescriptorProto(name="google/type/date.proto", package="google.type")
    dates.message_type.add(name="Date")
    for name in ("year", "month", "day"):
        field(dates.message_type[0], name, "int32")
    file = importing("google/type/date.proto")
    field(file.message_type[0], "day", "message", type_name=".google.type.Date")
    with running() as registry:
        registry.add(
            "t-value",
            {
                "schemaType": "PROTOBUF",
                "schema": base64.b64encode(file.SerializeToString()).decode(),
            },
        )
        at = {"registry": registry.url, "subject": "t-value"}
        why = r"^subject t-value: orders\.proto imports google/type/date\.proto, .*valueSchema"
        with pytest.raises(ConfigError, match=why):
            decoder(None, **at)
        reading = decoder(text(STAMPS, dates, file), **at)
        data = struct.pack(">bI", 0, 1) + b"\0" + b"\x08\x07\x12\x07\x08\xea\x0f\x10\x01\x18\x02"
        decoded = reading.decode(pa.array([data], pa.binary()))
        assert decoded.errors is None
        assert decoded.values.to_pylist() == [{"n": 7, "day": date(2026, 1, 2)}]
        # Without a subject too: no schema is asked for.
        assert decoder(text(STAMPS, dates, file), registry=registry.url).type == reading.type


def spans() -> tuple[Any, Any]:
    """A file of Google's times of the day, and one that has them and durations everywhere."""
    day = descriptor_pb2.FileDescriptorProto(
        name="google/type/timeofday.proto", package="google.type"
    )
    day.message_type.add(name="TimeOfDay")
    for name in ("hours", "minutes", "seconds", "nanos"):
        field(day.message_type[0], name, "int32")
    file = descriptor_pb2.FileDescriptorProto(
        name="spans.proto",
        package="s",
        syntax="proto3",
        dependency=["google/protobuf/duration.proto", day.name],
    )
    span = file.message_type.add(name="Span")
    for entry, kind in (
        ("BreaksEntry", ".google.protobuf.Duration"),
        ("OpensEntry", ".google.type.TimeOfDay"),
    ):
        made = span.nested_type.add(name=entry)
        made.options.map_entry = True
        field(made, "key", "string")
        field(made, "value", "message", type_name=kind)
    field(span, "long", "message", type_name=".google.protobuf.Duration")
    field(span, "longs", "message", type_name=".google.protobuf.Duration", repeated=True)
    field(span, "breaks", "message", type_name=".s.Span.BreaksEntry", repeated=True)
    field(span, "at", "message", type_name=".google.type.TimeOfDay")
    field(span, "ats", "message", type_name=".google.type.TimeOfDay", repeated=True)
    field(span, "opens", "message", type_name=".s.Span.OpensEntry", repeated=True)
    around = file.message_type.add(name="Around")
    field(around, "span", "message", type_name=".s.Span")
    return day, file


def test_durations_are_intervals_and_times_of_the_day_microseconds() -> None:
    from google.protobuf import descriptor_pool, message_factory

    from kohort.spark.formats import ddl_of, parse_schema

    day, file = spans()
    reading = decoder(text(day, file), "s.Around")
    ddl = (
        "`span`: STRUCT<`long`: INTERVAL DAY TO SECOND, `longs`: ARRAY<INTERVAL DAY TO SECOND>, "
        "`breaks`: MAP<STRING, INTERVAL DAY TO SECOND>, `at`: BIGINT, `ats`: ARRAY<BIGINT>, "
        "`opens`: MAP<STRING, BIGINT>>"
    )
    assert ddl_of(reading.type) == f"STRUCT<{ddl}>"
    assert parse_schema(ddl) == reading.type
    pool = descriptor_pool.DescriptorPool()
    for each in (from_the_library("duration"), day, file):
        pool.Add(each)
    around: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("s.Around"))()
    span = around.span
    span.long.FromTimedelta(timedelta(seconds=-1, microseconds=-500_000))
    span.longs.add(seconds=315_576_000_000)  # the longest: 10,000 years
    span.longs.add(nanos=1_999)
    span.breaks["a"].seconds = 60
    span.at.hours, span.at.minutes, span.at.seconds, span.at.nanos = 23, 59, 59, 999_999_999
    span.ats.add()
    span.opens["b"].hours = 9
    data = [around.SerializeToString(), type(around)(span={}).SerializeToString(), b""]
    decoded = reading.decode(pa.array(data, pa.binary()))
    assert decoded.errors is None
    assert decoded.values.to_pylist() == [
        {
            "span": {
                "long": timedelta(seconds=-1.5),
                "longs": [timedelta(seconds=315_576_000_000), timedelta(microseconds=1)],
                "breaks": [("a", timedelta(minutes=1))],
                "at": 86_399_999_999,
                "ats": [0],
                "opens": [("b", 9 * 3_600_000_000)],
            }
        },
        {
            "span": {
                "long": None,
                "longs": [],
                "breaks": [],
                "at": None,
                "ats": [],
                "opens": [],
            }
        },
        {"span": None},
    ]


def test_a_field_whose_message_is_empty_is_a_struct_without_fields() -> None:
    """As in a choice of kinds; a whole message without fields gives no columns."""
    from kohort.spark.formats import ddl_of, parse_schema

    file = descriptor_pb2.FileDescriptorProto(
        name="e.proto", syntax="proto3", dependency=["google/protobuf/empty.proto"]
    )
    field(file.message_type.add(name="M"), "e", "message", type_name=".google.protobuf.Empty")
    file.message_type.add(name="N")
    reading = decoder(text(file))
    assert ddl_of(reading.type) == "STRUCT<`e`: STRUCT<>>"
    assert parse_schema(ddl_of(reading.type)) == reading.type
    decoded = reading.decode(pa.array([b"\x0a\x00", b"", None], pa.binary()))
    assert decoded.values.to_pylist() == [{"e": {}}, {"e": None}, None]
    with pytest.raises(ConfigError, match=r"message N has no fields.*valueMessage"):
        decoder(text(file), "N")
