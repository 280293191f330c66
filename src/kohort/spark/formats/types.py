"""Schemas as text to Arrow types, and back to Spark's DDL. Pure functions.

Rules:
- Text is Spark's DDL (`id BIGINT, tags ARRAY<STRING>`) or the JSON of a Spark schema
  (`df.schema.json()`). Spark's own parser needs the JVM, and the planner's process has none.
- Every field may be null, as `from_json` has it: a field that a record lacks is null.
- Only types that Spark takes from a Python source: no large types, `timestamp[us, UTC]`. Of
  intervals that is DAY TO SECOND: Arrow has one type for all that end below a month.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import re
from typing import Any, Final

import pyarrow as pa

from kohort.errors import ConfigError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
INTERVAL: Final = pa.duration("us")
_INTERVAL_WORDS: Final = ("INTERVAL", "DAY", "TO", "SECOND")
_PLAIN: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "BYTE": pa.int8(),
    "SMALLINT": pa.int16(),
    "SHORT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_LTZ": TIMESTAMP,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "DECIMAL": pa.decimal128(10, 0),
    "DEC": pa.decimal128(10, 0),
    "NUMERIC": pa.decimal128(10, 0),
}
_DDL: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    INTERVAL: " ".join(_INTERVAL_WORDS),
}
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|[\w$]+|[<>(),:])")
_DEPTH_MAX: Final = 50


def parse_schema(text: str) -> pa.StructType:
    """The struct type of a schema's text.

    Args:
        text: DDL of columns (`id BIGINT, name STRING`), one `STRUCT<...>`, or Spark's JSON.

    Raises ConfigError that shows where the text is not a schema.
    """
    if text.lstrip().startswith("{"):
        try:
            found = _from_json(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the schema is not the JSON of a Spark schema: {error}") from error
    else:
        found = _Ddl(text).schema()
    if not (pa.types.is_struct(found) and found.num_fields):
        raise ConfigError(f"the schema must have named columns (id BIGINT, ...), not {text!r}")
    return found


def ddl_of(type_: pa.DataType) -> str:
    """Spark's text of a type. Raises ConfigError for one that Spark does not have."""
    if type_ in _DDL:
        return _DDL[type_]
    if pa.types.is_decimal128(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return f"ARRAY<{ddl_of(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"MAP<{ddl_of(type_.key_type)}, {ddl_of(type_.item_type)}>"
    if pa.types.is_struct(type_):
        fields = ", ".join(f"{quoted(f.name)}: {ddl_of(f.type)}" for f in type_)
        return f"STRUCT<{fields}>"
    raise ConfigError(f"Spark has no type for Arrow's {type_}")


def quoted(name: str) -> str:
    """A column's name, quoted for DDL."""
    return "`" + name.replace("`", "``") + "`"


def list_of(item: pa.DataType) -> pa.ListType:
    """A list as Spark compares it: its element is called `element` and may be null."""
    return pa.list_(pa.field("element", item))


class _Ddl:
    """A recursive-descent parser over the tokens of a DDL text."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._tokens: list[tuple[str, int]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error("a name or a type", at)
            self._tokens.append((match[1], match.start(1)))
            at = match.end()

    def schema(self) -> pa.DataType:
        if self._peek(1) == "<":
            found = self._type()
        else:
            found = pa.struct(self._fields(""))
        if self._peek():
            raise self._error("the end")
        return found

    def _fields(self, close: str) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while True:
            name = self._next()
            if not re.match(r"[\w$`]", name):
                raise self._error("a column's name", back=1)
            if self._peek() == ":":
                self._next()
            bare = name[1:-1].replace("``", "`") if name.startswith("`") else name
            if any(f.name == bare for f in fields):
                raise ConfigError(f"the schema names column {bare!r} twice: {self._text!r}")
            fields.append(pa.field(bare, self._type()))
            self._attributes()
            if self._peek() != ",":
                break
            self._next()
        if close:
            self._expect(close)
        return fields

    def _attributes(self) -> None:
        """NOT NULL and COMMENT: read, and without effect."""
        if self._peek().upper() == "NOT":
            self._next()
            if self._next().upper() != "NULL":
                raise self._error("NULL", back=1)
        if self._peek().upper() == "COMMENT":
            self._next()
            self._next()

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ConfigError(f"the schema is nested deeper than {_DEPTH_MAX}")
        name = self._next().upper()
        if name == "ARRAY":
            self._expect("<")
            found: pa.DataType = list_of(self._type())
            self._expect(">")
        elif name == "MAP":
            self._expect("<")
            key = self._type()
            self._expect(",")
            found = pa.map_(key, self._type())
            self._expect(">")
        elif name == "STRUCT":
            self._expect("<")
            found = pa.struct(self._fields(">") if self._peek() != ">" else [])
            if not found.num_fields:
                self._next()
        elif name == "INTERVAL":
            found = self._interval()
        elif name in _PLAIN:
            found = self._sized(name)
        else:
            raise self._error("a type (BIGINT, STRING, ARRAY<...>, ...)", back=1)
        self._depth -= 1
        return found

    def _interval(self) -> pa.DataType:
        for word in _INTERVAL_WORDS[1:]:
            if self._peek().upper() != word:
                raise self._error(_DDL[INTERVAL])
            self._next()
        return INTERVAL

    def _sized(self, name: str) -> pa.DataType:
        found = _PLAIN[name]
        if not (pa.types.is_decimal(found) and self._peek() == "("):
            return found
        self._next()
        digits = [self._next()]
        if self._peek() == ",":
            self._next()
            digits.append(self._next())
        self._expect(")")
        if not all(d.isdigit() for d in digits):
            raise self._error("DECIMAL(10,2)", back=1)
        return _decimal(*(int(d) for d in digits))

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise self._error("more")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._error(repr(token), back=1)

    def _error(self, expected: str, at: int | None = None, back: int = 0) -> ConfigError:
        if at is None:
            index = self._at - back
            at = self._tokens[index][1] if index < len(self._tokens) else len(self._text)
        return ConfigError(
            f"the schema {self._text!r} is not DDL: expected {expected} at character {at + 1}"
        )


def _decimal(precision: int, scale: int = 0) -> pa.DataType:
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise ConfigError(f"DECIMAL({precision},{scale}): at most 38 digits, scale within them")
    return pa.decimal128(precision, scale)


def _from_json(node: Any) -> pa.DataType:
    """A type as `DataType.json()` writes it."""
    if isinstance(node, str):
        if match := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", node):
            return _decimal(int(match[1]), int(match[2]))
        if node.upper() == _DDL[INTERVAL]:
            return INTERVAL
        if node.upper() not in _PLAIN:
            raise ConfigError(f"the schema has a type that is not known: {node!r}")
        return _PLAIN[node.upper()]
    if node["type"] == "struct":
        return pa.struct([pa.field(str(f["name"]), _from_json(f["type"])) for f in node["fields"]])
    if node["type"] == "array":
        return list_of(_from_json(node["elementType"]))
    if node["type"] == "map":
        return pa.map_(_from_json(node["keyType"]), _from_json(node["valueType"]))
    raise ConfigError(f"the schema has a type that is not known: {node['type']!r}")
