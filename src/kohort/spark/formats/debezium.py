"""Change events of Debezium in JSON: the rows before and after a change, as structs.

Rules (spec 6.6):
- `valueSchema` is the schema of the table's rows; the envelope around them is known.
- Both forms are read, record by record: the envelope itself, and one in `payload` beside its
  `schema` (`value.converter.schemas.enable`).
- Debezium's defaults write times as numbers, whose unit depends on the column, and decimals as the
  base64 of their digits. Such a record's error names the setting that writes what a column takes.
- A tombstone, which Debezium writes behind a delete, is a null row.
- In Avro the envelope is part of the schema: `valueFormat=avro` reads it.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import chain
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

_TIMES: Final = "a number: time.precision.mode=isostring (Debezium 3.1) makes it text"
_DECIMALS: Final = "base64: decimal.handling.mode=string makes it text, double a number"


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
        errors = decoded.errors
        if errors is not None:
            errors = pa.array(map(self._advised, column, errors), pa.string())
        return decoded._replace(values=pc.coalesce(payload, plain), errors=errors)

    def _advised(self, value: pa.Scalar, error: pa.Scalar) -> str | None:
        """The error of a value, with the setting of Debezium that is to blame, if one is."""
        why = error.as_py()
        if why is None:
            return None
        try:
            event = json.loads(value.as_py())
            found = next(_misfits(event, self._json.type, ""), None)
        except (ValueError, RecursionError):
            found = None
        return f"{why}; Debezium writes field {found}" if found else why


def _misfits(value: Any, type_: pa.DataType, at: str) -> Iterator[str]:
    """The fields whose type does not take what Debezium's default settings make of it, and why."""
    tests = pa.types
    if tests.is_struct(type_) and isinstance(value, dict):
        dot = f"{at}." if at else ""
        below = (_misfits(value.get(f.name), f.type, dot + f.name) for f in type_)
        yield from chain.from_iterable(below)
    elif tests.is_map(type_) and isinstance(value, dict):
        for name, item in value.items():
            yield from _misfits(item, type_.item_type, f"{at}.{name}")
    elif tests.is_list(type_) and isinstance(value, list):
        for item in value:
            yield from _misfits(item, type_.value_type, f"{at}[]")
    elif tests.is_temporal(type_) and isinstance(value, int) and not isinstance(value, bool):
        yield f"{at} as {_TIMES}"
    elif tests.is_decimal(type_) and _is_base64(value):
        yield f"{at} as {_DECIMALS}"


def _is_base64(value: Any) -> bool:
    """Whether a value is the bytes of a decimal: alone, or beside its scale where each has one."""
    if isinstance(value, dict):
        return value.keys() == {"scale", "value"}
    if not isinstance(value, str):
        return False
    try:
        Decimal(value)
    except InvalidOperation:
        try:
            return bool(base64.b64decode(value, validate=True))
        except ValueError:
            return False
    return False
