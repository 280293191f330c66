"""A task's half of a table output: its rows into staging, under an id of this attempt.

Shell: Spark's context of a task, randomness (ids of attempts outside Spark).

Rules:
- One transaction an attempt: it is staged whole, or not at all. It is merged only if the task
  has succeeded and its id has reached the driver.
- PostgreSQL: COPY of lines that Arrow joins. Every value is then read by the column's own input
  function, so that text goes into any type that can be written as text. PostgreSQL parses these
  lines in a quarter less time than CSV. They are UTF-8, also where the database is not.
- SQLite has one writer at a time: rows are made ready before its lock is taken.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import base64
import json
import math
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
from pyspark import TaskContext

from kohort.errors import KohortError
from kohort.retry.sql_statements import quote
from kohort.retry.sqlite import BUSY_TIMEOUT_S
from kohort.retry.store import ConstraintError, Cursor, Store
from kohort.retry.stores import open_store
from kohort.spark.outputs.merge_sql import ATTEMPT, ATTEMPT_BITS
from kohort.spark.outputs.reports import report_batch
from kohort.spark.outputs.violations import as_json, check_count
from kohort.spark.worker import forget, keep, settle_down

pc: Any = pyarrow.compute
COPY_BYTES: Final = 32 << 20
"""Of Arrow's columns that become one piece of a COPY: the text of a piece is below 2 GB."""
COPY_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
"""What COPY's text format reads as something else; the backslash comes first."""
COPY_NULL: Final = "\\N"
SQLITE_VALUES: Final = 120
"""So many values are given to one INSERT; every SQLite takes 999."""
Rows = Iterable[pa.RecordBatch]
Bad = tuple[dict[str, Any], str]
"""A row that the database refuses, and what it says."""


@dataclass(frozen=True)
class StageSpec:
    """Where a task stages the rows of one output.

    Args:
        output: the output's name.
        store_url: the database.
        stage: the staging table's name in SQL.
        path: the staging file of a SQLite database; None for PostgreSQL.
        columns: the frame's columns, in order.
        shown: those of a row that the database refuses; () where such a row fails the task.
    """

    output: str
    store_url: str
    stage: str
    path: Path | None
    columns: tuple[str, ...]
    shown: tuple[str, ...] = ()


