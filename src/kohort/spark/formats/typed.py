"""Records with decoded keys and values: which columns there are, and how they are made.

Rules (spec 6.5, 6.6):
- `value` and `key` become structs; topic, partition and offset stay beside them.
- With mode=PERMISSIVE a record that does not decode is a row: `_error` has the reason, `_raw_value`
  and `_raw_key` the bytes of the part that failed, which is null. With FAILFAST it ends the query.
- A schema that Spark got once is what is decoded into: a registry is not asked for it again.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.errors import ConfigError, DeserializationError
from kohort.serdes.registry import SchemaRegistry
from kohort.spark.formats.avro import AvroDecoder, written_as
from kohort.spark.formats.avro_plan import AvroSchema, is_avro, merged
from kohort.spark.formats.debezium import DebeziumDecoder, envelope
from kohort.spark.formats.decoded import Decoded, Decoder
from kohort.spark.formats.framed import FramedDecoder
from kohort.spark.formats.json import JsonDecoder
from kohort.spark.formats.json_schema import type_of
from kohort.spark.formats.options import Format, Formats
from kohort.spark.formats.patience import PatientRegistry
from kohort.spark.formats.protobuf import Places, ProtobufDecoder, message_of
from kohort.spark.formats.types import parse_schema

pc: Any = pyarrow.compute
_BESIDE: Final = {
    "_rescued": pa.string(),
    "_error": pa.string(),
    "_raw_key": pa.binary(),
    "_raw_value": pa.binary(),
}


def decoder_of(format_: Format, type_: pa.DataType | None = None) -> Decoder:
    """The decoder of a format.

    Args:
        type_: what to decode into; by default what the format's schema says, for which a schema
            registry may be asked.

    Raises:
        ConfigError: the schema is none, or its types cannot be decoded into.
        ConnectionFailedError: the schema registry does not answer.
    """
    if format_.name == "debezium":
        return DebeziumDecoder(type_ or envelope(parse_schema(format_.schema or "")))
    registry = None if format_.registry is None else PatientRegistry(format_.registry)
    if format_.name == "protobuf":
        message = message_of(format_, registry)
        payload = ProtobufDecoder(message, type_)
        return payload if registry is None else FramedDecoder(payload, Places(message, registry))
    if format_.name in ("json", "json-schema"):
        decoder = JsonDecoder(type_ or _json_type(format_, registry), format_.evolution)
        return decoder if registry is None else FramedDecoder(decoder)
    reader = None if registry is None else _reader(format_, registry)
    return AvroDecoder(
        type_ or (reader.type() if reader is not None else _avro_type(format_, registry)),
        schema=format_.schema if registry is None else None,
        registry=registry,
        reader=reader,
        strict=format_.evolution == "fail",
    )


def _json_type(format_: Format, registry: SchemaRegistry | None) -> pa.DataType:
    if format_.schema is not None:
        in_ddl = format_.name == "json"
        return parse_schema(format_.schema) if in_ddl else type_of(format_.schema)
    assert registry is not None, "the options refuse neither"
    assert format_.subject is not None, "the options refuse it"
    schema = registry.latest(format_.subject)
    if schema.kind != "JSON":
        raise ConfigError(
            f"subject {format_.subject}: its schema is of kind {schema.kind}, not JSON; "
            f"{format_.part}Format says how it is read"
        )
    return type_of(schema.text)


def _reader(format_: Format, registry: SchemaRegistry) -> AvroSchema | None:
    """The schema whose columns are read: the one that is given, or the subject's newest."""
    if format_.schema is not None:
        return AvroSchema(format_.schema) if is_avro(format_.schema) else None
    if format_.evolution == "widen":
        return None
    assert format_.subject is not None, "the options refuse it"
    return written_as(registry, registry.latest(format_.subject))


def _avro_type(format_: Format, registry: SchemaRegistry | None) -> pa.DataType:
    if format_.schema is not None:
        if is_avro(format_.schema):
            return AvroSchema(format_.schema).type()
        if registry is None:
            raise ConfigError(
                f"{format_.part}Schema must be the Avro schema (JSON) by which each {format_.part} "
                "was written; DDL needs schemaRegistry beside it"
            )
        return parse_schema(format_.schema)
    assert registry is not None, "the options refuse neither"
    assert format_.subject is not None, "the options refuse it"
    versions = registry.versions(format_.subject)
    every = [registry.by_version(format_.subject, version) for version in versions]
    return merged([written_as(registry, each) for each in reversed(every)])


class Typed:
    """Decodes the keys and values of record batches.

    Args:
        formats: what the options ask for.
        types: what `value` and `key` become, by name; by default what their schemas say.
    """

    def __init__(self, formats: Formats, types: Mapping[str, pa.DataType] | None = None) -> None:
        self._formats = formats
        self._decoders = {
            f.part: decoder_of(f, (types or {}).get(f.part))
            for f in (formats.key, formats.value)
            if f is not None
        }

    @property
    def parts(self) -> tuple[str, ...]:
        """The columns that are decoded."""
        return tuple(self._decoders)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The types of the columns that differ from the connector's, or that it does not have."""
        types = {part: decoder.type for part, decoder in self._decoders.items()}
        return types | {name: _BESIDE[name] for name in self._formats.columns}

    def columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns of `types` for a batch with columns topic, partition, offset, key and value.

        Raises DeserializationError with mode=FAILFAST, naming the first record that fails.
        """
        parts = {p: d.decode(batch.column(p)) for p, d in self._decoders.items()}
        columns = {part: decoded.values for part, decoded in parts.items()}
        if not self._formats.permissive:
            _check(batch, parts)
        count = len(batch)
        for name in self._formats.columns:
            if name == "_error":
                columns[name] = _texts(count, {p: d.errors for p, d in parts.items()})
            elif name == "_rescued":
                columns[name] = _texts(count, {p: d.rescued for p, d in parts.items()})
            else:
                part = name.removeprefix("_raw_")
                columns[name] = _raw(batch.column(part), parts[part].errors)
        return columns


def _check(batch: pa.RecordBatch, parts: Mapping[str, Decoded]) -> None:
    for part, decoded in parts.items():
        if decoded.errors is None:
            continue
        row = pc.indices_nonzero(decoded.errors.is_valid())[0].as_py()
        topic, partition, offset = (batch.column(c)[row] for c in ("topic", "partition", "offset"))
        raise DeserializationError(
            f"{topic}/{partition}: the {part} of record {offset} does not decode: "
            f"{decoded.errors[row]}. With mode=PERMISSIVE it is a row with the column _error"
        )


def _texts(count: int, texts: Mapping[str, pa.Array | None]) -> pa.Array:
    """The texts of both parts in one column; of two parts each says which it is."""
    present = {part: text for part, text in texts.items() if text is not None}
    if not present:
        return pa.nulls(count, pa.string())
    if len(texts) == 1:
        return next(iter(present.values()))
    named = [pc.binary_join_element_wise(f"{part}: ", text, "") for part, text in present.items()]
    joined = pc.binary_join_element_wise(*named, "; ")  # null where one of them is
    return pc.coalesce(joined, *named)


def _raw(column: pa.Array, errors: pa.Array | None) -> pa.Array:
    """The bytes where there is an error, null elsewhere."""
    if errors is None:
        return pa.nulls(len(column), pa.binary())
    return pc.if_else(errors.is_valid(), column, pa.scalar(None, pa.binary()))
