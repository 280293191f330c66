"""`format("kohort")` beside Spark's own Kafka connector, in turns in one session; medians.

Both read the same topics of the embedded broker, which runs in this process and shares the cores.
Seconds are of the action; CPU seconds are of all processes below this one (broker, JVM, Python
workers). Parts, each by its name, all without one:

    batch       all columns of 100-byte values into the no-op sink
    stream      the same as a stream, at the pace of the batches after the first
    sink        rows of Spark into a topic of 8 partitions
    json        six fields of JSON: sum by key (theirs: from_json)
    avro        the same of Avro in a registry's format (theirs: strip five bytes, from_avro)
    small       micro-batches of ten rows, Spark's triggerExecution
    flat        ours alone, in turns: the same records in 1, 8 and 500 partitions, and in 10 topics
    partitions  the same beside the connector, which takes minutes for 500 partitions

Jars come from Maven Central; without them the peer's column is left out.

    ROWS=300000 python -m benchmarks.bench_spark_reading json avro
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pages import tool
from tests.serdes.fake_registry import running

from kohort.client.producer.producer import Producer
from kohort.serdes import AvroSerde, SchemaRegistry
from kohort.spark import session
from kohort.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, PARTITIONS = int(os.environ.get("ROWS", "1000000")), 8
WARM_UPS, RUNS = 2, int(os.environ.get("RUNS", "5"))
SMALL_ROWS, SMALL_BATCHES = 10, 25
TICKS = os.sysconf("SC_CLK_TCK")
SCHEMA = "id BIGINT, user STRING, amount DOUBLE, ok BOOLEAN, city STRING, ts BIGINT"
AVRO = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, '
    '{"name": "user", "type": "string"}, {"name": "amount", "type": "double"}, '
    '{"name": "ok", "type": "boolean"}, {"name": "city", "type": "string"}, '
    '{"name": "ts", "type": "long"}]}'
)
Action = Callable[[], float | None]
"""Returns seconds that it measured itself, or None: then the call is timed."""


class Bench:
    """A session, a broker, and whether the peer is there."""

    def __init__(self, spark: SparkSession, cluster: Cluster, peer: bool, work: Path) -> None:
        self.spark, self.cluster, self.peer, self.work = spark, cluster, peer, work
        self.filled: set[str] = set()

    def read(self, format_: str, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format(format_).options(**self._options(topic), **options)
        return reader.load()

    def stream(self, format_: str, topic: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format(format_).options(**self._options(topic), **options)
        return reader.option("startingOffsets", "earliest").load()

    def _options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.cluster.bootstrap, "subscribe": topic}

    def compare(self, what: str, ours: Action, theirs: Action | None, rows: int = ROWS) -> None:
        """Run both in turns and print a line."""
        sides = {"ours": ours} | ({"theirs": theirs} if theirs and self.peer else {})
        seconds, cpu = in_turns(sides)
        million = rows / 1e6
        line = f"{what:26} ours {seconds['ours']:6.2f} s {cpu['ours'] / million:6.2f} CPU-s/M"
        if "theirs" in seconds:
            line += (
                f"   theirs {seconds['theirs']:6.2f} s {cpu['theirs'] / million:6.2f} CPU-s/M"
                f"   {seconds['theirs'] / seconds['ours']:5.2f} x, "
                f"CPU {cpu['theirs'] / cpu['ours']:5.2f} x"
            )
        print(line, flush=True)

    def fill(
        self, topic: str, values: list[bytes], rows: int = ROWS, parts: int = PARTITIONS
    ) -> None:
        """Make a topic of these values over and over, unless it is there."""
        if topic in self.filled:
            return
        self.filled.add(topic)
        self.cluster.create_topic(topic, partitions=parts)
        keys: list[bytes | None] = [b"%08d" % n for n in range(len(values))]
        with Producer(bootstrap_servers=self.cluster.bootstrap, batch_size=1 << 18) as producer:
            for turn in range(rows // len(values)):
                producer.send_many(topic, values, keys, partition=turn % parts)
            producer.flush()

    def directory(self) -> str:
        return tempfile.mkdtemp(dir=self.work)


def in_turns(sides: dict[str, Action]) -> tuple[dict[str, float], dict[str, float]]:
    """Medians of seconds and of CPU seconds of each."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(WARM_UPS + RUNS):
        for name, action in sides.items():
            taken[name].append(timed(action))
    seconds, cpu = (
        {n: statistics.median(run[part] for run in runs[WARM_UPS:]) for n, runs in taken.items()}
        for part in (0, 1)
    )
    return seconds, cpu


