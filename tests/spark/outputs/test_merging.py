"""PostgreSQL's MERGE and ON CONFLICT: which one loads a batch, and that both load the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from kohort.spark.outputs import table_transaction
from kohort.spark.outputs.table_transaction import PostgresBatches
from tests.patience import until
from tests.postgres import PostgresServer
from tests.spark.outputs.test_table_transaction import COUNTS, Query

pytestmark = pytest.mark.postgres
CHANGES = pa.schema(
    [
        ("k", pa.int32()),
        ("j", pa.string()),
        ("n", pa.float64()),
        ("gone", pa.bool_()),
        ("at", pa.int32()),
    ]
)
BOOKS = "SELECT batch_id, rows_read, rows_loaded, rows_deleted FROM kohort_batch_history ORDER BY 1"
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid' "
    "AND query LIKE 'MERGE%'"
)
"""Merges that wait for another transaction's row; autovacuum waits for locks, too."""


class Spy(psycopg.Cursor[Any]):
    """Notes the statements of every connection that is made while it is in use."""

    statements: list[str]

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        self.statements.append(str(query))
        return super().execute(query, *args, **options)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that the driver has run."""
    Spy.statements = []
    connect = psycopg.connect

    def spied(*args: Any, **options: Any) -> Any:
        return connect(*args, cursor_factory=Spy, **options)

    monkeypatch.setattr(psycopg, "connect", spied)
    return Spy.statements


@pytest.fixture
def upserts(statements: list[str], database: str) -> Iterator[Query]:
    made = Query(database, ["k", "n"], COUNTS, key=("k",), mode="upsert")
    yield made
    made.close()


def ways(statements: list[str]) -> list[str]:
    """How each batch was loaded; a try that failed counts."""
    loads = [s.split()[0] for s in statements if s.startswith(("MERGE", 'INSERT INTO "t"'))]
    statements.clear()
    return loads


def test_an_upsert_is_one_merge(upserts: Query, statements: list[str]) -> None:
    statements.clear()
    assert upserts.commit(upserts.stage((2, 2), (1, 1))) == ""
    assert ways(statements) == ["MERGE"]
    assert upserts.commit(upserts.stage((2, 20), (3, 3))) == ""
    assert ways(statements) == ["MERGE"]
    assert upserts.rows() == [(1, 1), (2, 20), (3, 3)]


@pytest.mark.parametrize(("own", "used"), [("1MB", "64MB"), ("100MB", "100MB")])
def test_a_merge_sorts_in_memory(
    upserts: Query, monkeypatch: pytest.MonkeyPatch, own: str, used: str
) -> None:
    """A larger setting of the user's own stays, and other transactions keep theirs."""
    monkeypatch.setenv("PGOPTIONS", f"-c work_mem={own}")
    seen: list[Any] = []

    def note(cursor: Any) -> str:
        seen.extend(cursor.query("SHOW work_mem"))
        return ""

    upserts.batches.store.close()  # the next connection has the setting
    upserts.batches.also = note
    assert upserts.commit(upserts.stage((1, 1))) == ""
    assert seen == [(used,)]
    assert upserts.batches.store.query("SHOW work_mem") == [(own,)]


def test_staged_rows_are_counted_by_the_rows_that_change(
    upserts: Query, statements: list[str]
) -> None:
    statements.clear()
    upserts.commit(upserts.stage((1, 1)))
    assert not [s for s in statements if "GROUP BY" in s]


