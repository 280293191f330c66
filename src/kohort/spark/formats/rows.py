"""Values of a pipeline's sources, decoded, with their bytes kept.

Rules (spec 6.5, 6.6):
- A record keeps its bytes: copies for retry topics are made of them. Its columns are in one more
  column, `ROWS`: a struct with one field a source, null for records of the others.
- A value that does not decode is a null row with its reason in `ROW_ERROR`. So is a null value.
- The types are resolved once, on the driver. Workers never ask a registry for the newest schema.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.spark.formats.decoded import spread
from kohort.spark.formats.options import Format
from kohort.spark.formats.plain_arrays import plain_array
from kohort.spark.formats.typed import decoder_of
from kohort.spark.formats.types import ddl_of, parse_schema

pc: Any = pyarrow.compute
ROWS: Final = "_kohort_rows"
ROW_ERROR: Final = "_kohort_error"
RESCUED: Final = "_rescued"
NULL_VALUE: Final = "the value is null"


@dataclass(frozen=True)
class RowFormat:
    """How the values of one source become rows.

    Args:
        format: of the values.
        ddl: the type that they are decoded into.
    """

    format: Format
    ddl: str

    @classmethod
    def of(cls, format_: Format) -> RowFormat:
        """With the type that the schema says now.

        Raises ConfigError or, when a schema registry does not answer, ConnectionFailedError.
        """
        return cls(format_, ddl_of(decoder_of(format_).type))

    @property
    def type(self) -> pa.StructType:
        """The columns of a row."""
        rescued = [pa.field(RESCUED, pa.string())] if self.format.evolution == "rescue" else []
        return pa.struct([*parse_schema(self.ddl), *rescued])


def types_of(formats: Mapping[str, RowFormat]) -> dict[str, pa.DataType]:
    """The types of the columns that the formats of these sources make."""
    rows = pa.struct([pa.field(name, each.type) for name, each in formats.items()])
    return {ROWS: rows, ROW_ERROR: pa.string()}


class RowDecoder:
    """Decodes values into rows of a format's type; picklable."""

    def __init__(self, format_: RowFormat) -> None:
        self.type = format_.type
        self._decoder = decoder_of(format_.format, parse_schema(format_.ddl))
        self._rescues = format_.format.evolution == "rescue"

    def decode(self, column: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """The rows, and the reasons where a value did not decode. Raises ConnectionFailedError."""
        rows, errors, rescued = self._decoder.decode(column)
        if self._rescues:
            texts = pa.nulls(len(rows), pa.string()) if rescued is None else rescued
            rows = pa.StructArray.from_arrays(
                [*rows.flatten(), texts], fields=list(self.type), mask=rows.is_null()
            )
        return rows, errors


@dataclass(frozen=True)
class SourceRows:
    """A source, the topics whose records are its rows, and their format."""

    name: str
    topics: tuple[str, ...]
    format: RowFormat


def to_option(sources: Iterable[SourceRows]) -> str:
    """The sources as one option of `format("kohort")`."""
    return json.dumps([asdict(source) for source in sources])


def of_option(text: str) -> tuple[SourceRows, ...]:
    """The sources of an option that `to_option` wrote."""
    return tuple(
        SourceRows(
            each["name"],
            tuple(each["topics"]),
            RowFormat(Format(**each["format"]["format"]), each["format"]["ddl"]),
        )
        for each in json.loads(text)
    )


class Rows:
    """Decodes the values of several sources' topics; used as `Typed` is."""

    parts: Final = ("value",)

    def __init__(self, sources: Sequence[SourceRows]) -> None:
        self._sources = [
            (plain_array(s.topics, pa.string()), RowDecoder(s.format)) for s in sources
        ]
        self.types = types_of({s.name: s.format for s in sources})

    def columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns of `types` for a batch with columns topic and value."""
        topics, values = batch.column("topic").cast(pa.string()), batch.column("value")
        rows: list[pa.Array] = []
        errors = pa.nulls(len(batch), pa.string())
        for names, decoder in self._sources:
            own = pc.is_in(topics, value_set=names)
            all_own = pc.all(own).as_py()
            decoded, wrong = decoder.decode(values if all_own else values.filter(own))
            rows.append(spread(decoded, own))
            if wrong is not None:
                errors = pc.coalesce(spread(wrong, own), errors)
        if values.null_count:
            errors = pc.if_else(values.is_null(), NULL_VALUE, errors)
        fields = list(self.types[ROWS])
        return {ROWS: pa.StructArray.from_arrays(rows, fields=fields), ROW_ERROR: errors}
