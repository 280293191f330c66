"""Exactly-once outputs of Spark beside the usual recipes; seconds a micro-batch, medians.

One source of rows in the JVM (`rate-micro-batch`), one session, the outputs in turn:

- topic: Spark's own Kafka sink (at least once) and `to_topic` (exactly once), in turns, not
  compressed and by lz4, embedded broker;
- table: the usual recipe of `foreachBatch` (JDBC into a staging table, then INSERT ... ON CONFLICT
  and the batch id in one transaction) and `to_table` (upsert), PostgreSQL;
- both `to_table` and `to_topic` in one batch; micro-batches of ten rows into a table.

The session has `spark.sql.execution.arrow.maxBytesPerBatch` at its greatest value, as
docs/pipelines.md advises for small rows.
Jars come from Maven Central; without them, or PostgreSQL, what needs them is left out, and said so.

    python -m benchmarks.bench_spark_outputs
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pages import tool
from tests.postgres import PostgresServer, unavailable

from kohort.spark import session, to_outputs, to_table, to_topic
from kohort.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC_ROWS, TABLE_ROWS, FEW_ROWS = 500_000, 200_000, 10
PARTITIONS = 8
WARM_UPS, BATCHES, ROUNDS = 2, 5, 3
TIMEOUT_S = 300.0
RECORDS = (
    "CAST(value % 100000 AS STRING) AS key",
    "lpad(CAST(value AS STRING), 100, '0') AS value",
)
COLUMNS = ("value % 200000 AS k", "value AS n", "md5(CAST(value AS STRING)) AS text")
TABLE = "CREATE TABLE {} (k BIGINT PRIMARY KEY, n BIGINT, text TEXT)"


class Bench:
    """One session, and a directory for checkpoints."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self.spark, self.work = spark, work

    def frame(self, rows: int) -> DataFrame:
        source = self.spark.readStream.format("rate-micro-batch")
        return source.options(rowsPerBatch=str(rows), numPartitions="2").load()

    def median_s(self, writer: Any, name: str) -> float:
        """Seconds that a batch takes after the warm-ups, as Spark times its output."""
        checkpoint = tempfile.mkdtemp(dir=self.work)
        query = (
            writer.queryName(name)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        done, pause = 0, threading.Event()
        for _ in range(int(TIMEOUT_S * 10)):
            done = (query.lastProgress or {}).get("batchId", -1)
            if done >= WARM_UPS + BATCHES or not query.isActive:
                break
            pause.wait(0.1)
        query.stop()
        if query.exception() is not None:
            raise query.exception()
        spent = [p["durationMs"]["addBatch"] for p in query.recentProgress][WARM_UPS:]
        return statistics.median(spent[:BATCHES]) / 1000


def main() -> None:
    """Measure and print."""
    java = tool("java_tools")
    jars: list[Path] = []
    connector = java.fetch(
        java.POMS / "spark" / "pom.xml", java.CONNECTOR, "Spark's own Kafka connector", "10 MB"
    )
    if connector:
        jars += sorted(java.CONNECTOR.glob("*.jar"))
    jdbc = java.fetch(java.POMS / "jdbc" / "pom.xml", java.JARS / "jdbc", "JDBC driver", "1 MB")
    if jdbc:
        jars += sorted((java.JARS / "jdbc").glob("*.jar"))
    work = Path(tempfile.mkdtemp(prefix="kohort-bench-"))
    config = {
        "spark.driver.memory": "3g",
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    spark = session("kohort bench", master="local[2]", config=config)
    bench = Bench(spark, work)
    try:
        with Cluster(request_log=0) as cluster:
            topics(bench, cluster, connector)
            if reason := unavailable():
                print(f"tables: left out: {reason}")
            else:
                server = PostgresServer()
                try:
                    tables(bench, cluster, server.new_database(), jdbc)
                finally:
                    server.remove()
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def topics(bench: Bench, cluster: Cluster, connector: bool) -> None:
    """Both sides in turns, like beside like; the first round warms the JVM up and is not shown."""
    frame = bench.frame(TOPIC_ROWS).selectExpr(*RECORDS)
    cluster.create_topic("theirs", partitions=PARTITIONS)
    cluster.create_topic("ours", partitions=PARTITIONS)
    for turn in range(ROUNDS):
        for compression in ("none", "lz4"):
            theirs = 0.0
            if connector:
                writer = (
                    frame.writeStream.format("kafka")
                    .option("topic", "theirs")
                    .option("kafka.bootstrap.servers", cluster.bootstrap)
                    .option("kafka.compression.type", compression)
                )
                theirs = bench.median_s(writer, f"theirs {compression} {turn}")
                if turn:
                    show(f"Spark's Kafka sink, at least once, {compression}", TOPIC_ROWS, theirs)
            function = to_topic(
                "ours",
                bootstrap_servers=cluster.bootstrap,
                compression=compression,
                query=f"ours-{compression}-{turn}",
            )
            writer = frame.writeStream.foreachBatch(function)
            ours = bench.median_s(writer, f"ours {compression} {turn}")
            if turn:
                show(f"to_topic, exactly once, {compression}", TOPIC_ROWS, ours, theirs)
            function.close()


def tables(bench: Bench, cluster: Cluster, url: str, jdbc: bool) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        for name in ("theirs", "ours", "pair", "few"):
            connection.execute(TABLE.format(name))
        connection.execute("CREATE TABLE staging (k BIGINT, n BIGINT, text TEXT)")
        connection.execute("CREATE TABLE batches (id BIGINT)")
    frame = bench.frame(TABLE_ROWS).selectExpr(*COLUMNS)
    theirs = 0.0
    if jdbc:
        theirs = bench.median_s(frame.writeStream.foreachBatch(recipe(url)), "recipe")
        show("JDBC staging and merge", TABLE_ROWS, theirs)
    measured(bench, frame, to_table(url, "ours", key=["k"]), "to_table, upsert", TABLE_ROWS, theirs)
    cluster.create_topic("both", partitions=PARTITIONS)
    topic = to_topic(
        "both",
        bootstrap_servers=cluster.bootstrap,
        select=lambda f: f.selectExpr("CAST(k AS STRING) AS key", "text AS value"),
    )
    both = to_outputs(to_table(url, "pair", key=["k"]), topic)
    measured(bench, frame, both, "to_table and to_topic", TABLE_ROWS)
    few = bench.frame(FEW_ROWS).selectExpr(*COLUMNS)
    measured(bench, few, to_table(url, "few", key=["k"]), "to_table, a few rows", FEW_ROWS)


def measured(
    bench: Bench, frame: DataFrame, function: Any, what: str, rows: int, peer_s: float = 0.0
) -> None:
    seconds = bench.median_s(frame.writeStream.foreachBatch(function), what)
    show(what, rows, seconds, peer_s)
    function.close()


def recipe(url: str) -> Callable[[DataFrame, int], None]:
    """What one finds when one looks for it: not faster by any trick, not slower either."""
    import psycopg

    jdbc = "jdbc:postgresql://" + url.split("@", 1)[1]
    options = {"user": "kohort", "driver": "org.postgresql.Driver", "batchsize": "10000"}

    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("jdbc").options(url=jdbc, dbtable="staging", **options)
        writer.option("truncate", "true").option("reWriteBatchedInserts", "true").mode(
            "overwrite"
        ).save()
        with psycopg.connect(url) as connection:
            done = connection.execute("SELECT 1 FROM batches WHERE id = %s", (batch_id,))
            if done.fetchone() is None:
                connection.execute(
                    "INSERT INTO theirs SELECT k, n, text FROM staging ON CONFLICT (k) "
                    "DO UPDATE SET n = excluded.n, text = excluded.text"
                )
                connection.execute("INSERT INTO batches VALUES (%s)", (batch_id,))

    return write


def show(what: str, rows: int, seconds: float, peer_s: float = 0.0) -> None:
    ratio = f"{peer_s / seconds:6.2f} x" if peer_s else ""
    print(f"{what:44} {seconds * 1000:8.0f} ms {rows / seconds:12,.0f} rows/s {ratio}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
