"""Staging, merge, fence and books in SQLite and PostgreSQL, without a JVM (spec 6.3, 6.4, 6.8)."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kohort.client.common.types import TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import EncodedBatch
from kohort.errors import ConfigError
from kohort.retry.store import ConstraintError
from kohort.retry.stores import open_store
from kohort.spark.outputs import staging
from kohort.spark.outputs.fence import Batch, Fence
from kohort.spark.outputs.late import count_late
from kohort.spark.outputs.merge_sql import Rejected, TableOutput
from kohort.spark.outputs.protocol import Attempt, Stored, Written
from kohort.spark.outputs.staging import Bad, StageSpec, stage
from kohort.spark.outputs.table_transaction import BatchStore, open_batches, stage_file
from kohort.spark.outputs.topics import OutputRecord
from kohort.spark.outputs.writing import kept
from kohort.spark.worker import forget
from tests.known import known
from tests.postgres import PostgresServer


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'db.sqlite'}"
    return request.getfixturevalue("database")


RECORDS = {TopicPartition("letters", 0): 5}


class Query:
    """A query with one table, as the driver and its tasks see it."""

    def __init__(self, url: str, columns: list[str], ddl: str, **how: Any) -> None:
        self.url = url
        self.store = open_store(url)
        with self.store.transaction() as cursor:
            cursor.execute(ddl)
        self.output = TableOutput(self.store.url, "t", **how)
        self.columns = columns
        self.batches = self.again()
        self.batch_id = -1
        self.next_attempt = 1
        self.bad: list[Rejected] = []

    def again(self) -> BatchStore:
        """A driver that starts."""
        made = open_batches(self.url, "q", [(self.output, self.columns)])
        made.prepare()
        return made

    def stage(self, *rows: tuple[Any, ...], types: pa.Schema | None = None) -> Attempt:
        """One task attempt with these rows."""
        merge = self.batches.merges[0]
        names = [*merge.columns, *self.output.staged_only]
        shown = merge.shown if self.output.rejects else ()
        spec = StageSpec(
            "t", self.batches.store.url, merge.stage, stage_file(self.batches), tuple(names), shown
        )
        table = pa.Table.from_pylist([dict(zip(self.columns, r, strict=True)) for r in rows], types)
        attempt = self.next_attempt
        self.next_attempt += 1
        pieces = table.select(names).to_batches(max_chunksize=2) if rows else []
        bad: list[Bad] = []
        staged = stage(spec, attempt, pieces, bad)
        assert staged + len(bad) == len(rows)
        self.bad += [Rejected("t", row, message) for row, message in bad]
        return Attempt("t", attempt, staged)

    def commit(
        self, *attempts: Attempt, identity: Identity | None = None, topics: Any = None
    ) -> str:
        self.batch_id += 1
        batch = Batch("q", self.batch_id, "c1")
        records = dict(RECORDS) if topics is not None else {}
        written = Written(list(attempts), records=records, rejected=self.bad)
        return self.batches.commit(batch, self.batches.fence(), written, identity, topics)

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return self.store.query(f"SELECT {columns} FROM t ORDER BY 1, 2")

    def close(self) -> None:
        self.store.close()
        self.batches.store.close()
        forget("store", {"url": self.url})


COUNTS = "CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER NOT NULL)"


@pytest.fixture
def upserts(url: str) -> Any:
    made = Query(url, ["k", "n"], COUNTS, key=("k",), mode="upsert")
    yield made
    made.close()


def test_exactly_the_attempts_that_count_are_merged(upserts: Query) -> None:
    dead = upserts.stage((9, 9), (1, 9))
    assert upserts.commit(upserts.stage((1, 1), (2, 2)), upserts.stage((3, 3))) == ""
    assert upserts.rows() == [(1, 1), (2, 2), (3, 3)]
    assert dead.rows == 2
    upserts.batches.sweep()
    assert upserts.commit(upserts.stage((1, 10)), upserts.stage()) == ""
    assert upserts.rows() == [(1, 10), (2, 2), (3, 3)]
    history = "SELECT batch_id, output, rows_read, rows_loaded, rows_deleted FROM "
    assert upserts.store.query(history + "kohort_batch_history ORDER BY 1") == [
        (0, "t", 3, 3, 0),
        (1, "t", 1, 1, 0),
    ]


def test_a_doubled_or_raced_batch_changes_nothing(upserts: Query) -> None:
    before = upserts.batches.fence()
    assert upserts.commit(upserts.stage((1, 1))) == ""
    late = upserts.stage((1, 99), (5, 5))
    batch, written = Batch("q", 0, "c1"), Written(staged=[late])
    assert "another driver" in upserts.batches.commit(batch, before, written, None)
    old = Stored(Fence(7, "c1"))
    assert "another driver" in upserts.batches.commit(Batch("q", 8, "c1"), old, written, None)
    assert upserts.rows() == [(1, 1)]
    fence = upserts.batches.fence()
    assert fence is not None
    assert fence.fence == Fence(0, "c1")


def test_staged_rows_that_vanished_are_noticed(upserts: Query) -> None:
    attempt = upserts.stage((1, 1), (2, 2))
    upserts.batches.sweep()
    assert "2 are there" in upserts.commit(attempt)
    assert upserts.rows() == []
    assert upserts.batches.fence() is None


def test_a_new_driver_drops_what_dead_ones_staged(upserts: Query) -> None:
    upserts.stage((1, 1))
    old = upserts.batches
    upserts.batches = upserts.again()
    assert upserts.commit(upserts.stage((2, 2))) == ""
    assert upserts.rows() == [(2, 2)]
    upserts.batches, new = old, upserts.batches
    with pytest.raises(Exception, match=r"no such table|does not exist|unable to open"):
        upserts.stage((5, 5))
    old.store.close()
    upserts.batches = new


def test_two_rows_of_one_key_are_refused_without_an_order(upserts: Query) -> None:
    attempts = [upserts.stage((1, 1)), upserts.stage((1, 2), (2, 2))]
    with pytest.raises(ConstraintError, match=r"several rows .* \(k\) = \(1,\); say by order"):
        upserts.commit(*attempts)
    assert upserts.rows() == []


def test_a_row_and_its_deletion_are_refused_without_an_order(url: str) -> None:
    """Nothing says which of them comes last."""
    columns = ["k", "n", "gone"]
    query = Query(url, columns, COUNTS, key=("k",), mode="upsert", deletes="gone")
    with pytest.raises(ConstraintError, match="several rows"):
        query.commit(query.stage((1, 5, False), (1, 0, True)))
    assert query.rows() == []
    query.close()


def test_rows_of_one_key_are_refused_among_rejected_ones(url: str) -> None:
    """The search for what the database refuses gives it the rows of one key one by one."""
    columns = ["k", "n"]
    query = Query(url, columns, CHECKED, key=("k",), mode="upsert", on_violation="keep")
    with pytest.raises(ConstraintError, match="several rows"):
        query.commit(query.stage((1, 1), (1, -1), (1, 3)))
    assert query.rows() == []
    query.close()


def test_the_greatest_in_order_wins(url: str) -> None:
    query = Query(url, ["k", "n"], COUNTS, key=("k",), mode="upsert", order=("n",))
    assert query.commit(query.stage((1, 1), (1, 3)), query.stage((1, 2), (2, 5))) == ""
    assert query.rows() == [(1, 3), (2, 5)]
    query.close()


def test_a_column_deletes(url: str) -> None:
    ddl = "CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER, at INTEGER)"
    query = Query(
        url,
        ["k", "n", "gone", "at"],
        ddl,
        key=("k",),
        mode="upsert",
        deletes="gone",
        order=("at",),
    )
    query.commit(query.stage((1, 1, False, 1), (2, 2, None, 1), (3, 3, False, 1)))
    assert query.rows("k, n") == [(1, 1), (2, 2), (3, 3)]
    assert (
        query.commit(
            query.stage((1, 0, True, 2), (2, 0, True, 2), (2, 22, False, 3), (9, 0, True, 2))
        )
        == ""
    )
    assert query.rows("k, n") == [(2, 22), (3, 3)]
    books = query.store.query(
        "SELECT rows_read, rows_loaded, rows_deleted FROM kohort_batch_history WHERE batch_id = 1"
    )
    assert books == [(4, 1, 1)]
    query.close()


def test_a_null_in_a_key_is_a_key(url: str) -> None:
    """Spark groups by NULL, too; no unique index finds the row that the group has already."""
    ddl = "CREATE TABLE t (k TEXT, m TEXT, n INTEGER, UNIQUE (k, m))"
    query = Query(url, ["k", "m", "n", "gone"], ddl, key=("k", "m"), mode="upsert", deletes="gone")
    assert query.commit(query.stage(("a", "x", 1, False), (None, "x", 3, False))) == ""
    assert query.commit(query.stage((None, "x", 8, False), (None, None, 5, False))) == ""
    assert set(query.rows("k, m, n")) == {("a", "x", 1), (None, "x", 8), (None, None, 5)}
    assert query.commit(query.stage((None, None, 0, True), ("a", "x", 2, False))) == ""
    assert set(query.rows("k, m, n")) == {("a", "x", 2), (None, "x", 8)}
    with pytest.raises(ConstraintError, match="several rows"):
        query.commit(query.stage((None, "x", 1, False)), query.stage((None, "x", 2, False)))
    query.close()


def test_a_duration_goes_to_postgresql_with_its_unit() -> None:
    """The number alone counted as seconds in a column of type interval."""
    second = datetime.timedelta(seconds=1)
    batch = pa.record_batch({"d": pa.array([second, None], pa.duration("us"))})
    lines = staging.copy_lines(batch, 7).to_pybytes().decode()
    assert lines.splitlines() == ["1000000 microseconds\t7", "\\N\t7"]


def test_replace_makes_the_batch_the_table(url: str) -> None:
    query = Query(url, ["k", "n"], COUNTS, mode="replace")
    query.commit(query.stage((1, 1), (2, 2)))
    assert query.commit(query.stage((2, 20), (3, 3))) == ""
    assert query.rows() == [(2, 20), (3, 3)]
    query.close()


def test_append_inserts_and_a_broken_constraint_undoes_the_batch(url: str) -> None:
    query = Query(url, ["k", "n"], COUNTS)
    assert query.commit(query.stage((1, 1))) == ""
    with pytest.raises(ConstraintError):
        query.commit(query.stage((2, 2)), query.stage((1, 5)))
    assert query.rows() == [(1, 1)]
    fence = query.batches.fence()
    assert fence is not None
    assert fence.fence.batch_id == 0
    query.close()


def test_values_of_every_type_arrive(url: str) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=datetime.UTC)
    schema = pa.schema(
        [
            ("k", pa.int32()),
            ("f", pa.float64()),
            ("b", pa.bool_()),
            ("s", pa.string()),
            ("raw", pa.binary()),
            ("d", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("m", pa.decimal128(10, 2)),
            ("l", pa.list_(pa.int64())),
        ]
    )
    rows = [
        (1, 0.1, True, "", b"", datetime.date(2026, 1, 2), at, decimal.Decimal("12.30"), [1, 2]),
        (2, float("inf"), False, 'a "b",\n\\. ü\u2028', b"\x00\xff\\", None, None, None, []),
        (3, None, None, None, None, None, None, None, None),
    ]
    types = {
        "sqlite": "s TEXT, raw BLOB, d TEXT, at TEXT, m TEXT, l TEXT",
        "postgresql": "s TEXT, raw BYTEA, d DATE, at TIMESTAMPTZ, m NUMERIC, l JSONB",
    }[url.split(":")[0]]
    query = Query(
        url, schema.names, f"CREATE TABLE t (k INTEGER, f DOUBLE PRECISION, b BOOLEAN, {types})"
    )
    assert query.commit(query.stage(*rows, types=schema)) == ""
    found = query.rows()
    if url.startswith("postgresql"):
        assert found == rows
    else:
        text = (1, 0.1, 1, "", b"", "2026-01-02", "2026-01-02 03:04:05.678900Z", "12.30", "[1, 2]")
        assert found == [text, (*rows[1][:2], 0, *rows[1][3:8], "[]"), rows[2]]
    query.close()


@pytest.mark.parametrize("piece_bytes", [1, staging.COPY_BYTES])
def test_no_text_has_a_meaning_for_the_database(
    url: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escapes of COPY's text format, its sign of NULL and its end of data are texts here."""
    monkeypatch.setattr(staging, "COPY_BYTES", piece_bytes)
    texts = ["\\N", "\\.", "", None, "\t", "a\\", "\\\\t", "x\r\ny", "\n", "\b\f\v", '"', "'", ","]
    rows = [(number, text, text) for number, text in enumerate(texts)]
    schema = pa.schema([("k", pa.int32()), ("s", pa.string()), ("l", pa.large_string())])
    query = Query(url, schema.names, "CREATE TABLE t (k INTEGER, s TEXT, l TEXT)")
    assert query.commit(query.stage(*rows, types=schema)) == ""
    assert query.rows() == rows
    query.close()


