"""The PostgreSQL store keeps the same promises (spec 6.3), where PostgreSQL is installed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from kohort.processing.runtime.store_transactor import done_at
from kohort.retry.classify import Permanent
from kohort.retry.handling import Record
from kohort.retry.headers import Origin
from kohort.retry.ledger import FenceMove, LedgerRow, Place, Status
from kohort.retry.postgres import translate_marks
from kohort.retry.progress import NOWHERE, Advance, Advanced, ProgressMove
from kohort.retry.sql_statements import Execute, Insert, Upsert, statements
from kohort.retry.store import Applied, ConstraintError, Store, StoreBusyError, Transaction
from kohort.retry.stores import open_store
from tests.known import of_type
from tests.postgres import PATIENCE_S, PostgresServer
from tests.retry.test_fenced import handle
from tests.retry.world import World

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    made = open_store(database)
    yield made
    made.close()


def test_everything_ends_loaded_or_failed(store: Store) -> None:
    """The whole story of tests/retry/test_fenced.py, with kills, on the other database."""
    world = World(store.url, handle=handle)
    world.produce(0, b"ok", b"bad", b"1", b"3", b"4")
    world.produce(1, b"2", b"ok")
    world.kills.at = [
        "after publish",
        "before transaction",
        "after commit",
        "before commit log",
        "during publish",
        "after commit",
    ]
    world.run_all(chunk=2)
    world.check()
    assert world.failed() == ["in/0/1", "in/0/4"]


def test_a_database_whose_encoding_lacks_a_character(postgres: PostgresServer) -> None:
    """The row fails its record; the message of an error is kept in ASCII."""
    postgres.run(
        "CREATE DATABASE latin_ledger ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' "
        "TEMPLATE template0"
    )

    def into_a_row(record: Record, _store: object) -> object:
        if record.partition == 1:
            raise Permanent("bad", str(record.data))
        return Insert("loaded", {"id": record.data, "attempt": 0, "small": 1})

    world = World(postgres.url("latin_ledger"), handle=into_a_row, decode="text")
    world.produce(0, b"in/0/0", "\N{EURO SIGN}".encode(), "\N{POUND SIGN}".encode())
    world.produce(1, "\N{EURO SIGN}".encode())
    world.run_all()
    assert world.failed() == ["in/0/1", "in/1/0"]
    assert world.loaded() == ["in/0/0", "\N{POUND SIGN}"]
    messages = world.ask("SELECT error_message FROM kohort_ledger WHERE reason = 'bad'")
    assert messages == [("\\u20ac",)]
    world.close()


def test_the_fence_orders_two_writers(store: Store) -> None:
    """X5: the loser of the compare-and-set changes nothing; a broken constraint neither."""
    world = World(store.url, handle=handle)
    store.open_fence("p", "in", "id-1", 0, 0, 1)
    row = Insert("loaded", {"id": "a", "attempt": 0, "small": 1})
    change = Transaction("p", FenceMove("in", 0, 0, 5), 1, statements([row]))
    other = open_store(store.url)
    assert store.apply(change) is Applied.COMMITTED
    assert other.apply(change) is Applied.FENCE_LOST
    broken = Insert("loaded", {"id": "b", "attempt": 0, "small": 2_000_000_000})
    with pytest.raises(ConstraintError):
        store.apply(Transaction("p", FenceMove("in", 0, 5, 6), 1, statements([broken])))
    found = store.probe([statements([row]), statements([broken]), statements([row])])
    assert list(found) == [1]
    assert world.loaded() == ["a"]
    fence = store.fence("p", "in", 0)
    assert fence is not None
    assert fence.next_offset == 5
    other.close()


def scheduled(place: Place) -> LedgerRow:
    """A retry that is owed, whose copy stands there."""
    return LedgerRow(
        origin=Origin("in", 0, 0, 1),
        redrive_count=0,
        number=1,
        status=Status.SCHEDULED,
        place=place,
        due_ms=1,
        key_hash=None,
        disposition="retryable",
        reason="down",
        error_class="",
        error_message="",
        fingerprint="",
        created_ms=1,
        closed_ms=None,
        delay_ms=1,
    )


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_no_isolation_level_of_a_database_lets_a_scheduled_copy_be_passed(
    postgres: PostgresServer, store: Store, isolation: str
) -> None:
    """X4: who passes a copy as owed by nobody sees what was scheduled while it waited.

    With the snapshot of `repeatable read`, which administrators may make the default, it would not.
    """
    name = urlsplit(store.url).path[1:]
    postgres.run(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'")
    store.prepare()
    other = open_store(store.url)
    source = store.take_over("p", "in", "", 0, 1)
    retry_topic = other.take_over("p", "retry_topic", "", 0, 1)
    place, locked, passing = (
        Place("retry_topic", 0, 0),
        threading.Event(),
        list[Advanced | Exception](),
    )

    def passes_it() -> None:
        move = ProgressMove("retry_topic", 0, retry_topic.epoch, (NOWHERE, ""), 1, "")
        assert locked.wait(PATIENCE_S)
        try:
            passing.append(
                other.advance(
                    Advance("p", 1, [move], inert={place: scheduled(place).retry_id}), done_at
                )
            )
        except StoreBusyError as error:  # then it is tried again, and sees it
            passing.append(error)

    thread = threading.Thread(target=passes_it)
    thread.start()
    move = ProgressMove("in", 0, source.epoch, (NOWHERE, ""), 1, "")
    change, look = Advance("p", 1, [move], rows=[scheduled(place)]), store._look_for_revived

    def looked(cursor, change) -> None:  # the last thing before the commit, with the lock held
        locked.set()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while postgres.ask(waits) != [(1,)]:
            assert thread.is_alive(), passing
        look(cursor, change)

    store._look_for_revived = looked
    assert store.advance(change, done_at).committed
    thread.join(PATIENCE_S)
    assert passing
    if not isinstance(passing[0], StoreBusyError):
        assert of_type(passing[0], Advanced).revived == [place]
    other.close()


def test_programs_that_start_at_once_make_the_tables_together(database: str) -> None:
    """CREATE TABLE IF NOT EXISTS of two at once ends in an error of PostgreSQL's own catalogue."""
    failures: list[Exception] = []
    together = threading.Barrier(8)

    def starts() -> None:
        store = open_store(database)
        try:
            together.wait(PATIENCE_S)
            with store.setting_up():
                store.prepare()
                store.execute(statements([Execute("CREATE TABLE IF NOT EXISTS loaded (n INT)")]))
        except Exception as error:
            failures.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=starts) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failures


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_transaction_that_lost_a_conflict_is_run_again_in_place(store: Store, code: str) -> None:
    """It ended the Spark task, and enough of them the pipeline."""
    store.prepare()
    store.open_fence("p", "in", "", 0, 0, 1)
    store.execute(statements([Execute("CREATE SEQUENCE tries"), Execute("CREATE TABLE n (n INT)")]))
    raising = f"DO $$ BEGIN IF nextval('tries') < 4 THEN RAISE SQLSTATE '{code}'; END IF; END $$"
    change = Transaction(
        "p",
        FenceMove("in", 0, 0, 5),
        1,
        statements([Insert("n", {"n": 1}), Execute(raising)]),
    )
    assert store.apply(change) is Applied.COMMITTED
    assert store.query("SELECT n FROM n") == [(1,)]


