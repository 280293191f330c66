"""A topic of numbers as a stream of rows, queries over it, and what they have written."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.records import Record
from kohort.retry.store import Store
from kohort.spark import BatchFunction
from tests.reading import read_committed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kohort.testing import Cluster

numbers = itertools.count()
STARTS = 4


def too_slow(error: str) -> bool:
    """Whether a query has failed before anything of it ran."""
    return "Python worker failed to connect back" in error and "State: INITIALIZING" in error


class Stream:
    """Numbers in a topic, as a stream of rows; queries over it with a checkpoint of their own."""

    def __init__(
        self, spark: SparkSession, cluster: Cluster, source: str, send: Any, directory: Path
    ) -> None:
        self.spark, self.cluster, self.source, self._send = spark, cluster, source, send
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.name = f"q{next(numbers)}"

    def send(self, *values: object) -> None:
        self._send(self.source, *((n % 2, None, str(v).encode()) for n, v in enumerate(values)))

    def rows(self) -> DataFrame:
        return (
            self.spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", self.cluster.bootstrap)
            .options(subscribe=self.source, startingOffsets="earliest")
            .load()
            .selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
        )

    def totals(self) -> DataFrame:
        rows = self.rows()
        rows = rows.groupBy((rows["n"] % 3).alias("k"))
        return rows.agg({"n": "sum", "*": "count"}).selectExpr(
            "k", "`sum(n)` AS total", "`count(1)` AS c"
        )

    def run(self, frame: DataFrame, function: BatchFunction, output_mode: str = "append") -> None:
        """Everything that is there, in one run of the query; the function is closed then."""
        try:
            self.run_open(frame, function, output_mode)
        finally:
            function.close()

    def run_open(
        self, frame: DataFrame, function: BatchFunction, output_mode: str = "append"
    ) -> None:
        """As `run`, and the function stays open.

        A start that is too slow on a busy machine is repeated, as a pipeline does: Spark waits 10 s
        for the Python of a source, without a setting.
        """
        writer = frame.writeStream.foreachBatch(function).outputMode(output_mode)
        writer = writer.queryName(self.name) if self.name else writer
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True)
        for start in range(1, STARTS + 1):
            try:
                writer.start().awaitTermination()
                break
            except Exception as error:  # Spark has its own classes
                if start == STARTS or not too_slow(str(error)):
                    raise

    def forget_last_commit(self) -> None:
        """As if the driver had died before Spark's commit log."""
        commits = sorted((self.checkpoint / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
        commits[-1].unlink()


def create(store: Store, ddl: str) -> None:
    with store.transaction() as cursor:
        cursor.execute(ddl)


def records(cluster: Cluster, topic: str) -> list[Record]:
    return read_committed(cluster.bootstrap, topic, 3)
