"""Avro through a schema registry, by `fastavro` (the extra `kohort[registry]`).

Rules:
- Read with the writer's schema, resolved to the reader's where one is given (Avro's evolution).
- Schemas that refer to others get those first, by the registry's references.
"""

# fastavro's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import io
import json
from typing import Any

from kohort.errors import DeserializationError, UsageError
from kohort.serdes.framed import Framed, Subject, by_topic, missing
from kohort.serdes.registry import Schema, SchemaRegistry, resolved


class AvroSerde(Framed[Any]):
    """Avro values: dictionaries for records, as `fastavro` makes them.

    Args:
        schema: the schema of writing, to which read values are resolved; JSON text, or the parsed
            JSON. None only reads, each value with its writer's schema.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | dict[str, Any] | list[Any] | Schema | None = None,
        *,
        register: bool = True,
        subject: Subject = by_topic,
    ) -> None:
        super().__init__(registry, register=register, subject=subject)
        try:
            import fastavro
        except ImportError as error:
            raise missing("fastavro", error) from error
        self._avro = fastavro
        if schema is not None and not isinstance(schema, Schema):
            schema = Schema(schema if isinstance(schema, str) else json.dumps(schema))
        self._schema = schema
        self._parsed: Any = None if schema is None else self._reader(schema)

    def _schema_for(self, subject: str, value: Any) -> Schema:
        if self._schema is None:
            raise UsageError(f"AvroSerde without a schema only reads; give it {subject}'s to write")
        return self._schema

    def _write(self, value: Any) -> bytes:
        out = io.BytesIO()
        try:
            self._avro.schemaless_writer(out, self._parsed, value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise UsageError(f"the value does not fit its Avro schema: {error}") from error
        return out.getvalue()

    def _reader(self, schema: Schema) -> Any:
        if schema.kind != "AVRO":
            raise DeserializationError(f"its schema is of kind {schema.kind}, not AVRO")
        named: dict[str, Any] = {}
        for below in resolved(self.registry, schema):
            self._avro.parse_schema(json.loads(below.text), named_schemas=named)
        return self._avro.parse_schema(_whole(json.loads(schema.text), named), named_schemas=named)

    def _read(self, reader: Any, payload: memoryview) -> Any:
        source = io.BytesIO(payload)
        value = self._avro.schemaless_reader(source, reader, self._parsed)
        if source.tell() != len(payload):
            raise DeserializationError(f"{len(payload) - source.tell()} bytes are left over")
        return value


def _whole(schema: Any, named: dict[str, Any]) -> Any:
    """A schema with the referenced ones in the place of their names. `fastavro` keeps names with
    records only, and the outermost schema may be a name, a union, an array or a map."""
    if isinstance(schema, str):
        return named.get(schema, schema)
    if isinstance(schema, list):
        return [_whole(branch, named) for branch in schema]
    inner = {"array": "items", "map": "values"}.get(schema["type"]) if _is_simple(schema) else None
    return schema if inner is None else {**schema, inner: _whole(schema[inner], named)}


def _is_simple(schema: Any) -> bool:
    return isinstance(schema, dict) and isinstance(schema.get("type"), str)
