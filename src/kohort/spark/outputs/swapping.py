"""Shadow tables: made like the live ones, and swapped for them in one transaction.

Rules (spec 6.10):
- A replay fills shadow tables while the live pipeline runs. The swap renames them, and moves the
  fences of the pipeline that is replaced to where none of its batches can follow, in one
  transaction. So a batch of that pipeline is in the old table, or it is refused.
- The fences stay: a partition without a fence would be read from its beginning again.
- A table that others refer to (foreign keys, views, triggers) is refused: they would keep the
  old one.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kohort.errors import ConfigError, StorageError
from kohort.retry.ledger import FenceRow
from kohort.retry.sql_statements import quote
from kohort.retry.sqlite import SqliteStore
from kohort.retry.store import Cursor, Store, StoreBusyError, add_fence

MAX_NAME_CHARS: Final = 63
"""Of a table's name in PostgreSQL."""
NOWHERE: Final = -1
"""The fence of a pipeline that was replaced: no batch begins there."""
SWAP_TRIES: Final = 5
FENCES: Final = "kohort_batch_fence"
HISTORY: Final = "kohort_batch_history"
_ENDED: Final = f"SELECT query, ended FROM {FENCES} ORDER BY query"
SCHEMA: Final = """CREATE TABLE IF NOT EXISTS kohort_replay (
    pipeline TEXT NOT NULL PRIMARY KEY, replaces TEXT NOT NULL, tables TEXT NOT NULL,
    started_at BIGINT NOT NULL, swapped_at BIGINT)"""
