"""Protobuf messages to Arrow columns, by `ptars`.

Rules (spec 6.6):
- A message is read by one descriptor, whichever version of its schema it was written with: fields
  meet by number. A field that it lacks has Protobuf's default, or is null where its presence is
  known; a field that the descriptor lacks is read over.
- Types are those of Spark: an enum is a STRING, unsigned numbers are as wide as they need, a
  duration is an INTERVAL, a time of the day its microseconds. A field whose message holds itself
  is BINARY, the bytes of that message.
- A registry that holds the source of a schema is asked for its descriptor.
"""

# The types of protobuf, ptars and pyarrow are incomplete: strict would report nothing else.
# pyright: basic
from __future__ import annotations

import base64
import importlib
from typing import Any, Final

import pyarrow as pa

from kohort.errors import ConfigError, DeserializationError, SchemaRegistryError
from kohort.serdes.any_kind import add_file, message_class, well_known
from kohort.serdes.protobuf import (
    PROTOBUF,
    descriptor_of,
    indexes_in,
    indexes_of,
    pack_indexes,
    with_descriptor,
)
from kohort.serdes.registry import SchemaRegistry
from kohort.serdes.registry_http import is_absent
from kohort.spark.formats.decoded import Decoded, isolate, messages, spread
from kohort.spark.formats.options import Format
from kohort.spark.formats.types import TIMESTAMP, list_of

_OTHERS: Final = {  # of the types that Spark lacks
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.time64("us"): pa.int64(),
}
_PLACES_MAX: Final = 1_000


class ProtobufDecoder:
    """Decodes messages of one type.

    Args:
        message: the descriptor of the message.
        type_: the struct that values become; by default that of the message's fields.

    Raises ConfigError without `ptars`, and for a message without fields.
    """

    def __init__(self, message: Any, type_: pa.DataType | None = None) -> None:
        self._files = _files(message.file)
        self._name = message.full_name
        if not message.fields:
            raise ConfigError(
                f"the Protobuf message {self._name} has no fields, and so no columns; name another "
                "one by valueMessage or keyMessage"
            )
        self._handler: Any = _handler(message)
        self.type = type_ or _spark_type(pa.struct(list(self._handler.schema())))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handler": None}

    def decode(self, column: pa.Array) -> Decoded:
        """One row for each value; see `Decoded`."""
        if self._handler is None:  # it was pickled
            self._handler = _handler(_pool(self._files).FindMessageTypeByName(self._name))
        valid = column.is_valid()
        rows, bad = isolate(column.drop_null(), self._parse, self.type)
        errors = messages(len(rows), dict.fromkeys(bad, f"not a {self._name}"))
        return Decoded(spread(rows, valid), None if errors is None else spread(errors, valid))

    def _parse(self, column: pa.Array) -> pa.Array:
        if not len(column):
            return pa.array([], self.type)
        batch = self._handler.array_to_record_batch(column)
        columns = [
            batch.column(field.name).cast(field.type)
            if field.name in batch.schema.names
            else pa.nulls(len(batch), field.type)
            for field in self.type
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))


def message_of(format_: Format, registry: SchemaRegistry | None) -> Any:
    """The descriptor of the message that a format names.

    Raises ConfigError when there is none, or ConnectionFailedError.
    """
    _installed()
    from google.protobuf import descriptor_pool

    if format_.schema is not None or registry is None:
        file = _last(_of_text(format_))
    else:
        assert format_.subject is not None, "the options refuse it"
        schema = registry.latest(format_.subject)
        if schema.kind != "PROTOBUF":
            raise ConfigError(
                f"subject {format_.subject}: its schema is of kind {schema.kind}, not PROTOBUF; "
                f"{format_.part}Format says how it is read"
            )
        try:
            if descriptor_of(schema) is None:
                newest = registry.latest_id(format_.subject)
                schema = registry.by_id(newest, serialized=True)
            first = message_class(registry, schema, (0,), descriptor_pool.DescriptorPool())
        except DeserializationError as error:
            raise ConfigError(
                f"subject {format_.subject}: {error}; or give {format_.part}Schema, a descriptor "
                "set (protoc --include_imports --descriptor_set_out), beside the registry"
            ) from error
        file = first.DESCRIPTOR.file
    return _named(file, format_.message)


