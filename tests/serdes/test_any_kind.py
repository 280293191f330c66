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
