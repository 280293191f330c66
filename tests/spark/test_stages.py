"""What the stages of a pipeline say before they start (spec 6.5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.errors import ConfigError
from kohort.spark import Pipeline
from kohort.spark.dataframes.graph import TableTarget
from kohort.spark.stages import settings_of_queries, too_many_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def test_sparks_200_partitions_on_a_few_cores_are_warned_of() -> None:
    """State cannot be spread anew later, so the first start is the time to say it."""
    warning = too_many_partitions("eras", 200, 2, "/c/stage-eras")
    assert "step eras keeps its state in 200 parts, for 2 cores" in warning
    assert "delete /c/stage-eras" in warning
    assert "--conf spark.sql.shuffle.partitions=2" in warning
    assert not too_many_partitions("eras", 200, 16, "/c/stage-eras")
    assert not too_many_partitions("eras", 2, 2, "/c/stage-eras")


@pytest.mark.spark
def test_settings_of_queries_are_taken_back(spark: SparkSession) -> None:
    """What was set before is set again, and what was at its default is at its default again."""
    chosen, unset = "spark.sql.shuffle.partitions", ARROW_BYTES
    before = {name: spark.conf.get(name) or "" for name in (chosen, unset)}
    spark.conf.set(chosen, "3")
    try:
        assert unset not in spark.conf.getAll
        with settings_of_queries(spark, {chosen: "5", unset: "2147483647"}):
            assert [spark.conf.get(n) for n in (chosen, unset)] == ["5", "2147483647"]
        assert [spark.conf.get(n) for n in (chosen, unset)] == ["3", before[unset]]
        assert unset not in spark.conf.getAll
    finally:
        spark.conf.set(chosen, before[chosen])


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("own", "most", "used"),
    [(None, None, str(2**31 - 1)), ("1000000", None, "1000000"), (None, 100, None)],
)
def test_arrow_batches_are_not_summed_where_a_micro_batch_is_bounded(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    tmp_path: Path,
    own: str | None,
    most: int | None,
    used: str | None,
) -> None:
    from kohort.spark import Pipeline

    name, default = topic(name="rows"), spark.conf.get(ARROW_BYTES)
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
        max_offsets_per_trigger=most,
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (value TEXT)")

    p.source(name, name="rows", format="text")
    seen: list[str | None] = []

    @p.table("rows")
    def values(rows: Any) -> Any:
        seen.append(rows.sparkSession.conf.get(ARROW_BYTES))
        return rows.select("value")

    produce(name, (0, None, b"a"))
    if own is not None:
        spark.conf.set(ARROW_BYTES, own)
    try:
        p.run("available_now", spark=spark)
    finally:
        spark.conf.unset(ARROW_BYTES)
    assert seen[-1] == (used or default), "the last call is the query's"
    assert spark.conf.get(ARROW_BYTES) == default


def test_a_complete_result_replaces_the_table_and_is_never_added_to_it() -> None:
    """Every batch has all of it: appended, it would be there once for each batch."""
    p = Pipeline("p", store="sqlite:///x.db")

    def totals(matches: Any) -> Any:
        return matches.groupBy("team").count()

    p.table("totals", output_mode="complete")(totals)
    target = p.graph.steps["totals"].target
    assert isinstance(target, TableTarget)
    assert target.mode == "replace"
    with pytest.raises(ConfigError, match="which mode append would add again"):
        p.table("others", mode="append", output_mode="complete")(totals)
