"""Values of every kind that a schema registry has, as JSON types, for tools that know no class.

Rules:
- Read by the kind of the schema that a value was written with; written with the newest schema of
  the subject.
- Protobuf schemas come as file descriptors: a registry that holds their source is asked for the
  serialized form.
"""

# fastavro, jsonschema and protobuf carry no complete types.
# pyright: basic
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kohort.errors import DeserializationError, UsageError
from kohort.serdes.avro import AvroSerde
from kohort.serdes.basic import Part
from kohort.serdes.framed import Framed, Subject, by_topic, framed, missing
from kohort.serdes.json_schema import JsonSchemaSerde
from kohort.serdes.protobuf import (
    PROTOBUF,
    descriptor_of,
    pack_indexes,
    unpack_indexes,
    with_descriptor,
)
from kohort.serdes.registry import Reference, Schema, SchemaRegistry


class _Writer(NamedTuple):
    schema_id: int
    write: Callable[[Any], bytes]


class RegistrySerde(Framed[Any]):
    """Values of any kind (Avro, JSON Schema, Protobuf) as dictionaries, lists, numbers and text.

    Args:
        registry: where schemas are looked up.
        subject: the subject of (topic, part).
    """

    def __init__(self, registry: SchemaRegistry, *, subject: Subject = by_topic) -> None:
        super().__init__(registry, register=False, subject=subject)
        self._writers: dict[str, _Writer] = {}

    def serialize(self, topic: str, value: Any, part: Part = "value") -> bytes:
        """The framed bytes, by the newest schema of the subject when it was first used.

        Raises SchemaRegistryError, ConnectionFailedError, UsageError; DeserializationError when
        that schema cannot be read.
        """
        subject = self._subject(topic, part)
        writer = self._writers.get(subject)
        if writer is None:
            schema_id = self.registry.latest_id(subject)
            try:
                write = self._write_of(self._look_up(schema_id))
            except DeserializationError as error:
                raise DeserializationError(
                    f"subject {subject}, schema {schema_id}: {error}"
                ) from error
            writer = self._writers[subject] = _Writer(schema_id, write)
        return framed(writer.schema_id, writer.write(value))

    def _look_up(self, schema_id: int) -> Schema:
        return with_descriptor(self.registry, schema_id)

    def _write_of(self, schema: Schema) -> Callable[[Any], bytes]:
        if schema.kind == "JSON":
            return JsonSchemaSerde(self.registry, schema)._write
        if schema.kind != PROTOBUF:
            return AvroSerde(self.registry, schema)._write
        json_format, pool = _protobuf()
        kind = message_class(self.registry, schema, (0,), pool)

        def write(value: Any) -> bytes:
            try:
                message = json_format.ParseDict(value, kind())
            except json_format.ParseError as error:
                raise UsageError(f"the value does not fit its Protobuf schema: {error}") from error
            return pack_indexes((0,)) + message.SerializeToString()

        return write

    def _reader(self, schema: Schema) -> Callable[[memoryview], Any]:
        if schema.kind == PROTOBUF:
            return self._protobuf_reader(schema)
        reads: Framed[Any] = (
            JsonSchemaSerde(self.registry, validate=False)
            if schema.kind == "JSON"
            else AvroSerde(self.registry)
        )
        reader = reads._reader(schema)
        return lambda payload: reads._read(reader, payload)

    def _protobuf_reader(self, schema: Schema) -> Callable[[memoryview], Any]:
        json_format, pool = _protobuf()
        classes: dict[tuple[int, ...], Any] = {}

        def read(payload: memoryview) -> Any:
            indexes, at = unpack_indexes(payload)
            if indexes not in classes:
                classes[indexes] = message_class(self.registry, schema, indexes, pool)
            message = classes[indexes]()
            message.ParseFromString(bytes(payload[at:]))
            return json_format.MessageToDict(message, preserving_proto_field_name=True)

        return read

    def _read(self, reader: Callable[[memoryview], Any], payload: memoryview) -> Any:
        return reader(payload)


