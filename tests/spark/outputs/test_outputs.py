"""Exactly-once outputs in a real Spark session (spec 6.3, 6.4; the kills are in test_kills.py)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from kohort.client.producer.plan.partitioner import for_key
from kohort.errors import ConfigError, UsageError
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.spark import (
    OutputRecord,
    Rejected,
    to_outputs,
    to_table,
    to_topic,
)
from tests.spark.outputs.stream import Stream, create, records

if TYPE_CHECKING:
    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_update_mode_upserts_and_a_replay_changes_nothing(stream: Stream, store: Store) -> None:
    """A replay of a stateful batch is skipped, and its state is written all the same."""
    create(store, "CREATE TABLE t (k INTEGER PRIMARY KEY, total INTEGER, c INTEGER)")
    function = to_table(store.url, "t", key=("k",))
    stream.send(1, 2, 3, 4)
    stream.run(stream.totals(), function, "update")
    stream.forget_last_commit()
    stream.send(5)
    stream.run(stream.totals(), function, "update")
    stream.send(6, 7)
    stream.run(stream.totals(), function, "update")
    assert store.query("SELECT * FROM t ORDER BY k") == [(0, 9, 2), (1, 12, 3), (2, 7, 2)]
    assert store.query("SELECT batch_id, rows_read FROM kohort_batch_history ORDER BY 1") == [
        (0, 3),
        (1, 1),
        (2, 2),
    ]


def test_a_changed_query_with_the_same_function_is_a_new_run(stream: Stream, store: Store) -> None:
    """As in a notebook, where nothing closes the function between two starts."""
    create(store, "CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER)")
    function = to_table(store.url, "t")
    for number, columns in enumerate([("n AS a", "n + 10 AS b"), ("n + 10 AS c", "n AS a")]):
        stream.send(number)
        stream.run_open(stream.rows().selectExpr(*columns), function)
    function.close()
    assert store.query("SELECT * FROM t ORDER BY a") == [(0, 10, None), (1, None, 11)]


@pytest.mark.extended
def test_complete_mode_replaces_the_table(stream: Stream, store: Store) -> None:
    create(store, "CREATE TABLE t (k INTEGER PRIMARY KEY, total INTEGER, c INTEGER)")
    create(store, "INSERT INTO t VALUES (99, 0, 0)")
    stream.send(1, 2)
    function = to_table(store.url, "t", mode="replace")
    stream.run(stream.totals(), function, "complete")
    stream.send(4)
    stream.run(stream.totals(), function, "complete")
    assert store.query("SELECT * FROM t ORDER BY k") == [(1, 5, 2), (2, 2, 1)]


@pytest.mark.extended
def test_a_deleted_checkpoint_is_refused_with_what_to_do(stream: Stream, store: Store) -> None:
    create(store, "CREATE TABLE t (n INTEGER)")
    function = to_table(store.url, "t")
    stream.send(1, 2)
    stream.run(stream.rows(), function)
    stream.checkpoint = stream.directory / "another"
    with pytest.raises(Exception, match=r"checkpoint was deleted.*rebuild.*another query name"):
        stream.run(stream.rows(), function)
    assert store.query("SELECT count(*) FROM t") == [(2,)]


@pytest.mark.extended
def test_a_topic_gets_rows_as_sparks_sink_writes_them(
    stream: Stream, cluster: Cluster, topic: Callable[..., str]
) -> None:
    out, other = topic(3, name="out"), topic(3, name="other")
    columns = [
        "CAST(n AS STRING) AS key",
        "CAST(n * 10 AS STRING) AS value",
        f"IF(n < 100, '{out}', '{other}') AS topic",
        "IF(n = 7, 2, NULL) AS partition",
        "array(struct('h' AS key, CAST('x' AS BINARY) AS value)) AS headers",
        "n AS ignored",
    ]
    function = to_topic(
        topics=[out, other],
        bootstrap_servers=cluster.bootstrap,
        compression="zstd",
        select=lambda frame: frame.selectExpr(*columns),
    )
    stream.send(*range(20), 100)
    stream.run(stream.rows(), function)
    stream.forget_last_commit()
    stream.run(stream.rows(), function)
    found = records(cluster, out)
    assert sorted(int(r.key or b"") for r in found) == list(range(20))
    for r in found:
        assert r.partition == (2 if r.key == b"7" else for_key(r.key or b"", 3))
        assert r.value == str(int(r.key or b"") * 10).encode()
        assert list(r.headers) == [("h", b"x")]
    assert [r.key for r in records(cluster, other)] == [b"100"]


@pytest.mark.extended
def test_a_task_that_cannot_write_makes_the_batch_run_again_under_a_new_epoch(
    stream: Stream, cluster: Cluster, topic: Callable[..., str]
) -> None:
    """Some of its records stand in the log; readers never see them."""
    out = topic(3, name="out")
    function = to_topic(
        out,
        bootstrap_servers=cluster.bootstrap,
        batch_bytes=1_024,
        select=lambda frame: frame.selectExpr("CAST(n AS STRING) AS key", "repeat('x', 500) value"),
    )
    stream.send(*range(60))
    with cluster.faults.fail("Produce", ["INVALID_RECORD"], topic=out, skip=3) as fault:
        stream.run(stream.rows(), function)
        assert fault.hits == 1
    assert sorted(int(r.key or b"") for r in records(cluster, out)) == list(range(60))


def test_a_batch_runs_again_where_the_frame_itself_is_written(
    stream: Stream, cluster: Cluster, topic: Callable[..., str]
) -> None:
    """Without `select` the second round has the frame of the first: Spark skipped the stage whose
    shuffle files it had, which name the places of batches that the driver had deleted."""
    out = topic(3, name="out")
    function = to_topic(out, bootstrap_servers=cluster.bootstrap, batch_bytes=1_024)
    stream.send(*range(60))
    rows = stream.rows().selectExpr("CAST(n AS STRING) AS key", "repeat('x', 500) AS value")
    with cluster.faults.fail("Produce", ["INVALID_RECORD"], topic=out, skip=3) as fault:
        stream.run(rows, function)
        assert fault.hits == 1
    assert sorted(int(r.key or b"") for r in records(cluster, out)) == list(range(60))


def test_table_and_topic_together_and_from_one_computation(
    stream: Stream, store: Store, cluster: Cluster, topic: Callable[..., str]
) -> None:
    """A value that differs each time it is computed is the same in both."""
    out = topic(3, name="out")
    create(store, "CREATE TABLE t (n INTEGER, chance TEXT)")
    function = to_outputs(
        to_table(store.url, "t"),
        to_topic(
            out,
            bootstrap_servers=cluster.bootstrap,
            select=lambda frame: frame.selectExpr("CAST(n AS STRING) AS key", "chance AS value"),
        ),
    )
    for part in (range(10), range(10, 20)):
        stream.send(*part)
        stream.run(stream.rows().selectExpr("n", "uuid() AS chance"), function)
    table = dict(store.query("SELECT n, chance FROM t"))
    assert {int(r.key or b""): (r.value or b"").decode() for r in records(cluster, out)} == table
    assert sorted(table) == list(range(20))
    assert store.query("SELECT ended, batch_id FROM kohort_batch_fence") == [(1, 1)]


def test_rejected_rows_are_dead_letters_of_the_same_transaction(
    stream: Stream, store: Store, cluster: Cluster, topic: Callable[..., str]
) -> None:
    """Spec 6.5; what tasks and the driver write to one partition keeps one line of sequences."""
    out, letters = topic(3, name="out"), topic(3, name="letters")
    create(store, "CREATE TABLE t (n INTEGER CHECK (n % 4 > 0))")
    create(store, "CREATE TABLE u (n INTEGER CHECK (n % 5 > 0))")
    servers = cluster.bootstrap

    def back(rejected: Sequence[Rejected]) -> list[OutputRecord]:
        return [OutputRecord(out, b"rejected", key=str(r.row["n"]).encode()) for r in rejected]

    function = to_outputs(
        to_table(store.url, "t", on_violation=to_topic(letters, bootstrap_servers=servers)),
        to_table(store.url, "u", on_violation=back),
        to_topic(
            out,
            bootstrap_servers=servers,
            select=lambda f: f.selectExpr("CAST(n AS STRING) AS key", "'loaded' AS value"),
        ),
    )
    for part in (range(20), range(20, 40)):
        stream.send(*part)
        stream.run(stream.rows(), function)
        stream.forget_last_commit()
    stream.run(stream.rows(), function)
    every = range(40)
    assert sorted(n for (n,) in store.query("SELECT n FROM t")) == [n for n in every if n % 4]
    assert sorted(n for (n,) in store.query("SELECT n FROM u")) == [n for n in every if n % 5]
    found = records(cluster, letters)
    assert sorted(json.loads(r.value or b"")["n"] for r in found) == list(range(0, 40, 4))
    headers = dict(found[0].headers)
    assert headers["retry_error_reason"] == b"constraint_violated"
    assert b"CHECK constraint failed" in (headers["retry_error_message"] or b"")
    values = Counter((r.value, int(r.key or b"")) for r in records(cluster, out))
    assert values == Counter(
        [(b"loaded", n) for n in every] + [(b"rejected", n) for n in every if n % 5 == 0]
    )


@pytest.mark.extended
@pytest.mark.postgres
def test_postgresql_upserts_and_deletes(stream: Stream, database: str) -> None:
    store = open_store(database)
    create(store, 'CREATE TABLE "t" (k INTEGER PRIMARY KEY, n INTEGER)')
    function = to_table(database, "t", key=("k",), deletes="gone", order="n")
    frame = stream.rows().selectExpr("n % 5 AS k", "n", "n >= 10 AND n % 5 = 0 AS gone")
    stream.send(*range(10))
    stream.run(frame, function)
    stream.send(10, 11)
    stream.run(frame, function)
    assert store.query("SELECT k, n FROM t ORDER BY k") == [(1, 11), (2, 7), (3, 8), (4, 9)]
    staging = "SELECT count(*) FROM pg_class WHERE relname LIKE 'kohort_stage_%' AND relkind = 'r'"
    assert store.query(staging) == [(1,)]
    store.close()


def test_what_can_never_work_is_refused_before_anything_is_written(
    stream: Stream, store: Store, cluster: Cluster
) -> None:
    url, servers = store.url, cluster.bootstrap
    for make, text in [
        (lambda: to_outputs(), "at least one"),
        (lambda: to_table(url, "t", mode="upsert"), "needs key"),
        (lambda: to_table(url, "t", mode="merge"), "choose one of append"),
        (lambda: to_table("mysql://x", "t"), "is not a store"),
        (lambda: to_table(url, "t", on_violation="skip"), "choose fail, keep"),
        (lambda: to_table(url, "t", on_violation=to_table(url, "u")), "takes one topic"),
        (lambda: to_outputs(to_table(url, "t"), to_table(url, "t")), "two outputs into one table"),
        (lambda: to_outputs(to_table(url, "t"), to_table("sqlite:///y.db", "u")), "one store"),
        (
            lambda: to_outputs(to_table(url, "t", query="a"), to_table(url, "u", query="b")),
            "one na",
        ),
        (lambda: to_topic("t", bootstrap_servers=servers, linger="1"), "linger"),
        (lambda: to_topic("t", bootstrap_servers=servers, transaction_timeout="soon"), "duration"),
    ]:
        with pytest.raises(ConfigError, match=text):
            make()
    with pytest.raises(UsageError, match="for foreachBatch"):
        to_table(url, "t")(stream.spark.range(1), 0)
    stream.send(1)
    stream.name = ""
    with pytest.raises(Exception, match="name the query"):
        stream.run(stream.rows(), to_table(url, "t"))
    stream.name, stream.checkpoint = "named", stream.directory / "named"
    frame = stream.rows().selectExpr("'x' AS value")
    with pytest.raises(Exception, match="create it before the query starts"):
        stream.run(frame, to_topic("no", bootstrap_servers=servers))
