"""Exactly once into Delta Lake and Iceberg, where they have a release for this Spark (issue 17)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kohort.spark import BatchFunction, to_delta, to_iceberg
from tests.clusters import Embedded as Cluster
from tests.interop.java import JARS
from tests.java import skip_without

LAKE: Final = JARS / "lake"
RELEASED: Final = {"delta": ("4.2",), "iceberg": ("4.1",)}
"""The versions of Spark that the jars of `tools/java/lake` run on."""

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
_numbers = itertools.count()


def skip_unless_released(what: str) -> None:
    """Skip, and say which versions there are."""
    pyspark: Any = pytest.importorskip("pyspark")
    if not pyspark.__version__.startswith(RELEASED[what]):
        pytest.skip(
            f"no release of {what} for Spark {pyspark.__version__}, only for "
            f"{', '.join(RELEASED[what])}; `make spark-oldest` tests it there"
        )


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session with the jars, the extension and the catalogs of both."""
    skip_unless_released("delta")
    if not (LAKE / "pom.xml").exists():
        pytest.skip(
            "Delta Lake and Iceberg are not in build/java/lake; `make spark-oldest` has them"
        )
    skip_without()
    from pyspark import SparkContext

    from kohort.spark import session

    if SparkContext._gateway is not None:
        pytest.skip("a JVM without their jars runs already; run this file by itself")
    warehouse = tmp_path_factory.mktemp("warehouse")
    config = {
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in sorted(LAKE.glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(warehouse),
    }
    made = session("kohort lakehouse", master="local[2,1]", profile="test", config=config)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


class Query:
    """A query over a topic of numbers, run again and again."""

    def __init__(self, spark: Any, cluster: Cluster, directory: Path) -> None:
        self.spark, self.cluster = spark, cluster
        self.name = f"lake{next(_numbers)}"
        self.checkpoint = directory / "checkpoint"
        cluster.create_topic(self.name)

    def send(self, *numbers: int) -> None:
        from kohort import Producer

        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for number in numbers:
                producer.send(self.name, str(number).encode())

    def run(self, function: BatchFunction) -> None:
        frame = (
            self.spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", self.cluster.bootstrap)
            .options(subscribe=self.name, startingOffsets="earliest")
            .load()
            .selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
        )
        writer = frame.writeStream.foreachBatch(function).queryName(self.name)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        finally:
            function.close()

    def forget_last_commit(self) -> None:
        """As if the driver had died before Spark's commit log."""
        commits = sorted((self.checkpoint / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
        commits[-1].unlink()


def each_batch_once(
    query: Query, function: Callable[[], BatchFunction], read: Callable[[], list[int]], other: Path
) -> None:
    """Written, replayed, gone on with, and refused from a new checkpoint."""
    query.send(1, 2)
    query.run(function())
    query.forget_last_commit()
    query.run(function())
    assert read() == [1, 2]
    query.send(3)
    query.run(function())
    assert read() == [1, 2, 3]
    query.checkpoint = other
    with pytest.raises(Exception, match="from another checkpoint"):
        query.run(function())
    assert read() == [1, 2, 3]


def test_delta(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    table = str(tmp_path / "table")

    def read() -> list[int]:
        return sorted(row.n for row in spark.read.format("delta").load(table).collect())

    query = Query(spark, cluster, tmp_path)
    each_batch_once(query, lambda: to_delta(table), read, tmp_path / "other")


def test_iceberg(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    skip_unless_released("iceberg")
    table = f"lake.db.t{next(_numbers)}"
    spark.sql(f"CREATE TABLE {table} (n INT) USING iceberg")

    def read() -> list[int]:
        return sorted(row.n for row in spark.table(table).collect())

    query = Query(spark, cluster, tmp_path)
    each_batch_once(query, lambda: to_iceberg(table), read, tmp_path / "other")