def staged_rows(spec: StageSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: rows in, one row of `REPORT_SCHEMA` out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_down()
        attempt = attempt_id()
        rejected: list[Bad] = []
        rows = stage(spec, attempt, batches, rejected)
        report = {"output": spec.output, "attempt": attempt, "rows": rows}
        yield report_batch([{**report, "rejected": as_json(rejected)}])

    return run


def attempt_id() -> int:
    """Spark's id of this attempt of a task. No other attempt of the same driver has it."""
    context = TaskContext.get()
    return secrets.randbits(ATTEMPT_BITS) if context is None else context.taskAttemptId()


def stage(spec: StageSpec, attempt: int, batches: Rows, rejected: list[Bad] | None = None) -> int:
    """Stage all rows in one transaction; how many there are.

    Args:
        rejected: gets rows that the columns' types refuse, with the reason, where `spec.shown`
            asks for them.
    """
    bad: list[Bad] = [] if rejected is None else rejected
    if spec.path is not None:
        return _into_sqlite(spec, spec.path, attempt, batches)
    key = {"url": spec.store_url}
    store: Store = keep("store", key, lambda: open_store(spec.store_url))
    try:
        return _into_postgres(spec, store, attempt, batches, bad)
    except KohortError:
        forget("store", key)
        raise


def copy_statement(spec: StageSpec) -> str:
    """COPY of the lines of `copy_lines`: UTF-8, in databases of other encodings, too."""
    names = ", ".join(quote(c) for c in (*spec.columns, ATTEMPT))
    return f"COPY {spec.stage} ({names}) FROM STDIN (ENCODING 'UTF8')"


def _into_postgres(
    spec: StageSpec, store: Store, attempt: int, batches: Rows, bad: list[Bad]
) -> int:
    sql = copy_statement(spec)
    count = 0

    def pieces() -> Iterator[memoryview]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            for part in _pieces(batch):
                yield memoryview(copy_lines(part, attempt))

    if spec.shown:
        return _row_by_row(spec, store, sql, attempt, batches, bad)
    with store.transaction() as cursor:
        cursor.copy_in(sql, pieces())
    return count


def _row_by_row(
    spec: StageSpec, store: Store, sql: str, attempt: int, batches: Rows, bad: list[Bad]
) -> int:
    """As one COPY for each Arrow batch; one that fails is halved until its bad rows are alone."""
    count = 0
    with store.transaction() as cursor:
        for batch in batches:
            parts = _pieces(batch)[::-1]
            while parts:
                part = parts.pop()
                error = _copy(cursor, store, sql, copy_lines(part, attempt))
                if error is None:
                    count += part.num_rows
                elif part.num_rows > 1:
                    half = part.num_rows // 2
                    parts += [part.slice(half), part.slice(0, half)]
                else:
                    row = part.select(list(spec.shown)).to_pylist()[0]
                    bad.append((row, " ".join(str(error).split())))
                    check_count(spec.output, len(bad), bad[-1][1])
    return count


def _copy(cursor: Cursor, store: Store, sql: str, data: pa.Buffer) -> ConstraintError | None:
    """COPY behind a savepoint; why it was undone, or None."""
    cursor.execute("SAVEPOINT kohort_copy")
    try:
        cursor.copy_in(sql, [memoryview(data)])
    except Exception as error:  # psycopg has its own classes
        refused = store.refused(error)
        if refused is None:
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT kohort_copy")
        return refused
    cursor.execute("RELEASE SAVEPOINT kohort_copy")
    return None


def _pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows in pieces of at most COPY_BYTES, where a row is not larger itself."""
    pieces = max(1, -(-batch.nbytes // COPY_BYTES))
    rows = max(1, -(-batch.num_rows // pieces))
    return [batch.slice(first, rows) for first in range(0, batch.num_rows, rows)]


def copy_lines(batch: pa.RecordBatch, attempt: int) -> pa.Buffer:
    """Rows, at least one, as COPY's text format has them: tabs between values, \\N for NULL."""
    columns = [_escaped(_as_text(column)) for column in batch.columns]
    ends = pa.scalar(f"{attempt}\n")
    lines = pc.binary_join_element_wise(
        *columns, ends, pa.scalar("\t"), null_handling="replace", null_replacement=COPY_NULL
    )
    return lines.buffers()[2]


def _escaped(column: pa.Array) -> pa.Array:
    """As text, in which no character has a meaning for COPY."""
    text = column.cast(pa.string())
    _, offsets, values = text.buffers()
    if values is None:
        return text
    bounds = memoryview(offsets).cast("i")
    first, end = bounds[text.offset], bounds[text.offset + len(text)]
    present = values.slice(first, end - first).to_pybytes()
    for special, escape in COPY_ESCAPES:
        if special.encode() in present:
            text = pc.replace_substring(text, special, escape)
    return text


def _as_text(column: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits, nested values as JSON, durations with their unit; other types
    as they are."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()])
    if pa.types.is_nested(kind):
        return _as_json(column)
    if pa.types.is_decimal(kind) or pa.types.is_dictionary(kind):
        return column.cast(pa.string())
    if pa.types.is_duration(kind):  # without its unit an interval takes the number for seconds
        number = column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(number, "microseconds", " ")
    return column


def _as_json(column: pa.Array) -> pa.Array:
    """Texts of JSON as Spark's `to_json` makes them: maps as objects, bytes in base64, and numbers
    that JSON lacks as text; times are as everywhere in a table."""
    values = (_json_value(value, column.type) for value in column.to_pylist())
    texts = [None if v is None else json.dumps(v, default=str) for v in values]
    return pa.array(texts, pa.string())


def _json_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_json_key(k): _json_value(v, kind.item_type) for k, v in value}
    if pa.types.is_struct(kind):
        return {field.name: _json_value(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_json_value(each, kind.value_type) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _json_key(key: Any) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    return base64.b64encode(key).decode() if isinstance(key, bytes) else str(key)


def rows_to_try(table: pa.Table, *, sqlite: bool) -> Iterator[dict[str, Any]]:
    """Rows as parameters of statements: with the values that tasks stage."""
    convert = _plain if sqlite else _as_text
    for batch in table.to_batches():
        columns = [convert(column).to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(batch.schema.names, values, strict=True))


def _into_sqlite(spec: StageSpec, path: Path, attempt: int, batches: Rows) -> int:
    """One INSERT for many rows: each statement costs several times what a row of it does."""
    stage_table = spec.stage.split(".", 1)[1]
    names = ", ".join(quote(c) for c in (*spec.columns, ATTEMPT))
    row = f"({', '.join('?' for _ in spec.columns)}, {attempt})"
    width = len(spec.columns)
    at_once = max(1, SQLITE_VALUES // width) * width
    ready = [flattened(batch) for batch in batches]
    count = sum(map(len, ready)) // width
    if not count:
        return 0
    connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S)
    with closing(connection):
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN IMMEDIATE")
        for values in ready:
            whole = len(values) // at_once * at_once
            for size, first, end in ((at_once, 0, whole), (width, whole, len(values))):
                rows = ", ".join([row] * (size // width))
                connection.executemany(
                    f"INSERT INTO {stage_table} ({names}) VALUES {rows}",
                    (values[at : at + size] for at in range(first, end, size)),
                )
        connection.execute("COMMIT")
    return count


def flattened(batch: pa.RecordBatch) -> list[Any]:
    """The values of all rows, one after the other, as SQLite takes them: times and decimals as
    text, nested values as JSON."""
    values: list[Any] = [None] * (batch.num_rows * batch.num_columns)
    for number, column in enumerate(batch.columns):
        values[number :: batch.num_columns] = _plain(column).to_pylist()
    return values


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        return _as_json(column)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_dictionary(kind):
        return column.cast(pa.string())
    return column
