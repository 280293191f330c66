"""JSON Schema through a schema registry, by `jsonschema` (the extra `kohort[registry]`).

Rules:
- Written values are valid by the schema; read ones are checked by the given schema, or else by
  their writer's, unless `validate` is False.
"""

# jsonschema's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from typing import Any

from kohort.errors import DeserializationError, UsageError
from kohort.serdes.framed import Framed, Subject, by_topic, missing
from kohort.serdes.registry import Schema, SchemaRegistry, referenced


class JsonSchemaSerde(Framed[Any]):
    """JSON values that keep to a schema.

    Args:
        schema: what is written and read; JSON text, or what it parses to. None only reads.
        validate: check what is read.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | dict[str, Any] | Schema | None = None,
        *,
        validate: bool = True,
        register: bool = True,
        subject: Subject = by_topic,
    ) -> None:
        super().__init__(registry, register=register, subject=subject)
        try:
            import jsonschema
            import referencing
        except ImportError as error:
            raise missing("jsonschema", error) from error
        self._lib, self._referencing, self._validate = jsonschema, referencing, validate
        if schema is not None and not isinstance(schema, Schema):
            schema = Schema(schema if isinstance(schema, str) else json.dumps(schema), "JSON")
        self._schema = schema
        self._own = None if schema is None else self._reader(schema)

    def _schema_for(self, subject: str, value: Any) -> Schema:
        if self._schema is None:
            raise UsageError(
                f"JsonSchemaSerde without a schema only reads; give it {subject}'s to write"
            )
        return self._schema

    def _write(self, value: Any) -> bytes:
        try:
            if self._own is not None:
                self._own.validate(value)
        except self._lib.ValidationError as error:
            raise UsageError(f"the value breaks its JSON schema: {error.message}") from error
        return json.dumps(value, separators=(",", ":")).encode()

    def _reader(self, schema: Schema) -> Any:
        if schema.kind != "JSON":
            raise DeserializationError(f"its schema is of kind {schema.kind}, not JSON")
        parsed = json.loads(schema.text)
        kind = self._lib.validators.validator_for(parsed, default=self._lib.Draft202012Validator)
        # Only what the registry refers to is ever looked up: never an address in the schema.
        known = self._referencing.Registry().with_resources(
            [(name, self._resource(below)) for name, below in referenced(self.registry, schema)]
        )
        return kind(parsed, registry=known)

    def _resource(self, schema: Schema) -> Any:
        document = json.loads(schema.text)
        fallback = self._referencing.jsonschema.DRAFT202012
        return self._referencing.Resource.from_contents(document, default_specification=fallback)

    def _read(self, reader: Any, payload: memoryview) -> Any:
        value = json.loads(bytes(payload))
        if self._validate:
            try:
                (self._own or reader).validate(value)
            except self._lib.ValidationError as error:
                raise DeserializationError(f"it breaks its schema: {error.message}") from error
        return value
