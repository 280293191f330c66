"""What a handler wants written, and how it becomes as few statements as possible.

Rules:
- Effects keep their order. Only neighbours with the same SQL are joined into one `executemany`, so
  a parent row that comes before its child is also written before it.
- Names of tables and columns are quoted and may hold anything but a NUL; values are parameters.
- Effects are tuples: one is made for every row, and nothing is cheaper to make.
- `?` marks a parameter in every SQL text here; a store with another mark translates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeGuard

from kohort.errors import UsageError

Params = Sequence[Any]


class Insert(NamedTuple):
    """Insert one row. A broken constraint is a permanent failure of its record."""

    table: str
    row: Mapping[str, Any]

    def statement(self) -> tuple[str, Params]:
        """The SQL and its parameters."""
        return _insert_sql(self.table, tuple(self.row)), tuple(self.row.values())


class Upsert(NamedTuple):
    """Insert one row, or replace the one with the same values in the columns of `key`."""

    table: str
    row: Mapping[str, Any]
    key: tuple[str, ...]

    def statement(self) -> tuple[str, Params]:
        """The SQL and its parameters."""
        missing = [k for k in self.key if k not in self.row]
        if missing or not self.key:
            raise UsageError(f"upsert into {self.table}: the row has no value for key {missing}")
        return _upsert_sql(self.table, tuple(self.row), self.key), tuple(self.row.values())


class Execute(NamedTuple):
    """Any one statement, with `?` for its parameters."""

    sql: str
    params: Params = ()

    def statement(self) -> tuple[str, Params]:
        """The SQL and its parameters."""
        return self.sql, self.params


Effect = Insert | Upsert | Execute


@dataclass
class Statement:
    """One SQL text and the parameter rows to run it with, in order.

    Args:
        table: the table of an insert or upsert; "" for any other statement.
        key: the columns of an upsert's key.
        columns, kind: the columns of an insert or upsert, and which of them it is.
    """

    sql: str
    rows: list[Params] = field(default_factory=list[Params])
    table: str = ""
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    kind: type[Effect] | None = field(default=None, compare=False)

    @cached_property
    def _places(self) -> tuple[int, ...]:
        return tuple(self.columns.index(column) for column in self.key)

    def key_of(self, row: Params) -> tuple[Any, ...]:
        """The key's values in one row."""
        return tuple(row[place] for place in self._places)


def statements(effects: Iterable[Effect]) -> list[Statement]:
    """The effects as statements; neighbours with the same SQL become one."""
    statements_so_far: list[Statement] = []
    last: Statement | None = None
    for effect in effects:
        if last is not None and _is_alike(effect, last):  # nearly always: no text is made
            last.rows.append(tuple(effect.row.values()))
            continue
        sql, params = effect.statement()
        if last is None or last.sql != sql:
            last = _blank(effect, sql)
            statements_so_far.append(last)
        last.rows.append(params)
    return statements_so_far


def _is_alike(effect: Effect, last: Statement) -> TypeGuard[Insert | Upsert]:
    """Whether an effect writes the same columns of the same table, in the same way."""
    return (
        effect.__class__ is last.kind
        and effect[0] == last.table
        and tuple(effect[1]) == last.columns
        and (last.kind is Insert or effect[-1] == last.key)
    )


def _blank(effect: Effect, sql: str) -> Statement:
    """A statement without rows for effects like this one."""
    if isinstance(effect, Execute):
        return Statement(sql)
    key = effect.key if isinstance(effect, Upsert) else ()
    return Statement(sql, [], effect.table, key, tuple(effect.row), type(effect))


def in_lock_order(
    parts: Sequence[Statement], sortable: Callable[[Statement], bool]
) -> list[Statement]:
    """The same writes with rows locked in one order: by table, and in a table by key.

    Tables come in the order in which they first appear, since a parent is written before its
    child. Of neighbouring upserts of one key with the same columns only the last is kept. Any other
    statement (`Execute`) stays where it is: what it depends on cannot be seen.

    Args:
        sortable: whether equal keys of a statement's rows are equal values, so that upserts of one
            key keep their order.
    """
    ordered: list[Statement] = []
    tables: dict[str, list[Statement]] = {}
    for part in parts:
        if part.table:
            tables.setdefault(part.table, []).append(part)
            continue
        ordered += _by_key(tables.values(), sortable)
        tables.clear()
        ordered.append(part)
    return ordered + _by_key(tables.values(), sortable)


def _by_key(
    tables: Iterable[Sequence[Statement]], sortable: Callable[[Statement], bool]
) -> list[Statement]:
    ordered: list[Statement] = []
    for parts in tables:
        if len({part.key for part in parts}) > 1 or not all(p.key and sortable(p) for p in parts):
            ordered += parts
            continue
        pairs = [(part.key_of(row), part, row) for part in parts for row in part.rows]
        pairs.sort(key=lambda pair: pair[0])
        for at, (key, part, row) in enumerate(pairs):
            following = pairs[at + 1] if at + 1 < len(pairs) else None
            if following is not None and following[0] == key and following[1].sql == part.sql:
                continue
            if not ordered or ordered[-1].sql != part.sql:
                ordered.append(Statement(part.sql, [], part.table, part.key, part.columns))
            ordered[-1].rows.append(row)
    return ordered


def quote(name: str) -> str:
    """A name quoted for SQL; `schema.table` becomes `"schema"."table"`."""
    if not name or "\x00" in name:
        raise UsageError(f"{name!r} is not a name of a table or column")
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


@lru_cache(maxsize=1024)
def _insert_sql(table: str, columns: tuple[str, ...]) -> str:
    if not columns:
        return f"INSERT INTO {quote(table)} DEFAULT VALUES"
    names = ", ".join(quote(c) for c in columns)
    marks = ", ".join("?" for _ in columns)
    return f"INSERT INTO {quote(table)} ({names}) VALUES ({marks})"


@lru_cache(maxsize=1024)
def _upsert_sql(table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> str:
    rest = [quote(c) for c in columns if c not in key]
    keys = ", ".join(quote(c) for c in key)
    if not rest:
        return f"{_insert_sql(table, columns)} ON CONFLICT ({keys}) DO NOTHING"
    sets = ", ".join(f"{c} = excluded.{c}" for c in rest)
    return f"{_insert_sql(table, columns)} ON CONFLICT ({keys}) DO UPDATE SET {sets}"