def timed(action: Action) -> tuple[float, float]:
    """Seconds and CPU seconds of a call."""
    cpu, began = cpu_s(), time.monotonic()
    measured = action()
    spent = time.monotonic() - began
    return (spent if measured is None else measured), cpu_s() - cpu


def cpu_s() -> float:
    """CPU seconds of this process and all below it, ended ones included."""
    stats: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    return (
        sum(ticks for pid, (_, ticks) in stats.items() if os.getpid() in ancestors(pid, stats))
        / TICKS
    )


def ancestors(pid: int, stats: dict[int, tuple[int, int]]) -> Iterator[int]:
    while pid in stats:
        yield pid
        pid = stats[pid][0]


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def batch(bench: Bench) -> None:
    bench.fill("rows", [b"%0100d" % n for n in range(1_000)])
    bench.compare(
        "batch, all columns",
        lambda: noop(bench.read("kohort", "rows")),
        lambda: noop(bench.read("kafka", "rows")),
    )
    bench.compare(
        "batch, key and value",
        lambda: noop(bench.read("kohort", "rows", columns="key,value")),
        lambda: noop(bench.read("kafka", "rows").select("key", "value")),
    )


def stream(bench: Bench) -> None:
    bench.fill("rows", [b"%0100d" % n for n in range(1_000)])

    def run(format_: str) -> float:
        frame = bench.stream(format_, "rows", maxOffsetsPerTrigger=str(ROWS // 4))
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", bench.directory())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = [p for p in query.recentProgress if p["numInputRows"]][1:]
        spent_ms = sum(p["durationMs"]["triggerExecution"] for p in batches)
        return spent_ms / 1000 * ROWS / sum(p["numInputRows"] for p in batches)

    bench.compare("stream, 4 batches", lambda: run("kohort"), lambda: run("kafka"))


def sink(bench: Bench) -> None:
    bench.cluster.create_topic("written", partitions=PARTITIONS)
    # An input that costs little beside the sink: lpad() alone takes as long as our whole sink.
    rows = bench.spark.range(0, ROWS, numPartitions=2).selectExpr(
        "CAST(id % 100000 AS STRING) AS key", f"concat('{'0' * 94}', CAST(id AS STRING)) AS value"
    )

    def run(format_: str) -> None:
        options = {"kafka.bootstrap.servers": bench.cluster.bootstrap, "topic": "written"}
        rows.write.format(format_).options(**options).mode("append").save()

    bench.compare("sink, 8 partitions", lambda: run("kohort"), lambda: run("kafka"))
    bench.compare("the sink's input alone", lambda: noop(rows), None)


def json(bench: Bench) -> None:
    values = [
        b'{"id": %d, "user": "user-%d", "amount": %.2f, "ok": %s, "city": "city%d", '
        b'"ts": 170000000%04d}' % (n, n % 97, n * 0.37, (b"false", b"true")[n % 2], n % 50, n)
        for n in range(1_000)
    ]
    bench.fill("json", values)

    def ours() -> None:
        frame = bench.read(
            "kohort", "json", valueFormat="json", valueSchema=SCHEMA, columns="value"
        )
        frame.groupBy("value.city").sum("value.amount").collect()

    def pruned() -> None:
        frame = bench.read(
            "kohort",
            "json",
            valueFormat="json",
            valueSchema="city STRING, amount DOUBLE",
            columns="value",
        )
        frame.groupBy("value.city").sum("value.amount").collect()

    def theirs() -> None:
        parsed = f"from_json(CAST(value AS STRING), '{SCHEMA}') AS value"
        frame = bench.read("kafka", "json").selectExpr(parsed)
        frame.groupBy("value.city").sum("value.amount").collect()

    bench.compare("json, sum by key", ours, theirs)
    bench.compare("json, two of six fields", pruned, theirs)


def avro(bench: Bench) -> None:
    java = tool("java_tools")
    target = java.JARS / "avro"
    with running() as registry:
        serde = AvroSerde(SchemaRegistry(registry.url), AVRO)
        bench.fill(
            "avro",
            [
                serde.serialize(
                    "avro",
                    {
                        "id": n,
                        "user": f"user-{n % 97}",
                        "amount": n * 0.37,
                        "ok": n % 2 == 0,
                        "city": f"city{n % 50}",
                        "ts": 1_700_000_000_000 + n,
                    },
                )
                for n in range(1_000)
            ],
        )

        def ours() -> None:
            frame = bench.read(
                "kohort", "avro", valueFormat="avro", schemaRegistry=registry.url, columns="value"
            )
            frame.groupBy("value.city").sum("value.amount").collect()

        def theirs() -> None:
            from pyspark.sql.avro.functions import from_avro
            from pyspark.sql.functions import expr

            payload = expr("substring(value, 6)")
            frame = bench.read("kafka", "avro").select(from_avro(payload, AVRO).alias("value"))
            frame.groupBy("value.city").sum("value.amount").collect()

        bench.compare("avro, sum by key", ours, theirs if any(target.glob("*.jar")) else None)


def small(bench: Bench) -> None:
    bench.fill("small", [b"v"] * SMALL_ROWS, rows=SMALL_ROWS, parts=2)

    def run(format_: str) -> float:
        frame = bench.stream(format_, "small")
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", bench.directory())
            .trigger(processingTime="0 seconds")
            .start()
        )
        pause = threading.Event()
        with Producer(bootstrap_servers=bench.cluster.bootstrap) as producer:
            for _ in range(SMALL_BATCHES):
                producer.send_many("small", [b"v"] * SMALL_ROWS, partition=0)
                producer.flush()
                pause.wait(0.25)
        query.stop()
        spent = [p["durationMs"] for p in query.recentProgress if p["numInputRows"]][3:]
        phases = {k: statistics.median(p.get(k, 0) for p in spent) for k in spent[-1]}
        print(f"    {format_}: {phases}")
        return phases["triggerExecution"] / 1000

    bench.compare(
        "small, ten rows (s)",
        lambda: run("kohort"),
        lambda: run("kafka"),
        rows=SMALL_ROWS * SMALL_BATCHES,
    )


def spread(bench: Bench) -> dict[str, str]:
    """The same records in topics of several shapes: what each is, and its topics."""
    values = [b"%0100d" % n for n in range(1_000)]
    for count in (1, PARTITIONS, 500):
        bench.fill(f"of-{count}", values, parts=count)
    for n in range(10):
        bench.fill(f"of-ten-{n}", values, rows=ROWS // 10, parts=PARTITIONS)
    return {
        "1 partition": "of-1",
        f"{PARTITIONS} partitions": f"of-{PARTITIONS}",
        "500 partitions": "of-500",
        "10 topics": ",".join(f"of-ten-{n}" for n in range(10)),
    }


def flat(bench: Bench) -> None:
    sides: dict[str, Action] = {
        what: lambda topics=topics: noop(bench.read("kohort", topics))
        for what, topics in spread(bench).items()
    }
    seconds, cpu = in_turns(sides)
    for what in sides:
        print(f"batch, {what:19} ours {seconds[what]:6.2f} s {cpu[what] / ROWS * 1e6:6.2f} CPU-s/M")


def partitions(bench: Bench) -> None:
    for what, topics in spread(bench).items():
        bench.compare(
            f"batch, {what}",
            lambda topics=topics: noop(bench.read("kohort", topics)),
            lambda topics=topics: noop(bench.read("kafka", topics)),
        )


PARTS: dict[str, Callable[[Bench], None]] = {
    "batch": batch,
    "stream": stream,
    "sink": sink,
    "json": json,
    "avro": avro,
    "small": small,
    "flat": flat,
    "partitions": partitions,
}


def main() -> None:
    """Measure the parts that are named."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process compiles what it imports
    java = tool("java_tools")
    what = "Spark's own Kafka connector"
    peer = java.fetch(java.POMS / "spark" / "pom.xml", java.CONNECTOR, what, "10 MB")
    java.fetch(java.POMS / "avro" / "pom.xml", java.JARS / "avro", "Spark's from_avro", "1 MB")
    jars = [*java.CONNECTOR.glob("*.jar"), *(java.JARS / "avro").glob("*.jar")]
    work = Path(tempfile.mkdtemp(prefix="kohort-bench-"))
    config: dict[str, Any] = {
        "spark.driver.memory": "2g",
        "spark.jars": ",".join(map(str, jars)),
    }
    try:
        with Cluster(request_log=0) as cluster:
            spark = session("kohort bench", master="local[2]", config=config)
            print(f"{os.cpu_count()} cores with the broker; {ROWS:,} rows; medians of {RUNS}")
            bench = Bench(spark, cluster, peer, work)
            for name in sys.argv[1:] or PARTS:
                PARTS[name](bench)
            spark.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
