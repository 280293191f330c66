"""Protobuf through a schema registry, by `protobuf` (the extra `kohort[registry]`).

Rules:
- Values are messages of the class that is given; the registry says of which message of a file the
  bytes are (its indexes, zigzag varints behind the id; a lone 0 is the first message).
- The schema that is registered is the file's descriptor in base64, as Confluent's clients write it;
  imported files come first, each under its own name, except Google's own.
"""

# protobuf's stubs are incomplete where descriptors are concerned.
# pyright: basic
from __future__ import annotations

import base64
from typing import Any, Generic, TypeVar

from kohort.errors import DeserializationError
from kohort.serdes.framed import Framed, Subject, by_topic, missing
from kohort.serdes.registry import Reference, Schema, SchemaRegistry

M = TypeVar("M")
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
        return Schema(text, "PROTOBUF", tuple(references))

    def _write(self, value: M) -> bytes:
        message: Any = value
        return self._head + message.SerializeToString()

    def _reader(self, schema: Schema) -> Any:
        if schema.kind != "PROTOBUF":
            raise DeserializationError(f"its schema is of kind {schema.kind}, not PROTOBUF")
        return schema

    def _read(self, reader: Any, payload: memoryview) -> M:
        indexes, at = unpack_indexes(payload)
        if indexes != self._indexes:
            raise DeserializationError(
                f"it is message {list(indexes)} of its file, and {self._message.__name__} is "
                f"{list(self._indexes)}"
            )
        message = self._message()
        try:
            message.ParseFromString(bytes(payload[at:]))
        except self._decode_error as error:
            raise DeserializationError(f"not a {self._message.__name__}: {error}") from error
        return message


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
