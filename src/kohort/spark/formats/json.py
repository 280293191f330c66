"""JSON objects to Arrow columns, by `pyarrow.json`.

Rules:
- A batch is parsed in one call. Only when it fails is it looked at record by record: `json` of the
  standard library names what is no JSON, halving finds what does not fit its type.
- Every record begins with { and ends with }, so that neither can a broken one swallow its
  neighbour nor two objects in one value pass for two records: as many rows as values, or an error.
- What pyarrow reads as text only (dates, timestamps, binary in base64) is converted afterwards.
- `pyarrow.json` knows no maps: values of a type that holds one are parsed by `json`, twenty times
  as slowly.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from kohort.errors import ConfigError
from kohort.spark.formats.decoded import Decoded, isolate, messages, reason, spread

pc: Any = pyarrow.compute
IGNORE: Final = "ignore"
RESCUE: Final = "rescue"
FAIL: Final = "fail"
_ZONE: Final = r"(?:Z|[T ].*[+-]\d\d(?::?\d\d)?)$"
_DAY: Final = r"^(\d{4}-\d\d-\d\d)"
_DAY_UTC: Final = _DAY + "[Zz]$"
_SPELLINGS: Final = (
    (r"(:\d\d\.\d{6})\d+", r"\1"),
    (_DAY + "t", r"\1T"),
    (_DAY + "$", r"\1T00"),
    ("z$", "Z"),
)
"""What ISO 8601 has and Arrow does not: more digits than microseconds, small letters, with a zone a
day alone."""


class JsonDecoder:
    """Decodes JSON objects.

    Args:
        type_: the struct that values become. Fields that a record lacks are null.
        unknown: of fields that the struct does not have: `ignore` leaves them out, `fail` makes
            them the record's error, `rescue` collects them as JSON text.

    Raises ConfigError for a type that JSON is not read as (an interval, a map whose keys are not
    text).
    """

    def __init__(self, type_: pa.StructType, unknown: str = IGNORE) -> None:
        self.type = type_
        self._unknown = unknown
        self._stored = pa.struct([pa.field(f.name, _stored(f.type, f.name)) for f in type_])
        self._converts = self._stored != type_
        self._shape = _Shape.of(self._stored)
        self._read = self._read_maps if _holds_map(type_) else self._read_lines

    def decode(self, column: pa.Array) -> Decoded:
        """One row for each value; see `Decoded`."""
        valid = column.is_valid()
        present = column.filter(valid) if column.null_count else column
        try:
            return Decoded(spread(self._parse(present, self._unknown != IGNORE), valid))
        except (pa.ArrowInvalid, ValueError):
            return self._one_by_one(present, valid)

    def _one_by_one(self, texts: pa.Array, valid: pa.Array) -> Decoded:
        """The values of which at least one does not parse, or has unknown fields."""
        fitting, bad = self._fitting(texts)
        kept = pc.indices_nonzero(fitting).to_pylist()
        parsed, misfits = isolate(
            texts.filter(fitting), lambda part: self._parse(part, self._unknown == FAIL), self.type
        )
        bad |= {kept[row]: why for row, why in misfits.items()}
        rescued = None
        if self._unknown == RESCUE:
            rescued = _rescued(texts, [row for row in kept if row not in bad], self.type)
        errors = messages(len(texts), bad)
        return Decoded(
            spread(spread(parsed, fitting), valid),
            None if errors is None else spread(errors, valid),
            None if rescued is None else spread(rescued, valid),
        )

    def _fitting(self, texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Which values look as if they parse, and of the others why they do not."""
        bad: dict[int, str] = {}
        for row, data in enumerate(texts.to_pylist()):
            try:
                misfit = self._shape.misfit(json.loads(data), "", self._unknown == FAIL)
            except (ValueError, RecursionError) as error:
                misfit = f"not JSON: {reason(error)}"
            if misfit:
                bad[row] = misfit
        return pa.array([row not in bad for row in range(len(texts))], pa.bool_()), bad

    def _parse(self, column: pa.Array, known: bool) -> pa.Array:
        """All of these values. Raises ArrowInvalid or ValueError when one does not parse."""
        if not len(column):
            return pa.array([], self.type)
        children = self._read(column, known)
        if self._converts:
            children = [
                _converted(child, field.type)
                for child, field in zip(children, self.type, strict=True)
            ]
        return pa.StructArray.from_arrays(children, fields=list(self.type))

    def _read_lines(self, column: pa.Array, known: bool) -> list[pa.Array]:
        lines = _as_lines(column)
        table = pyarrow.json.read_json(
            pa.BufferReader(lines),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(self._stored)),
                unexpected_field_behavior="error" if known else "ignore",
            ),
        )
        if table.num_rows != len(column):
            raise ValueError("a value holds more than one JSON object")
        table.validate(full=True)  # text is UTF-8
        return [chunked.combine_chunks() for chunked in table.columns]

    def _read_maps(self, column: pa.Array, known: bool) -> list[pa.Array]:
        rows: list[Any] = []
        try:
            for data in column.to_pylist():
                value = json.loads(data, parse_float=Decimal, object_pairs_hook=_once_each)
                if why := self._shape.misfit(value, "", known):
                    raise ValueError(why)
                rows.append(_with_pairs(value, self._stored))
            return pa.array(rows, self._stored).flatten()
        except (ArithmeticError, TypeError, RecursionError) as error:
            raise ValueError(str(error) or type(error).__name__) from error


