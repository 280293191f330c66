"""The store: effects, fence and ledger of a pipeline in one database, changed in one transaction.

Rules (E2, invariants X1-X8):
- `apply` is the only place that writes. Fence, claims, effects and ledger rows go in together or
  not at all; the fence is a compare-and-set, so of two writers one rolls back and finds out.
- The write transaction is short: nothing is computed, published or waited for inside it. One that
  the database ends in favour of another (a deadlock) is run again at once.
- No scheduled row may name a copy that its retry topic's reader has already passed. Two checks
  inside the transaction ensure it: scheduling looks at the retry topic's fence, and moving a retry
  topic's fence looks for rows scheduled below it. A copy that is read while the
  transaction that schedules it is still under way would otherwise be dropped and owed for ever.
- A store is a plain value with a URL: it can be pickled to an executor and connects when it is
  first used. Connections belong to one process (invariant C14) and one thread.
- `query` reads committed state on a second connection and never blocks a writer.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from kohort.errors import KohortError, StorageError
from kohort.retry.headers import Origin
from kohort.retry.ledger import (
    Claim,
    Counts,
    FenceMove,
    FenceRow,
    LedgerRow,
    Place,
    RowState,
    Status,
)
from kohort.retry.progress import PROGRESS_SCHEMA, Advance, LostRaceError, Progress
from kohort.retry.sql_statements import Params, Statement

T = TypeVar("T")
MAX_IDS_PER_QUERY: Final = 500
MAX_CONFLICTS: Final = 20
"""How often one transaction is run again after a conflict with another."""
SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS kohort_fence (
        pipeline TEXT NOT NULL, topic TEXT NOT NULL, topic_id TEXT NOT NULL,
        partition INTEGER NOT NULL, next_offset BIGINT NOT NULL, updated_at BIGINT NOT NULL,
        PRIMARY KEY (pipeline, topic, partition))""",
    """CREATE TABLE IF NOT EXISTS kohort_ledger (
        pipeline TEXT NOT NULL, retry_id TEXT NOT NULL, redrive_count INTEGER NOT NULL,
        retry_number INTEGER NOT NULL, status TEXT NOT NULL,
        origin_topic TEXT NOT NULL, origin_partition INTEGER NOT NULL,
        origin_offset BIGINT NOT NULL, origin_timestamp BIGINT NOT NULL,
        dest TEXT, copy_partition INTEGER, copy_offset BIGINT,
        delay_ms BIGINT, due BIGINT, key_hash TEXT,
        disposition TEXT NOT NULL, reason TEXT NOT NULL, error_class TEXT NOT NULL,
        error_message TEXT NOT NULL, fingerprint TEXT NOT NULL,
        created_at BIGINT NOT NULL, closed_at BIGINT,
        PRIMARY KEY (pipeline, retry_id, redrive_count, retry_number))""",
    """CREATE INDEX IF NOT EXISTS kohort_ledger_open
        ON kohort_ledger (pipeline, dest, copy_partition, copy_offset)
        WHERE status = 'scheduled'""",
    """CREATE INDEX IF NOT EXISTS kohort_ledger_failed
        ON kohort_ledger (pipeline, origin_topic) WHERE status = 'failed'""",
    """CREATE INDEX IF NOT EXISTS kohort_ledger_done
        ON kohort_ledger (pipeline, closed_at) WHERE status = 'done'""",
    """CREATE TABLE IF NOT EXISTS kohort_counts (
        pipeline TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        since_offset BIGINT NOT NULL, read BIGINT NOT NULL, loaded BIGINT NOT NULL,
        filtered BIGINT NOT NULL, scheduled BIGINT NOT NULL, failed BIGINT NOT NULL,
        rows BIGINT NOT NULL, PRIMARY KEY (pipeline, topic, partition))""",
    PROGRESS_SCHEMA,
)
ROW_COLUMNS: Final = (
    "retry_id",
    "redrive_count",
    "retry_number",
    "status",
    "origin_topic",
    "origin_partition",
    "origin_offset",
    "origin_timestamp",
    "dest",
    "copy_partition",
    "copy_offset",
    "delay_ms",
    "due",
    "key_hash",
    "disposition",
    "reason",
    "error_class",
    "error_message",
    "fingerprint",
    "created_at",
    "closed_at",
)
_INSERT_ROW = (
    f"INSERT INTO kohort_ledger (pipeline, {', '.join(ROW_COLUMNS)}) "
    f"VALUES ({', '.join('?' * (len(ROW_COLUMNS) + 1))})"
)
NEWEST: Final = (
    "NOT EXISTS (SELECT 1 FROM kohort_ledger n WHERE n.pipeline = l.pipeline "
    "AND n.retry_id = l.retry_id AND (n.redrive_count > l.redrive_count OR "
    "(n.redrive_count = l.redrive_count AND n.retry_number > l.retry_number)))"
)
"""True of the newest row of its record in `kohort_ledger l`: it says what became of the record."""
ENDED: Final = (
    "FROM kohort_ledger l WHERE l.pipeline = ? AND l.status = 'done' AND l.closed_at < ? "
    f"AND {NEWEST}"
)
"""Records that were loaded after a retry before a time: what `vacuum` forgets."""
_FORGET = (
    "DELETE FROM kohort_ledger WHERE pipeline = ? AND retry_id IN "
    f"(SELECT l.retry_id {ENDED} ORDER BY l.closed_at LIMIT ?)"
)
_NO_COUNTS = f"INSERT INTO kohort_counts VALUES (?, ?, ?, ?{', 0' * len(Counts.names())})"
_COUNT = (
    f"UPDATE kohort_counts SET {', '.join(f'{name} = {name} + ?' for name in Counts.names())} "
    "WHERE pipeline = ? AND topic = ? AND partition = ?"
)
_OF_ATTEMPT = (
    "WHERE pipeline = ? AND retry_id = ? AND redrive_count = ? AND retry_number = ? "
    "AND status = 'scheduled'"
)


