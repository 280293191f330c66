"""What all registry formats share: the five bytes before the payload, and who is asked for what.

Rules:
- A value is a zero byte, the schema's id (4 bytes, big-endian), the payload.
- The subject of a schema is `topic-key` or `topic-value`, unless `subject` says otherwise.
- Reading asks the registry once an id, writing once a subject and schema; then never again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kohort.errors import DeserializationError, KohortError
from kohort.serdes.basic import Part, Serde
from kohort.serdes.registry import Schema, SchemaRegistry

T = TypeVar("T")
Subject = Callable[[str, Part], str]
_HEADER: Final = struct.Struct(">bI")
_MAGIC: Final = 0


def by_topic(topic: str, part: Part) -> str:
    """`orders-value`: one schema a topic (Confluent's TopicNameStrategy)."""
    return f"{topic}-{part}"


def framed(schema_id: int, payload: bytes) -> bytes:
    """A payload behind its schema's id."""
    return _HEADER.pack(_MAGIC, schema_id) + payload


class Framed(Serde[T]):
    """A registry format. Derived classes say how payloads are written and read.

    Args:
        registry: where schemas are looked up.
        register: register a schema that the subject does not have; False refuses to write then.
        subject: the subject of (topic, part).
    """

    def __init__(
        self, registry: SchemaRegistry, *, register: bool = True, subject: Subject = by_topic
    ) -> None:
        self.registry = registry
        self._register, self._subject = register, subject
        self._readers: dict[int, Any] = {}

    def serialize(self, topic: str, value: T, part: Part = "value") -> bytes:
        """The framed bytes. Raises SchemaRegistryError, ConnectionFailedError, UsageError."""
        subject = self._subject(topic, part)
        schema = self._schema_for(subject, value)
        ask = self.registry.register if self._register else self.registry.look_up
        return framed(ask(subject, schema), self._write(value))

    def deserialize(self, topic: str, data: bytes, part: Part = "value") -> T:
        """The value. Raises DeserializationError; ConnectionFailedError may go away by itself."""
        if len(data) < _HEADER.size or data[0] != _MAGIC:
            raise DeserializationError(
                f"these {len(data)} bytes do not begin as a schema registry's format does (0 and "
                "an id); were they written without a registry?"
            )
        schema_id = int(_HEADER.unpack_from(data)[1])
        reader = self._readers.get(schema_id)
        schema = self._look_up(schema_id) if reader is None else None
        try:
            if schema is not None:
                reader = self._reader(schema)
                if len(self._readers) >= _READERS_MAX:
                    self._readers.clear()
                self._readers[schema_id] = reader
            return self._read(reader, memoryview(data)[_HEADER.size :])
        except DeserializationError as error:
            raise DeserializationError(f"schema {schema_id}: {error}") from error
        except KohortError:
            raise
        except Exception as error:  # libraries raise any error on hostile schemas and bytes
            raise DeserializationError(
                f"schema {schema_id} does not fit: {type(error).__name__}: {error}"
            ) from error

    def waits_for(self, data: bytes) -> bool:
        """Whether these bytes have a schema that was not looked up yet."""
        if len(data) < _HEADER.size or data[0] != _MAGIC:
            return False
        return int(_HEADER.unpack_from(data)[1]) not in self._readers

    def _look_up(self, schema_id: int) -> Schema:
        """The schema that a value was written with."""
        return self.registry.by_id(schema_id)

    def _schema_for(self, subject: str, value: T) -> Schema:
        """The schema that a value is written with."""
        raise TypeError("derive from Framed")

    def _write(self, value: T) -> bytes:
        raise TypeError("derive from Framed")

    def _reader(self, schema: Schema) -> Any:
        """What reads payloads of a schema; kept for each id."""
        raise TypeError("derive from Framed")

    def _read(self, reader: Any, payload: memoryview) -> T:
        raise TypeError("derive from Framed")


_READERS_MAX: Final = 1_000


def missing(library: str, error: ImportError) -> KohortError:
    """The error for an extra that is not installed."""
    failure = KohortError(
        f"this format needs {library}; install it with: pip install 'kohort[registry]'"
    )
    failure.__cause__ = error
    return failure