def test_two_partitions_that_deadlock_are_both_written(store: Store) -> None:
    """A counter by `Execute`, whose order is the handler's: PostgreSQL ends one of the two."""
    store.prepare()
    table = "CREATE TABLE c AS SELECT g AS k, 0 AS n FROM generate_series(0, 1) g"
    store.execute(statements([Execute(table)]))
    other, together = open_store(store.url), threading.Barrier(2)
    done: list[Applied] = []

    def count(mine: Store, partition: int) -> None:
        add = "UPDATE c SET n = n + 1 WHERE k = ?"
        second = f"{add} AND n >= 0"
        known, waited = mine._sql, list[bool]()

        def meet(sql: str) -> str:
            if sql == second and not waited:  # both have their first row by now
                waited.append(True)
                together.wait(PATIENCE_S)
            return known(sql)

        mine._sql = meet
        effects = [Execute(add, (partition,)), Execute(second, (1 - partition,))]
        move = FenceMove("in", partition, 0, 5)
        done.append(mine.apply(Transaction("p", move, 1, statements(effects))))

    for partition in (0, 1):
        store.open_fence("p", "in", "", partition, 0, 1)
    threads = [threading.Thread(target=count, args=each) for each in ((store, 0), (other, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert done == [Applied.COMMITTED] * 2
    assert store.query("SELECT k, n FROM c ORDER BY k") == [(0, 2), (1, 2)]
    other.close()


def written(store: Store, *effects: Insert | Upsert | Execute) -> list[tuple[str, list[object]]]:
    """What `store` is asked to write for the effects, statement by statement."""
    ordered = store._in_lock_order(statements(effects))
    return [(part.table, [row[0] for row in part.rows]) for part in ordered]


def test_rows_are_locked_by_table_and_key_and_a_key_is_written_once(store: Store) -> None:
    store.execute(
        statements(
            [
                Execute("CREATE TABLE a (k TEXT PRIMARY KEY, n INT)"),
                Execute("CREATE TABLE b (k BIGINT PRIMARY KEY, n INT)"),
                Execute("CREATE TABLE padded (k CHAR(4) PRIMARY KEY, n INT)"),
            ]
        )
    )

    def put(table: str, key: object, n: int = 0) -> Upsert:
        return Upsert(table, {"k": key, "n": n}, ("k",))

    both = [put("a", "z"), put("b", 9), put("a", "b", 1), put("b", 10), put("a", "b", 2)]
    assert written(store, *both) == [("a", ["b", "z"]), ("b", [9, 10])]
    update = Execute("UPDATE a SET n = n + 1 WHERE k = ?", ("z",))
    kept = [put("a", "z"), update, put("a", "b")]
    assert written(store, *kept) == [("a", ["z"]), ("", ["z"]), ("a", ["b"])]
    # Equal in the database and not in Python: the order of the records decides.
    blank = [put("padded", "x "), put("padded", "w"), put("padded", "x")]
    assert written(store, *blank) == [("padded", ["x ", "w", "x"])]
    assert written(store, put("a", "z"), Insert("a", {"k": "b"})) == [("a", ["z"]), ("a", ["b"])]
    store.prepare()
    store.open_fence("p", "in", "", 0, 0, 1)
    change = Transaction("p", FenceMove("in", 0, 0, 5), 1, statements(both))
    assert store.apply(change) is Applied.COMMITTED
    assert store.query("SELECT k, n FROM a ORDER BY k") == [("b", 2), ("z", 0)]


def test_a_constraint_between_rows_of_one_table_has_the_order_of_the_records(store: Store) -> None:
    store.prepare()
    store.open_fence("p", "in", "", 0, 0, 1)
    store.execute(
        statements(
            [
                Execute("CREATE TABLE t (k TEXT PRIMARY KEY, parent TEXT REFERENCES t)"),
            ]
        )
    )
    rows = [
        Upsert("t", {"k": "z", "parent": None}, ("k",)),
        Upsert("t", {"k": "a", "parent": "z"}, ("k",)),
    ]
    change = Transaction("p", FenceMove("in", 0, 0, 5), 1, statements(rows))
    assert store.apply(change) is Applied.COMMITTED
    assert store.query("SELECT k FROM t ORDER BY k") == [("a",), ("z",)]


@pytest.mark.parametrize("code", ["40001", "40P01", "25006", "57P01", "57P03", "53300", "55P03"])
def test_what_passes_is_tried_again(store: Store, code: str) -> None:
    """Serialization failures, deadlocks, failovers, shutdowns, too many clients, lock timeouts."""
    with pytest.raises(StoreBusyError):
        store.execute(statements([Execute(f"DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$")]))
    assert store.query("SELECT 1") == [(1,)]


@pytest.mark.extended
def test_a_connection_that_was_cut_is_made_again(postgres: PostgresServer, store: Store) -> None:
    """While it is not in use, and by a server that was killed and came back."""
    store.prepare()
    store.query("SELECT 1")
    name = urlsplit(store.url).path[1:]
    postgres.ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    with pytest.raises(StoreBusyError):
        store.query("SELECT 1")
    assert store.query("SELECT 1") == [(1,)]
    postgres.stop(crash=True)
    for _ in range(2):
        with pytest.raises(StoreBusyError):
            store.take_over("p", "t", "", 0, 1)
    postgres.start()
    assert store.take_over("p", "t", "", 0, 1).epoch == 1


def test_a_server_that_falls_silent_is_noticed(store: Store) -> None:
    """A cut cable says nothing: without keepalives a transaction would wait for hours."""
    store.query("SELECT 1")
    parameters = store._reader.info.get_parameters()
    assert parameters["keepalives_idle"] == "10"
    assert parameters["tcp_user_timeout"] == "30000"
    own = open_store(f"{store.url}?tcp_user_timeout=5000")
    own.query("SELECT 1")
    assert own._reader.info.get_parameters()["tcp_user_timeout"] == "5000"
    own.close()


def test_marks_are_translated_outside_of_quotes() -> None:
    assert translate_marks("a = ? AND b LIKE 'x?%' AND \"c?\" = ?") == (
        "a = %s AND b LIKE 'x?%%' AND \"c?\" = %s"
    )
