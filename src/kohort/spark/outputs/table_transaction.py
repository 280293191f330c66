"""The database's side of a batch: fence, staging, merge, books and outbox, on the driver.

Shell: the clock, randomness (ids of commits and staging tables), files beside a SQLite database.

Rules (ADR 0019):
- Fence, merge and counts are one transaction. The fence is a compare-and-set and comes first, so
  that of two drivers one waits, loses and rolls back.
- Staging belongs to one run of one query: its name is drawn, so that no two drivers share it. What
  dead runs have left is dropped at the start, what a batch has left after its commit.
- Staged rows may vanish (PostgreSQL empties unlogged tables when it recovers): the transaction that
  merges them counts them, by the rows that it changes or, where those may be fewer, beforehand.
- The outbox is a logged table: its rows outlive everything until EndTxn is answered.
- A lost connection leaves open whether the transaction was committed. The commit's own id, written
  with the fence, tells.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kohort.client.common.types import TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import EncodedBatch
from kohort.errors import ConfigError, KohortError, UsageError
from kohort.retry.postgres import PostgresStore
from kohort.retry.sql_statements import quote
from kohort.retry.sqlite import SqliteStore
from kohort.retry.store import ConstraintError, Cursor, Store, StoreBusyError
from kohort.retry.stores import open_store
from kohort.spark.outputs.fence import Batch, Fence
from kohort.spark.outputs.merge_sql import (
    ATTEMPT,
    ATTEMPT_BITS,
    Merge,
    Rejected,
    TableOutput,
    delete_null_keys,
    null_keys,
)
from kohort.spark.outputs.protocol import Step, Stored, Topics, Written, ignore
from kohort.spark.outputs.topics import OutputRecord, encode_records
from kohort.spark.outputs.violations import as_json, check_count, delete_each, load_each

HISTORY_BATCHES: Final = 10_000
"""So many batches of a query are kept in `kohort_batch_history`."""
COMMIT_TRIES: Final = 5
MET_TWICE: Final = "21000"
"""PostgreSQL's code for an upsert that meets one row twice (cardinality_violation)."""
NO_MERGE: Final = frozenset({"40P01", "0A000"})
"""After these ON CONFLICT may still do: a deadlock, and a relative of PostgreSQL without MERGE."""
_TAKES_MERGE: Final = """
    SELECT current_setting('server_version_num')::int >= 150000 AND c.relkind = 'r'
        AND NOT (c.relhasrules OR c.relhassubclass OR c.relrowsecurity)
        AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal)
    FROM pg_class c WHERE c.oid = to_regclass(?)"""
"""True where MERGE does what ON CONFLICT does; triggers of an insert, say, would see fewer rows."""
_SORT_IN_MEMORY: Final = """
    SELECT set_config('work_mem', '64MB', true)
    WHERE pg_size_bytes(current_setting('work_mem')) < pg_size_bytes('64MB')"""
