"""Values of every kind as JSON types: what the typed serdes write is read, and the other way."""

from __future__ import annotations

import base64
import json

import pytest

from kohort.errors import DeserializationError, SchemaRegistryError, UsageError
from kohort.serdes import (
    AvroSerde,
    JsonSchemaSerde,
    ProtobufSerde,
    RegistrySerde,
    Schema,
    SchemaRegistry,
)
from tests.serdes.fake_registry import Registry, running
from tests.serdes.test_registry import ADULT, USER, messages

descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
timestamp_pb2 = pytest.importorskip("google.protobuf.timestamp_pb2")


@pytest.fixture
def fake():
    with running() as registry:
        yield registry


@pytest.fixture
def client(fake: Registry) -> SchemaRegistry:
    return SchemaRegistry(fake.url)


def test_each_kind_is_read_and_written_by_its_schema(client: SchemaRegistry) -> None:
    first, inner = messages()
    ada = {"name": "ada", "age": 36}
    written = {
        "avro": (AvroSerde(client, USER).serialize("avro", ada), ada),
        "json": (JsonSchemaSerde(client, ADULT).serialize("json", {"age": 36}), {"age": 36}),
        "protobuf": (ProtobufSerde(client, first).serialize("protobuf", first(n=7)), {"n": 7}),
    }
    serde = RegistrySerde(client)
    for topic, (data, value) in written.items():
        assert serde.deserialize(topic, data) == value
        assert serde.serialize(topic, value) == data
    nested = ProtobufSerde(client, inner).serialize("protobuf", inner(s="x"))
    assert serde.deserialize("protobuf", nested) == {"s": "x"}


def test_a_protobuf_schema_in_source_is_asked_for_as_a_descriptor(
    fake: Registry, client: SchemaRegistry
) -> None:
    """Java's clients register the source, which only the registry can compile."""
    first, _ = messages()
    for imported in first.DESCRIPTOR.file.dependencies:
        fake.add(imported.name, {"schema": "shared source", "schemaType": "PROTOBUF"})
        fake.serialized["shared source"] = base64.b64encode(imported.serialized_pb).decode()
    fake.serialized["the source"] = base64.b64encode(first.DESCRIPTOR.file.serialized_pb).decode()
    references = [{"name": "shared.proto", "subject": "shared.proto", "version": 1}]
    fake.add(
        "t-value", {"schema": "the source", "schemaType": "PROTOBUF", "references": references}
    )
    data = b"\0\0\0\0\x02\0\x08\x07"
    assert RegistrySerde(client).deserialize("t", data) == {"n": 7}
    assert RegistrySerde(client).serialize("t", {"n": 7}) == data


def test_what_does_not_fit_is_said(client: SchemaRegistry) -> None:
    first, _ = messages()
    client.register("a-value", Schema(json.dumps(USER)))
    ProtobufSerde(client, first).serialize("p", first())
    serde = RegistrySerde(client)
    for topic, value, message in (
        ("a", {"name": "ada"}, "does not fit its Avro schema"),
        ("p", {"m": 1}, "does not fit its Protobuf schema"),
    ):
        with pytest.raises(UsageError, match=message):
            serde.serialize(topic, value)
    with pytest.raises(DeserializationError, match=r"no message \[9\]"):
        serde.deserialize("p", b"\0\0\0\0\x03\x02\x12")
    for negative in (b"\x02\x01", b"\x04\x00\x01"):
        with pytest.raises(DeserializationError, match=r"no message .*-1"):
            serde.deserialize("p", b"\0\0\0\0\x03" + negative)
    with pytest.raises(SchemaRegistryError):
        serde.serialize("unknown", {})


