"""Typed reading: keys and values as Arrow columns, decoded where they are fetched.

    from kohort.spark.formats import Format, decoder_of

    decoder = decoder_of(Format("value", "json", "id BIGINT, name STRING"))
    decoded = decoder.decode(batch.column("value"))   # values (struct), errors, rescued

`format("kohort")` does this by the options `valueFormat` and `keyFormat` (docs/spark.md).
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from kohort.spark.formats.decoded import Decoded, Decoder
from kohort.spark.formats.options import Format, Formats
from kohort.spark.formats.rows import (
    NULL_VALUE,
    ROW_ERROR,
    ROWS,
    RowDecoder,
    RowFormat,
    Rows,
    SourceRows,
    types_of,
)
from kohort.spark.formats.typed import Typed, decoder_of
from kohort.spark.formats.types import ddl_of, parse_schema

__all__ = [
    "NULL_VALUE",
    "ROWS",
    "ROW_ERROR",
    "Decoded",
    "Decoder",
    "Format",
    "Formats",
    "RowDecoder",
    "RowFormat",
    "Rows",
    "SourceRows",
    "Typed",
    "ddl_of",
    "decoder_of",
    "parse_schema",
    "types_of",
]
