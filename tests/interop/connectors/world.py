"""Two connectors over the same topics, step by step, and what each of them has shown.

Rules:
- A scenario does everything once to the topics and twice to Spark: once by each connector. What is
  seen is noted for each, and compared at the end.
- A failure counts as equal when both fail, and the messages match the expression that the scenario
  names: a misspelt scenario shows as a difference.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kohort import Admin, Producer
from tests.clusters import Embedded as Cluster
from tests.patience import PATIENCE_S

THEIRS: Final = "kafka"
OURS: Final = "kohort"
MAKES: Final = (THEIRS, OURS)
COLUMNS: Final = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "timestamp",
    "timestampType",
    "headers",
)
FAILS: Final = "fails"
QUERY_DUMP: Final = "=== Streaming Query ==="
"""Behind it an error lists offsets and options, whatever went wrong."""
POLL_MS: Final = "3000"
"""So long the connector waits for records that are not there, before it fails."""
Row = tuple[Any, ...]


class World:
    """The topics of one scenario, and what both connectors have shown of them."""

    def __init__(self, spark: Any, cluster: Cluster, name: str, directory: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.directory = directory
        self.seen: dict[str, list[Any]] = {make: [] for make in MAKES}
        self._name = name
        self._topics = 0

    # Topics

    def topic(self, partitions: int = 1, name: str = "", **config: str) -> str:
        """A new topic."""
        self._topics += 1
        made = name or f"{self._name}-{self._topics}"
        named = {key.replace("_", "."): value for key, value in config.items()}
        settings = {"retention.ms": "-1", **named}  # the records are of 1970
        self.cluster.create_topic(made, partitions=partitions, config=settings)
        return made

    def fill(self, topic: str, count: int, partition: int = 0, first_ms: int = 1_000) -> None:
        """Records whose values count on, and whose times count from `first_ms`."""
        with self.producer() as producer:
            for n in range(count):
                value = f"{partition}:{n}:{first_ms}".encode()
                producer.send(topic, value, None, partition, first_ms + n)

    def filled(self, count: int = 10, partitions: int = 2) -> str:
        """A new topic with as many records in each partition."""
        made = self.topic(partitions)
        for partition in range(partitions):
            self.fill(made, count, partition)
        return made

    def producer(self, **settings: Any) -> Producer:
        return Producer(bootstrap_servers=self.cluster.bootstrap, **settings)

    def admin(self) -> Admin:
        return Admin(bootstrap_servers=self.cluster.bootstrap)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        with self.admin() as admin:
            admin.delete_records({(topic, partition): before})

    def delete_topic(self, topic: str) -> None:
        with self.admin() as admin:
            admin.delete_topics([topic])

    def grow(self, topic: str, partitions: int) -> None:
        with self.admin() as admin:
            admin.create_partitions({topic: partitions})

    # What is seen

    def note(self, make: str, what: Callable[[], Any], error: str = "") -> None:
        """Note what one connector shows, or that it fails."""
        try:
            shown = what()
        except Exception as raised:  # whatever it is: Spark, py4j and Python each have their own
            text = f"{type(raised).__name__}: {raised}".partition(QUERY_DUMP)[0]
            expected = error and re.search(error, text, re.IGNORECASE | re.DOTALL)
            shown = FAILS if expected else f"{FAILS} otherwise: {text[:1_500]}"
        self.seen[make].append(shown)

    def both(self, what: Callable[[str], Any], error: str = "") -> None:
        """Note what each connector shows."""
        for make in MAKES:
            self.note(make, lambda make=make: what(make), error)

    def steps_apart(self) -> tuple[int, ...]:
        """The steps at which the two have shown something else."""
        pairs = zip(self.seen[THEIRS], self.seen[OURS], strict=True)
        return tuple(step for step, (theirs, ours) in enumerate(pairs) if theirs != ours)

    def first_difference(self) -> str:
        """What each has shown at the first step at which they differ."""
        for step in self.steps_apart():
            theirs, ours = self.seen[THEIRS][step], self.seen[OURS][step]
            return f"step {step}:\n connector: {theirs}\n ours:      {ours}"
        return f"no difference: {str(self.seen[OURS])[:500]}"

    # Reading

    def options(self, **options: Any) -> dict[str, str]:
        """Of a reader."""
        return {"kafkaConsumer.pollTimeoutMs": POLL_MS, **self.sink(**options)}

    def sink(self, **options: Any) -> dict[str, str]:
        """Of a writer."""
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in options.items()}
        return {"kafka.bootstrap.servers": self.cluster.bootstrap, **texts}

    def read(self, *columns: str, error: str = "", **options: Any) -> None:
        """A batch read by both: schema and rows."""
        self.both(lambda make: self.batch(make, *columns, **options), error)

    def batch(self, make: str, *columns: str, **options: Any) -> Any:
        frame = self.spark.read.format(make).options(**self.options(**options)).load()
        schema = [(f.name, f.dataType.simpleString()) for f in frame.schema]
        return schema, rows(frame.select(*columns) if columns else frame)

    def query(self, **options: Any) -> Queries:
        """The same streaming query by both, each with a checkpoint of its own."""
        return Queries(self, options)

    # Writing

    def write(self, frame: Any, *, error: str = "", mode: str = "append", **options: Any) -> None:
        """A batch write by both, each into a topic of its own; what is in the topics then."""
        for make in MAKES:
            target = self.topic(2)
            sink_options = self.sink(**{"topic": target, **options})
            sink_options = {key: value for key, value in sink_options.items() if value != "null"}

            def write(
                make: str = make, sink_options: dict[str, str] = sink_options, target: str = target
            ) -> Any:
                writer = frame.write.format(make).options(**sink_options)
                (writer.mode(mode) if mode else writer).save()
                return self.written(sink_options.get("topic", target))

            self.note(make, write, error)

    def written(self, *topics: str) -> list[Row]:
        """What is in topics, without names, offsets and times, by Spark's own connector."""
        found = self.batch(THEIRS, subscribe=",".join(topics), includeHeaders="true")[1]
        return sorted((r[1], r[3], r[4], r[-1]) for r in found)

    def frame(self, schema: str, *data: Row) -> Any:
        return self.spark.createDataFrame(list(data), schema).coalesce(1)


