"""Schema registry formats against a registry on a loopback port: wire bytes, caching, failures."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest

from kohort.errors import (
    ConfigError,
    ConnectionFailedError,
    DeserializationError,
    KohortError,
    SchemaRegistryError,
    UsageError,
)
from kohort.records import Record
from kohort.serdes import (
    AvroSerde,
    JsonSchemaSerde,
    ProtobufSerde,
    Reference,
    Schema,
    SchemaRegistry,
    Serdes,
    Undecodable,
)
from tests.patience import PATIENCE_S
from tests.serdes.fake_registry import Registry, running

USER = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}],
}
GROWN = {**USER, "fields": [*USER["fields"], {"name": "zip", "type": "string", "default": "?"}]}
ADULT = {"type": "object", "properties": {"age": {"minimum": 18}}, "required": ["age"]}


@pytest.fixture
def fake():
    with running() as registry:
        yield registry


@pytest.fixture
def client(fake: Registry) -> SchemaRegistry:
    return SchemaRegistry(fake.url, timeout_s=PATIENCE_S)


def test_avro_on_the_wire_is_zero_id_payload(fake, client):
    fake.add("other", {"schema": '"string"'})
    data = AvroSerde(client, USER).serialize("users", {"name": "Eva", "age": 7})
    assert data == b"\0\0\0\0\x02" + b"\x06Eva" + b"\x0e"
    assert fake.subjects["users-value"] == [2]


def test_a_registry_is_asked_once(fake, client):
    serde = AvroSerde(client, USER)
    for age in range(3):
        data = serde.serialize("users", {"name": "Eva", "age": age})
        assert AvroSerde(client).deserialize("users", data) == {"name": "Eva", "age": age}
    assert fake.asked == ["POST /subjects/users-value/versions", "GET /schemas/ids/1"]


def test_avro_resolves_the_writers_schema_to_the_readers(client):
    data = AvroSerde(client, USER).serialize("users", {"name": "Eva", "age": 7})
    assert AvroSerde(client, GROWN).deserialize("users", data)["zip"] == "?"


def test_avro_schemas_refer_to_others(fake, client):
    fake.add("user", {"schema": json.dumps(USER)})
    text = json.dumps({"type": "record", "name": "Pair", "fields": [{"name": "a", "type": "User"}]})
    schema = Schema(text, references=(Reference("User", "user", 1),))
    pair = {"a": {"name": "Eva", "age": 7}}
    data = AvroSerde(client, schema).serialize("pairs", pair)
    assert AvroSerde(client).deserialize("pairs", data) == pair


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["p.A", "p.B"]', ("p.B", {"a": {"n": 7}})),
        ('"p.B"', {"a": {"n": 7}}),
        ('{"type": "array", "items": "p.A"}', [{"n": 7}]),
        ('{"type": "map", "values": ["null", "p.A"]}', {"k": {"n": 7}, "l": None}),
    ],
    ids=["union", "name", "array", "map"],
)
def test_an_avro_schema_may_be_nothing_but_references(fake, client, text, value):
    """As Confluent has it for several kinds of events in one topic."""
    a = {"type": "record", "name": "p.A", "fields": [{"name": "n", "type": "int"}]}
    b = {"type": "record", "name": "p.B", "fields": [{"name": "a", "type": "p.A"}]}
    fake.add("a", {"schema": json.dumps(a)})
    below = [{"name": "p.A", "subject": "a", "version": 1}]
    fake.add("b", {"schema": json.dumps(b), "references": below})
    schema = Schema(text, references=(Reference("p.A", "a", 1), Reference("p.B", "b", 1)))
    data = AvroSerde(client, schema).serialize("t", value)
    expected = value[1] if isinstance(value, tuple) else value
    assert AvroSerde(client).deserialize("t", data) == expected
    assert AvroSerde(client, schema).deserialize("t", data) == expected


def test_keys_have_a_subject_of_their_own_and_subjects_may_be_chosen(fake, client):
    AvroSerde(client, '"string"').serialize("t", "k", "key")
    AvroSerde(client, '"string"', subject=lambda t, p: "mine").serialize("t", "k")
    assert set(fake.subjects) == {"t-key", "mine"}


def test_what_is_not_registered_is_refused_when_it_may_not_be(client):
    with pytest.raises(SchemaRegistryError, match="Schema not found"):
        AvroSerde(client, '"string"', register=False).serialize("t", "v")
    client.register("u-value", Schema('"string"'))
    assert AvroSerde(client, '"string"', register=False).serialize("u", "v")


def test_json_schema_checks_both_ways(client):
    serde = JsonSchemaSerde(client, ADULT)
    data = serde.serialize("t", {"age": 20})
    assert data == b'\0\0\0\0\x01{"age":20}'
    assert serde.deserialize("t", data) == {"age": 20}
    with pytest.raises(UsageError, match="less than the minimum"):
        serde.serialize("t", {"age": 3})
    reader = JsonSchemaSerde(client)
    with pytest.raises(DeserializationError, match="less than the minimum"):
        reader.deserialize("t", b'\0\0\0\0\x01{"age":3}')
    assert JsonSchemaSerde(client, validate=False).deserialize("t", b"\0\0\0\0\x01[3]") == [3]


def test_json_schemas_refer_to_others(fake, client):
    fake.add("adult", {"schema": json.dumps(ADULT), "schemaType": "JSON"})
    schema = Schema('{"$ref": "adult.json"}', "JSON", (Reference("adult.json", "adult", 1),))
    with pytest.raises(UsageError, match="minimum"):
        JsonSchemaSerde(client, schema).serialize("t", {"age": 3})


def test_a_json_schema_refers_to_one_that_refers_to_a_third(fake, client):
    fake.add("adult", {"schema": json.dumps(ADULT), "schemaType": "JSON"})
    below = [{"name": "adult.json", "subject": "adult", "version": 1}]
    team = {"type": "array", "items": {"$ref": "adult.json"}}
    fake.add("team", {"schema": json.dumps(team), "schemaType": "JSON", "references": below})
    schema = Schema('{"$ref": "team.json"}', "JSON", (Reference("team.json", "team", 1),))
    data = JsonSchemaSerde(client, schema).serialize("t", [{"age": 20}])
    assert JsonSchemaSerde(client).deserialize("t", data) == [{"age": 20}]
    with pytest.raises(UsageError, match="minimum"):
        JsonSchemaSerde(client, schema).serialize("t", [{"age": 3}])


def versions_of_a_file(package: str = "p"):
    """Order of a file, and Header and Order of its next version, where Header comes first."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    classes: list[Any] = []
    for names in (["Order"], ["Header", "Order"]):
        file = descriptor_pb2.FileDescriptorProto(name="f.proto", package=package, syntax="proto3")
        for name in names:
            file.message_type.add(name=name).field.add(name="n", number=1, type=5, label=1)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        classes += [
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in names
        ]
    return classes


