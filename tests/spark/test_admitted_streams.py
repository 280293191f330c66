"""Admission control and aligned reading through a real micro-batch engine (spec 6.7, issue 17)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Producer
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
MINUTE_MS = 60_000


def stream(spark: SparkSession, cluster: Cluster, *topics: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("kohort")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .options(subscribe=",".join(topics), startingOffsets="earliest", **options)
        .load()
    )


def run(frame: DataFrame, directory: Path, keep: Callable[[Any, int], None]) -> Any:
    """Run a query over everything that is there."""
    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(directory))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(2 * PATIENCE_S))
    assert query.exception() is None
    return query


def fill(cluster: Cluster, topic: str, partition: int, times: list[int], size: int = 10) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for ms in times:
            producer.send(topic, b"v" * size, None, partition, ms)


@pytest.mark.extended
def test_a_small_topic_comes_whole_with_the_first_batch(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Rows and bytes bound a batch, floors come first, priorities next; every record is read."""
    large, small = topic(2, "large"), topic(1, "small")
    for partition in (0, 1):
        fill(cluster, large, partition, [1] * 700, size=100)
    fill(cluster, small, 0, [1] * 40, size=100)

    def batches(**options: str) -> list[Counter[str]]:
        found: list[Counter[str]] = []

        def keep(frame: Any, _: int) -> None:
            counted = Counter(row.topic for row in frame.select("topic").collect())
            if counted:
                found.append(counted)

        directory = tmp_path / "-".join(options)
        run(stream(spark, cluster, large, small, **options), directory, keep)
        assert sum(found, Counter()) == {large: 1_400, small: 40}
        return found

    by_rows = batches(maxOffsetsPerTrigger="800")
    assert by_rows[0][small] == 40
    assert 800 <= sum(by_rows[0].values()) <= 803
    by_bytes = batches(maxBytesPerTrigger="90000")
    assert by_bytes[0][small] == 40
    assert 850 <= sum(by_bytes[0].values()) <= 950, "records of 100 bytes"
    first, *_ = batches(
        maxOffsetsPerTrigger="700", topicFloor="10", topicPriorities=f'{{"{large}": 1}}'
    )
    assert first == {large: 690, small: 10}


@pytest.mark.extended
def test_aligned_reading_loses_nothing_to_a_watermark(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """A backlog of one dense and one sparse partition. Read in proportion, the sparse one runs
    hours ahead, and the watermark drops the rest of the dense one; `alignWithin` prevents it.
    """
    name = "aligned"
    cluster.create_topic(name, 2)
    fill(cluster, name, 0, [1 + n * MINUTE_MS for n in range(120)])
    fill(cluster, name, 1, [1 + n * 10 * MINUTE_MS for n in range(60)])

    def counted(**options: str) -> int:
        seen: dict[Any, int] = {}

        def keep(frame: Any, _: int) -> None:
            seen.update({row.window.start: row["count"] for row in frame.collect()})

        frame = (
            stream(spark, cluster, name, maxOffsetsPerTrigger="60", **options)
            .withWatermark("timestamp", "30 minutes")
            .groupBy(_window())
            .count()
        )
        query = (
            frame.writeStream.outputMode("update")
            .foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / f"counts-{len(options)}"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(2 * PATIENCE_S))
        assert query.exception() is None
        return sum(seen.values())

    assert counted() < 180, "without it records are late, or this test shows nothing"
    assert counted(alignWithin="20m") == 180


def _window() -> Any:
    from pyspark.sql import functions as F

    return F.window("timestamp", "10 minutes")