def protobuf(name: str, *imports: str, message: str = "M") -> str:
    """A file with one message, as a registry holds its descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name=name, dependency=imports)
    file.message_type.add(name=message).field.add(name="n", number=1, type=5, label=1)
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize(
    ("imported", "remedy"),
    [
        ("confluent/meta.proto", "register the schema with a reference to it"),
        ("google/type/date.proto", "register the schema with a reference to it"),
        ("google/protobuf/nowhere.proto", "install a newer protobuf"),
        ("google/protobuf//.proto", "install a newer protobuf"),
    ],
)
def test_a_protobuf_import_without_a_reference_is_said(
    fake: Registry, client: SchemaRegistry, imported: str, remedy: str
) -> None:
    """Confluent's registry has some files itself, and asks for no reference to them."""
    fake.add("t-value", {"schema": protobuf("o.proto", imported), "schemaType": "PROTOBUF"})
    serde, why = RegistrySerde(client), f"o.proto imports {imported}, .*{remedy}"
    with pytest.raises(DeserializationError, match=f"^schema 1: {why}"):
        serde.deserialize("t", b"\0\0\0\0\x01\0\x08\x07")
    with pytest.raises(DeserializationError, match=f"^subject t-value, schema 1: {why}"):
        serde.serialize("t", {"n": 7})
    above = {
        "schema": protobuf("p.proto", "o.proto", message="P"),
        "schemaType": "PROTOBUF",
        "references": [{"name": "o.proto", "subject": "t-value", "version": 1}],
    }
    fake.add("u-value", above)
    why = rf"subject t-value, version 1: {why}"
    with pytest.raises(DeserializationError, match=f"^schema 2: {why}"):
        serde.deserialize("u", b"\0\0\0\0\x02\0\x08\x07")


def test_a_protobuf_file_that_does_not_build_is_said(
    fake: Registry, client: SchemaRegistry
) -> None:
    """Two files that define one message."""
    fake.add("o", {"schema": protobuf("o.proto"), "schemaType": "PROTOBUF"})
    above = {
        "schema": protobuf("p.proto", "o.proto"),
        "schemaType": "PROTOBUF",
        "references": [{"name": "o.proto", "subject": "o", "version": 1}],
    }
    fake.add("t-value", above)
    with pytest.raises(DeserializationError, match=r"^schema 2: p\.proto: .*duplicate symbol"):
        RegistrySerde(client).deserialize("t", b"\0\0\0\0\x02\0\x08\x07")
    with pytest.raises(DeserializationError, match=r"^subject t-value, schema 2: p\.proto: "):
        RegistrySerde(client).serialize("t", {"n": 7})


def test_references_may_have_googles_files(fake: Registry, client: SchemaRegistry) -> None:
    """Of another release than the library's, also where another file imports the same."""
    stamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamps)
    stamps.options.go_package = "github.com/golang/protobuf/ptypes/timestamp"
    text = base64.b64encode(stamps.SerializeToString()).decode()
    stamps_name, date_name = stamps.name, "google/type/date.proto"
    fake.add("stamps", {"schema": text, "schemaType": "PROTOBUF"})
    fake.add("date", {"schema": protobuf(date_name, message="D"), "schemaType": "PROTOBUF"})
    fake.add(
        "a", {"schema": protobuf("a.proto", stamps_name, message="A"), "schemaType": "PROTOBUF"}
    )
    references = [
        {"name": "a.proto", "subject": "a", "version": 1},
        {"name": stamps_name, "subject": "stamps", "version": 1},
        {"name": date_name, "subject": "date", "version": 1},
    ]
    for order in (references, references[::-1]):
        topic = f"t{references.index(order[0])}"
        whole = protobuf(f"{topic}.proto", "a.proto", stamps_name, date_name)
        schema = {"schema": whole, "schemaType": "PROTOBUF", "references": order}
        fake.add(f"{topic}-value", schema)
        data = RegistrySerde(client).serialize(topic, {"n": 7})
        assert RegistrySerde(client).deserialize(topic, data) == {"n": 7}


def test_what_no_library_reads_as_a_schema_is_said(fake: Registry, client: SchemaRegistry) -> None:
    """The libraries raise errors of their own."""
    for text, kind in (('{"type": "gone"}', "AVRO"), ("{", "JSON")):
        fake.add("t-value", {"schema": text, "schemaType": kind})
        data = b"\0\0\0\0" + bytes([len(fake.schemas)]) + b"{}"
        with pytest.raises(DeserializationError, match=rf"^schema {len(fake.schemas)} "):
            RegistrySerde(client).deserialize("t", data)