@pytest.mark.parametrize("source", [False, True], ids=["descriptor", "source"])
def test_a_protobuf_message_may_move_within_its_file(fake, client, source):
    """Its name counts, not its number: the bytes are the same."""
    old, header, new = versions_of_a_file()

    def read(kind: type[Any], data: bytes) -> Any:
        return ProtobufSerde(client, kind).deserialize("t", data)

    data = {kind: ProtobufSerde(client, kind).serialize("t", kind(n=7)) for kind in (old, new)}
    other = ProtobufSerde(client, header).serialize("t", header(n=9))
    if source:  # as Java registers it; the descriptor is a question of its own
        for number, schema in enumerate(fake.schemas):
            fake.serialized[f"source {number}"] = schema["schema"]
            schema["schema"] = f"source {number}"
    assert (read(old, data[new]).n, read(new, data[old]).n) == (7, 7)
    with pytest.raises(
        DeserializationError, match=r"message \[0\] of its file, and Order is \[1\]"
    ):
        read(old, other)


def test_a_protobuf_message_of_another_package_is_known_by_its_number(client):
    old, _, _ = versions_of_a_file()
    copied, _, _ = versions_of_a_file("copied")
    data = ProtobufSerde(client, old).serialize("t", old(n=7))
    assert ProtobufSerde(client, copied).deserialize("t", data).n == 7