"""For this transaction: by default 4 MB, which the rows of a larger batch do not fit into."""
_ENCODINGS: Final = "SELECT current_setting('server_encoding'), current_setting('client_encoding')"
STAGE_FILE: Final = "kohort_staging"
INTO_OUTBOX: Final = "INSERT INTO kohort_outbox VALUES (?, ?, ?, ?, ?, ?, ?)"
SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS kohort_batch_fence (
        query TEXT NOT NULL PRIMARY KEY, batch_id BIGINT NOT NULL, checkpoint TEXT NOT NULL,
        commit_id TEXT NOT NULL, transactional_id TEXT, producer_id BIGINT, producer_epoch INTEGER,
        outbox TEXT NOT NULL, ended INTEGER NOT NULL, updated_at BIGINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS kohort_batch_history (
        query TEXT NOT NULL, batch_id BIGINT NOT NULL, output TEXT NOT NULL,
        rows_read BIGINT NOT NULL, rows_loaded BIGINT NOT NULL, rows_deleted BIGINT NOT NULL,
        committed_at BIGINT NOT NULL, rows_rejected BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (query, batch_id, output))""",
    """CREATE TABLE IF NOT EXISTS kohort_rejected (
        query TEXT NOT NULL, batch_id BIGINT NOT NULL, output TEXT NOT NULL,
        number INTEGER NOT NULL, row_json TEXT NOT NULL, message TEXT NOT NULL,
        rejected_at BIGINT NOT NULL, PRIMARY KEY (query, batch_id, output, number))""",
    """CREATE TABLE IF NOT EXISTS kohort_outbox (
        query TEXT NOT NULL, attempt BIGINT NOT NULL, number INTEGER NOT NULL,
        topic TEXT NOT NULL, partition INTEGER NOT NULL, records INTEGER NOT NULL,
        payload {blob} NOT NULL, PRIMARY KEY (query, attempt, number))""",
)
_FENCE_COLUMNS: Final = (
    "batch_id, checkpoint, transactional_id, producer_id, producer_epoch, outbox, ended"
)
_UPSERT_HISTORY: Final = (
    "INSERT INTO kohort_batch_history (query, batch_id, output, rows_read, rows_loaded, "
    "rows_deleted, committed_at, rows_rejected) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (query, batch_id, output) DO UPDATE SET rows_read = excluded.rows_read, "
    "rows_loaded = excluded.rows_loaded, rows_deleted = excluded.rows_deleted, "
    "committed_at = excluded.committed_at, rows_rejected = excluded.rows_rejected"
)


@dataclass
class _Change:
    """One try of one batch's transaction.

    Args:
        letters: dead letters that it is to write.
        sent: it may have written some: the Kafka transaction may be used no more.
    """

    batch: Batch
    expected: Stored | None
    written: Written
    identity: Identity | None
    commit_id: str
    topics: Topics | None
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    letters: list[OutputRecord] = field(default_factory=list[OutputRecord])
    sent: bool = False


class BatchStore:
    """One query's database; see `kohort.spark.outputs.protocol.Database`.

    Args:
        store: the database.
        query: the name under which the fence is kept.
        outputs: the query's tables, with the columns of the frame that goes into each.
    """

    blob = "BLOB"
    refuses_doubled = False
    """The database itself refuses an upsert that meets one row twice."""

    def __init__(
        self, store: Store, query: str, outputs: Sequence[tuple[TableOutput, Sequence[str]]]
    ) -> None:
        self.store = store
        self.query = query
        self.reached: Callable[[Step], None] = ignore
        self.also: Callable[[Cursor], str] | None = None
        """More that belongs into the transaction of a batch; "" when it is done, else why not."""
        self._run = secrets.token_hex(4)
        self._digest = hashlib.sha256(query.encode()).hexdigest()[:12]
        self.merges = [
            Merge(output, self._stage(number), output.columns(frame))
            for number, (output, frame) in enumerate(outputs)
        ]

    # What databases differ in

    @abstractmethod
    def _stage(self, number: int) -> str:
        """The name in SQL of the staging table of the output of this number."""

    def _holds_unicode(self) -> bool:
        """Whether every text can be stored."""
        return True

    @abstractmethod
    def _make_stage(self, cursor: Cursor, merge: Merge) -> None: ...

    @abstractmethod
    def sweep_runs(self) -> None:
        """Drop the staging that dead runs of this query have left."""

    @abstractmethod
    def sweep(self) -> None:
        """Empty this run's staging: what is in it counts no more."""

    def batch_done(self) -> None:
        """Let go of what must not be kept between two batches."""

    # The start of a run

    def prepare(self) -> None:
        """Make what is missing, and check the outputs against the database.

        Raises ConfigError for a table or index that is not there.
        """
        with self.store.setting_up(), self.store.transaction() as cursor:
            for sql in SCHEMA:
                cursor.execute(sql.format(blob=self.blob))
            if "rows_rejected" not in cursor.columns("kohort_batch_history"):
                cursor.execute(
                    "ALTER TABLE kohort_batch_history "
                    "ADD COLUMN rows_rejected BIGINT NOT NULL DEFAULT 0"
                )
        for merge in self.merges:
            self._check(merge)
        self.sweep_runs()
        with self.store.transaction() as cursor:
            for merge in self.merges:
                self._make_stage(cursor, merge)
        for merge in self.merges:
            self._check_conflicts(merge)

    def _check(self, merge: Merge) -> None:
        table = merge.output.table
        try:
            with self.store.transaction() as cursor:
                present = cursor.columns(quote(table))
        except (UsageError, StoreBusyError):
            raise
        except Exception as error:  # every database has its own class for a missing table
            raise ConfigError(
                f"table {table} cannot be used: {_line(error)}. Create it before the query "
                "starts, with the columns of the frame"
            ) from error
        lacking = [c for c in merge.columns if c not in present]
        if lacking:
            raise ConfigError(
                f"table {table} has no column {', '.join(lacking)}; it has {', '.join(present)}. "
                "Add it (ALTER TABLE), or leave it out of the frame"
            )

    def _check_conflicts(self, merge: Merge) -> None:
        """An upsert needs a unique index over its key; the database says so."""
        try:
            with self.store.transaction() as cursor:
                cursor.execute(merge.insert(merge.latest(())))
        except StoreBusyError:
            raise
        except Exception as error:  # every database has its own class
            key = ", ".join(quote(k) for k in merge.output.key)
            raise ConfigError(
                f"table {merge.output.table} cannot be merged into: {_line(error)}. An upsert "
                f"needs CREATE UNIQUE INDEX ON {quote(merge.output.table)} ({key})"
            ) from error

    # The protocol's port

    def fence(self) -> Stored | None:
        """The last batch that was committed here."""
        rows = self.store.query(
            f"SELECT {_FENCE_COLUMNS} FROM kohort_batch_fence WHERE query = ?", (self.query,)
        )
        if not rows:
            return None
        batch_id, checkpoint, name, producer_id, epoch, outbox, ended = rows[0]
        identity = None if name is None else Identity(name, producer_id, epoch)
        return Stored(Fence(batch_id, checkpoint), identity, tuple(json.loads(outbox)), bool(ended))

    def commit(
        self,
        batch: Batch,
        expected: Stored | None,
        written: Written,
        identity: Identity | None,
        topics: Topics | None = None,
    ) -> str:
        """Everything in one transaction; "" when it is committed, else why it is not.

        One that has written dead letters is not tried again: the Kafka transaction has them.
        """
        commit_id = secrets.token_hex(8)
        for tried in range(1, COMMIT_TRIES + 1):
            change = _Change(batch, expected, written, identity, commit_id, topics)
            try:
                return self._commit(change)
            except StoreBusyError:
                if tried == COMMIT_TRIES or change.sent:
                    raise
                time.sleep(0.05 * 2**tried)
                if self._is_committed(commit_id):
                    return ""
        raise AssertionError("the last try returns or raises")

    def ended(self, batch: Batch) -> None:
        """Note that the Kafka transaction of the fence is committed; drop its outbox.

        A driver that was paused comes here late. The outbox then has attempts of the next batch,
        which stay.
        """
        fence = "WHERE query = ? AND batch_id = ? AND checkpoint = ?"
        at = (self.query, batch.batch_id, batch.checkpoint)
        with self.store.transaction() as cursor:
            rows = cursor.query(f"SELECT outbox FROM kohort_batch_fence {fence}", at)
            cursor.execute(f"UPDATE kohort_batch_fence SET ended = 1 {fence}", at)
            cursor.execute_many(
                "DELETE FROM kohort_outbox WHERE query = ? AND attempt = ?",
                [(self.query, attempt) for (outbox,) in rows for attempt in json.loads(outbox)],
            )

    def outbox(self, attempts: Sequence[int]) -> Iterable[EncodedBatch]:
        """The encoded batches of these attempts, in their order."""
        for attempt in attempts:
            numbers = self.store.query(
                "SELECT number FROM kohort_outbox WHERE query = ? AND attempt = ? ORDER BY number",
                (self.query, attempt),
            )
            for (number,) in numbers:
                rows = self.store.query(
                    "SELECT topic, partition, records, payload FROM kohort_outbox "
                    "WHERE query = ? AND attempt = ? AND number = ?",
                    (self.query, attempt, number),
                )
                yield EncodedBatch(*rows[0])

    # Inside the transaction

    def _is_committed(self, commit_id: str) -> bool:
        rows = self.store.query(
            "SELECT 1 FROM kohort_batch_fence WHERE query = ? AND commit_id = ?",
            (self.query, commit_id),
        )
        return bool(rows)

    def _commit(self, change: _Change) -> str:
        batch, written = change.batch, change.written
        try:
            with self.store.transaction() as cursor:
                self._move_fence(cursor, change)
                self._drop_failed_attempts(cursor, written)
                for merge in self.merges:
                    self._merge(cursor, change, merge)
                self._keep_topics(cursor, change)
                for table in ("kohort_batch_history", "kohort_rejected"):
                    cursor.execute(
                        f"DELETE FROM {table} WHERE query = ? AND batch_id <= ?",
                        (self.query, batch.batch_id - HISTORY_BATCHES),
                    )
                if self.also is not None and (refusal := self.also(cursor)):
                    raise _NotCommitted(refusal)
                self.reached(Step.AFTER_MERGE)
        except _NotCommitted as reason:
            return str(reason)
        except Exception as error:  # every database has its own classes
            if getattr(error, "sqlstate", None) == MET_TWICE:
                self._name_doubled(batch, written)
            raise
        return ""

    def _drop_failed_attempts(self, cursor: Cursor, written: Written) -> None:
        """Nothing sends what attempts without a part in the batch left in the outbox."""
        marks = ", ".join("?" * len(written.outbox))
        others = f" AND attempt NOT IN ({marks})" if marks else ""
        cursor.execute(
            f"DELETE FROM kohort_outbox WHERE query = ?{others}", (self.query, *written.outbox)
        )

    def _name_doubled(self, batch: Batch, written: Written) -> None:
        """Raise the error that names the key which the database has met twice."""
        with self.store.transaction() as cursor:
            for merge in self.merges:
                attempts = [a.id for a in written.staged if a.output == merge.output.name]
                self._refuse_doubled(cursor, batch, merge, attempts)

    def _move_fence(self, cursor: Cursor, change: _Change) -> None:
        batch, identity, expected = change.batch, change.identity, change.expected
        who = (None, None, None) if identity is None else tuple(identity)
        values = (
            batch.batch_id,
            batch.checkpoint,
            change.commit_id,
            *who,
            json.dumps(change.written.outbox),
            int(identity is None),
            change.now_ms,
        )
        if expected is None:
            moved = cursor.execute(
                "INSERT INTO kohort_batch_fence (query, batch_id, checkpoint, commit_id, "
                "transactional_id, producer_id, producer_epoch, outbox, ended, updated_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (self.query, *values),
            )
        else:
            fence = expected.fence
            moved = cursor.execute(
                "UPDATE kohort_batch_fence SET batch_id = ?, checkpoint = ?, commit_id = ?, "
                "transactional_id = ?, producer_id = ?, producer_epoch = ?, outbox = ?, "
                "ended = ?, updated_at = ? WHERE query = ? AND batch_id = ? AND checkpoint = ?",
                (*values, self.query, fence.batch_id, fence.checkpoint),
            )
        if moved != 1:
            raise _NotCommitted("another driver of this query was faster")

    def _merge(self, cursor: Cursor, change: _Change, merge: Merge) -> None:
        output, written = merge.output, change.written
        staged = {a.id: a.rows for a in written.staged if a.output == output.name}
        attempts = list(staged)
        if not merge.loads_all:
            self._check_staged(cursor, merge, staged)
        lacking = null_keys(merge, attempts)
        lacks_keys = lacking is not None and bool(cursor.query(lacking))
        # rows that delete, and keys with a NULL, are not what an upsert meets twice
        meets_all = merge.updates and not output.deletes and not lacks_keys
        if not (self.refuses_doubled and meets_all):
            self._refuse_doubled(cursor, change.batch, merge, attempts)
        rejected = [r for r in written.rejected if r.output == output.name]
        read = sum(staged.values()) + len(rejected)
        deleted, kept = self._remove(cursor, merge, attempts)
        rejected += kept
        loaded, refused = self._load(cursor, merge, attempts, lacks_keys=lacks_keys)
        if merge.loads_all and loaded + len(refused) != sum(staged.values()):
            self._check_staged(cursor, merge, staged)
        if refused:  # the search may have loaded rows of one key one after the other
            self._refuse_doubled(cursor, change.batch, merge, attempts)
        if output.rejects:
            rejected += refused
            self._reject(cursor, change, output, rejected)
        self._count(cursor, change, output.name, (read, loaded, deleted, len(rejected)))

    def _remove(
        self, cursor: Cursor, merge: Merge, attempts: Sequence[int]
    ) -> tuple[int, list[Rejected]]:
        """Delete what the batch deletes or replaces: how many rows, and whose delete is refused."""
        if merge.output.deletes and merge.output.rejects:
            return delete_each(cursor, merge, attempts, self.store.refused)
        removal = merge.delete(attempts)
        return (cursor.execute(removal) if removal else 0), []

    def _check_staged(self, cursor: Cursor, merge: Merge, staged: Mapping[int, int]) -> None:
        """Every row of every attempt is still there, or nothing is committed."""
        present = dict(cursor.query(merge.staged(staged)))
        if any(present.get(attempt, 0) != rows for attempt, rows in staged.items()):
            raise _NotCommitted(
                f"staged rows of table {merge.output.table} are gone ({sum(present.values())} of "
                f"{sum(staged.values())} are there): the database has recovered from a crash, or "
                "another driver of this query has started"
            )

    def _load(
        self, cursor: Cursor, merge: Merge, attempts: Sequence[int], *, lacks_keys: bool
    ) -> tuple[int, list[Rejected]]:
        """Insert or update what is staged: how many rows, and those that the database refuses."""
        if merge.output.rejects:
            return load_each(cursor, merge, attempts, self.store.refused, lacks_keys=lacks_keys)
        rows = merge.latest(attempts)
        if lacks_keys:
            cursor.execute(delete_null_keys(merge, rows))
        return cursor.execute(merge.insert(rows)), []

    def _reject(
        self, cursor: Cursor, change: _Change, output: TableOutput, rejected: Sequence[Rejected]
    ) -> None:
        """Keep what the database refuses, or ask for its dead letters and write them."""
        if not rejected:
            return
        check_count(output.table, len(rejected), rejected[-1].message)
        if not callable(output.on_violation):
            at = (self.query, change.batch.batch_id, output.name)
            # A query with a new checkpoint counts its batches from 0 again.
            [(first,)] = cursor.query(
                "SELECT COALESCE(MAX(number), -1) + 1 FROM kohort_rejected "
                "WHERE query = ? AND batch_id = ? AND output = ?",
                at,
            )
            ascii_only = not self._holds_unicode()
            cursor.execute_many(
                "INSERT INTO kohort_rejected VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (*at, number, as_json(dict(r.row), ascii_only), r.message, change.now_ms)
                    for number, r in enumerate(rejected, start=first)
                ],
            )
            return
        change.letters += list(output.on_violation(rejected) or ())

    def _keep_topics(self, cursor: Cursor, change: _Change) -> None:
        """Send dead letters and keep them in the outbox; count what went to each topic."""
        records = Counter(change.written.records)
        if change.letters:
            records += self._send(cursor, change)
        totals: Counter[str] = Counter()
        for at, count in records.items():
            totals[at.topic] += count
        for topic, count in sorted(totals.items()):
            self._count(cursor, change, f"topic {topic}", (count, count, 0, 0))

    def _send(self, cursor: Cursor, change: _Change) -> Counter[TopicPartition]:
        topics, identity = change.topics, change.identity
        if topics is None or identity is None:
            raise ConfigError(
                f"{change.batch}: on_violation returns records, but the query has no topic output; "
                "write them by to_outputs(to_table(...), to_topic(topics=[...])), or return none"
            )
        batches = encode_records(change.letters, topics.partitions, change.now_ms)
        attempt = secrets.randbits(ATTEMPT_BITS)
        cursor.execute_many(
            INTO_OUTBOX,
            [
                (self.query, attempt, number, b.topic, b.partition, b.records, bytes(b.payload))
                for number, b in enumerate(batches)
            ],
        )
        change.sent = True
        topics.write(identity, batches, change.written.records)
        cursor.execute(
            "UPDATE kohort_batch_fence SET outbox = ? WHERE query = ?",
            (json.dumps([*change.written.outbox, attempt]), self.query),
        )
        sent: Counter[TopicPartition] = Counter()
        for b in batches:
            sent[TopicPartition(b.topic, b.partition)] += b.records
        return sent

    def _count(
        self, cursor: Cursor, change: _Change, output: str, counts: tuple[int, int, int, int]
    ) -> None:
        at = (self.query, change.batch.batch_id, output)
        cursor.execute(_UPSERT_HISTORY, (*at, *counts[:3], change.now_ms, counts[3]))

    def _refuse_doubled(
        self, cursor: Cursor, batch: Batch, merge: Merge, attempts: Sequence[int]
    ) -> None:
        sql = merge.doubled(attempts)
        doubled = cursor.query(sql) if sql else []
        if doubled:
            key = ", ".join(merge.output.key)
            raise ConstraintError(
                f"{batch}: several rows for table {merge.output.table} have the key ({key}) = "
                f"{doubled[0]}; say by order=(...) which one wins (the greatest), or aggregate "
                "before the output"
            )


