"""Change events of Debezium in JSON: the rows before and after a change, as structs.

Rules (spec 6.6):
- `valueSchema` is the schema of the table's rows; the envelope around them is known.
- Both forms are read, record by record: the envelope itself, and one in `payload` beside its
  `schema` (`value.converter.schemas.enable`).
- A tombstone, which Debezium writes behind a delete, is a null row.
- In Avro the envelope is part of the schema: `valueFormat=avro` reads it.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kohort.spark.formats.decoded import Decoded
from kohort.spark.formats.json import JsonDecoder

pc: Any = pyarrow.compute
_SOURCE: Final = pa.struct(
    [
        ("connector", pa.string()),
        ("name", pa.string()),
        ("db", pa.string()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("ts_ms", pa.int64()),
    ]
)


def envelope(row: pa.DataType) -> pa.DataType:
    """The type of a change of a row: op is `c`, `u`, `d`, or `r` for a snapshot's."""
    return pa.struct(
        [
            pa.field("before", row),
            pa.field("after", row),
            pa.field("op", pa.string()),
            pa.field("ts_ms", pa.int64()),
            pa.field("source", _SOURCE),
        ]
    )


class DebeziumDecoder:
    """Decodes change events.

    Args:
        type_: the envelope, as `envelope` gives it.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_
        self._json = JsonDecoder(pa.struct([*type_, pa.field("payload", type_)]))

    def decode(self, column: pa.Array) -> Decoded:
        """One row for each value; see `Decoded`."""
        decoded = self._json.decode(column)
        *fields, payload = decoded.values.flatten()
        plain = pa.StructArray.from_arrays(
            fields, fields=list(self.type), mask=decoded.values.is_null()
        )
        return decoded._replace(values=pc.coalesce(payload, plain))