class Queries:
    """One streaming query by each connector, which is stopped and started again."""

    def __init__(self, world: World, options: dict[str, Any]) -> None:
        self._world = world
        self._options = options
        world._topics += 1
        self._checkpoint = world.directory / f"query-{world._topics}"

    def run(self, *, error: str = "", sizes: bool = False, **options: Any) -> None:
        """Run over what is there; note the rows, and with `sizes` how many each batch had."""
        self._world.both(lambda make: self.run_one(make, options, sizes), error)

    def run_one(self, make: str, more: dict[str, Any], sizes: bool) -> Any:
        """The same by one connector."""
        world, options = self._world, {**self._options, **more}
        batches: list[list[Row]] = []
        frame = world.spark.readStream.format(make).options(**world.options(**options)).load()
        query = (
            frame.writeStream.foreachBatch(lambda part, _: batches.append(rows(part)))
            .option("checkpointLocation", str(self._checkpoint / make))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(int(PATIENCE_S)), "it does not end"
        finally:
            query.stop()
        found = sorted(row for batch in batches for row in batch)
        return ([len(batch) for batch in batches if batch], found) if sizes else found


def rows(frame: Any) -> list[Row]:
    """Every column of every row, in the connector's order, by topic, partition and offset."""
    names = [name for name in COLUMNS if name in frame.columns]
    found = [tuple(plain(row[name]) for name in names) for row in frame.collect()]
    return sorted(found, key=lambda row: tuple(map(str, row[:2])) + row[2:3])


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [(h.key, None if h.value is None else bytes(h.value)) for h in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return value.timestamp() if hasattr(value, "timestamp") else value


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it does not come to be"
