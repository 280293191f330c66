"""The table outputs: what was asked for, and the SQL that merges staged rows. Pure.

Rules:
- One text for SQLite and PostgreSQL (`ON CONFLICT`, window functions). Names are quoted; attempt
  ids are numbers of our own and are written into the text.
- Only rows of attempts that succeeded are merged: other rows of a staging table are ignored.
- Merges go in the order of the key, so that two queries over one table never wait for each other
  in a circle.
- A row that the database refuses is found by halving a numbered copy of the rows that count
  (`suspects`), so that nothing is paid for it while no constraint breaks.
- A NULL in a key is a value as in Spark's `groupBy`: a row replaces the one with the same NULLs.
- Of several rows with one key in one batch, the greatest in `order` wins. Without `order` they are
  refused: after a shuffle there is no other order that a replay would repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import ConfigError
from kohort.retry.sql_statements import quote

if TYPE_CHECKING:
    from kohort.spark.outputs.topics import OutputRecord

APPEND, UPSERT, REPLACE = "append", "upsert", "replace"
MODES: Final = (APPEND, UPSERT, REPLACE)
FAIL, KEEP = "fail", "keep"
ATTEMPT: Final = "kohort_attempt"
ATTEMPT_BITS: Final = 62
"""Of an id that is drawn: a BIGINT, never below zero."""
SUSPECTS: Final = "kohort_suspects"
NUMBER: Final = "kohort_number"


@dataclass(frozen=True, slots=True)
class TableOutput:
    """One table of a query; see `to_table` for the meaning of the arguments."""

    store_url: str
    table: str
    key: tuple[str, ...] = ()
    mode: str = APPEND
    deletes: str | None = None
    order: tuple[str, ...] = ()
    on_violation: OnViolation = FAIL
    carry: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(
                f"table {self.table}: mode {self.mode!r}; choose one of {', '.join(MODES)}"
            )
        if self.mode == UPSERT and not self.key:
            raise ConfigError(
                f"table {self.table}: mode upsert needs key=(...), the columns by which a row "
                "replaces another"
            )
        if self.deletes is not None and self.mode != UPSERT:
            raise ConfigError(f"table {self.table}: deletes= needs mode upsert and a key")
        if self.order and self.mode != UPSERT:
            raise ConfigError(f"table {self.table}: order= needs mode upsert")
        if self.on_violation not in (FAIL, KEEP) and not callable(self.on_violation):
            raise ConfigError(
                f"table {self.table}: on_violation {self.on_violation!r}; choose {FAIL}, {KEEP} or "
                "a function of the rejected rows"
            )
        quote(self.table)

    @property
    def rejects(self) -> bool:
        """True when a row that breaks a constraint does not fail the batch."""
        return self.on_violation != FAIL

    @property
    def name(self) -> str:
        """The output's name in books and messages."""
        return self.table

    def columns(self, frame: Sequence[str]) -> tuple[str, ...]:
        """The columns of the table that a frame fills. Raises ConfigError where some are amiss."""
        lacking = [c for c in (*self.key, *self.order, *self.staged_only) if c not in frame]
        if lacking:
            raise ConfigError(
                f"table {self.table}: the frame has no column {', '.join(lacking)}; it has "
                f"{', '.join(frame)}"
            )
        if len(set(frame)) != len(frame):
            raise ConfigError(f"table {self.table}: the frame has two columns of one name")
        return tuple(c for c in frame if c not in self.staged_only)

    @property
    def staged_only(self) -> tuple[str, ...]:
        """The columns of the frame that are staged and not loaded."""
        return (*([self.deletes] if self.deletes else ()), *self.carry)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that the database refuses.

    Args:
        output: the table output that it was for.
        row: its columns, the carried ones among them.
        message: what the database says.
    """

    output: str
    row: Mapping[str, Any]
    message: str


OnRejected = Callable[[Sequence[Rejected]], "Iterable[OutputRecord] | None"]
OnViolation = str | OnRejected


@dataclass(frozen=True, slots=True)
class Merge:
    """The statements of one output's merge.

    Args:
        stage: the staging table's name in SQL.
        columns: what the frame fills.
    """

    output: TableOutput
    stage: str
    columns: tuple[str, ...]

    @property
    def updates(self) -> bool:
        """True when a row that is there may be changed."""
        return self.output.mode == UPSERT and len(self.columns) > len(self.output.key)

    @property
    def loads_all(self) -> bool:
        """True when every staged row changes a row of the table, so that no staged row is lost
        unseen where as many rows were changed."""
        output = self.output
        ignores = output.mode == UPSERT and not self.updates
        return not (output.deletes or output.order or ignores)

    def staged(self, attempts: Iterable[int]) -> str:
        """How many rows of each attempt are there."""
        return (
            f"SELECT {ATTEMPT}, count(*) FROM {self.stage} WHERE {_among(attempts)} "
            f"GROUP BY {ATTEMPT}"
        )

    def doubled(self, attempts: Iterable[int]) -> str | None:
        """A key that several rows have, where that is refused; None where it is allowed."""
        output = self.output
        if output.mode != UPSERT or output.order:
            return None
        keys = _names(output.key)
        return (
            f"SELECT {keys} FROM {self.stage} WHERE {_among(attempts)} "
            f"GROUP BY {keys} HAVING count(*) > 1 LIMIT 1"
        )

    def delete(self, attempts: Sequence[int]) -> str | None:
        """Take out what the batch deletes or replaces; None when it does neither."""
        output = self.output
        if output.mode == REPLACE:
            return f"DELETE FROM {quote(output.table)}"
        return self.deletion(self.latest(attempts)) if output.deletes else None

    def deletion(self, rows: str) -> str:
        """Take out what these rows delete: those of `latest`, or some suspects."""
        output = self.output
        assert output.deletes is not None, "only an output with deletes= deletes"
        table = quote(output.table)
        same = " AND ".join(f"s.{quote(k)} = {table}.{quote(k)}" for k in output.key)
        return (
            f"DELETE FROM {table} WHERE EXISTS (SELECT 1 FROM {rows} AS s "
            f"WHERE s.{quote(output.deletes)} AND {same})"
        )

    def latest(self, attempts: Sequence[int]) -> str:
        """The staged rows that count, one a key where there is an order; to select from."""
        rows = f"(SELECT * FROM {self.stage} WHERE {_among(attempts)})"
        output = self.output
        if not output.order:
            return rows
        order = ", ".join(f"{quote(c)} DESC NULLS LAST" for c in output.order)
        return (
            f"(SELECT * FROM (SELECT r.*, row_number() OVER (PARTITION BY {_names(output.key)} "
            f"ORDER BY {order}) AS kohort_rank FROM {rows} AS r) AS ranked WHERE kohort_rank = 1)"
        )

    def insert(self, rows: str) -> str:
        """Insert or update the rows of `latest`, or of some suspects."""
        output, names = self.output, _names(self.columns)
        sql = f"INSERT INTO {quote(output.table)} ({names}) {self._rows(rows)}"
        if output.mode != UPSERT:
            return sql
        what = f"UPDATE SET {self._sets('excluded')}" if self.updates else "NOTHING"
        return f"{sql} ON CONFLICT ({_names(output.key)}) DO {what}"

    def merge(self, attempts: Sequence[int]) -> str:
        """As `insert` of an upsert, by PostgreSQL's MERGE; see `PostgresBatches`."""
        output, names = self.output, _names(self.columns)
        same = " AND ".join(f"t.{quote(k)} = s.{quote(k)}" for k in output.key)
        return (
            f"MERGE INTO {quote(output.table)} AS t USING "
            f"({self._rows(self.latest(attempts))}) AS s ON {same} "
            f"WHEN MATCHED THEN UPDATE SET {self._sets('s')} "
            f"WHEN NOT MATCHED THEN INSERT ({names}) "
            f"VALUES ({', '.join(f's.{quote(c)}' for c in self.columns)})"
        )

    def suspects(self, attempts: Sequence[int]) -> str:
        """Number the rows that count, in a table of this transaction."""
        order = _names(self.output.key) if self.output.key else "1"
        return (
            f"CREATE TEMPORARY TABLE {SUSPECTS} AS SELECT s.*, "
            f"row_number() OVER (ORDER BY {order}) AS {NUMBER} FROM {self.latest(attempts)} AS s"
        )

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of a rejected row."""
        return (*self.columns, *self.output.carry)

    def suspect(self, number: int) -> str:
        """One row, as it is shown."""
        return f"SELECT {_names(self.shown)} FROM {SUSPECTS} WHERE {NUMBER} = {number}"

    def _rows(self, rows: str) -> str:
        """What is loaded of these rows, in the order of the key."""
        output = self.output
        kept = f"NOT coalesce({quote(output.deletes)}, FALSE)" if output.deletes else "TRUE"
        order = f" ORDER BY {_names(output.key)}" if output.key else ""
        return f"SELECT {_names(self.columns)} FROM {rows} AS s WHERE {kept}{order}"

    def _sets(self, source: str) -> str:
        rest = [quote(c) for c in self.columns if c not in self.output.key]
        return ", ".join(f"{c} = {source}.{c}" for c in rest)


def null_keys(merge: Merge, attempts: Sequence[int]) -> str | None:
    """One staged row with a NULL in its key, if there is one; None without an upsert."""
    if merge.output.mode != UPSERT:
        return None
    return (
        f"SELECT 1 FROM {merge.stage} AS s WHERE {_among(attempts)} "
        f"AND ({_lacks_key('s', merge.output.key)}) LIMIT 1"
    )


def delete_null_keys(merge: Merge, rows: str) -> str:
    """Take out what staged rows with a NULL in their key replace or delete: for a unique index no
    two NULLs are equal, so that neither would find it."""
    table = quote(merge.output.table)
    same = " AND ".join(
        f"(s.{k} = {table}.{k} OR (s.{k} IS NULL AND {table}.{k} IS NULL))"
        for k in map(quote, merge.output.key)
    )
    return (
        f"DELETE FROM {table} WHERE ({_lacks_key(table, merge.output.key)}) AND "
        f"EXISTS (SELECT 1 FROM {rows} AS s WHERE {same})"
    )


def suspects_between(low: int, high: int) -> str:
    """The suspects numbered low to high, to select from."""
    return f"(SELECT * FROM {SUSPECTS} WHERE {NUMBER} BETWEEN {low} AND {high})"


def _lacks_key(rows: str, key: Iterable[str]) -> str:
    return " OR ".join(f"{rows}.{quote(k)} IS NULL" for k in key)


def _names(columns: Iterable[str]) -> str:
    return ", ".join(quote(c) for c in columns)


def _among(attempts: Iterable[int]) -> str:
    listed = ", ".join(str(int(a)) for a in attempts)
    return f"{ATTEMPT} IN ({listed})" if listed else "1 = 0"