def test_a_key_that_another_writer_inserts_meanwhile(upserts: Query, statements: list[str]) -> None:
    statements.clear()
    attempt = upserts.stage((1, 1), (2, 2))
    with psycopg.connect(upserts.url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("INSERT INTO t VALUES (2, 99)")
        batch = pool.submit(upserts.commit, attempt)
        with psycopg.connect(upserts.url, autocommit=True) as watcher:
            until(lambda: watcher.execute(WAITING).fetchone() == (1,), "the wait for the key")
        other.commit()
        assert batch.result() == ""
    assert upserts.rows() == [(1, 1), (2, 2)]
    assert ways(statements) == ["MERGE", "INSERT"]
    assert upserts.commit(upserts.stage((3, 3))) == ""
    assert ways(statements) == ["INSERT"], "a table with other writers is not merged into again"


def test_a_writer_that_locks_in_another_order(upserts: Query, statements: list[str]) -> None:
    """When the merge is undone, either writer may lock its row first. If the batch does, it meets a
    second deadlock, and the whole transaction runs again.
    """
    assert upserts.commit(upserts.stage((1, 1), (2, 2))) == ""
    statements.clear()
    attempt = upserts.stage((1, 10), (2, 20))
    with psycopg.connect(upserts.url) as other, ThreadPoolExecutor(2) as pool:
        other.execute("SET deadlock_timeout = '1h'")  # the batch is the one that notices
        other.execute("UPDATE t SET n = 99 WHERE k = 2")
        batch = pool.submit(upserts.commit, attempt)
        with psycopg.connect(upserts.url, autocommit=True) as watcher:
            until(lambda: watcher.execute(WAITING).fetchone() == (1,), "the wait for the row")
        other.execute("UPDATE t SET n = 99 WHERE k = 1")
        other.commit()
        assert batch.result() == ""
    assert upserts.rows() == [(1, 10), (2, 20)]
    assert ways(statements)[:2] == ["MERGE", "INSERT"]


@pytest.mark.parametrize(
    "change",
    [
        "CREATE FUNCTION f() RETURNS trigger AS 'BEGIN RETURN new; END' LANGUAGE plpgsql; "
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE child () INHERITS (t)",
        "CREATE RULE r AS ON DELETE TO t DO ALSO NOTHING",
    ],
    ids=["trigger", "policies", "child", "rule"],
)
def test_tables_where_merge_does_something_else(
    upserts: Query, statements: list[str], change: str
) -> None:
    with psycopg.connect(upserts.url, autocommit=True) as connection:
        connection.execute(change.encode())
    statements.clear()
    upserts.commit(upserts.stage((1, 1)))
    assert ways(statements) == ["INSERT"]


def test_a_server_without_merge(
    upserts: Query, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MERGE of a table with rules is refused as a relative of PostgreSQL's refuses any."""
    monkeypatch.setattr(table_transaction, "_TAKES_MERGE", "SELECT to_regclass(?) IS NOT NULL")
    with psycopg.connect(upserts.url, autocommit=True) as connection:
        connection.execute("CREATE RULE r AS ON DELETE TO t DO ALSO NOTHING")
    statements.clear()
    for n in (1, 2):
        assert upserts.commit(upserts.stage((1, n))) == ""
        upserts.batches.sweep()
    assert ways(statements) == ["MERGE", "INSERT", "INSERT"]


def test_both_load_the_same(postgres: PostgresServer, statements: list[str]) -> None:
    """Random upserts and deletes of keys of two columns, one of which may be NULL."""
    draw = random.Random(7)
    merging, inserting = (changes(postgres.new_database()) for _ in range(2))
    assert isinstance(inserting.batches, PostgresBatches)
    inserting.batches.contended.add('"t"')
    statements.clear()
    for _ in range(40):
        rows = [
            (draw.randrange(6), draw.choice("ab ").strip() or None, draw.random(), gone, at)
            for at in range(draw.randrange(12))
            for gone in (draw.choice([False, False, True, None]),)
        ]
        for query in (merging, inserting):
            assert query.commit(query.stage(*rows, types=CHANGES)) == ""
            query.batches.sweep()
        assert sorted(map(repr, merging.rows())) == sorted(map(repr, inserting.rows()))
        assert merging.store.query(BOOKS) == inserting.store.query(BOOKS)
    assert sorted(set(ways(statements))) == ["INSERT", "MERGE"]
    merging.close()
    inserting.close()


def changes(url: str) -> Query:
    ddl = "CREATE TABLE t (k INTEGER, j TEXT, n DOUBLE PRECISION, UNIQUE (k, j))"
    how: dict[str, Any] = {"deletes": "gone", "order": ("at",), "carry": ("at",)}
    return Query(url, CHANGES.names, ddl, key=("k", "j"), mode="upsert", **how)
