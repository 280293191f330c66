"""Protobuf through a schema registry, by `protobuf` (the extra `kohort[registry]`).

Rules:
- Values are messages of the class that is given; the registry says of which message of a file the
  bytes are (its indexes, zigzag varints behind the id; a lone 0 is the first message).
- Those numbers are of the writer's file, which may have other messages before this one: what counts
  is the name there. Where the writer's file has no message of this name (its package was renamed),
  or the registry gives no descriptor, the numbers count.
- The schema that is registered is the file's descriptor in base64, as Confluent's clients write it;
  imported files come first, each under its own name, except Google's own.
"""

# protobuf's stubs are incomplete where descriptors are concerned.
# pyright: basic
from __future__ import annotations

import base64
import binascii
from typing import Any, Generic, TypeVar

from kohort.errors import DeserializationError
from kohort.serdes.framed import Framed, Subject, by_topic, missing
from kohort.serdes.registry import Reference, Schema, SchemaRegistry

M = TypeVar("M")
PROTOBUF = "PROTOBUF"
_INDEXES_MAX = 64


class ProtobufSerde(Framed[M], Generic[M]):
    """Messages of one generated class.

    Args:
        message: the class, as `protoc` generates it.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        message: type[M],
        *,
        register: bool = True,
        subject: Subject = by_topic,
    ) -> None:
        super().__init__(registry, register=register, subject=subject)
        try:
            from google.protobuf.message import DecodeError
        except ImportError as error:
            raise missing("protobuf", error) from error
        self._message: Any = message
        self._decode_error = DecodeError
        descriptor: Any = self._message.DESCRIPTOR
        self._file = descriptor.file
        self._indexes = indexes_of(descriptor)
        self._head = pack_indexes(self._indexes)
        self._schemas: dict[str, Schema] = {}

    def _schema_for(self, subject: str, value: M) -> Schema:
        schema = self._schemas.get(subject)
        if schema is None:
            schema = self._schemas[subject] = self._with_imports(self._file)
        return schema

    def _with_imports(self, file: Any) -> Schema:
        """The schema of a file; its imports are registered under their names first."""
        references: list[Reference] = []
        for imported in file.dependencies:
            if imported.name.startswith("google/protobuf/"):
                continue
            below = self._with_imports(imported)
            if self._register:
                self.registry.register(imported.name, below)
            version = self.registry.version_of(imported.name, below)
            references.append(Reference(imported.name, imported.name, version))
        text = base64.b64encode(file.serialized_pb).decode()
        return Schema(text, PROTOBUF, tuple(references))

    def _write(self, value: M) -> bytes:
        message: Any = value
        return self._head + message.SerializeToString()

    def _look_up(self, schema_id: int) -> Schema:
        return with_descriptor(self.registry, schema_id)

    def _reader(self, schema: Schema) -> tuple[int, ...]:
        """The numbers of this message in the writer's file."""
        if schema.kind != PROTOBUF:
            raise DeserializationError(f"its schema is of kind {schema.kind}, not PROTOBUF")
        file = descriptor_of(schema)
        found = None if file is None else indexes_in(file, self._message.DESCRIPTOR.full_name)
        return self._indexes if found is None else found

    def _read(self, reader: tuple[int, ...], payload: memoryview) -> M:
        indexes, at = unpack_indexes(payload)
        if indexes != reader:
            raise DeserializationError(
                f"it is message {list(indexes)} of its file, and {self._message.__name__} is "
                f"{list(reader)}"
            )
        message = self._message()
        try:
            message.ParseFromString(bytes(payload[at:]))
        except self._decode_error as error:
            raise DeserializationError(f"not a {self._message.__name__}: {error}") from error
        return message


def with_descriptor(registry: SchemaRegistry, schema_id: int) -> Schema:
    """The schema of an id; a Protobuf one as its descriptor, where the registry has that."""
    schema = registry.by_id(schema_id)
    if schema.kind == PROTOBUF and descriptor_of(schema) is None:
        return registry.by_id(schema_id, serialized=True)
    return schema


def descriptor_of(schema: Schema) -> Any | None:
    """The file that a schema's text holds as a descriptor in base64; None for source text."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(
            base64.b64decode(schema.text, validate=True)
        )
    except (binascii.Error, ValueError, DecodeError):
        return None


def indexes_in(file: Any, name: str) -> tuple[int, ...] | None:
    """The way to the message of this full name in a version of its file; None without one."""
    if file.package:
        if not name.startswith(f"{file.package}."):
            return None
        name = name.removeprefix(f"{file.package}.")
    way: list[int] = []
    messages = file.message_type
    for part in name.split("."):
        at = next((n for n, each in enumerate(messages) if each.name == part), None)
        if at is None:
            return None
        way.append(at)
        messages = messages[at].nested_type
    return tuple(way)


def indexes_of(descriptor: Any) -> tuple[int, ...]:
    """The way to a message from its file: its number there, then in each message around it."""
    way: list[int] = []
    while descriptor is not None:
        around = descriptor.containing_type
        peers = descriptor.file.message_types_by_name if around is None else around.nested_types
        names = [each.name for each in (peers.values() if around is None else peers)]
        way.insert(0, names.index(descriptor.name))
        descriptor = around
    return tuple(way)


def pack_indexes(indexes: tuple[int, ...]) -> bytes:
    """What says before a payload which message of its file it is."""
    if indexes == (0,):
        return b"\0"
    return b"".join(_varint(number) for number in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    zigzag, out = number << 1, bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


def unpack_indexes(data: memoryview) -> tuple[tuple[int, ...], int]:
    """Which message of its file a payload is, and where its bytes begin."""
    count, at = _read_varint(data, 0)
    if not 0 <= count <= _INDEXES_MAX:
        raise DeserializationError(f"{count} message indexes cannot be")
    indexes: list[int] = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        indexes.append(index)
    return tuple(indexes) or (0,), at


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    raw = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
    raise DeserializationError("its message indexes are cut off")