@pytest.fixture(scope="module")
def latin(postgres: PostgresServer) -> str:
    """A database whose encoding is not UTF-8."""
    postgres.run(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    return postgres.url("latin")


@pytest.mark.postgres
def test_texts_arrive_in_a_database_of_another_encoding(latin: str) -> None:
    """Texts of Arrow are UTF-8, also where the connection speaks another encoding."""
    query = Query(latin, ["k", "s"], "CREATE TABLE t (k INT, s TEXT)")
    assert query.commit(query.stage((1, "Zürich"))) == ""
    assert query.rows() == [(1, "Zürich")]
    with pytest.raises(ConstraintError, match="no equivalent"):
        query.stage((2, "漢"))
    query.close()


@pytest.mark.postgres
def test_a_text_that_the_database_cannot_hold_is_a_row_that_failed(latin: str) -> None:
    """Its JSON is kept in ASCII; where the database holds every text, as it is."""
    ddl = "DROP TABLE IF EXISTS t; CREATE TABLE t (k INT, s TEXT)"
    query = Query(latin, ["k", "s"], ddl, on_violation="keep")
    assert query.commit(query.stage((1, "Zürich"), (2, "漢"))) == ""
    assert query.rows() == [(1, "Zürich")]
    [(row, message)] = query.store.query("SELECT row_json, message FROM kohort_rejected")
    assert json.loads(row) == {"k": 2, "s": "漢"}
    assert "no equivalent" in message
    query.close()


def test_what_does_not_fit_is_refused_before_a_task_runs(url: str) -> None:
    query = Query(url, ["k", "n"], "CREATE TABLE t (k INTEGER, n INTEGER)")
    store_url = query.store.url
    for output, columns, text in [
        (TableOutput(store_url, "absent"), ["k"], "absent cannot be used.*Create it"),
        (TableOutput(store_url, "t"), ["k", "x"], "no column x; it has k, n"),
        (TableOutput(store_url, "t", ("k",), "upsert"), ["k", "n"], "CREATE UNIQUE INDEX"),
    ]:
        made = open_batches(url, "other", [(output, columns)])
        with pytest.raises(ConfigError, match=text):
            made.prepare()
        made.store.close()
    query.close()


def test_the_outbox_lives_until_the_transaction_has_ended(upserts: Query) -> None:
    store, batches = upserts.store, upserts.batches
    sent = [EncodedBatch("a", n % 2, n + 1, b"payload %d" % n) for n in range(3)]
    assert list(kept(store, "q", 7, iter(sent))) == sent
    list(kept(store, "q", 8, iter(sent[:1])))
    identity = Identity("kohort.spark.q", 5, 3)
    batch = Batch("q", 0, "c1")
    written = Written(
        staged=[upserts.stage((1, 1))], outbox=[7], records={TopicPartition("a", 0): 6}
    )
    assert batches.commit(batch, None, written, identity) == ""
    stored = batches.fence()
    assert stored == Stored(Fence(0, "c1"), identity, (7,), False)
    assert list(batches.outbox(known(stored).outbox)) == sent
    batches.ended(batch)
    stored = batches.fence()
    assert stored is not None
    assert stored.ended
    assert store.query("SELECT count(*) FROM kohort_outbox") == [(0,)]


@pytest.mark.parametrize("late", ["before the commit", "after the commit"])
def test_a_driver_that_was_paused_leaves_the_outbox_of_the_next_batch(
    upserts: Query, late: str
) -> None:
    """Another driver computes or has committed that batch, and may have to send it again."""
    store, first = upserts.store, Batch("q", 0, "c1")
    sent = [EncodedBatch("a", 0, 1, b"payload")]

    def commit(batch: Batch, attempt: int, paused: BatchStore | None = None) -> None:
        batches = upserts.batches
        list(kept(store, "q", attempt, iter(sent)))
        if paused is not None:
            paused.ended(first)
        staged = [upserts.stage((attempt, 1))]
        written = Written(staged, outbox=[attempt], records={TopicPartition("a", 0): 1})
        identity = Identity("kohort.spark.q", 5, attempt)
        assert batches.commit(batch, batches.fence(), written, identity) == ""

    commit(first, 7)
    paused, upserts.batches = upserts.batches, upserts.again()
    upserts.batches.ended(first)
    commit(Batch("q", 1, "c1"), 8, paused if late == "before the commit" else None)
    if late == "after the commit":
        paused.ended(first)
    stored = known(upserts.batches.fence())
    assert (stored.ended, list(upserts.batches.outbox(stored.outbox))) == (False, sent)
    paused.store.close()


def test_a_commit_whose_answer_is_lost_is_looked_up(
    upserts: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction went through, and the connection was lost before anybody heard of it."""
    from kohort.retry.store import StoreBusyError
    from kohort.spark.outputs import table_transaction

    monkeypatch.setattr(table_transaction.time, "sleep", lambda _s: None)
    real = upserts.batches._commit
    answers: list[str] = []

    def lost(*args: Any) -> str:
        answers.append(real(*args))
        raise StoreBusyError("connection lost")

    monkeypatch.setattr(upserts.batches, "_commit", lost)
    assert upserts.commit(upserts.stage((1, 1))) == ""
    assert answers == [""]
    assert upserts.rows() == [(1, 1)]


# Rows that the database refuses

CHECKED = "CREATE TABLE t (k INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n >= 0))"
HISTORY = (
    "SELECT rows_read, rows_loaded, rows_rejected FROM kohort_batch_history WHERE output = 't'"
)


def test_rows_that_break_a_constraint_are_kept_and_their_neighbours_loaded(url: str) -> None:
    """Spec 6.5: rows fail, queries do not."""
    query = Query(url, ["k", "n", "at"], CHECKED, on_violation="keep", carry=("at",))
    rows = [(n, -1 if n in (3, 17) else n, f"input/{n}") for n in range(40)]
    twice, null = (5, 5, "input/40"), (41, None, "input/41")
    assert query.commit(query.stage(*rows), query.stage(twice, null)) == ""
    assert query.rows() == [(n, n) for n in range(40) if n not in (3, 17)]
    kept_rows = query.store.query("SELECT row_json, message FROM kohort_rejected ORDER BY number")
    texts = {json.loads(row)["at"]: message for row, message in kept_rows}
    assert set(texts) >= {"input/3", "input/17", "input/41"}
    assert len(set(texts) & {"input/5", "input/40"}) == 1, "of two rows with one key one is loaded"
    assert len(texts) == 4
    assert "check" in texts["input/3"].lower()
    assert query.store.query(HISTORY) == [(42, 38, 4)]
    query.close()


def test_rejected_rows_of_a_batch_whose_number_was_used_before_are_kept_too(url: str) -> None:
    """A query begins anew behind what is there, as the error of a lost checkpoint advises: its
    first rejected row broke the key of `kohort_rejected`, at each start."""
    query = Query(url, ["k", "n"], CHECKED, on_violation="keep")
    assert query.commit(query.stage((1, -1), (2, 2))) == ""
    with query.store.transaction() as cursor:
        cursor.execute("DELETE FROM kohort_batch_fence")
    query.batch_id = -1
    assert query.commit(query.stage((3, -3), (4, 4))) == ""
    kept_rows = query.store.query("SELECT row_json FROM kohort_rejected ORDER BY number")
    assert [json.loads(row)["k"] for (row,) in kept_rows] == [1, 3]
    query.close()


def test_an_upsert_rejects_too(url: str) -> None:
    query = Query(
        url, ["k", "n"], CHECKED, key=("k",), mode="upsert", order=("n",), on_violation="keep"
    )
    assert query.commit(query.stage((1, 1), (1, 2), (2, -2), (3, 3))) == ""
    assert query.commit(query.stage((1, 7), (3, -1))) == ""
    assert query.rows() == [(1, 7), (3, 3)]
    assert query.store.query(HISTORY + " ORDER BY batch_id") == [(4, 2, 1), (2, 1, 1)]
    query.close()


def test_late_rows_of_a_batch_whose_number_was_used_before(upserts: Query) -> None:
    """A query begins anew, with a new checkpoint and the old history: the count is replaced."""
    with upserts.store.transaction() as cursor:
        count_late(cursor, Batch("q", 1, "old"), 2)
        count_late(cursor, Batch("q", 1, "new"), 3)
    late = "SELECT rows_read FROM kohort_batch_history WHERE output = 'late rows'"
    assert upserts.store.query(late) == [(3,)]


def test_nested_values_are_json_as_sparks_own(url: str) -> None:
    """Maps are objects, and bytes and numbers that JSON lacks are texts."""
    kind = pa.struct(
        [
            ("m", pa.map_(pa.int32(), pa.float64())),
            ("b", pa.binary()),
            ("l", pa.list_(pa.map_(pa.string(), pa.bool_()))),
        ]
    )
    types = pa.schema([("k", pa.int32()), ("v", kind)])
    query = Query(url, ["k", "v"], "CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")
    value = {"m": [(1, float("nan")), (2, float("-inf"))], "b": b"\0a", "l": [[("x", True)], None]}
    assert query.commit(query.stage((1, value), (2, None), types=types)) == ""
    ((_, text), (_, nothing)) = query.rows()
    expected = {"m": {"1": "NaN", "2": "-Infinity"}, "b": "AGE=", "l": [{"x": True}, None]}
    assert json.loads(text) == expected
    assert nothing is None
    query.close()


def test_a_row_whose_delete_is_refused_is_kept_and_the_others_are_deleted(url: str) -> None:
    """Spec 6.5: a foreign key names what the row deletes."""
    how: dict[str, Any] = {"key": ("k",), "mode": "upsert", "deletes": "gone"}
    query = Query(url, ["k", "n", "gone"], COUNTS, on_violation="keep", **how)
    assert query.commit(query.stage(*((n, n, False) for n in range(8)))) == ""
    with query.store.transaction() as cursor:
        cursor.execute("CREATE TABLE child (k INTEGER REFERENCES t)")
        cursor.execute("INSERT INTO child VALUES (2), (5)")
    assert query.commit(query.stage(*((n, 9, n < 6) for n in range(10)))) == ""
    assert query.rows() == [(2, 2), (5, 5), (6, 9), (7, 9), (8, 9), (9, 9)]
    kept = query.store.query("SELECT row_json, message FROM kohort_rejected ORDER BY number")
    assert [json.loads(row)["k"] for row, _ in kept] == [2, 5]
    assert all("foreign key" in message.lower() for _, message in kept)
    deleted = "SELECT rows_deleted FROM kohort_batch_history WHERE batch_id = 1"
    assert query.store.query(deleted) == [(4,)]
    assert query.store.query(HISTORY + " AND batch_id = 1") == [(10, 4, 2)]
    query.close()


def test_a_rejected_row_with_a_null_in_its_key_replaces_nothing(url: str) -> None:
    """Spec 6.5: the row that is there stays, as it does where the key has no NULL."""
    ddl = "CREATE TABLE t (k TEXT, m TEXT, n INTEGER CHECK (n >= 0), UNIQUE (k, m))"
    query = Query(url, ["k", "m", "n"], ddl, key=("k", "m"), mode="upsert", on_violation="keep")
    assert query.commit(query.stage(("a", None, 1), ("b", None, 2), ("c", "x", 3))) == ""
    assert query.commit(query.stage(("a", None, -1), ("b", None, 20), ("c", "x", -3))) == ""
    assert set(query.rows("k, m, n")) == {("a", None, 1), ("b", None, 20), ("c", "x", 3)}
    assert query.store.query(HISTORY + " ORDER BY batch_id") == [(3, 3, 0), (3, 1, 2)]
    query.close()


@pytest.mark.postgres
def test_a_text_that_the_column_cannot_read_is_a_row_that_failed(database: str) -> None:
    query = Query(database, ["k", "n"], "CREATE TABLE t (k INTEGER, n DATE)", on_violation="keep")
    days = [(n, "2026-01-02" if n % 5 else "no date") for n in range(20)]
    assert query.commit(query.stage(*days)) == ""
    assert [k for k, _ in query.rows("k, n")] == [n for n in range(20) if n % 5]
    assert query.store.query(HISTORY) == [(20, 16, 4)]
    [(row, message)] = query.store.query(
        "SELECT row_json, message FROM kohort_rejected WHERE number = 1"
    )
    assert json.loads(row) == {"k": 5, "n": "no date"}
    assert "invalid input syntax for type date" in message
    query.close()


class Letters:
    """The Kafka side: what was written, after how many records of tasks."""

    def __init__(self) -> None:
        self.partitions = {"letters": 1}
        self.written: list[tuple[EncodedBatch, dict[TopicPartition, int]]] = []

    def write(self, _identity: Identity, batches: Any, after: Any = None) -> None:
        self.written += [(batch, dict(after)) for batch in batches]


def test_dead_letters_go_into_the_transaction_of_the_batch_and_into_its_outbox(url: str) -> None:
    """Spec 6.3, 6.5: a batch's data and dead letters appear together, also when sent anew."""

    def letters(rejected: Sequence[Rejected]) -> list[OutputRecord]:
        return [
            OutputRecord("letters", r.message.encode(), str(r.row["k"]).encode()) for r in rejected
        ]

    query = Query(url, ["k", "n"], CHECKED, on_violation=letters)
    topics, identity = Letters(), Identity("kohort.spark.q", 5, 3)
    assert query.commit(query.stage((1, 1), (2, -2)), identity=identity, topics=topics) == ""
    [(batch, after)] = topics.written
    assert (batch.topic, batch.partition, batch.records) == ("letters", 0, 1)
    assert after == RECORDS, "sequences go on behind what tasks have written"
    stored = query.batches.fence()
    assert stored is not None
    assert list(query.batches.outbox(stored.outbox)) == [batch]
    assert query.store.query(
        "SELECT rows_loaded FROM kohort_batch_history WHERE output = 'topic letters'"
    ) == [(6,)]
    with pytest.raises(ConfigError, match="no topic output"):
        query.commit(query.stage((3, -3)))
    assert query.rows() == [(1, 1)]
    query.close()


def test_a_commit_that_has_sent_dead_letters_is_not_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kohort.retry.store import StoreBusyError

    query = Query(url, ["k", "n"], CHECKED, on_violation=lambda _: [OutputRecord("letters", b"x")])
    topics = Letters()

    def lost(_step: object) -> None:
        raise StoreBusyError("connection lost")

    query.batches.reached = lost
    with pytest.raises(StoreBusyError):
        query.commit(query.stage((2, -2)), identity=Identity("q", 5, 3), topics=topics)
    assert len(topics.written) == 1
    query.close()


def test_a_table_that_fits_nothing_fails_the_batch(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kohort.spark.outputs import violations

    monkeypatch.setattr(violations, "MAX_REJECTED", 3)
    query = Query(url, ["k", "n"], CHECKED, on_violation="keep")
    with pytest.raises(ConstraintError, match="more than 3 rows of one batch are refused"):
        query.commit(query.stage(*((n, -1) for n in range(10))))
    assert query.rows() == []
    assert query.batches.fence() is None
    query.close()
