"""Avro values to Arrow columns, with and without a schema registry.

Rules:
- With a registry each value is read by its writer's schema, which each process requests once. A
  registry that does not answer is raised; an id that it does not know, or a
  schema that does not go together with the columns, is the record's error.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import importlib
from typing import Any, Final

import pyarrow as pa

from kohort.errors import ConfigError, DeserializationError, SchemaRegistryError
from kohort.serdes.registry import Schema, SchemaRegistry, resolved
from kohort.serdes.registry_http import is_absent
from kohort.spark.formats.avro_plan import AvroSchema, arrow, layout, plan_of
from kohort.spark.formats.decoded import Decoded, messages

_PLANS_MAX: Final = 1_000


class AvroDecoder:
    """Decodes Avro records.

    Args:
        type_: the struct that values become.
        schema: what values were written with, as JSON, when there is no registry.
        registry: whose wire format values have: a zero byte, the schema's id, the value.
        reader: the schema that says what a column's default is, and its aliases.
        strict: a field that `type_` does not have is the record's error.

    Raises ConfigError when neither or both are given, or Avro is not read into the type.
    """

    def __init__(
        self,
        type_: pa.DataType,
        *,
        schema: str | None = None,
        registry: SchemaRegistry | None = None,
        reader: AvroSchema | None = None,
        strict: bool = False,
    ) -> None:
        if (schema is None) == (registry is None):
            raise ConfigError("Avro is read with a schema, or with a schema registry")
        _compiled()
        self.type = type_
        self._schema, self._registry, self._strict = schema, registry, strict
        self._reader = reader
        self._layout = layout(type_)
        self._plans: dict[int, Any] = {}
        if schema is not None:
            try:
                plan_of(AvroSchema(schema), type_, strict)
            except DeserializationError as error:  # now, and not at the first record
                raise ConfigError(str(error)) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}

    def decode(self, column: pa.Array) -> Decoded:
        """One row for each value; see `Decoded`. Raises ConnectionFailedError."""
        count = len(column)
        _, offsets, data = column.buffers()
        nulls = None
        if column.null_count:
            nulls = column.is_null().cast(pa.uint8()).buffers()[1].to_pybytes()
        columns = _compiled().Columns(self._layout)
        bad: dict[int, str] = {}
        if count:
            bad = columns.append(
                offsets.address + 4 * column.offset,
                data.address if data is not None else 0,
                nulls,
                count,
                self._registry is not None,
                self._plan,
            )
        return Decoded(arrow(self.type, columns.take()), messages(count, bad))

    def _plan(self, schema_id: int) -> Any:
        """The plan of a schema, or the reason why its values cannot be read."""
        found = self._plans.get(schema_id)
        if found is None:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            found = self._plans[schema_id] = self._planned(schema_id)
        return found

    def _planned(self, schema_id: int) -> Any:
        make = _compiled().Plan
        if self._registry is None:
            assert self._schema is not None, "one of them is given"
            return make(plan_of(AvroSchema(self._schema), self.type, self._strict))
        try:
            schema = written_as(self._registry, self._registry.by_id(schema_id))
            return make(plan_of(schema, self.type, self._strict, self._reader))
        except (SchemaRegistryError, DeserializationError, ConfigError) as error:
            if error.retriable and not is_absent(error):  # credentials: no value is at fault
                raise
            return f"schema {schema_id}: {error}"


def _compiled() -> Any:
    """The compiled module. Raises ConfigError when the installation has none."""
    try:
        return importlib.import_module("kohort.spark.formats._avro")
    except ImportError as error:
        raise ConfigError(
            "this installation has no compiled modules (KOHORT_BUILD_PURE), which Avro needs"
        ) from error


def written_as(registry: SchemaRegistry, schema: Schema) -> AvroSchema:
    """A registered schema with those that it refers to. Raises ConfigError for another kind."""
    if schema.kind != "AVRO":
        raise ConfigError(f"its schema is of kind {schema.kind}, not AVRO")
    return AvroSchema(schema.text, [below.text for below in resolved(registry, schema)])