class _NotCommitted(Exception):
    """The transaction was rolled back, for the reason that it says."""


class SqliteBatches(BatchStore):
    """Staging in a file beside the database, attached to it."""

    def __init__(
        self, store: SqliteStore, query: str, outputs: Sequence[tuple[TableOutput, Sequence[str]]]
    ) -> None:
        super().__init__(store, query, outputs)
        self._sqlite = store
        self.stage_path = store.path.with_name(
            f"{store.path.name}-staging-{self._digest}-{self._run}"
        )

    def _stage(self, number: int) -> str:
        return f'"{STAGE_FILE}"."stage_{number}"'

    def sweep_runs(self) -> None:
        """As `BatchStore.sweep_runs`."""
        path = self._sqlite.path
        for file in path.parent.glob(f"{path.name}-staging-{self._digest}-*"):
            file.unlink(missing_ok=True)
        self._sqlite.close()
        self._sqlite.attach(self.stage_path, STAGE_FILE)

    def _make_stage(self, cursor: Cursor, merge: Merge) -> None:
        names = ", ".join(quote(c) for c in merge.columns)
        deletes = merge.output.deletes
        extra = f", 0 AS {quote(deletes)}" if deletes else ""
        extra += "".join(f", '' AS {quote(c)}" for c in merge.output.carry)
        cursor.execute(
            f"CREATE TABLE {merge.stage} AS SELECT {names}{extra}, 0 AS {ATTEMPT} "
            f"FROM main.{quote(merge.output.table)} WHERE 0"
        )

    def sweep(self) -> None:
        """As `BatchStore.sweep`."""
        self._sqlite.attach(self.stage_path, STAGE_FILE)
        with self.store.transaction() as cursor:
            for merge in self.merges:
                cursor.execute(f"DELETE FROM {merge.stage}")

    def batch_done(self) -> None:
        """Close the file: a connection of SQLite can be closed by its own thread only."""
        self._sqlite.close()

    def commit(
        self,
        batch: Batch,
        expected: Stored | None,
        written: Written,
        identity: Identity | None,
        topics: Topics | None = None,
    ) -> str:
        """As `BatchStore.commit`; a connection that was created again sees the staging again."""
        self._sqlite.attach(self.stage_path, STAGE_FILE)
        return super().commit(batch, expected, written, identity, topics)