class Places:
    """What says in a registry's wire format that a payload is this message, by the schema's id.

    Its number counts in the file that it was written with: that version may have other messages
    before it. The newest file's number counts where the writer's has no message of its name.
    """

    def __init__(self, message: Any, registry: SchemaRegistry) -> None:
        self._name, self._newest = message.full_name, pack_indexes(indexes_of(message))
        self._registry = registry
        self._found: dict[int, bytes | str] = {}

    def __call__(self, schema_id: int) -> bytes | str:
        """The bytes behind the id, or why there are none."""
        found = self._found.get(schema_id)
        if found is None:
            if len(self._found) >= _PLACES_MAX:
                self._found.clear()
            found = self._found[schema_id] = self._fetch_schema(schema_id)
        return found

    def _fetch_schema(self, schema_id: int) -> bytes | str:
        try:
            schema = with_descriptor(self._registry, schema_id)
        except SchemaRegistryError as error:
            if error.retriable and not is_absent(error):  # credentials: no value is at fault
                raise
            return f"schema {schema_id}: {error}"
        if schema.kind != PROTOBUF:
            return f"schema {schema_id}: its schema is of kind {schema.kind}, not PROTOBUF"
        file = descriptor_of(schema)
        indexes = None if file is None else indexes_in(file, self._name)
        return self._newest if indexes is None else pack_indexes(indexes)


def _of_text(format_: Format) -> list[bytes]:
    """The files of a descriptor set in base64, as `protoc --descriptor_set_out` makes it."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        data = base64.b64decode("".join((format_.schema or "").split()), validate=True)
        found = descriptor_pb2.FileDescriptorSet.FromString(data)
    except (ValueError, DecodeError) as error:
        raise ConfigError(
            f"{format_.part}Schema must be a FileDescriptorSet in base64 (protoc --include_imports "
            f"--descriptor_set_out): {error}"
        ) from error
    if not found.file:
        raise ConfigError(f"{format_.part}Schema is a descriptor set without a file")
    return [file.SerializeToString() for file in found.file]


def _last(files: list[bytes]) -> Any:
    """The last file, which imports the others."""
    from google.protobuf import descriptor_pb2

    name = descriptor_pb2.FileDescriptorProto.FromString(files[-1]).name
    try:
        return _pool(files).FindFileByName(name)
    except DeserializationError as error:
        raise ConfigError(f"the descriptor set does not build: {error}") from error


def _named(file: Any, name: str | None) -> Any:
    """A message of a file by its full name, or the first one."""
    every = [each for top in file.message_types_by_name.values() for each in _with_nested(top)]
    if not every:
        raise ConfigError(f"the Protobuf file {file.name} has no message")
    found = every[0] if name is None else next((m for m in every if m.full_name == name), None)
    if found is None:
        known = ", ".join(m.full_name for m in every[:10])
        raise ConfigError(f"the Protobuf file {file.name} has no message {name}; it has {known}")
    return found


def _with_nested(message: Any) -> list[Any]:
    return [message, *(each for nested in message.nested_types for each in _with_nested(nested))]


def _files(file: Any) -> list[bytes]:
    """A file and what it imports, each before those that import it."""
    found: dict[str, bytes] = {}

    def add(each: Any) -> None:
        if each.name not in found:
            for imported in each.dependencies:
                add(imported)
            found[each.name] = each.serialized_pb

    add(file)
    return list(found.values())


def _pool(files: list[bytes]) -> Any:
    """A pool of these files. Google's own are those of the library only where the files lack them:
    it may be another release of them, on an executor too.

    Raises DeserializationError when they import what is not there.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    left: dict[str, Any] = {}
    for data in files:
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        if left.setdefault(file.name, file) != file:
            raise DeserializationError(f"it has two files called {file.name}")

    def find(name: str, importer: str) -> Any:
        file = left.pop(name, None) or well_known(name)
        if file is None:
            raise DeserializationError(
                f"{importer} imports {name}, which it lacks (protoc --include_imports adds it)"
            )
        return file

    while left:
        _, file = left.popitem()
        add_file(file, pool, find)
    return pool


def _handler(message: Any) -> Any:
    ptars = _installed()
    config = ptars.PtarsConfig(
        timestamp_unit="us",
        duration_unit="us",
        time_unit="us",
        list_value_name="element",
        list_value_nullable=True,
        map_value_nullable=True,
        enum_repr="string",
    )
    return ptars.HandlerPool([message.file], config=config).get_for_message(message)


def _installed() -> Any:
    try:
        return importlib.import_module("ptars")
    except ImportError as error:
        raise ConfigError(
            "Protobuf needs ptars, which is not installed: pip install 'kohort[spark-protobuf]'"
        ) from error


def _spark_type(type_: pa.DataType) -> pa.DataType:
    """The type of a column, of the type that ptars gives."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _spark_type(f.type)) for f in type_])
    if pa.types.is_list(type_):
        return list_of(_spark_type(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(_spark_type(type_.key_type), _spark_type(type_.item_type))
    return TIMESTAMP if pa.types.is_timestamp(type_) else _OTHERS.get(type_, type_)
