"""A topic of JSON into a PostgreSQL table, upserted exactly once, beside the usual recipe; medians.

Every side reads the same topic of the embedded broker in micro-batches of one session, in turns.
The first round warms the JVM up and does not count. From the third batch on, half of a batch's keys
are new and half replace rows of earlier batches.

- recipe: Spark's Kafka connector, `from_json`, and in `foreachBatch` JDBC into a staging table
  (Spark's defaults), then MERGE and the batch's id in one transaction;
- recipe, tuned: the same with JDBC batches of 10,000 and `reWriteBatchedInserts`;
- ours: `format("kohort")` with a value schema, and `to_table`;
- pipeline: the same as a `Pipeline` of DataFrames, with retries, dead letters and books.

Seconds are a micro-batch's `triggerExecution`. CPU seconds are of all processes for the whole
query, PostgreSQL's among them. The session has `spark.sql.execution.arrow.maxBytesPerBatch` at its
greatest value, as docs/pipelines.md advises for small rows; the recipe moves no Arrow.

    python -m benchmarks.bench_spark_upsert
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pages import tool
from tests.postgres import PostgresServer, unavailable

from benchmarks.bench_spark_reading import cpu_s
from kohort.client.producer.producer import Producer
from kohort.spark import Pipeline, session, to_table
from kohort.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, BATCH_ROWS, WARM_UPS, BATCHES, ROUNDS = 8, 100_000, 3, 8, 4
REPLACED = 250_001
"""A row of an even number has the key of the row so far before it."""
TOPIC = "orders"
SCHEMA = "k BIGINT, n BIGINT, text STRING"
TABLE = "CREATE TABLE {} (k BIGINT PRIMARY KEY, n BIGINT, text TEXT)"
MERGE = (
    "MERGE INTO {0} AS t USING {0}_staging AS s ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET n = s.n, text = s.text "
    "WHEN NOT MATCHED THEN INSERT (k, n, text) VALUES (s.k, s.n, s.text)"
)
TUNED = {"batchsize": "10000", "reWriteBatchedInserts": "true"}
Side = Callable[[str], list[float]]
"""Fills a table that is there, and returns the milliseconds of its micro-batches."""


class Bench:
    """One session, broker and database."""

    def __init__(self, spark: SparkSession, bootstrap: str, url: str, work: Path) -> None:
        self.spark, self.bootstrap, self.url, self.work = spark, bootstrap, url, work

    def recipe(self, table: str, options: dict[str, str]) -> list[float]:
        from pyspark.sql import functions as F

        raw = self._stream("kafka")
        rows = raw.select(F.from_json(raw["value"].cast("string"), SCHEMA).alias("v")).select("v.*")
        return self._run(rows, merged(self.url, table, options))

    def ours(self, table: str) -> list[float]:
        rows = self._stream("kohort", valueFormat="json", valueSchema=SCHEMA).select("value.*")
        function = to_table(self.url, table, key=["k"], query=table)
        try:
            return self._run(rows, function)
        finally:
            function.close()

    def pipeline(self, table: str) -> list[float]:
        made = Pipeline(
            table,
            store=self.url,
            retries="5m",
            checkpoint=tempfile.mkdtemp(dir=self.work),
            bootstrap_servers=self.bootstrap,
            max_offsets_per_trigger=BATCH_ROWS,
        )
        made.source(TOPIC, schema=SCHEMA)

        @made.table(table, key="k")
        def loaded(orders: DataFrame) -> DataFrame:
            return orders

        spent: list[float] = []
        heard = listener(self.spark, spent)
        try:
            made.run("available_now", spark=self.spark)
        finally:
            self.spark.streams.removeListener(heard)
        return spent

    def _stream(self, format_: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(format_).options(**options)
        return reader.options(
            **{
                "kafka.bootstrap.servers": self.bootstrap,
                "subscribe": TOPIC,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": str(BATCH_ROWS),
            }
        ).load()

    def _run(self, rows: DataFrame, function: Callable[[DataFrame, int], None]) -> list[float]:
        query = (
            rows.writeStream.foreachBatch(function)
            .option("checkpointLocation", tempfile.mkdtemp(dir=self.work))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [p["durationMs"]["triggerExecution"] for p in query.recentProgress]


def merged(url: str, table: str, options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """JDBC into a staging table, then one transaction."""
    import psycopg

    jdbc = {
        "url": "jdbc:postgresql://" + url.split("@", 1)[1],
        "dbtable": f"{table}_staging",
        "user": "kohort",
        "driver": "org.postgresql.Driver",
        "truncate": "true",
    }

    def write(frame: DataFrame, batch_id: int) -> None:
        frame.write.format("jdbc").options(**jdbc, **options).mode("overwrite").save()
        with psycopg.connect(url) as connection:
            known = connection.execute(f"SELECT 1 FROM {table}_batches WHERE id = %s", (batch_id,))
            if known.fetchone() is None:
                connection.execute(MERGE.format(table))
                connection.execute(f"INSERT INTO {table}_batches VALUES (%s)", (batch_id,))

    return write


def listener(spark: SparkSession, spent: list[float]) -> Any:
    """Notes the milliseconds of every micro-batch."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...
        def onQueryIdle(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            if event.progress.numInputRows:
                spent.append(event.progress.durationMs["triggerExecution"])

    heard = Listener()
    spark.streams.addListener(heard)
    return heard


def fill(cluster: Cluster) -> None:
    """Produce the orders, one after the other over the partitions."""
    cluster.create_topic(TOPIC, partitions=PARTITIONS)
    with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1 << 18) as producer:
        for first in range(0, BATCH_ROWS * (WARM_UPS + BATCHES), 1_000):
            numbers = range(first, first + 1_000)
            keys = [n if n % 2 or n < REPLACED else n - REPLACED for n in numbers]
            values = [
                b'{"k": %d, "n": %d, "text": "%032x"}' % (k, n, n * 2_654_435_761)
                for k, n in zip(keys, numbers, strict=True)
            ]
            producer.send_many(TOPIC, values, partition=first // 1_000 % PARTITIONS)
        producer.flush()


def compare(bench: Bench, sides: dict[str, Side]) -> None:
    """Run the sides in turns, check that every table is the same, and print."""
    import psycopg

    taken: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    sums: set[Any] = set()
    for turn in range(ROUNDS):
        for number, (name, side) in enumerate(sides.items()):
            table = f"orders_{number}_{turn}"
            with psycopg.connect(bench.url, autocommit=True) as connection:
                connection.execute(TABLE.format(table))
                connection.execute(f"CREATE TABLE {table}_batches (id BIGINT)")
                connection.execute(
                    f"CREATE UNLOGGED TABLE {table}_staging (k BIGINT, n BIGINT, text TEXT)"
                )
                began = cpu_s()
                spent = side(table)[WARM_UPS:]
                if turn:
                    taken[name] += spent
                    cpu[name].append(cpu_s() - began)
                total = "SELECT count(*), sum(k), sum(n), md5(string_agg(text, '' ORDER BY k))"
                sums.add(connection.execute(f"{total} FROM {table}").fetchone())
    if len(sums) != 1:
        raise AssertionError(f"the tables differ: {sums}")
    million = BATCH_ROWS * (WARM_UPS + BATCHES) / 1e6
    medians = {name: statistics.median(ms) / 1000 for name, ms in taken.items()}
    for name, seconds in medians.items():
        ratios = "  ".join(
            f"{peer}: {medians[peer] / seconds:.2f} x" for peer in medians if "recipe" in peer
        )
        spent = statistics.median(cpu[name]) / million
        print(
            f"{name:16} {seconds:6.2f} s {BATCH_ROWS / seconds:9,.0f} rows/s "
            f"{spent:6.1f} CPU-s/M   {'' if 'recipe' in name else ratios}",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    if reason := unavailable():
        sys.exit(f"left out: {reason}")
    java = tool("java_tools")
    wanted = {
        java.CONNECTOR: (java.POMS / "spark" / "pom.xml", "Spark's own Kafka connector", "10 MB"),
        java.JARS / "jdbc": (java.POMS / "jdbc" / "pom.xml", "JDBC driver", "1 MB"),
    }
    peers = all(java.fetch(pom, to, what, size) for to, (pom, what, size) in wanted.items())
    jars = [str(jar) for to in wanted for jar in sorted(to.glob("*.jar"))]
    work = Path(tempfile.mkdtemp(prefix="kohort-bench-"))
    config = {
        "spark.driver.memory": "2g",
        "spark.jars": ",".join(jars if peers else []),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    }
    spark = session("kohort bench", master="local[2]", config=config)
    server = PostgresServer()
    try:
        with Cluster(request_log=0) as cluster:
            fill(cluster)
            bench = Bench(spark, cluster.bootstrap, server.new_database(), work)
            sides: dict[str, Side] = {"to_table": bench.ours, "pipeline": bench.pipeline}
            if peers:
                sides |= {
                    "recipe": lambda table: bench.recipe(table, {}),
                    "recipe, tuned": lambda table: bench.recipe(table, TUNED),
                }
            compare(bench, sides)
    finally:
        spark.stop()
        server.remove()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
