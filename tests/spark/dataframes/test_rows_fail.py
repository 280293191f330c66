"""Rows fail, queries do not (spec 6.5): exceptions, casts, constraints and dead workers."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Admin, NewTopic, Producer
from kohort.retry.copies import is_stub
from kohort.spark import Permanent, Pipeline
from kohort.spark.dataframes.graph import intermediate_topic
from kohort.spark.dataframes.isolating import culprits
from kohort.spark.dataframes.trials import failing_records
from tests.reading import read_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def made(cluster: Cluster, topic: Callable[..., str], tmp_path: Path) -> tuple[Pipeline, str]:
    """A step with a UDF, a cast and a constraint, and the topic that it reads."""
    from pyspark.sql import functions as F

    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (number INTEGER CHECK (number < 50), part REAL)")

    p.source(name, name="rows", format="text")

    class Uneven(Permanent):
        pass

    @F.udf("double")
    def part(number):  # with hints Spark would look for a vectorised function, and warn
        if number == 13:
            import os

            os._exit(1)
        if number == 7:
            raise Uneven("uneven", "7 parts are uneven")
        return 10 / number

    @p.table("rows")
    def parts(rows: Any) -> Any:
        number = F.col("value").cast("int")
        return rows.select(number.alias("number"), part(number).alias("part"))

    return p, name


def reasons(p: Pipeline) -> dict[str, int]:
    from kohort.spark import reconcile

    books = reconcile(p)
    assert books.exact, books.to_json()
    (found,) = books.topics.values()
    return found.failed


def loaded(p: Pipeline) -> list[int]:
    store = p.open_store()
    try:
        return [n for (n,) in store.query("SELECT number FROM rows ORDER BY number")]
    finally:
        store.close()


def test_an_exception_a_cast_and_a_constraint_fail_their_rows(
    spark: SparkSession, made: tuple[Pipeline, str], produce: Callable[..., None]
) -> None:
    """Each becomes a dead letter with its reason, and its neighbours are loaded."""
    p, name = made
    values = ["1", "2", "0", "4", "many", "6", "99", "8", "7"]
    produce(name, *((i % 2, None, v.encode()) for i, v in enumerate(values)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [1, 2, 4, 6, 8]
    assert reasons(p) == {
        "CAST_INVALID_INPUT": 1,
        "ZeroDivisionError": 1,
        "constraint_violated": 1,
        "uneven": 1,
    }


@pytest.mark.extended
def test_a_row_that_kills_its_worker_is_a_dead_letter(
    spark: SparkSession, made: tuple[Pipeline, str], produce: Callable[..., None]
) -> None:
    p, name = made
    produce(name, *((0, None, str(n).encode()) for n in (1, 2, 13, 4)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [1, 2, 4]
    assert reasons(p) == {"worker_killed": 1}


@pytest.mark.postgres
@pytest.mark.parametrize("deletes", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_value_that_a_column_refuses_fails_its_row(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    database: str,
    tmp_path: Path,
    deletes: bool,
) -> None:
    """COPY reads it inside a task, so it came as Spark's error, and no step failed for a record.

    A double that is no whole number is refused by COPY, and rounded by an INSERT.
    """
    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=database,
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run(
            "CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, s TEXT, "
            "short VARCHAR(3), part INTEGER)"
        )

    schema = "number INT, s STRING, short STRING, part DOUBLE, gone BOOLEAN"
    p.source(name, name="rows", schema=schema)

    @p.table("rows", key="number", deletes="gone" if deletes else None)
    def loaded_rows(rows: Any) -> Any:
        return rows if deletes else rows.drop("gone")

    plain = {"s": "x", "short": "abc", "part": 1.0, "gone": False}
    odd = [{}, {"s": "x\0y"}, {"short": "abcd", "gone": deletes}, {"part": 1.5}, {}]
    rows = [{"number": n, **plain, **values} for n, values in enumerate(odd)]
    produce(name, *((n % 2, None, json.dumps(row).encode()) for n, row in enumerate(rows)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [0, 4]
    assert reasons(p) == {"constraint_violated": 3}


def test_a_row_that_fails_within_a_filter_fails_alone(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Spark evaluated the filter before it knew the row's verdict, and the batch never ended."""
    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (number INTEGER)")

    p.source(name, name="rows", schema="goals STRING, team STRING")

    @p.table("rows")
    def more_than_one(rows: Any) -> Any:
        return rows.dropna().where("goals > 1").selectExpr("CAST(goals AS INT) AS number")

    goals = ["2", "many", "1", None, "3"]
    values = [json.dumps({"goals": g, "team": "reds"}).encode() for g in goals]
    produce(name, *((n % 2, None, value) for n, value in enumerate(values)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [2, 3]
    assert reasons(p) == {"CAST_INVALID_INPUT": 1}


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_temporary_failure_that_is_no_single_records_is_restarted(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    long: bool,
) -> None:
    """It ended the run: an outage that was over when the records were tried one by one (`long`:
    that made more records fail than are looked for)."""
    from pyspark.sql import functions as F

    name, outage = topic(name="rows"), tmp_path / "outage"
    outage.touch()
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="1m",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (number INTEGER)")

    p.source(name, name="rows", format="text")
    path = str(outage)

    @F.udf("int")
    def located(number):  # see above
        import os

        if os.path.exists(path):
            raise TimeoutError("x")
        return int(number)

    @p.table("rows")
    def numbers(rows: Any) -> Any:
        return rows.select(located("value").alias("number"))

    def tried(*args: Any) -> Any:
        if not long:
            outage.unlink(missing_ok=True)
        found = failing_records(*args)
        outage.unlink(missing_ok=True)
        return found

    monkeypatch.setattr("kohort.spark.dataframes.stage.failing_records", tried)
    few = partial(culprits, most=1)
    monkeypatch.setattr("kohort.spark.dataframes.trials.culprits", few)
    produce(name, *((0, None, str(n).encode()) for n in range(3)))
    p.run("available_now", spark=spark, max_restarts=1)
    assert loaded(p) == [0, 1, 2]


def test_a_row_whose_delete_breaks_a_constraint_fails_alone(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    """It ended the pipeline, again at each start: only rows that are written were tried."""
    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY)")
        store.run("CREATE TABLE IF NOT EXISTS players (team INTEGER REFERENCES rows)")
        store.run("INSERT INTO rows VALUES (1), (2) ON CONFLICT DO NOTHING")
        store.run("INSERT INTO players SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM players)")

    p.source(name, name="rows", schema="number INT, gone BOOLEAN")

    @p.table("rows", key="number", deletes="gone")
    def teams(rows: Any) -> Any:
        return rows

    rows = [{"number": n, "gone": n < 3} for n in (1, 2, 3)]
    produce(name, *((n % 2, None, json.dumps(row).encode()) for n, row in enumerate(rows)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [1, 3]
    assert reasons(p) == {"constraint_violated": 1}


@pytest.mark.parametrize(
    "of_topic", [None, pytest.param(20_000, marks=pytest.mark.extended)], ids=["default", "small"]
)
def test_a_failing_record_that_its_topic_cannot_take_leaves_a_stub(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    tmp_path: Path,
    of_topic: int | None,
) -> None:
    """A2: its producer compresses, and copies are written as they are read. Small ones stay whole,
    in batches that the topic takes."""
    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (number INTEGER)")

    p.source(name, name="rows", schema="number INT")

    @p.table("rows")
    def good(rows: Any) -> Any:
        return rows.transform(p.reject(rows["number"] < 0, "negative"))

    letters = p.topics[name].dead_letter
    if of_topic is not None:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            configs = {
                "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": str(of_topic),
            }
            admin.create_topics([NewTopic(letters, 2, configs=configs)])
    pads = {-1: "x" * (3 << 20), **dict.fromkeys(range(-20, -1), "y" * 4_000), 1: "", 2: ""}
    with Producer(
        bootstrap_servers=cluster.bootstrap, compression_type="gzip", max_request_size=16 << 20
    ) as producer:
        for number, pad in pads.items():
            row = {"number": number, "pad": pad}
            producer.send(name, json.dumps(row).encode(), partition=0)
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [1, 2]
    assert reasons(p) == {"negative": 20}
    copies = read_committed(cluster.bootstrap, letters, 2)
    (stub,) = [r for r in copies if is_stub(r.headers)]
    assert (stub.value, dict(stub.headers)["retry_origin_offset"]) == (None, b"0")
    assert all(len(r.value or b"") > 4_000 for r in copies if r is not stub)
    assert len(copies) == 20


@pytest.mark.extended
@pytest.mark.parametrize("form", ["bytes", "debezium"])
def test_a_stub_in_a_retry_topic_is_no_row(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], tmp_path: Path, form: str
) -> None:
    """Its value is at its origin: it was a NULL that a step could load, or a tombstone."""
    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="200ms",
        clock_skew="0ms",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (number INTEGER)")

    if form == "bytes":
        p.source(name, name="rows", format="bytes")
    else:
        p.source(name, name="rows", format="debezium", schema="number INT, pad STRING")

    @p.table("rows")
    def sizes(rows: Any) -> Any:
        from pyspark.sql import functions as F

        size = F.length(rows["value"] if form == "bytes" else rows["after"]["pad"])
        return rows.transform(p.retry(size > 1_000_000, "large")).select(size.alias("number"))

    with Producer(
        bootstrap_servers=cluster.bootstrap, compression_type="gzip", max_request_size=16 << 20
    ) as producer:
        for size in (3 << 20, 7):
            row = {"op": "c", "before": None, "after": {"number": 1, "pad": "x" * size}}
            value = b"x" * size if form == "bytes" else json.dumps(row).encode()
            producer.send(name, value, partition=0)
    p.run("until_idle", spark=spark, max_restarts=0)
    assert loaded(p) == [7]
    assert reasons(p) == {"undecodable": 1}
    (letter,) = read_committed(cluster.bootstrap, p.topics[name].dead_letter, 2)
    assert is_stub(letter.headers)


@pytest.mark.parametrize(
    "exists", [False, pytest.param(True, marks=pytest.mark.extended)], ids=["new", "smaller"]
)
def test_a_large_row_reaches_a_step_that_keeps_state(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    tmp_path: Path,
    exists: bool,
) -> None:
    """The intermediate topic took Kafka's default size, and the pipeline ended at each start."""
    name = topic(name="rows")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_configs(name, {"max.message.bytes": "5000000"})
        if exists:
            admin.create_topics([NewTopic(intermediate_topic(f"p-{name}", "rows"), 2)])
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS counts (team TEXT PRIMARY KEY, count BIGINT)")

    p.source(name, name="rows", schema="team STRING, text STRING")

    @p.table("counts", key="team")
    def counts(rows: Any) -> Any:
        return rows.groupBy("team").count()

    row = {"team": "reds", "text": base64.b64encode(random.Random(1).randbytes(2 << 20)).decode()}
    with Producer(bootstrap_servers=cluster.bootstrap, max_request_size=16 << 20) as producer:
        producer.send(name, json.dumps(row).encode(), partition=0)
    p.run("available_now", spark=spark, max_restarts=0)
    store = p.open_store()
    try:
        assert store.query("SELECT team, count FROM counts") == [("reds", 1)]
    finally:
        store.close()


def test_a_topic_with_a_small_limit_takes_many_small_rows(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Its batches follow `max.message.bytes`; they had up to 512 KiB whatever the topic takes."""
    name = topic(name="rows", partitions=1)
    out = f"{name}-out"
    cluster.create_topic(out, partitions=1, config={"max.message.bytes": "20000"})
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )
    p.source(name, name="rows", format="text")

    @p.topic(out)
    def copied(rows: Any) -> Any:
        return rows.select("value")

    texts = random.Random(1)
    values = [base64.b64encode(texts.randbytes(150)) for _ in range(400)]
    produce(name, *((0, None, value) for value in values))
    p.run("available_now", spark=spark, max_restarts=0)
    assert [record.value for record in read_committed(cluster.bootstrap, out, 1)] == values