def _rescued(texts: pa.Array, rows: list[int], type_: pa.DataType) -> pa.Array | None:
    """What the type does not have of these rows, as JSON text; None when it has all of it."""
    found: list[str | None] = [None] * len(texts)
    for row in rows:
        rest = _beyond(json.loads(texts[row].as_py()), type_)
        if rest:
            found[row] = json.dumps(rest, ensure_ascii=False)
    return pa.array(found, pa.string()) if any(found) else None


def _as_lines(column: pa.Array) -> pa.Buffer:
    """The values, each on lines of its own. Raises ValueError when one is no object."""
    if not _are_objects(column):
        column = pc.ascii_trim_whitespace(column.view(pa.string()))
        if not _are_objects(column):
            raise ValueError("the value is not a JSON object")
    whole = pa.ListArray.from_arrays([0, len(column)], column)
    return pc.binary_join(whole, "\n" if pa.types.is_string(column.type) else b"\n")[0].as_buffer()


def _are_objects(column: pa.Array) -> bool:
    return (
        pc.all(pc.starts_with(column, pattern="{")).as_py()
        and pc.all(pc.ends_with(column, pattern="}")).as_py()
    )


@dataclass(frozen=True)
class _Shape:
    """What a JSON value must be for pyarrow to read it as a type."""

    kind: Any
    expected: str
    below: dict[str, _Shape] = field(default_factory=dict)
    """By field; of an array its element, of a map its values, by the empty name."""
    open: bool = False
    """Fields may have any name."""

    @classmethod
    def of(cls, type_: pa.DataType) -> _Shape:
        tests = pa.types
        if tests.is_struct(type_):
            return cls(dict, "a JSON object", {f.name: cls.of(f.type) for f in type_})
        if tests.is_map(type_):
            return cls(dict, "a JSON object", {"": cls.of(type_.item_type)}, open=True)
        if tests.is_list(type_):
            return cls(list, "an array", {"": cls.of(type_.value_type)})
        if tests.is_boolean(type_):
            return cls(bool, "true or false")
        if tests.is_integer(type_):
            return cls(int, "a whole number")
        if tests.is_floating(type_):
            return cls((int, float, Decimal), "a number")
        return (
            cls((int, float, Decimal, str), "a number")
            if tests.is_decimal(type_)
            else cls(str, "text")
        )

    def misfit(self, value: Any, at: str, strict: bool) -> str | None:
        """Why a value does not fit. It refuses only what pyarrow refuses, but not all of that."""
        if at and value is None:
            return None
        kind: Any = self.kind
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            return f"{f'field {at}' if at else 'the value'} is not {self.expected}"
        content: Any = value
        if kind is dict:
            return self._field_misfit(content, f"{at}." if at else "", strict)
        if kind is list:
            found = (self.below[""].misfit(item, f"{at}[]", strict) for item in content)
            return next(filter(None, found), None)
        return None

    def _field_misfit(self, value: dict[str, Any], at: str, strict: bool) -> str | None:
        for name, item in value.items():
            shape = self.below.get("" if self.open else name)
            if shape is None:
                if strict:
                    return f"field {at}{name} is not in the schema"
            elif why := shape.misfit(item, at + name, strict):
                return why
        return None


