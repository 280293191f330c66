"""Physical plans that are made once (ADR 0023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from kohort.spark.plans.logical import computed_once, local_frame
from kohort.spark.plans.physical import PhysicalPlans

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    made = local_frame(spark, pa.table({"n": pa.array(numbers, pa.int64())}))
    return computed_once(made)[0]


def names(spark: SparkSession, **known: int) -> DataFrame:
    table = pa.table({"id": pa.array(known.values(), pa.int64()), "name": list(known)})
    return F.broadcast(computed_once(local_frame(spark, table))[0])


class Calls:
    """A step that counts how often it is planned."""

    def __init__(self, plans: PhysicalPlans, step: Callable[..., DataFrame]) -> None:
        self.plans, self.step, self.count = plans, step, 0

    def __call__(self, **frames: DataFrame) -> list[Any]:
        def build() -> DataFrame:
            self.count += 1
            return self.step(**frames)

        made = self.plans.frame("step", frames, build)
        return sorted((tuple(row) for row in made.collect()), key=str)


def test_a_plan_is_made_once_and_sees_each_batch(spark: SparkSession) -> None:
    step = Calls(
        PhysicalPlans(),
        lambda rows, names: (
            rows.where("n > 0").join(names, F.col("n") == F.col("id"), "left").select("n", "name")
        ),
    )
    known = names(spark, one=1, two=2)
    assert step(rows=rows(spark, 1, 0), names=known) == [(1, "one")]
    assert step(rows=rows(spark, 2, 3), names=known) == [(2, "two"), (3, None)]
    assert step(rows=rows(spark, 2, 3), names=names(spark, three=3)) == [(2, None), (3, "three")]
    assert step(rows=rows(spark, 3), names=known) == [(3, None)]
    assert step.count == 1


def test_the_reports_of_a_kept_plan_need_no_query_of_their_own(spark: SparkSession) -> None:
    plans, text = PhysicalPlans(), '], [" \u2028'
    session: Any = spark._jsparkSession
    context: Any = spark.sparkContext._jsc

    def queries() -> int:
        context.sc().listenerBus().waitUntilEmpty()
        return session.sharedState().statusStore().executionsCount()

    def reports(batch: DataFrame) -> list[int]:
        report = F.to_json(F.struct(F.col("n"), F.lit(text).alias("text")))
        made = plans.reports("job", {"rows": batch}, lambda: batch.select(report))
        assert all(report["text"] == text for report in made)
        return sorted(report["n"] for report in made)

    batches = [rows(spark, 1, 2), rows(spark, 3), rows(spark)]
    assert reports(batches[0]) == [1, 2]
    before = queries()
    assert reports(batches[1]) == [3]
    assert reports(batches[2]) == []
    assert queries() == before


def test_what_did_not_change_is_broadcast_once(spark: SparkSession) -> None:
    """The exchange is the same object, which keeps its result."""
    plans = PhysicalPlans()
    reference = names(spark, one=1)
    exchanges: list[int] = []
    for number in (1, 2, 3):
        frames = {"rows": rows(spark, number), "names": reference}
        joined = frames["rows"].join(reference, F.col("n") == F.col("id"), "left")
        plans.frame("step", frames, lambda joined=joined: joined).collect()
        plan = plans._made["step"].root.plan
        while "BroadcastHashJoin" not in plan.nodeName():
            plan = plan.children().apply(0)
        identity: Any = spark._jvm.java.lang.System.identityHashCode  # type: ignore[union-attr]
        exchanges.append(identity(plan.right()))
    assert len(set(exchanges)) == 1


def test_a_frame_that_is_read_twice(spark: SparkSession) -> None:
    step = Calls(
        PhysicalPlans(),
        lambda rows: rows.unionAll(rows.where("n = 1")).unionAll(rows.select(F.col("n") * 10)),
    )
    assert step(rows=rows(spark, 1)) == [(1,), (1,), (10,)]
    assert step(rows=rows(spark, 2)) == [(2,), (20,)]
    assert step.count == 1


def test_a_plan_with_a_shuffle(spark: SparkSession) -> None:
    step = Calls(PhysicalPlans(), lambda rows: rows.repartition(3, "n").distinct())
    assert step(rows=rows(spark, 1, 1, 2)) == [(1,), (2,)]
    assert step(rows=rows(spark, 3, 3)) == [(3,)]
    assert step.count == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda rows: rows.select(F.current_timestamp().isNotNull(), "n"),
        lambda rows: rows.where("n > (SELECT 0)"),
        lambda rows: rows.select(F.expr("uuid()").isNotNull(), "n"),
        lambda rows: rows.select(F.current_date() > F.lit("2001-01-01"), "n"),
    ],
    ids=["time", "subquery", "chance", "date"],
)
def test_what_changes_by_itself_is_planned_each_time(
    spark: SparkSession, step: Callable[[DataFrame], DataFrame]
) -> None:
    counted = Calls(PhysicalPlans(), step)
    for number in (1, 2, 3):
        assert counted(rows=rows(spark, number))[0][-1] == number
    assert counted.count == 3


def test_an_exchange_that_is_used_twice(spark: SparkSession) -> None:
    """A node elsewhere in the plan holds it, with the rows of the first batch."""

    def step(rows: DataFrame) -> DataFrame:
        counts = rows.groupBy("n").count()
        return counts.unionAll(rows.groupBy("n").count())

    counted = Calls(PhysicalPlans(), step)
    assert counted(rows=rows(spark, 1)) == [(1, 1), (1, 1)]
    assert counted(rows=rows(spark, 2)) == [(2, 1), (2, 1)]


def test_a_table_elsewhere_is_planned_each_time(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    local_frame(spark, pa.table({"m": [1]})).write.parquet(path)
    counted = Calls(PhysicalPlans(), lambda rows: rows.join(spark.read.parquet(path)))
    assert counted(rows=rows(spark, 1)) == [(1, 1)]
    local_frame(spark, pa.table({"m": [2]})).write.mode("overwrite").parquet(path)
    assert counted(rows=rows(spark, 1)) == [(1, 2)]


def test_frames_that_are_partitioned_in_another_way(spark: SparkSession) -> None:
    """An aggregation over rows that lie together needs no shuffle; over others it does."""
    step = Calls(PhysicalPlans(), lambda rows: rows.groupBy("n").count())
    scattered = rows(spark, 1, 2, 1, 2)
    by_key = computed_once(scattered.repartition(2, "n"))[0]
    assert step(rows=by_key) == [(1, 2), (2, 2)]
    assert step(rows=scattered) == [(1, 2), (2, 2)]
    assert step(rows=by_key) == [(1, 2), (2, 2)]


def test_frames_with_other_columns(spark: SparkSession) -> None:
    """A plan reads the values of a row by position."""
    step = Calls(PhysicalPlans(), lambda rows: rows.select(F.col("a") - F.col("b")))
    for table in ({"a": [5], "b": [3]}, {"b": [3], "a": [5]}):
        assert step(rows=computed_once(local_frame(spark, pa.table(table)))[0]) == [(2,)]
    assert step.count == 2


def test_a_frame_that_is_no_rdd_is_planned_each_time(spark: SparkSession) -> None:
    step = Calls(PhysicalPlans(), lambda rows: rows.select(F.col("n") + 1))
    for number in (1, 2):
        assert step(rows=rows(spark, number).where("n > 0")) == [(number + 1,)]
    assert step.count == 2


def test_one_frame_under_two_names(spark: SparkSession) -> None:
    """A plan cannot tell them apart, and the next batch has two frames."""
    step = Calls(PhysicalPlans(), lambda left, right: left.unionAll(right))
    both = rows(spark, 1)
    assert step(left=both, right=both) == [(1,), (1,)]
    assert step(left=rows(spark, 2), right=rows(spark, 3)) == [(2,), (3,)]
