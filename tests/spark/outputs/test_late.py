"""Rows behind the watermark are counted with their batch (spec 6.8)."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.spark import Pipeline, reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster


def windows(
    cluster: Cluster,
    clicks: str,
    directory: Path,
    *,
    trigger: str = "500ms",
    output_mode: str | None = None,
) -> Pipeline:
    """Clicks by minute, with a watermark of a minute; in update mode by default."""
    p = Pipeline(
        f"late-{clicks}",
        store=f"sqlite:///{directory / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=directory / "checkpoint",
        trigger=trigger,
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS minutes (start TEXT PRIMARY KEY, clicks BIGINT)")

    p.source(clicks, name="clicks", schema="at TIMESTAMP")

    @p.table("minutes", key="start", output_mode=output_mode)
    def minutes(clicks: Any) -> Any:
        from pyspark.sql import functions as F

        counted = clicks.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"))
        return counted.agg(F.count("*").alias("clicks")).selectExpr(
            "CAST(window.start AS STRING) AS start", "clicks"
        )

    return p


def batches(directory: Path, stage: str) -> int:
    """How many micro-batches a stage has run."""
    return len(list((directory / "checkpoint" / f"stage-{stage}" / "offsets").glob("[0-9]*")))


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_until_idle_writes_the_windows_that_are_closed(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], produce: Any, tmp_path: Path
) -> None:
    """They come with a batch without rows, a trigger after the one that moves the watermark."""
    clicks = topic(1, name="clicks")
    produce(clicks, *((0, None, b'{"at": "2026-01-01T00:%02d:00Z"}' % n) for n in (1, 10)))
    pipeline = windows(cluster, clicks, tmp_path, trigger="3s", output_mode="append")
    pipeline.run("until_idle", spark=spark, max_restarts=0)
    store = pipeline.open_store()
    assert store.query("SELECT clicks FROM minutes") == [(1,)]
    store.close()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_late_rows_are_counted_in_history_and_status(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], produce: Any, tmp_path: Path
) -> None:
    clicks = topic(1, name="clicks")

    def click(*minutes: int) -> None:
        times = (b'{"at": "2026-01-01T00:%02d:00Z"}' % minute for minute in minutes)
        produce(clicks, *((0, None, time) for time in times))
        windows(cluster, clicks, tmp_path).run("available_now", spark=spark, max_restarts=0)

    click(1, 10)
    click(11)  # the watermark of the batch before counts
    click(2, 3, 12)
    assert batches(tmp_path, "minutes") == 3, "no batch runs only because the watermark has moved"
    assert spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true"
    pipeline = windows(cluster, clicks, tmp_path)
    store = pipeline.open_store()
    assert store.query("SELECT sum(clicks) FROM minutes") == [(4,)]
    late = "SELECT query, rows_read, rows_loaded FROM kohort_batch_history WHERE output = ?"
    assert store.query(late, ("late rows",)) == [(f"{pipeline.name}.minutes", 2, 0)]
    store.close()
    books = reconcile(pipeline)
    assert books.late == {"minutes": 2}
    assert books.to_json()["late"] == {"minutes": 2}


@pytest.mark.spark
def test_a_batch_without_rows_is_needed_by_timers_and_in_append_mode(spark: SparkSession) -> None:
    from kohort.spark.plans.logical import emits_without_rows

    stream = spark.readStream.format("rate").load()
    counts = stream.groupBy("value").count()
    assert not emits_without_rows(counts, "update")
    assert emits_without_rows(counts, "append")
    timers = stream.groupBy("value").applyInPandasWithState(
        lambda key, rows, state: rows, "value LONG", "n LONG", "update", "ProcessingTimeTimeout"
    )
    assert emits_without_rows(timers, "update")