def messages():
    """A file with messages First and Second, where Second has Inner and imports Shared."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    shared = descriptor_pb2.FileDescriptorProto(name="shared.proto", package="p", syntax="proto3")
    shared.message_type.add(name="Shared")
    pool.Add(shared)
    file = descriptor_pb2.FileDescriptorProto(
        name="f.proto", package="p", syntax="proto3", dependency=["shared.proto"]
    )
    file.message_type.add(name="First").field.add(name="n", number=1, type=5, label=1)
    second = file.message_type.add(name="Second")
    second.nested_type.add(name="Other")
    second.nested_type.add(name="Inner").field.add(name="s", number=1, type=9, label=1)
    pool.Add(file)

    def of(name):
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))

    return of("p.First"), of("p.Second.Inner")


def test_protobuf_says_which_message_of_its_file(fake, client):
    """The first message is a lone 0; Second.Inner is the way 1, 1 as zigzag varints."""
    first, inner = messages()

    def read(kind: type[Any], data: bytes) -> Any:
        return ProtobufSerde(client, kind).deserialize("t", data)

    data = ProtobufSerde(client, first).serialize("t", first(n=1))
    assert data == b"\0\0\0\0\x02" + b"\0" + b"\x08\x01"
    assert list(fake.subjects) == ["shared.proto", "t-value"]
    assert fake.schemas[1]["references"] == [
        {"name": "shared.proto", "subject": "shared.proto", "version": 1}
    ]
    assert read(first, data).n == 1
    data = ProtobufSerde(client, inner).serialize("t", inner(s="x"))
    assert data[5:] == b"\x04\x02\x02" + b"\x0a\x01x"
    assert read(inner, data).s == "x"
    with pytest.raises(DeserializationError, match=r"message \[1, 1\]"):
        ProtobufSerde(client, first).deserialize("t", data)
    explicit = b"\0\0\0\0\x02" + b"\x02\x00" + b"\x08\x01"  # the first message, written out
    assert read(first, explicit).n == 1


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", b"\x01\0\0\0\x01x", b'{"a":1}', b"\0\0\0\0\x01", b"\0\0\0\0\x01\xff"]
)
def test_hostile_bytes_are_a_value(client, data):
    """Whatever stands there: Undecodable with the raw bytes, and the record after it is read."""
    client.register("t-value", Schema(json.dumps(USER)))
    found = Serdes(value=AvroSerde(client, USER)).of(Record("t", 0, 0, timestamp=0, value=data))
    assert isinstance(found.value, Undecodable)
    assert found.value.raw == data
    assert isinstance(found.value.error, DeserializationError)


@pytest.mark.parametrize("indexes", [b"\x02", b"\xff" * 6, b"\x01", b"\xfe\xff\x03"])
def test_hostile_message_indexes_are_refused(client, indexes):
    first, _ = messages()
    serde = ProtobufSerde(client, first)
    serde.serialize("t", first(n=1))
    with pytest.raises(DeserializationError):
        serde.deserialize("t", b"\0\0\0\0\x02" + indexes)


def test_an_unknown_id_is_a_value_and_is_not_asked_for_again_at_once(fake, client):
    found = Serdes(value=AvroSerde(client)).of(
        Record("t", 0, 0, timestamp=0, value=b"\0\0\0\0\x09")
    )
    assert isinstance(found.value, Undecodable)
    assert "another registry" in str(found.value.error)
    with pytest.raises(SchemaRegistryError):
        client.by_id(9)
    assert fake.asked == ["GET /schemas/ids/9"]


def test_a_refusal_that_is_kept_does_not_grow(client):
    """Every record with the id meets it: its traceback, and what that keeps alive, stays short."""

    def refused() -> SchemaRegistryError:
        with pytest.raises(SchemaRegistryError) as caught:
            client.by_id(9)
        return caught.value

    refused()
    second = refused()
    frames = len(traceback.extract_tb(second.__traceback__))
    for _ in range(48):
        refused()
    last = refused()
    assert len(traceback.extract_tb(last.__traceback__)) == frames
    assert str(last) == str(second)
    assert (last.retriable, last.__context__) == (second.retriable, None)


def test_a_schema_of_another_kind_is_refused(client):
    client.register("t-value", Schema("{}", "JSON"))
    with pytest.raises(DeserializationError, match="JSON, not AVRO"):
        AvroSerde(client).deserialize("t", b"\0\0\0\0\x01")


@pytest.mark.parametrize("status", [503, 429, 408])
def test_a_registry_that_does_not_answer_is_retriable(fake, status):
    """429 and 408: not now."""
    fake.fail_with = status
    client = SchemaRegistry(f"{fake.url}, http://127.0.0.1:1")
    with pytest.raises(ConnectionFailedError, match="no schema registry answers") as caught:
        client.by_id(1)
    assert caught.value.retriable
    fake.fail_with = None
    fake.add("s", {"schema": '"int"'})
    assert SchemaRegistry(f"http://127.0.0.1:1,{fake.url}").by_id(1) == Schema('"int"')


def test_credentials(fake):
    host = fake.url.removeprefix("http://")
    fake.fail_with = 401
    with pytest.raises(SchemaRegistryError, match="check the user") as caught:
        SchemaRegistry(f"http://eva:s%40crt@{host}").by_id(1)
    assert "s@crt" not in str(caught.value)
    with pytest.raises(SchemaRegistryError):
        SchemaRegistry(fake.url, token=lambda: "t0k").by_id(1)
    assert fake.authorization == ["Basic ZXZhOnNAY3J0", "Bearer t0k"]


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_no_fault_of_the_schema(fake, status):
    """Else an App whose token has expired dead-letters its whole topic."""
    fake.fail_with = status
    with pytest.raises(SchemaRegistryError) as caught:
        SchemaRegistry(fake.url).by_id(1)
    assert caught.value.retriable


def test_what_was_not_registered_may_be_registered_at_once(client):
    schema = Schema('"string"')
    for ask in (client.look_up, client.version_of):
        with pytest.raises(SchemaRegistryError, match="Schema not found"):
            ask("t-value", schema)
    known = client.register("t-value", schema)
    assert client.look_up("t-value", schema) == known
    assert client.version_of("t-value", schema) == 1


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://x", "file:///etc/passwd"])
def test_an_address_must_be_one(url):
    with pytest.raises(ConfigError, match="8081"):
        SchemaRegistry(url)


def test_a_format_without_a_schema_only_reads(client):
    for serde in (AvroSerde(client), JsonSchemaSerde(client)):
        with pytest.raises(UsageError, match="only reads"):
            serde.serialize("t", 1)
    with pytest.raises(KohortError, match="does not fit its Avro schema"):
        AvroSerde(client, USER).serialize("t", {"name": 1})