_TABLE_SQL: Final = re.compile(r'\A\s*CREATE\s+TABLE\s+("[^"]+"|[^\s(]+)', re.IGNORECASE)
_INDEX_SQL: Final = re.compile(
    r'\A\s*CREATE\s+(UNIQUE\s+)?INDEX\s+("[^"]+"|\S+)\s+ON\s+("[^"]+"|[^\s(]+)', re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, as the store knows it.

    Args:
        pipeline: who fills the shadow tables.
        replaces: the pipeline whose tables are rebuilt.
        tables: the shadow of each table.
        swapped: the shadow tables are the tables now.
    """

    pipeline: str
    replaces: str
    tables: Mapping[str, str]
    swapped: bool = False

    def kept(self, table: str) -> str:
        """What the old table is called after the swap."""
        suffix = re.sub(r"\W", "_", self.replaces)
        return f"{table}_of_{suffix}"


class Swapping:
    """Shadow tables of one database."""

    table_exists = ""
    """A SELECT with a row where the table of its parameter is there."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # What databases differ in

    @abstractmethod
    def _dependents(self, cursor: Cursor, table: str) -> list[str]:
        """What refers to a table, each as text for people."""

    @abstractmethod
    def _make_like(self, cursor: Cursor, table: str, shadow: str) -> None: ...

    @abstractmethod
    def _lock(self, cursor: Cursor, tables: Sequence[str]) -> None: ...

    # The replay

    def prepare(self) -> None:
        """Make the table of replays."""
        with self.store.setting_up(), self.store.transaction() as cursor:
            cursor.execute(SCHEMA)

    def has(self, table: str) -> bool:
        """Whether a table is there."""
        return bool(self.store.query(self.table_exists, (self._name(table),)))

    def _exists(self, cursor: Cursor, table: str) -> bool:
        return bool(cursor.query(self.table_exists, (self._name(table),)))

    def _name(self, table: str) -> str:
        """A table's name as `table_exists` takes it."""
        return table

    def replays(self) -> list[Replay]:
        """Every replay of this database."""
        rows = self.store.query("SELECT pipeline, replaces, tables, swapped_at FROM kohort_replay")
        return [Replay(p, r, json.loads(t), at is not None) for p, r, t, at in rows]

    def begin(self, replay: Replay, now_ms: int, fences: Sequence[FenceRow] = ()) -> None:
        """Make the shadow tables, and note the replay and where it begins, all or nothing.

        Args:
            fences: of partitions that are not read from their beginning.

        Raises ConfigError when a table cannot be swapped.
        """
        with self.store.transaction() as cursor:
            self._check(cursor, replay)
            for table, shadow in replay.tables.items():
                if not self._exists(cursor, shadow):
                    self._make_like(cursor, table, shadow)
                elif cursor.query(f"SELECT 1 FROM {quote(shadow)} LIMIT 1"):
                    raise ConfigError(
                        f"table {shadow} has rows already; a replay begins with an empty table. "
                        "Empty it, or name another one"
                    )
            cursor.execute(
                "INSERT INTO kohort_replay VALUES (?, ?, ?, ?, NULL)",
                (replay.pipeline, replay.replaces, json.dumps(dict(replay.tables)), now_ms),
            )
            for fence in fences:
                add_fence(cursor, replay.pipeline, fence, now_ms)

    def _check(self, cursor: Cursor, replay: Replay) -> None:
        for table in replay.tables:
            if not self._exists(cursor, table):
                raise ConfigError(f"there is no table {table} to be replaced")
            kept = replay.kept(table)
            if len(kept) > MAX_NAME_CHARS:
                raise ConfigError(f"{kept}, the old table's name after the swap, is too long")
            if self._exists(cursor, kept):
                raise ConfigError(
                    f"there is a table {kept}, which is what the old {table} would be called after "
                    "the swap. Drop it first"
                )
            if dependents := self._dependents(cursor, table):
                raise ConfigError(
                    f"table {table} cannot be swapped: {', '.join(dependents)} would keep "
                    "the old table. Drop them, and create them again after the swap"
                )

    def swap(self, replay: Replay, now_ms: int) -> None:
        """Put the shadow tables in the place of the tables, in one transaction.

        Raises ConfigError when a table cannot be swapped any more, StoreBusyError when the tables
        were locked for too long, StorageError when the replaced pipeline has a batch half done.
        """
        for tried in range(1, SWAP_TRIES + 1):
            try:
                with self.store.transaction() as cursor:
                    self._swap(cursor, replay, now_ms)
                return
            except StoreBusyError:
                if tried == SWAP_TRIES:
                    raise

    def _swap(self, cursor: Cursor, replay: Replay, now_ms: int) -> None:
        self._lock(cursor, [*replay.tables, *replay.tables.values()])
        self._check(cursor, replay)
        for query in self._queries_of(cursor, replay.replaces):
            cursor.execute(
                "UPDATE kohort_batch_fence SET batch_id = ?, checkpoint = ? WHERE query = ?",
                (NOWHERE, f"replaced by {replay.pipeline}", query),
            )
        cursor.execute(
            "UPDATE kohort_fence SET next_offset = ?, updated_at = ? WHERE pipeline = ?",
            (NOWHERE, now_ms, replay.replaces),
        )
        for table, shadow in replay.tables.items():
            cursor.execute(f"ALTER TABLE {quote(table)} RENAME TO {_last(replay.kept(table))}")
            cursor.execute(f"ALTER TABLE {quote(shadow)} RENAME TO {_last(table)}")
        cursor.execute(
            "UPDATE kohort_replay SET swapped_at = ? WHERE pipeline = ?", (now_ms, replay.pipeline)
        )

    def _queries_of(self, cursor: Cursor, pipeline: str) -> list[str]:
        """The queries of a pipeline's stages that have a fence."""
        if not self._exists(cursor, FENCES):  # it has row handlers alone
            return []
        ours = _stages_of(pipeline, cursor.query(_ENDED))
        if owing := [f"{pipeline}.{stage}" for stage, ended in ours.items() if not ended]:
            raise StorageError(
                f"pipeline {pipeline} has a batch whose Kafka transaction has not ended yet "
                f"({', '.join(owing)}). Nothing was swapped. Start it, let it end the batch, then "
                "run the replay again"
            )
        return [f"{pipeline}.{stage}" for stage in ours]


class SqliteSwapping(Swapping):
    """Tables of a SQLite file."""

    table_exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)"

    def _dependents(self, cursor: Cursor, table: str) -> list[str]:
        word = re.compile(rf"\b{re.escape(table)}\b", re.IGNORECASE)
        objects = cursor.query("SELECT type, name, tbl_name, sql FROM sqlite_master")
        dependents = [
            f"{kind} {name}"
            for kind, name, _, sql in objects
            if kind in ("view", "trigger") and word.search(sql)
        ]
        for kind, name, _, _ in objects:
            if kind == "table" and name != table:
                keys = cursor.query(f"PRAGMA foreign_key_list({quote(name)})")
                if any(key[2].lower() == table.lower() for key in keys):
                    dependents.append(f"a foreign key of {name}")
        return dependents

    def _make_like(self, cursor: Cursor, table: str, shadow: str) -> None:
        ((sql,),) = cursor.query(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)",
            (table,),
        )
        cursor.execute(_TABLE_SQL.sub(lambda _: f"CREATE TABLE {quote(shadow)}", sql, count=1))
        for sql in cursor.query(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL "
            "AND tbl_name = ?",
            (table,),
        ):
            name, text = sql
            head = f"INDEX {quote(f'{name}_{shadow}')} ON {quote(shadow)}"
            cursor.execute(
                _INDEX_SQL.sub(lambda m, head=head: f"CREATE {m[1] or ''}{head}", text, count=1)
            )

    def _lock(self, cursor: Cursor, tables: Sequence[str]) -> None:
        """A transaction of SQLite has the only write lock from its beginning."""