class Applied(StrEnum):
    """How a transaction ended."""

    COMMITTED = "committed"
    FENCE_LOST = "fence_lost"
    CLAIM_LOST = "claim_lost"


class StoreBusyError(StorageError):
    """The database was locked or unreachable for longer than the time given. Try again."""

    retriable = True


class ConflictError(StoreBusyError):
    """The database ended this transaction in favour of another one: a deadlock, or two that cannot
    be put in an order. Nothing of it stays, and it can be run again at once.
    """


class ConstraintError(KohortError):
    """A statement broke a constraint of the database, or carried a value that it refuses."""


@dataclass(slots=True)
class Transaction:
    """Everything that one step changes. `now_ms` is written into the rows."""

    pipeline: str
    fence: FenceMove
    now_ms: int
    statements: list[Statement] = field(default_factory=list[Statement])
    claims: list[Claim] = field(default_factory=list[Claim])
    rows: list[LedgerRow] = field(default_factory=list[LedgerRow])
    of_retry_topic: bool = False
    counts: Counts = field(default_factory=Counts)


Change = Transaction | Advance


class Cursor:
    """The statements of one transaction; `?` marks parameters in every database."""

    def __init__(self, cursor: Any, sql: Callable[[str], str]) -> None:
        self._cursor = cursor
        self._sql = sql

    @property
    def inner(self) -> Any:
        """The database's own cursor."""
        return self._cursor

    def execute(self, sql: str, params: Params = ()) -> int:
        """Run one statement; how many rows it has changed."""
        self._cursor.execute(self._sql(sql), tuple(params))
        return self._cursor.rowcount

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        """Run one statement for each of these rows of parameters."""
        self._cursor.executemany(self._sql(sql), rows)

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT, as this transaction sees them."""
        self._cursor.execute(self._sql(sql), tuple(params))
        return [tuple(row) for row in self._cursor.fetchall()]

    def columns(self, table: str) -> tuple[str, ...]:
        """The columns of a table, in order; `table` as it is written in SQL."""
        self._cursor.execute(f"SELECT * FROM {table} WHERE 1 = 0")
        return tuple(column[0] for column in self._cursor.description)

    def copy_in(self, sql: str, data: Iterable[Any]) -> int:
        """COPY ... FROM STDIN of PostgreSQL, fed with buffers; how many rows it has taken."""
        with self._cursor.copy(sql) as copy:
            for piece in data:
                copy.write(piece)
        return self._cursor.rowcount


class Store(Progress):
    """One database. `open_store(url)` makes the right one."""

    lower = "lower"
    """The function of a SELECT over committed state that makes all letters of a text small."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._pid = 0
        self._writer: Any = None
        self._reader: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])

    @abstractmethod
    def _connect(self, *, read_only: bool) -> Any: ...

    @abstractmethod
    def _begin(self, connection: Any) -> None: ...

    @abstractmethod
    def _sql(self, sql: str) -> str:
        """The text with this database's parameter marks."""

    @abstractmethod
    def _translate(self, error: Exception) -> Exception:
        """The database's error as one of ours, or as it is."""

    def _storable(self, row: LedgerRow) -> LedgerRow:
        """The row with the texts of its error as this database can keep them."""
        return row

    def _replaced(self) -> bool:
        """True when open connections no longer lead to the database of the URL."""
        return False

    # Reading

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT over committed state; `?` marks parameters."""
        return self._again(lambda: self._query(sql, params))

    def _query(self, sql: str, params: Params) -> list[tuple[Any, ...]]:
        with self._errors():
            cursor = self._reading().cursor()
            cursor.execute(self._sql(sql), tuple(params))
            return [tuple(row) for row in cursor.fetchall()]

    def fence(self, pipeline: str, topic: str, partition: int) -> FenceRow | None:
        """The fence of one partition; None before the first record of it was planned."""
        rows = self.query(
            "SELECT topic, topic_id, partition, next_offset FROM kohort_fence "
            "WHERE pipeline = ? AND topic = ? AND partition = ?",
            (pipeline, topic, partition),
        )
        return FenceRow(*rows[0]) if rows else None

    def fences(self, pipeline: str) -> list[FenceRow]:
        """Every fence of a pipeline."""
        return [
            FenceRow(*row)
            for row in self.query(
                "SELECT topic, topic_id, partition, next_offset FROM kohort_fence "
                "WHERE pipeline = ? ORDER BY topic, partition",
                (pipeline,),
            )
        ]

    def states(self, pipeline: str, retry_ids: Iterable[str]) -> dict[str, list[RowState]]:
        """The rows of the named records, for the ledger gate; records without rows are absent."""
        ids = list(dict.fromkeys(retry_ids))
        states: dict[str, list[RowState]] = {}
        for at in range(0, len(ids), MAX_IDS_PER_QUERY):
            part = ids[at : at + MAX_IDS_PER_QUERY]
            rows = self.query(
                "SELECT retry_id, redrive_count, retry_number, status, dest, copy_partition, "
                "copy_offset FROM kohort_ledger WHERE pipeline = ? AND retry_id IN "
                f"({', '.join('?' * len(part))})",
                (pipeline, *part),
            )
            for retry_id, redrives, number, status, dest, partition, offset in rows:
                place = None if offset is None else Place(dest, partition, offset)
                state = RowState(redrives, number, Status(status), place)
                states.setdefault(retry_id, []).append(state)
        return states

    def rows(self, pipeline: str, where: str = "", params: Params = ()) -> Iterator[LedgerRow]:
        """Ledger rows in the order in which they were made; `where` narrows them (trusted text)."""
        sql = f"SELECT {', '.join(ROW_COLUMNS)} FROM kohort_ledger WHERE pipeline = ?"
        if where:
            sql += f" AND ({where})"
        sql += " ORDER BY created_at, retry_id, redrive_count, retry_number"
        for row in self.query(sql, (pipeline, *params)):
            yield _to_row(row)

    def scheduled_within(
        self, pipeline: str, topic: str, partition: int, start: int, end: int
    ) -> list[LedgerRow]:
        """The attempts whose copies are at offsets [start, end) of a retry topic."""
        where = (
            "status = 'scheduled' AND dest = ? AND copy_partition = ? AND copy_offset >= ? "
            "AND copy_offset < ?"
        )
        return list(self.rows(pipeline, where, (topic, partition, start, end)))

    # Writing

    @contextmanager
    def setting_up(self) -> Generator[None]:
        """Tables are made within this, by one program at a time where the database needs that."""
        yield

    def prepare(self) -> None:
        """Make the fence and ledger tables where they are missing."""

        def create() -> None:
            with self._transaction() as cursor:
                for sql in SCHEMA:
                    cursor.execute(sql)

        self._again(create)

    def open_fence(
        self, pipeline: str, topic: str, topic_id: str, partition: int, start: int, now_ms: int
    ) -> FenceRow:
        """The fence of a partition, made at `start` when there is none; counting begins there."""
        with self.transaction() as cursor:
            add_fence(cursor, pipeline, FenceRow(topic, topic_id, partition, start), now_ms)
        row = self.fence(pipeline, topic, partition)
        assert row is not None, "a fence that was just made is there"
        return row

    def apply(self, change: Transaction) -> Applied:
        """Do all of `change` or nothing.

        Raises ConstraintError when a statement broke a constraint (nothing is changed), and
        StoreBusyError when the database could not be had.
        """
        return self._written(change.statements, lambda parts: self._apply(change, parts))

    def _apply(self, change: Transaction, parts: Sequence[Statement]) -> Applied:
        try:
            with self._transaction() as cursor:
                self._move_fence(cursor, change)
                self._close_claims(cursor, change)
                self._check_overtaken(cursor, change)
                if change.of_retry_topic:
                    self._check_left_behind(cursor, change)
                for statement in parts:
                    cursor.executemany(self._sql(statement.sql), statement.rows)
                self._count(cursor, change)
        except LostRaceError as lost:
            return lost.how
        return Applied.COMMITTED

    def record(self, cursor: Cursor, change: Transaction) -> None:
        """Fence, claims, ledger rows and counts of a change, within a transaction of the caller's.

        For changes whose copies are in the Kafka transaction of their batch (`IN_BATCH`): no
        reader can pass those before they are there. Raises LostRaceError, and the caller rolls
        back, when another writer has moved the fence or closed a claim.
        """
        inner = cursor.inner
        self._move_fence(inner, change)
        self._close_claims(inner, change)
        self._count(inner, change)

    def _count(self, cursor: Any, change: Transaction) -> None:
        if change.counts.read:
            at = (change.pipeline, change.fence.topic, change.fence.partition)
            cursor.execute(self._sql(_COUNT), (*astuple(change.counts), *at))

    def _written(self, parts: Sequence[Statement], write: Callable[[Sequence[Statement]], T]) -> T:
        """`write(parts)` in the order that avoids deadlocks, run again after a conflict.

        A constraint between rows of one transaction may need the order of the records: it decides.
        """
        ordered = self._in_lock_order(parts)
        if ordered != parts:
            try:
                return self._again(lambda: write(ordered))
            except ConstraintError:
                pass  # in the order of the records it may hold, or is raised again
        return self._again(lambda: write(parts))

    def _in_lock_order(self, parts: Sequence[Statement]) -> Sequence[Statement]:
        """The statements as this database should get them; SQLite has one writer at a time."""
        return parts

    def _again(self, run: Callable[[], T]) -> T:
        """`run()`, and again while the database ends it in favour of another transaction."""
        for _ in range(MAX_CONFLICTS):
            try:
                return run()
            except ConflictError:
                continue
        return run()

    @contextmanager
    def transaction(self) -> Generator[Cursor]:
        """Statements in one transaction: committed at the block's end, undone when it raises.

        Raises ConstraintError and StoreBusyError. After the latter the transaction may have been
        committed all the same: something written in it must tell.
        """
        with self._transaction() as cursor:
            yield Cursor(cursor, self._sql)

    def vacuum(self, pipeline: str, before_ms: int) -> int:
        """Delete the ledger rows of records that were loaded after a retry; how many rows.

        A record without rows is owed nothing, so its copies stay inert. Rows of records that wait
        or have failed are kept.

        Args:
            before_ms: only of records that ended before this time, in ms since 1970.
        """
        deleted = 0
        while True:
            part = self._again(lambda: self._forget(pipeline, before_ms))
            deleted += part
            if not part:
                return deleted

    def _forget(self, pipeline: str, before_ms: int) -> int:
        with self._transaction() as cursor:
            sql = self._sql(_FORGET)
            cursor.execute(sql, (pipeline, pipeline, before_ms, MAX_IDS_PER_QUERY))
            return int(cursor.rowcount)

    def refused(self, error: Exception) -> ConstraintError | None:
        """An error of this database as a broken constraint; None when it is another one."""
        known = self._translate(error)
        return known if isinstance(known, ConstraintError) else None

    def execute(self, statements: Sequence[Statement]) -> None:
        """Run statements in one transaction of their own (set-up by the user, not the pipeline)."""

        def run() -> None:
            with self._transaction() as cursor:
                for statement in statements:
                    cursor.executemany(self._sql(statement.sql), statement.rows or [()])

        self._again(run)

    def probe(self, parts: Sequence[Sequence[Statement]]) -> dict[int, Exception]:
        """Which parts break a constraint: each is tried behind a savepoint, and all is undone."""
        return self._again(lambda: self._probe(parts))

    def _probe(self, parts: Sequence[Sequence[Statement]]) -> dict[int, Exception]:
        broken: dict[int, Exception] = {}
        with self._errors():
            connection = self._writing()
            cursor = connection.cursor()
            self._begin(connection)
            try:
                for index, part in enumerate(parts):
                    cursor.execute("SAVEPOINT kohort_probe")
                    try:
                        for statement in part:
                            cursor.executemany(self._sql(statement.sql), statement.rows)
                    except Exception as error:  # every database has its own classes
                        known = self._translate(error)
                        if not isinstance(known, ConstraintError):
                            raise
                        cursor.execute("ROLLBACK TO SAVEPOINT kohort_probe")
                        broken[index] = known
                    cursor.execute("RELEASE SAVEPOINT kohort_probe")
            finally:
                connection.rollback()
        return broken

    def close(self) -> None:
        """Close this process's connections; the next use opens new ones."""
        for connection in (self._writer, self._reader):
            if connection is not None and self._pid == os.getpid():
                connection.close()
        self._writer = self._reader = None

    # Inside a transaction

    def _move_fence(self, cursor: Any, change: Transaction) -> None:
        move = change.fence
        cursor.execute(
            self._sql(
                "UPDATE kohort_fence SET next_offset = ?, updated_at = ? WHERE pipeline = ? "
                "AND topic = ? AND partition = ? AND next_offset = ?"
            ),
            (
                move.next_offset,
                change.now_ms,
                change.pipeline,
                move.topic,
                move.partition,
                move.expected,
            ),
        )
        if cursor.rowcount != 1:
            raise LostRaceError(Applied.FENCE_LOST)

    def _close_claims(self, cursor: Any, change: Change) -> None:
        done = [
            (change.now_ms, change.pipeline, c.retry_id, c.redrive_count, c.number)
            for c in change.claims
            if c.failed is None and c.moved is None
        ]
        if done:
            sql = f"UPDATE kohort_ledger SET status = 'done', closed_at = ? {_OF_ATTEMPT}"
            cursor.executemany(self._sql(sql), done)
            if cursor.rowcount != len(done):
                raise LostRaceError(Applied.CLAIM_LOST)
        for claim in change.claims:
            if claim.failed is not None:
                self._close_failed(cursor, change, claim, claim.failed)
            elif claim.moved is not None:
                self._move(cursor, change, claim, claim.moved)
        try:
            rows = [(change.pipeline, *_from_row(self._storable(row))) for row in change.rows]
            if rows:
                cursor.executemany(self._sql(_INSERT_ROW), rows)
        except Exception as error:  # every database has its own classes
            if isinstance(self._translate(error), ConstraintError):
                raise LostRaceError(Applied.CLAIM_LOST) from error
            raise

    def _close_failed(self, cursor: Any, change: Change, claim: Claim, row: LedgerRow) -> None:
        row, place = self._storable(row), row.place or Place("", -1, -1)
        cursor.execute(
            self._sql(
                "UPDATE kohort_ledger SET status = 'failed', closed_at = ?, dest = ?, "
                "copy_partition = ?, copy_offset = ?, disposition = ?, reason = ?, "
                f"error_class = ?, error_message = ?, fingerprint = ? {_OF_ATTEMPT}"
            ),
            (
                change.now_ms,
                place.topic,
                place.partition,
                place.offset,
                row.disposition,
                row.reason,
                row.error_class,
                row.error_message,
                row.fingerprint,
                change.pipeline,
                claim.retry_id,
                claim.redrive_count,
                claim.number,
            ),
        )
        if cursor.rowcount != 1:
            raise LostRaceError(Applied.CLAIM_LOST)

    def _move(self, cursor: Any, change: Change, claim: Claim, row: LedgerRow) -> None:
        place = row.place or Place("", -1, -1)
        cursor.execute(
            self._sql(
                "UPDATE kohort_ledger SET dest = ?, copy_partition = ?, copy_offset = ?, "
                f"delay_ms = ?, due = ?, disposition = ?, reason = ? {_OF_ATTEMPT}"
            ),
            (
                place.topic,
                place.partition,
                place.offset,
                row.delay_ms,
                row.due_ms,
                row.disposition,
                row.reason,
                change.pipeline,
                claim.retry_id,
                claim.redrive_count,
                claim.number,
            ),
        )
        if cursor.rowcount != 1:
            raise LostRaceError(Applied.CLAIM_LOST)

    def _check_overtaken(self, cursor: Any, change: Transaction) -> None:
        """No copy that is scheduled here may be below the fence of its retry topic."""
        first: dict[tuple[str, int], int] = {}
        for row in change.rows:
            if row.status is Status.SCHEDULED and row.place is not None:
                at = (row.place.topic, row.place.partition)
                first[at] = min(first.get(at, row.place.offset), row.place.offset)
        for (topic, partition), offset in sorted(first.items()):
            cursor.execute(
                self._sql(
                    "SELECT next_offset FROM kohort_fence "
                    f"WHERE pipeline = ? AND topic = ? AND partition = ? {self.share_lock}"
                ),
                (change.pipeline, topic, partition),
            )
            fence = cursor.fetchone()
            if fence is not None and fence[0] > offset:
                raise LostRaceError(Applied.CLAIM_LOST)

    def _check_left_behind(self, cursor: Any, change: Transaction) -> None:
        """No scheduled row may be below a retry topic's new fence."""
        move = change.fence
        cursor.execute(
            self._sql(
                "SELECT 1 FROM kohort_ledger WHERE pipeline = ? AND dest = ? "
                "AND copy_partition = ? AND copy_offset < ? AND status = 'scheduled' LIMIT 1"
            ),
            (change.pipeline, move.topic, move.partition, move.next_offset),
        )
        if cursor.fetchone() is not None:
            raise LostRaceError(Applied.CLAIM_LOST)

    # Connections

    @contextmanager
    def _transaction(self) -> Generator[Any]:
        with self._errors():
            connection = self._writing()
            cursor = connection.cursor()
            self._begin(connection)
            try:
                yield cursor
            except BaseException:  # any error: nothing of it may stay
                connection.rollback()
                raise
            connection.commit()

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except KohortError:
            raise
        except Exception as error:  # every database has its own classes; one place sorts them
            known = self._translate(error)
            if isinstance(known, StoreBusyError) and not isinstance(known, ConflictError):
                self.close()
            if known is error:
                raise
            raise known from error

    def _writing(self) -> Any:
        self._check_process()
        if self._writer is None:
            self._writer = self._connect(read_only=False)
        return self._writer

    def _reading(self) -> Any:
        self._check_process()
        if self._reader is None:
            self._reader = self._connect(read_only=True)
        return self._reader

    def _check_process(self) -> None:
        if self._pid == os.getpid() and self._replaced():
            self.close()
        if self._pid != os.getpid():  # forked: the parent's connections are not ours to touch
            self._writer = self._reader = None
            self._pid = os.getpid()