def _protobuf() -> tuple[Any, Any]:
    """Protobuf's JSON form, and a pool of descriptors of its own for each schema."""
    try:
        from google.protobuf import descriptor_pool, json_format
    except ImportError as error:
        raise missing("protobuf", error) from error
    return json_format, descriptor_pool.DescriptorPool()


def message_class(
    registry: SchemaRegistry, schema: Schema, indexes: tuple[int, ...], pool: Any
) -> Any:
    """The class of one message of a schema's file. Raises DeserializationError.

    Args:
        indexes: the way to the message: its number in the file, then in each message around it.
        pool: a `DescriptorPool` for this schema alone.
    """
    from google.protobuf import message_factory

    file = _add(registry, schema, None, pool, 0)
    messages = list(file.message_types_by_name.values())
    for depth, index in enumerate(indexes):
        if not 0 <= index < len(messages):
            raise DeserializationError(f"its file has no message {list(indexes[: depth + 1])}")
        if depth + 1 < len(indexes):
            messages = list(messages[index].nested_types)
    return message_factory.GetMessageClass(messages[indexes[-1]])


def _add(
    registry: SchemaRegistry, schema: Schema, at: Reference | None, pool: Any, depth: int
) -> Any:
    """Add a file to a pool, what it imports first; the file as the pool knows it.

    Args:
        at: the reference by which another schema has it.
    """
    if depth > _DEPTH_MAX:
        raise DeserializationError(f"imports are nested deeper than {_DEPTH_MAX}")
    where = f"subject {at.subject}, version {at.version}: " if at else ""
    file = descriptor_of(schema)
    if file is None:
        raise DeserializationError(
            f"{where}its registry gives the source of a Protobuf schema only"
        )
    for reference in schema.references:
        below = registry.by_version(reference.subject, reference.version)
        if descriptor_of(below) is None:
            below = registry.by_version(reference.subject, reference.version, serialized=True)
        _add(registry, below, reference, pool, depth + 1)
    file.name = (at and at.name) or file.name or "schema.proto"
    if not _has(pool, file.name):
        try:
            add_file(file, pool, _well_known)
        except DeserializationError as error:
            raise DeserializationError(f"{where}{error}") from error
    return pool.FindFileByName(file.name)


def _well_known(name: str, importer: str) -> Any:
    file = well_known(name)
    if file is None:
        newer = "install a newer protobuf, " if name.startswith("google/protobuf/") else ""
        raise DeserializationError(
            f"{importer} imports {name}, and the registry gives no reference to it: {newer}"
            "register the schema with a reference to it, or read it by its generated class "
            "(ProtobufSerde)"
        )
    return file


def add_file(file: Any, pool: Any, find: Callable[[str, str], Any]) -> None:
    """Add a file to a pool, and first what it imports and the pool lacks.

    A pool refuses a second file of a name that differs from its first: what it has is left alone.

    Args:
        find: the file that another one imports, of (its name, the other's name).

    Raises DeserializationError when the file does not build, and what `find` raises.
    """
    for imported in file.dependency:
        if not _has(pool, imported):
            add_file(find(imported, file.name), pool, find)
    try:
        pool.Add(file)
    except TypeError as error:
        raise DeserializationError(f"{file.name}: {error}") from error


def well_known(name: str) -> Any | None:
    """One of Google's own files, which no registry holds, as the installed library has it."""
    import importlib

    from google.protobuf import descriptor_pb2

    if not _GOOGLES.fullmatch(name):
        return None
    try:
        module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        return None
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def _has(pool: Any, name: str) -> bool:
    try:
        pool.FindFileByName(name)
    except KeyError:
        return False
    return True


_DEPTH_MAX = 32
_GOOGLES = re.compile(r"google/protobuf/[\w/]+\.proto")
