"""Rows that the database refuses: found in the batch's transaction, their neighbours loaded.

Rules:
- Everything is tried at once first; only a broken constraint begins the search. It halves the rows
  behind savepoints, so that n bad rows of m cost about n log m statements.
- A batch of which very many rows are refused is no batch with bad rows: the table does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from kohort.retry.fenced import CONSTRAINT_REASON
from kohort.retry.headers import ERROR_MESSAGE, ERROR_REASON
from kohort.retry.store import ConstraintError, Cursor
from kohort.spark.outputs.merge_sql import (
    SUSPECTS,
    Merge,
    Rejected,
    delete_null_keys,
    suspects_between,
)
from kohort.spark.outputs.topics import OutputRecord

MAX_REJECTED: Final = 10_000
"""The most rows of one batch and table that are rejected one by one."""
SAVEPOINT: Final = "kohort_merge"
Refused = Callable[[Exception], ConstraintError | None]
Tried = tuple[int, ConstraintError | None]
"""How many rows a statement changed, or why the database refused it."""


def load_each(
    cursor: Cursor,
    merge: Merge,
    attempts: Sequence[int],
    refused: Refused,
    *,
    lacks_keys: bool = False,
) -> tuple[int, list[Rejected]]:
    """Insert what the database takes: how many rows, and those that it refuses.

    Args:
        refused: an error of the database as a broken constraint; None when it is another one.
        lacks_keys: some staged row of an upsert has a NULL in its key.

    Raises ConstraintError for more than `MAX_REJECTED` rows.
    """

    def insert(rows: str) -> Tried:
        removal = (delete_null_keys(merge, rows),) if lacks_keys else ()
        return _try(cursor, (*removal, merge.insert(rows)), refused)

    return _each(cursor, merge, attempts, insert)


def delete_each(
    cursor: Cursor, merge: Merge, attempts: Sequence[int], refused: Refused
) -> tuple[int, list[Rejected]]:
    """Delete what the database lets go: how many rows, and the staged rows that it refuses."""
    return _each(
        cursor, merge, attempts, lambda rows: _try(cursor, (merge.deletion(rows),), refused)
    )


def _each(
    cursor: Cursor, merge: Merge, attempts: Sequence[int], run: Callable[[str], Tried]
) -> tuple[int, list[Rejected]]:
    """Run a statement over all rows, by halves where some are refused."""
    changed, error = run(merge.latest(attempts))
    if error is None:
        return changed, []
    cursor.execute(merge.suspects(attempts))
    rows = cursor.query(f"SELECT count(*) FROM {SUSPECTS}")[0][0]
    rejected: list[Rejected] = []
    changed, parts = 0, [(1, rows)]
    while parts:
        low, high = parts.pop()
        count, error = run(suspects_between(low, high))
        if error is None:
            changed += count
        elif low < high:
            middle = (low + high) // 2
            parts += [(middle + 1, high), (low, middle)]
        else:
            rejected.append(_rejected(cursor, merge, low, error))
            check_count(merge.output.table, len(rejected), rejected[-1].message)
    cursor.execute(f"DROP TABLE {SUSPECTS}")
    return changed, rejected


def dead_letters(topic: str) -> Callable[[Sequence[Rejected]], list[OutputRecord]]:
    """Rejected rows as records of a topic: the row as JSON, why it was rejected in headers."""

    def letters(rejected: Sequence[Rejected]) -> list[OutputRecord]:
        return [
            OutputRecord(
                topic,
                as_json(dict(r.row)).encode(),
                headers=[
                    (ERROR_REASON, CONSTRAINT_REASON.encode()),
                    ("kohort_output", r.output.encode()),
                    (ERROR_MESSAGE, r.message.encode()),
                ],
            )
            for r in rejected
        ]

    return letters


def check_count(table: str, rejected: int, message: str) -> None:
    """Raise ConstraintError when these are too many for rows that are wrong one by one."""
    if rejected > MAX_REJECTED:
        raise ConstraintError(
            f"table {table}: more than {MAX_REJECTED:,} rows of one batch are refused, the last "
            f"one by: {message}. The table does not fit the frame; nothing was loaded"
        )


def as_json(rows: Any, ascii_only: bool = False) -> str:
    """Rejected rows as text; bytes as hexadecimal digits, times and decimals as text."""
    return json.dumps(rows, default=_plain, ensure_ascii=ascii_only)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)


def _try(cursor: Cursor, statements: Sequence[str], refused: Refused) -> Tried:
    """All of them or none: how many rows the last one changed, or what was refused."""
    loaded = 0
    cursor.execute(f"SAVEPOINT {SAVEPOINT}")
    try:
        for sql in statements:
            loaded = cursor.execute(sql)
    except Exception as error:  # every database has its own classes
        broken = refused(error)
        if broken is None:
            raise
        cursor.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        cursor.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
        return 0, broken
    cursor.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
    return loaded, None


def _rejected(cursor: Cursor, merge: Merge, number: int, error: ConstraintError) -> Rejected:
    values = cursor.query(merge.suspect(number))[0]
    message = " ".join(str(error).split())
    return Rejected(merge.output.name, dict(zip(merge.shown, values, strict=True)), message)
