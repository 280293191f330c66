"""Spark: the source into a no-op sink, and pipelines into SQLite; rows a second, cores named.

100-byte values with 8-byte keys over 8 partitions of the embedded broker, which shares the cores
with Spark. The first runs warm the JVM up and are not counted. `source alone` is what one process
of ours reads without Spark: what Spark adds is the difference.

    python -m benchmarks.bench_spark
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.client.producer.producer import Producer
from kohort.retry.cluster_port import ClusterPort
from kohort.spark import Pipeline, Record, session
from kohort.spark.fetch import read_ranges
from kohort.spark.offsets import Range
from kohort.spark.options import parse_source
from kohort.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, ROWS, PIPELINE_ROWS = 8, 4_000_000, 4_000_000
WARM_UPS, RUNS = 2, 4
TARGET_ROWS_A_SECOND = 1_000_000


def main() -> None:
    """Measure and print."""
    work = Path(tempfile.mkdtemp(prefix="kohort-bench-"))
    try:
        with Cluster(request_log=0) as cluster:
            fill(cluster, "rows", ROWS, [b"%0100d" % n for n in range(1_000)])
            fill(cluster, "orders", PIPELINE_ROWS, [b'{"item": %d}' % n for n in range(1_000)])
            print(f"{os.cpu_count()} cores, shared with the broker; {ROWS:,} rows of 100 bytes")
            show("source alone, one process", ROWS, best(lambda: alone(cluster)))
            spark = session("kohort bench", config={"spark.driver.memory": "2g"})
            show("source into noop, batch", ROWS, best(lambda: batch(spark, cluster)))
            show("source into noop, stream", ROWS, best_of(lambda: stream(spark, cluster, work)))
            for kind in (handlers, frames):
                name = f"{kind.__name__} into SQLite"
                show(name, PIPELINE_ROWS, pipeline(spark, cluster, work, kind))
            spark.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fill(cluster: Cluster, topic: str, rows: int, values: list[bytes]) -> None:
    """Produce `rows` records, in turn over the partitions."""
    cluster.create_topic(topic, partitions=PARTITIONS)
    with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1 << 18) as producer:
        keys: list[bytes | None] = [b"%08d" % n for n in range(len(values))]
        for turn in range(rows // len(values)):
            producer.send_many(topic, values, keys, partition=turn % PARTITIONS)
        producer.flush()


def options(cluster: Cluster, topic: str = "rows") -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}


def alone(cluster: Cluster) -> None:
    """Every row as Arrow batches for Spark, in this process."""
    parsed = parse_source(options(cluster), streaming=False)
    port = ClusterPort(parsed.client)
    ends = port.latest([("rows", p) for p in range(PARTITIONS)])
    port.close()
    spans = [Range(topic, p, 0, end) for (topic, p), end in ends.items()]
    rows = sum(len(b) for b in read_ranges(parsed, spans, parsed.shown_columns))
    assert rows == ROWS


def batch(spark: SparkSession, cluster: Cluster) -> None:
    """One batch read into the no-op sink."""
    frame = spark.read.format("kohort").options(**options(cluster)).load()
    frame.write.format("noop").mode("overwrite").save()


def stream(spark: SparkSession, cluster: Cluster, work: Path) -> float:
    """The same as a stream, in micro-batches of a million rows; seconds at the pace of the batches
    after the first, as Spark itself times them (the start of a query takes a second more).
    """
    frame = (
        spark.readStream.format("kohort")
        .options(**options(cluster), startingOffsets="earliest", maxOffsetsPerTrigger="1000000")
        .load()
    )
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", tempfile.mkdtemp(dir=work))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [p for p in query.recentProgress if p["numInputRows"]][1:]
    spent_ms = sum(p["durationMs"]["triggerExecution"] for p in batches)
    return spent_ms / 1000 * ROWS / sum(p["numInputRows"] for p in batches)


def handlers(made: Pipeline) -> None:
    """A function of each record."""

    @made.handler("orders", table="orders", origin=("p", "o"))
    def order(record: Record, _store: Any) -> dict[str, Any]:
        return {"item": record.data["item"]}


def frames(made: Pipeline) -> None:
    """The same by DataFrames, which need no Python for a row."""
    made.source("orders", schema="item INT")

    @made.table("orders")
    def rows(orders: DataFrame) -> DataFrame:
        return orders.select("item")


def pipeline(
    spark: SparkSession, cluster: Cluster, work: Path, kind: Callable[[Pipeline], None]
) -> float:
    """Seconds for all rows at the pace of the second half: start-up is not counted."""
    name = kind.__name__
    made = Pipeline(
        name,
        store=f"sqlite:///{work / name}.db",
        retries="5m",
        checkpoint=work / name,
        bootstrap_servers=cluster.bootstrap,
        trigger="50ms",
    )

    @made.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS orders (item INTEGER, p INTEGER, o BIGINT)")

    kind(made)
    seen: list[tuple[float, int]] = []
    made.run(
        "until_idle",
        spark=spark,
        on_progress=lambda p: seen.append((time.monotonic(), p.done)),
    )
    began, before = next(one for one in seen if one[1] >= PIPELINE_ROWS // 2)
    ended = next(at for at, done in seen if done == PIPELINE_ROWS)
    return (ended - began) * PIPELINE_ROWS / (PIPELINE_ROWS - before)


def best(run: Callable[[], None]) -> float:
    """The shortest of several runs, in seconds, after the warm-ups."""

    def timed() -> float:
        began = time.monotonic()
        run()
        return time.monotonic() - began

    return best_of(timed)


def best_of(run: Callable[[], float]) -> float:
    """The shortest of several times that `run` measures itself, after the warm-ups."""
    return min([run() for _ in range(WARM_UPS + RUNS)][WARM_UPS:])


def show(what: str, rows: int, seconds: float) -> None:
    rate = rows / seconds
    mark = f"{rate / TARGET_ROWS_A_SECOND:6.2f} x the target" if "noop" in what else ""
    print(f"{what:28} {rate:12,.0f} rows/s   {seconds:6.2f} s {mark}")


if __name__ == "__main__":
    main()