class PostgresSwapping(Swapping):
    """Tables of a PostgreSQL database."""

    table_exists = "SELECT 1 WHERE to_regclass(?) IS NOT NULL"

    def _name(self, table: str) -> str:
        return quote(table)

    def _dependents(self, cursor: Cursor, table: str) -> list[str]:
        at = quote(table)
        keys = cursor.query(
            "SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f' "
            "AND confrelid = to_regclass(?) AND conrelid <> confrelid",
            (at,),
        )
        views = cursor.query(
            "SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d "
            "JOIN pg_rewrite r ON r.oid = d.objid WHERE d.classid = 'pg_rewrite'::regclass "
            "AND d.refobjid = to_regclass(?)",
            (at,),
        )
        triggers = cursor.query(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(?) AND NOT tgisinternal",
            (at,),
        )
        return [
            *(f"a foreign key of {name}" for (name,) in keys),
            *(f"view {name}" for (name,) in views),
            *(f"trigger {name}" for (name,) in triggers),
        ]

    def _make_like(self, cursor: Cursor, table: str, shadow: str) -> None:
        references = cursor.query(
            "SELECT confrelid::regclass::text FROM pg_constraint WHERE contype = 'f' "
            "AND conrelid = to_regclass(?)",
            (quote(table),),
        )
        if references:
            raise ConfigError(
                f"table {table} has a foreign key to {references[0][0]}, which a table made like "
                f"it would lack. Create {shadow} in @pipeline.setup, with its keys"
            )
        cursor.execute(f"CREATE TABLE {quote(shadow)} (LIKE {quote(table)} INCLUDING ALL)")

    def _lock(self, cursor: Cursor, tables: Sequence[str]) -> None:
        cursor.execute("SET LOCAL lock_timeout = '10s'")
        cursor.execute(f"LOCK TABLE {', '.join(map(quote, tables))} IN ACCESS EXCLUSIVE MODE")


def swapping(store: Store) -> Swapping:
    """The shadow tables of a store."""
    return SqliteSwapping(store) if isinstance(store, SqliteStore) else PostgresSwapping(store)


def owing_stages(store: Store, pipeline: str) -> list[str]:
    """The stages of a pipeline whose last batch is committed in the database, and in Kafka maybe
    not yet."""
    if not swapping(store).has(FENCES):
        return []
    return [s for s, ended in _stages_of(pipeline, store.query(_ENDED)).items() if not ended]


def outputs_of(store: Store, pipeline: str) -> dict[str, set[str]]:
    """The tables (`standings`) and topics (`topic standings`) that a pipeline has written to, with
    the stages that did."""
    found: dict[str, set[str]] = {}
    if swapping(store).has(HISTORY):
        rows = store.query(f"SELECT DISTINCT query, output FROM {HISTORY} ORDER BY 1, 2")
        for query, output in rows:
            for stage in _stages_of(pipeline, [(query, 1)]):
                found.setdefault(output, set()).add(stage)
    return found


def _stages_of(pipeline: str, fences: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The stages among the queries that have a fence, `PIPELINE.STAGE` and a stage without a dot:
    whether the Kafka transaction of the last batch has ended."""
    prefix = f"{pipeline}."
    ours = {q[len(prefix) :]: ended for q, ended in fences if q.startswith(prefix)}
    return {stage: ended for stage, ended in ours.items() if "." not in stage}


def check_replays(store: Store, pipeline: str, *, replaying: bool = False) -> None:
    """Raise ConfigError when a pipeline was replaced, or rebuilds tables that are not swapped yet.

    Asked before every start: a replaced pipeline would read its topics into the new tables.

    Args:
        replaying: it is started by its replay.
    """
    shadows = swapping(store)
    shadows.prepare()
    for other in shadows.replays():
        if other.replaces == pipeline and other.swapped:
            kept = ", ".join(map(other.kept, other.tables))
            raise ConfigError(
                f"pipeline {pipeline} was replaced by {other.pipeline}, which fills its tables "
                f"now; what it has loaded is in {kept}. Nothing was started. Start "
                f"{other.pipeline} instead"
            )
        if other.pipeline == pipeline and not other.swapped and not replaying:
            raise ConfigError(
                f"pipeline {pipeline} rebuilds the tables of {other.replaces}, and they are not "
                "swapped yet. Nothing was started. End it with `kohort pipeline replay`"
            )


def _last(table: str) -> str:
    """The name without its schema, as RENAME TO wants it."""
    return quote(table.rpartition(".")[2])
