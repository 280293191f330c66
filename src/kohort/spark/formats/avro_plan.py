"""Avro schemas: the Arrow type that they are read as, and the plan by which their bytes are read.

Rules (spec 6.6):
- Types are those of Spark's `from_avro`: a union with null is a column that may be null, of int and
  long a BIGINT, any other a struct of `member0`, `member1`, ...; an enum is a STRING.
- Columns and the writer's fields meet by name, or by an alias in the reader's schema. A column that
  the writer lacks has the reader's default, or is null; a field that there is no column for is read
  over. Numbers are widened as Avro widens them, never narrowed.
- A value becomes that member of the reader's union that its type, or its branch, resolves to: by
  name, else by kind, else by what its kind is promoted to; an enum to a string, too. A branch that
  resolves to none is the record's error.
- A plan is nested tuples `(op, column, argument, below, absent)`; `_avro.pyx` reads values by it.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from kohort.errors import ConfigError, DeserializationError
from kohort.spark.formats.avro_values import encoded
from kohort.spark.formats.types import TIMESTAMP, list_of

STRUCT, LIST, BOOL, I32, I64, F32, F64, BIN, DEC = range(9)
(
    OP_NULL,
    OP_BOOL,
    OP_INT,
    OP_LONG,
    OP_FLOAT,
    OP_DOUBLE,
    OP_BYTES,
    OP_STRING,
    OP_FIXED,
    OP_ENUM,
    OP_ARRAY,
    OP_MAP,
    OP_UNION,
    OP_RECORD,
    OP_DECIMAL,
    OP_MEMBERS,
    OP_CONSTANT,
    OP_MEMBER,
    OP_REFUSED,
) = range(19)
_DEPTH_MAX: Final = 50
_PLAIN: Final = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_OPS: Final = {
    "null": OP_NULL,
    "boolean": OP_BOOL,
    "int": OP_INT,
    "long": OP_LONG,
    "float": OP_FLOAT,
    "double": OP_DOUBLE,
    "bytes": OP_BYTES,
    "string": OP_STRING,
}
_WIDENED: Final = {  # what the writer's number may become, by Avro's rules
    "int": (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    "long": (pa.int64(), pa.float32(), pa.float64()),
    "float": (pa.float32(), pa.float64()),
    "double": (pa.float64(),),
}
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
Plan = tuple[int, int, int, tuple[Any, ...], tuple[int, ...]]


class AvroSchema:
    """An Avro schema with its names resolved.

    Args:
        text: the schema's JSON.
        below: the JSON of the schemas that it refers to, each before those that use it.

    Raises ConfigError when it is none.
    """

    def __init__(self, text: str, below: Sequence[str] = ()) -> None:
        self._named: dict[str, Any] = {}
        try:
            for each in below:
                self._named_in(json.loads(each), "")
            self.root = self._named_in(json.loads(text), "")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"this is no Avro schema ({error}): {text[:200]}") from error

    def _named_in(self, node: Any, space: str) -> Any:
        """The schema with every name that it defines kept under its full name."""
        if isinstance(node, str):
            if node in _PLAIN:
                return {"type": node}
            inside = f"{space}.{node}"
            full = inside if "." not in node and inside in self._named else node
            if full not in self._named:
                raise ValueError(f"there is no type {node!r}")
            return {"type": "named", "name": full}
        if isinstance(node, list):
            return {"type": "union", "members": [self._named_in(each, space) for each in node]}
        kind = node["type"]
        if isinstance(kind, (dict, list)):
            return self._named_in(kind, space)
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(node, space)
        if kind == "array":
            return {"type": "array", "items": self._named_in(node["items"], space)}
        if kind == "map":
            return {"type": "map", "values": self._named_in(node["values"], space)}
        return dict(node) if kind in _PLAIN else self._named_in(kind, space)

    def _definition(self, node: dict[str, Any], space: str) -> Any:
        name = node["name"]
        space = name.rpartition(".")[0] or node.get("namespace", space)
        full = name if "." in name or not space else f"{space}.{name}"
        aliases = [str(alias) for alias in node.get("aliases") or ()]
        found = {
            **node,
            "name": full,
            "aliases": [a if "." in a or not space else f"{space}.{a}" for a in aliases],
        }
        self._named[full] = found
        if node["type"] in ("record", "error"):
            found["type"] = "record"
            found["fields"] = [
                {
                    **{key: f[key] for key in ("default", "aliases") if key in f},
                    "name": str(f["name"]),
                    "schema": self._named_in(f["type"], space),
                }
                for f in node["fields"]
            ]
        return found

    def resolved(self, node: Any) -> Any:
        """The definition of a name; any other schema itself."""
        return self._named[node["name"]] if node["type"] == "named" else node

    def type(self) -> pa.DataType:
        """What its values are read as. Raises ConfigError when that is no struct."""
        found = self._type(self.root, 0)
        if not pa.types.is_struct(found):
            raise ConfigError(f"the Avro schema must be a record, not {self.root['type']}")
        return found

    def _type(self, node: Any, depth: int) -> pa.DataType:
        node = self.resolved(node)
        if depth > _DEPTH_MAX:
            raise ConfigError("the Avro schema refers to itself, which no column can hold")
        kind = node["type"]
        if kind == "record":
            return pa.struct(
                [pa.field(f["name"], self._type(f["schema"], depth + 1)) for f in node["fields"]]
            )
        if kind == "array":
            return list_of(self._type(node["items"], depth + 1))
        if kind == "map":
            return pa.map_(pa.string(), self._type(node["values"], depth + 1))
        if kind == "union":
            return self._union_type(node, depth)
        if kind == "enum":
            return pa.string()
        if node.get("logicalType") == "decimal" and int(node["precision"]) <= 38:
            return pa.decimal128(int(node["precision"]), int(node.get("scale", 0)))
        if kind == "fixed":
            return pa.binary()
        if kind == "null":
            return pa.string()  # Spark takes no column of nothing from a Python source
        return _LOGICAL.get((kind, node.get("logicalType", "")), _PLAIN[kind])

    def _union_type(self, node: Any, depth: int) -> pa.DataType:
        members = _others(node)
        if len(members) == 1:
            return self._type(members[0], depth)
        kinds = {self.resolved(m)["type"] for m in members}
        if kinds == {"int", "long"}:
            return pa.int64()
        if kinds == {"float", "double"}:
            return pa.float64()
        return pa.struct(
            [pa.field(f"member{n}", self._type(m, depth + 1)) for n, m in enumerate(members)]
        )

    def members(self) -> dict[str, list[str]]:
        """By path, the names of the records in each union of several types; "" for other types."""
        found: dict[str, list[str]] = {}
        self._members(self.root, "", found)
        return found

    def _members(self, node: Any, at: str, found: dict[str, list[str]]) -> None:
        node = self.resolved(node)
        if node["type"] == "record":
            for field in node["fields"]:
                self._members(field["schema"], f"{at}{field['name']}.", found)
        elif node["type"] in ("array", "map"):
            self._members(node["items" if node["type"] == "array" else "values"], at, found)
        elif node["type"] == "union":
            others = [self.resolved(member) for member in _others(node)]
            if len(others) > 1:
                found[at] = [_short(m["name"]) if m["type"] == "record" else "" for m in others]
            for n, member in enumerate(others):
                self._members(member, f"{at}member{n}." if len(others) > 1 else at, found)


def is_avro(text: str) -> bool:
    """Whether a schema's text is Avro's JSON, and neither DDL nor the JSON of a Spark schema."""
    try:
        node = json.loads(text)
    except ValueError:
        return False
    return isinstance(node, list) or (isinstance(node, dict) and node.get("type") != "struct")


def layout(type_: pa.DataType) -> list[tuple[int, tuple[int, ...]]]:
    """The columns below a type, each before those below it: its kind, and their numbers."""
    found: list[tuple[int, tuple[int, ...]]] = []
    _lay(type_, found)
    return found


def children(type_: pa.DataType) -> list[pa.DataType]:
    """The types directly below a type, in the order of `layout`."""
    if pa.types.is_struct(type_):
        return [field.type for field in type_]
    if pa.types.is_list(type_):
        return [type_.value_type]
    return [type_.key_type, type_.item_type] if pa.types.is_map(type_) else []


def _lay(type_: pa.DataType, found: list[tuple[int, tuple[int, ...]]]) -> int:
    number = len(found)
    found.append((0, ()))
    found[number] = (_kind(type_), tuple(_lay(below, found) for below in children(type_)))
    return number


def _kind(type_: pa.DataType) -> int:
    tests = pa.types
    if tests.is_struct(type_):
        return STRUCT
    if tests.is_list(type_) or tests.is_map(type_):
        return LIST
    kinds = {
        pa.bool_(): BOOL,
        pa.int32(): I32,
        pa.date32(): I32,
        pa.int64(): I64,
        TIMESTAMP: I64,
        pa.timestamp("us"): I64,
        pa.float32(): F32,
        pa.float64(): F64,
        pa.string(): BIN,
        pa.binary(): BIN,
    }
    if type_ in kinds:
        return kinds[type_]
    if tests.is_decimal128(type_):
        return DEC
    raise ConfigError(f"Avro is not read into {type_}")


def plan_of(
    schema: AvroSchema, type_: pa.DataType, strict: bool = False, reader: AvroSchema | None = None
) -> Plan:
    """The plan by which values of a writer's schema are read into a type.

    Args:
        strict: refuse a field that the type does not have.
        reader: the schema with the defaults and aliases of columns.

    Raises DeserializationError when the two do not go together, and names the field.
    """
    planner = _Planner(schema, layout(type_), strict, reader)
    return planner.plan(schema.root, type_, 0, "the value", None if reader is None else reader.root)


class _Planner:
    """Builds one plan; columns are numbered as in the layout."""

    def __init__(
        self,
        schema: AvroSchema,
        columns: Sequence[tuple[int, tuple[int, ...]]],
        strict: bool,
        reader: AvroSchema | None,
    ) -> None:
        self._schema, self._columns, self._strict = schema, columns, strict
        self._reader = reader
        self._depth = 0

    def plan(
        self, node: Any, type_: pa.DataType | None, column: int, at: str, reader: Any = None
    ) -> Plan:
        """The plan of a node; without a type its values are read over.

        Args:
            reader: the reader's schema of the same value.
        """
        node = self._schema.resolved(node)
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise DeserializationError(f"{at}: its schema refers to itself")
        try:
            if members := self._members(reader, type_):
                return self._chosen(node, type_, column, at, members)
            return self._plan(node, type_, column, at, self._alike(node, reader))
        finally:
            self._depth -= 1

    def _members(self, reader: Any, type_: Any) -> list[Any]:
        """The members of the reader's union that the columns of a type are; none for others."""
        if reader is None or self._reader is None or not _is_members(type_):
            return []
        reader = self._reader.resolved(reader)
        if reader["type"] != "union":
            return []
        members = [self._reader.resolved(member) for member in _others(reader)]
        return members[: type_.num_fields] if len(members) > 1 else []

    def _chosen(
        self, node: Any, type_: pa.DataType, column: int, at: str, members: Sequence[Any]
    ) -> Plan:
        """The plan of a value that becomes one of the members of the reader's union."""
        is_union = node["type"] == "union"
        below: list[Plan] = []
        for each in node["members"] if is_union else [node]:
            branch = self._schema.resolved(each)
            index = _resolves_to(branch, members)
            if branch["type"] == "null":
                below.append((OP_NULL, column, 0, (), ()))
            elif index is not None:
                inner, number = type_.field(index).type, self._columns[column][1][index]
                below.append(self.plan(branch, inner, number, at, members[index]))
            elif is_union:
                below.append((OP_REFUSED, -1, 0, (), ()))
            else:
                raise self._misfit(type_, node["type"], at)
        return (OP_MEMBERS if is_union else OP_MEMBER, column, 0, tuple(below), ())

    def _alike(self, node: Any, reader: Any) -> Any:
        """The reader's schema of a value where it is of the writer's kind, else None."""
        if reader is None or self._reader is None:
            return None
        reader = self._reader.resolved(reader)
        if node["type"] == "union" or reader["type"] == node["type"]:
            return reader
        if reader["type"] != "union":
            return None
        members = [self._reader.resolved(member) for member in reader["members"]]
        alike = [member for member in members if member["type"] == node["type"]]
        return alike[0] if len(alike) == 1 else None

    def _plan(
        self, node: Any, type_: pa.DataType | None, column: int, at: str, reader: Any
    ) -> Plan:
        kind = node["type"]
        if kind == "record":
            return self._record(node, type_, column, at, reader)
        if kind == "union":
            return self._union(node, type_, column, at, reader)
        if kind in ("array", "map"):
            return self._blocks(node, type_, column, at, reader)
        if kind == "enum":
            self._check(type_, (pa.string(),), kind, at)
            return (OP_ENUM, column, 0, tuple(str(s).encode() for s in node["symbols"]), ())
        if kind in ("bytes", "fixed"):
            return self._bytes(node, type_, column, at)
        return self._plain(node, type_, column, at)

    def _record(
        self, node: Any, type_: pa.DataType | None, column: int, at: str, reader: Any
    ) -> Plan:
        if type_ is not None and not pa.types.is_struct(type_):
            raise self._misfit(type_, "record", at)
        names = [] if type_ is None else type_.names
        written = {field["name"] for field in node["fields"]}
        if reader is None and _is_members(type_) and not written & set(names):
            raise self._misfit(type_, "record", at)
        known: dict[str, Any] = {} if reader is None else {f["name"]: f for f in reader["fields"]}
        columns = _met(node["fields"], names, known)
        below: list[Plan] = []
        for field in node["fields"]:
            name = columns.get(field["name"], field["name"])
            if type_ is not None and name in names:
                index = names.index(name)
                inner, number = type_.field(index).type, self._columns[column][1][index]
            elif self._strict and type_ is not None:
                raise DeserializationError(f"field {name} of {at} is not in the schema")
            else:
                inner, number = None, -1
            there = known[name]["schema"] if name in known else None
            below.append(self.plan(field["schema"], inner, number, f"field {name}", there))
        absent: list[int] = []
        for index, name in enumerate(names):
            if name in columns.values():
                continue
            number = self._columns[column][1][index]
            if type_ is not None and "default" in known.get(name, {}):
                below.append(self._default(known[name], type_.field(index).type, number))
            else:
                absent.append(number)
        return (OP_RECORD, column, 0, tuple(below), tuple(absent))

    def _default(self, field: Any, type_: pa.DataType, column: int) -> Plan:
        """The plan of a field of the reader's that the writer lacks."""
        reader, at = self._reader, f"the default of field {field['name']}"
        assert reader is not None, "the field is the reader's"
        plan = _Planner(reader, self._columns, False, None).plan(field["schema"], type_, column, at)
        try:
            data = encoded(reader.resolved, field["schema"], field["default"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DeserializationError(f"{at} does not fit its type: {error}") from error
        return (OP_CONSTANT, -1, 0, (plan, data), ())

    def _union(self, node: Any, type_: Any, column: int, at: str, reader: Any) -> Plan:
        others = _others(node)
        as_struct = _is_members(type_) and type_.num_fields == len(others)
        known = [] if reader is None else _others(reader) if reader["type"] == "union" else [reader]
        by_type = len(others) > 1 and column >= 0
        if by_type and not as_struct and _is_struct(type_) and len(known) != 1:
            raise self._misfit(type_, "union", at)
        number = 0
        below: list[Plan] = []
        for member in node["members"]:
            if as_struct and member["type"] != "null":
                inner, below_it = type_.field(number).type, self._columns[column][1][number]
                number += 1
                below.append(self.plan(member, inner, below_it, at))
            elif by_type and known and not self._is_known(member, known):
                below.append((OP_REFUSED, -1, 0, (), ()))
            else:
                below.append(self.plan(member, type_, column, at, reader))
        return (OP_MEMBERS if as_struct else OP_UNION, column, 0, tuple(below), ())

    def _is_known(self, member: Any, known: Sequence[Any]) -> bool:
        """Whether a branch is null, or resolves to one of the reader's types."""
        assert self._reader is not None, "the other types are the reader's"
        types = [self._reader.resolved(each) for each in known]
        branch = self._schema.resolved(member)
        return branch["type"] == "null" or _resolves_to(branch, types) is not None

    def _blocks(
        self, node: Any, type_: pa.DataType | None, column: int, at: str, reader: Any
    ) -> Plan:
        is_map = node["type"] == "map"
        below = "values" if is_map else "items"
        if type_ is not None and not (pa.types.is_map if is_map else pa.types.is_list)(type_):
            raise self._misfit(type_, node["type"], at)
        types = [None, None] if type_ is None else children(type_)
        numbers = (-1, -1) if type_ is None else self._columns[column][1]
        there = None if reader is None else reader[below]
        item = self.plan(node[below], types[-1], numbers[-1], at, there)
        if not is_map:
            return (OP_ARRAY, column, 0, (item,), ())
        key = self.plan({"type": "string"}, types[0], numbers[0], at)
        return (OP_MAP, column, 0, (item, key), ())

    def _bytes(self, node: Any, type_: pa.DataType | None, column: int, at: str) -> Plan:
        size = int(node["size"]) if node["type"] == "fixed" else -1
        if type_ is not None and pa.types.is_decimal(type_):
            written = (node.get("logicalType"), int(node.get("scale", 0)))
            if written != ("decimal", type_.scale) or int(node["precision"]) > type_.precision:
                raise self._misfit(type_, "decimal", at)
            return (OP_DECIMAL, column, size, (type_.precision,), ())
        text = type_ is not None and pa.types.is_string(type_)
        self._check(type_, (pa.binary(), pa.string()), node["type"], at)
        if size >= 0:
            self._check(type_, (pa.binary(),), "fixed", at)
            return (OP_FIXED, column, size, (), ())
        return (OP_STRING if text else OP_BYTES, column, -1, (), ())

    def _plain(self, node: Any, type_: pa.DataType | None, column: int, at: str) -> Plan:
        kind = node["type"]
        logical = _LOGICAL.get((kind, node.get("logicalType", "")))
        allowed = _WIDENED.get(kind, (_PLAIN[kind],))
        if kind == "string":
            allowed = (pa.string(), pa.binary())
        if kind == "null":
            return (OP_NULL, column, 0, (), ())
        self._check(type_, allowed if logical is None else (logical, *allowed), kind, at)
        factor = 1
        if kind in ("int", "long"):
            millis = str(node.get("logicalType", "")).endswith("timestamp-millis")
            factor = 1_000 if millis and type_ == logical else 1
        return (_OPS[kind], column, -1 if kind == "string" else factor, (), ())

    def _check(
        self, type_: pa.DataType | None, allowed: Iterable[pa.DataType], kind: str, at: str
    ) -> None:
        if type_ is not None and type_ not in allowed:
            raise self._misfit(type_, kind, at)

    def _misfit(self, type_: pa.DataType, kind: str, at: str) -> DeserializationError:
        return DeserializationError(f"{at} was written as {kind}, which is not read as {type_}")


def _others(union: Any) -> list[Any]:
    """The members of a union but null."""
    return [member for member in union["members"] if member["type"] != "null"]


def _is_struct(type_: pa.DataType | None) -> bool:
    return type_ is not None and pa.types.is_struct(type_)


def _is_members(type_: Any) -> bool:
    """Whether a type is that of a union: a struct of `member0`, `member1`, ..."""
    names = type_.names if _is_struct(type_) else []
    return len(names) > 1 and names == [f"member{n}" for n in range(len(names))]


def _resolves_to(branch: Any, members: Sequence[Any]) -> int | None:
    """The number of the reader's member that a writer's type is read as."""
    kind = branch["type"]
    if kind in ("record", "enum", "fixed"):
        name = branch["name"]
        same = [n for n, m in enumerate(members) if m["type"] == kind]
        found = [n for n in same if members[n]["name"] == name]
        found += [n for n in same if name in members[n]["aliases"]]
        found += [n for n in same if _short(members[n]["name"]) == _short(name)]
        found += [n for n, m in enumerate(members) if (kind, m["type"]) == ("enum", "string")]
    else:
        kinds = [m["type"] for m in members]
        found = [kinds.index(k) for k in (kind, *_PROMOTED.get(kind, ())) if k in kinds]
    return found[0] if found else None


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _met(fields: Sequence[Any], names: Sequence[str], reader: Mapping[str, Any]) -> dict[str, str]:
    """The column of each of the writer's fields: of its name, or that has it for an alias."""
    written = {field["name"] for field in fields}
    found = {name: name for name in names if name in written}
    for name in names:
        if name not in written:
            aliases = reader.get(name, {}).get("aliases", ())
            alias = next((a for a in aliases if a in written and a not in found), None)
            if alias is not None:
                found[alias] = name
    return found


def arrow(type_: pa.DataType, taken: Sequence[tuple[Any, ...]]) -> pa.Array:
    """The array of a type from the buffers of its columns, as `Columns.take` gives them."""
    array, _ = _array(type_, taken, 0)
    return array


def _array(type_: pa.DataType, taken: Sequence[tuple[Any, ...]], at: int) -> tuple[pa.Array, int]:
    rows, nulls, valid, offsets, data = taken[at]
    below: list[pa.Array] = []
    after = at + 1
    for inner in children(type_):
        array, after = _array(inner, taken, after)
        below.append(array)
    if pa.types.is_map(type_):
        pairs = pa.StructArray.from_arrays(below, fields=[type_.key_field, type_.item_field])
        below = [pairs]
    buffers = [valid, offsets, data] if data is not None and offsets is not None else [valid]
    if offsets is None and data is not None:
        buffers = [valid, data]
    elif data is None and offsets is not None:
        buffers = [valid, offsets]
    made = [None if b is None else pa.py_buffer(b) for b in buffers]
    return pa.Array.from_buffers(type_, rows, made, nulls, children=below or None), after


def merged(schemas: Sequence[AvroSchema]) -> pa.DataType:
    """One struct with the columns of all, numbers as wide as the widest (`widen`).

    Raises ConfigError for a column whose types do not go together.
    """
    found, members = schemas[0].type(), schemas[0].members()
    for other in schemas[1:]:
        found = _merged(found, other.type(), "")
        for at, names in other.members().items():
            if names != members.setdefault(at, names):
                raise _apart(at, f"a union of {members[at]}", f"of {names}")
    return found


def _merged(one: pa.DataType, other: pa.DataType, at: str) -> pa.DataType:
    if one == other:
        return one
    unions = _is_members(one) or _is_members(other)
    if _is_struct(one) and _is_struct(other) and (not unions or one.names == other.names):
        fields: Mapping[str, pa.DataType] = {f.name: f.type for f in one}
        fields = fields | {
            f.name: _merged(fields.get(f.name, f.type), f.type, f"{at}{f.name}.") for f in other
        }
        return pa.struct([pa.field(name, type_) for name, type_ in fields.items()])
    if pa.types.is_list(one) and pa.types.is_list(other):
        return list_of(_merged(one.value_type, other.value_type, at))
    for kind in ("double", "float", "long", "int"):  # the widest first
        widest = _WIDENED[kind][0]
        narrower = [t for k, allowed in _WIDENED.items() if widest in allowed for t in [_PLAIN[k]]]
        if widest in (one, other) and one in narrower and other in narrower:
            return widest
    raise _apart(at, one, other)


def _apart(at: str, one: Any, other: Any) -> ConfigError:
    return ConfigError(
        f"column {at.rstrip('.')} is {one} in one version of its schema and {other} in another; "
        "give valueSchema"
    )