class PostgresBatches(BatchStore):
    """Staging in unlogged tables of the database.

    An upsert is a MERGE first: it neither locks a row before it updates it nor inserts rows
    speculatively, and takes a fifth less time than ON CONFLICT. It fails, rather than change what
    it should not, where another writer inserts a key at the same time (a unique violation) or
    locks rows in another order (a deadlock). Then ON CONFLICT does the work, from then on.
    """

    blob = "BYTEA"
    refuses_doubled = True

    def __init__(
        self, store: PostgresStore, query: str, outputs: Sequence[tuple[TableOutput, Sequence[str]]]
    ) -> None:
        super().__init__(store, query, outputs)
        self.contended: set[str] = set()
        """Tables with other writers of the same keys."""

    def _load(
        self, cursor: Cursor, merge: Merge, attempts: Sequence[int], *, lacks_keys: bool
    ) -> tuple[int, list[Rejected]]:
        cursor.query(_SORT_IN_MEMORY)
        table = quote(merge.output.table)
        by_merge = merge.updates and table not in self.contended
        if not (by_merge and cursor.query(_TAKES_MERGE, (table,)) == [(True,)]):
            return super()._load(cursor, merge, attempts, lacks_keys=lacks_keys)
        cursor.execute("SAVEPOINT kohort_load")
        try:
            if lacks_keys:
                cursor.execute(delete_null_keys(merge, merge.latest(attempts)))
            loaded = cursor.execute(merge.merge(attempts))
        except Exception as error:  # psycopg has its own classes
            sqlstate = getattr(error, "sqlstate", None)
            if self.store.refused(error) is None and sqlstate not in NO_MERGE:
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT kohort_load")
            loaded, refused = super()._load(cursor, merge, attempts, lacks_keys=lacks_keys)
            if not refused:
                self.contended.add(table)
            return loaded, refused
        cursor.execute("RELEASE SAVEPOINT kohort_load")
        return loaded, []

    def _stage(self, number: int) -> str:
        return quote(f"kohort_stage_{self._digest}_{self._run}_{number}")

    def _holds_unicode(self) -> bool:
        return self.store.query(_ENCODINGS) == [("UTF8", "UTF8")]

    def sweep_runs(self) -> None:
        """As `BatchStore.sweep_runs`."""
        rows = self.store.query(
            "SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind = 'r' "
            "AND c.relname LIKE ? AND pg_table_is_visible(c.oid)",
            (f"kohort\\_stage\\_{self._digest}\\_%",),
        )
        for (name,) in rows:
            self._at_leisure(f"DROP TABLE IF EXISTS {name}")

    def _make_stage(self, cursor: Cursor, merge: Merge) -> None:
        names = ", ".join(quote(c) for c in merge.columns)
        deletes = merge.output.deletes
        extra = f", FALSE AS {quote(deletes)}" if deletes else ""
        extra += "".join(f", ''::text AS {quote(c)}" for c in merge.output.carry)
        cursor.execute(
            f"CREATE UNLOGGED TABLE {merge.stage} AS SELECT {names}{extra}, "
            f"0::bigint AS {ATTEMPT} FROM {quote(merge.output.table)} WITH NO DATA"
        )

    def sweep(self) -> None:
        """As `BatchStore.sweep`."""
        for merge in self.merges:
            self._at_leisure(f"TRUNCATE {merge.stage}")

    def _at_leisure(self, sql: str) -> None:
        """A statement that may be left for another time: a dead task may still hold the table."""
        with contextlib.suppress(StoreBusyError), self.store.transaction() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '1s'")
            cursor.execute(sql)


def open_batches(
    store_url: str, query: str, outputs: Sequence[tuple[TableOutput, Sequence[str]]]
) -> SqliteBatches | PostgresBatches:
    """The batch store of a URL. Nothing is connected yet. Raises ConfigError as `open_store`."""
    store = open_store(store_url)
    if isinstance(store, SqliteStore):
        return SqliteBatches(store, query, outputs)
    if isinstance(store, PostgresStore):
        return PostgresBatches(store, query, outputs)
    raise KohortError(f"{store_url}: batches go into SQLite or PostgreSQL")


def stage_file(batches: BatchStore) -> Path | None:
    """Where tasks stage rows for a SQLite database; None for a database that they reach."""
    return batches.stage_path if isinstance(batches, SqliteBatches) else None


def _line(error: Any) -> str:
    return " ".join(str(error).split())