def add_fence(cursor: Cursor, pipeline: str, fence: FenceRow, now_ms: int) -> None:
    """The fence of a partition, in a transaction, where there is none; counting begins there."""
    made = cursor.execute(
        "INSERT INTO kohort_fence VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (pipeline, fence.topic, fence.topic_id, fence.partition, fence.next_offset, now_ms),
    )
    if made == 1:
        counts = (pipeline, fence.topic, fence.partition, fence.next_offset)
        cursor.execute(f"{_NO_COUNTS} ON CONFLICT DO NOTHING", counts)


def _from_row(row: LedgerRow) -> tuple[Any, ...]:
    place = row.place
    return (
        row.retry_id,
        row.redrive_count,
        row.number,
        row.status.value,
        row.origin.topic,
        row.origin.partition,
        row.origin.offset,
        row.origin.timestamp_ms,
        place.topic if place else None,
        place.partition if place else None,
        place.offset if place else None,
        row.delay_ms,
        row.due_ms,
        row.key_hash,
        row.disposition,
        row.reason,
        row.error_class,
        row.error_message,
        row.fingerprint,
        row.created_ms,
        row.closed_ms,
    )


def _to_row(values: Sequence[Any]) -> LedgerRow:
    (
        _,
        redrives,
        number,
        status,
        topic,
        partition,
        offset,
        stamp,
        dest,
        copy_partition,
        copy_offset,
        delay,
        due,
        key,
        disposition,
        reason,
        error_class,
        message,
        fingerprint,
        created,
        closed,
    ) = values
    return LedgerRow(
        origin=Origin(topic, partition, offset, stamp),
        redrive_count=redrives,
        number=number,
        status=Status(status),
        place=None if copy_offset is None else Place(dest, copy_partition, copy_offset),
        due_ms=due,
        key_hash=key,
        disposition=disposition,
        reason=reason,
        error_class=error_class,
        error_message=message,
        fingerprint=fingerprint,
        created_ms=created,
        closed_ms=closed,
        delay_ms=delay,
    )