def _stored(type_: pa.DataType, at: str) -> pa.DataType:
    """The type that pyarrow reads, from which ours is made."""
    if pa.types.is_map(type_):
        if not pa.types.is_string(type_.key_type):
            raise ConfigError(f"{at}: the names in a JSON object are text: MAP<STRING, ...>")
        return pa.map_(pa.string(), _stored(type_.item_type, at))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _stored(f.type, f"{at}.{f.name}")) for f in type_])
    if pa.types.is_list(type_):
        field = type_.value_field
        return pa.list_(pa.field(field.name, _stored(field.type, at)))
    if pa.types.is_duration(type_):
        raise ConfigError(f"{at}: JSON has no intervals: read it as BIGINT or STRING")
    if pa.types.is_temporal(type_) or pa.types.is_binary(type_):
        return pa.string()
    return type_


def _converted(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """An array of `_stored(type_)` as `type_`. Raises ArrowInvalid or ValueError."""
    if array.type == type_:
        return array
    if pa.types.is_struct(type_):
        below = [
            _converted(child, field.type)
            for child, field in zip(array.flatten(), type_, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(below, fields=list(type_), mask=mask)
    if pa.types.is_map(type_):
        items = _converted(array.items, type_.item_type)
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=type_, mask=mask)
    if pa.types.is_list(type_):
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(
            array.offsets, _converted(array.values, type_.value_type), type=type_, mask=mask
        )
    if pa.types.is_binary(type_):
        return pa.array(
            [None if v is None else base64.b64decode(v, validate=True) for v in array.to_pylist()],
            type_,
        )
    if pa.types.is_timestamp(type_):
        return _times(array, type_)
    with suppress(pa.ArrowInvalid):
        return array.cast(type_)
    return pc.replace_substring_regex(array, _DAY_UTC, r"\1").cast(type_)


def _times(array: pa.Array, type_: pa.TimestampType) -> pa.Array:
    """Texts as times, in UTC when they name no zone. Raises ArrowInvalid.

    Arrow reads what is usual by itself, several times as fast as it is respelled. The first text
    tells which way: a cast in which every text fails takes as long as many that fit.
    """
    first = array.drop_null()[:1]
    for types in ((type_,), (pa.timestamp(type_.unit), type_)):
        with suppress(pa.ArrowInvalid):
            _cast(first, types)
            return _cast(array, types)
    return _as_arrow_reads(array, zoned=bool(type_.tz)).cast(type_)


def _cast(array: pa.Array, types: Iterable[pa.DataType]) -> pa.Array:
    """An array as each of these types in turn."""
    for type_ in types:
        array = array.cast(type_)
    return array


def _as_arrow_reads(array: pa.Array, *, zoned: bool) -> pa.Array:
    """Times in ISO 8601 as Arrow spells them, with a zone or without one."""
    for found, spelled in _SPELLINGS:
        if pc.any(pc.match_substring_regex(array, found)).as_py():
            array = pc.replace_substring_regex(array, found, spelled)
    if not zoned:
        return array
    has_zone = pc.match_substring_regex(array, _ZONE)
    return pc.if_else(has_zone, array, pc.binary_join_element_wise(array, "Z", ""))


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field occurs twice")
    return found


def _holds_map(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_holds_map(field.type) for field in type_)
    return pa.types.is_map(type_) or (pa.types.is_list(type_) and _holds_map(type_.value_type))


def _with_pairs(value: Any, type_: pa.DataType) -> Any:
    """A parsed value that fits a type as `pa.array` takes it: maps are pairs."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {f.name: _with_pairs(value.get(f.name), f.type) for f in type_}
    if pa.types.is_map(type_):
        return [(key, _with_pairs(item, type_.item_type)) for key, item in value.items()]
    if pa.types.is_list(type_):
        return [_with_pairs(item, type_.value_type) for item in value]
    if pa.types.is_decimal(type_):
        try:
            return Decimal(value)
        except InvalidOperation:
            raise ValueError(f"{value!r} is not a number") from None
    return float(value) if pa.types.is_floating(type_) else value


def _beyond(value: Any, type_: pa.DataType) -> Any:
    """The part of a JSON value that a type does not have; None when it has all of it."""
    if pa.types.is_struct(type_) and isinstance(value, dict):
        known = {f.name: f.type for f in type_}
        rest = {k: v for k, v in value.items() if k not in known}
        for name, below in known.items():
            if name in value and (more := _beyond(value[name], below)) is not None:
                rest[name] = more
        return rest or None
    if pa.types.is_map(type_) and isinstance(value, dict):
        below = {k: _beyond(item, type_.item_type) for k, item in value.items()}
        return {k: rest for k, rest in below.items() if rest is not None} or None
    if pa.types.is_list(type_) and isinstance(value, list):
        parts = [_beyond(item, type_.value_type) for item in value]
        return parts if any(p is not None for p in parts) else None
    return None
