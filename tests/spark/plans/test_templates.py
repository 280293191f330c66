"""Plans that are made once and take up each batch's frames (ADR 0023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from kohort.spark.plans.logical import computed_once, is_projection, local_frame
from kohort.spark.plans.templates import Templates
from kohort.spark.supervise import _PASSES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Frames = Mapping[str, "DataFrame"]


def rows(spark: SparkSession, *numbers: int) -> DataFrame:
    return local_frame(spark, pa.table({"n": pa.array(numbers, pa.int64())}))


def names(spark: SparkSession, **known: int) -> DataFrame:
    table = pa.table({"id": pa.array(known.values(), pa.int64()), "name": list(known)})
    return F.broadcast(local_frame(spark, table))


def test_a_function_is_called_once_and_sees_each_batch(spark: SparkSession) -> None:
    """A frame that is joined with itself, and a query of SQL, take up the batch's rows too."""
    calls: list[None] = []

    def step(frames: Frames) -> DataFrame:
        calls.append(None)
        frames["rows"].createOrReplaceTempView("rows")
        doubled = spark.sql("SELECT n, n + 1 AS next FROM rows WHERE n > 0")
        known = frames["names"]
        joined = doubled.join(known, doubled.n == known.id, "left")
        following = known.select(F.col("id").alias("next"), F.col("name").alias("next_name"))
        return joined.join(following, "next", "left").select("n", "name", "next_name")

    templates = Templates()
    batches = [((1, 2), {"one": 1, "two": 2}), ((2, 0), {"two": 2, "three": 3})]
    seen = [
        templates.apply("step", step, {"rows": rows(spark, *n), "names": names(spark, **known)})
        for n, known in batches
    ]
    assert [sorted(tuple(row) for row in frame.collect()) for frame in seen] == [
        [(1, "one", "two"), (2, "two", None)],
        [(2, "two", "three")],
    ]
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT n FROM rows WHERE n IN (SELECT id FROM names)", [[1], [2]]),
        ("SELECT n FROM rows WHERE NOT EXISTS (SELECT 1 FROM names WHERE id = n)", [[2], [1]]),
        ("SELECT n + (SELECT max(id) FROM names) AS n FROM rows", [[2, 3], [3, 4]]),
    ],
    ids=["in", "exists", "value"],
)
def test_a_subquery_sees_each_batch(
    spark: SparkSession, query: str, expected: list[list[int]]
) -> None:
    """Its frame is no leaf of the plan: every batch saw the empty one, and lost its rows."""

    def step(frames: Frames) -> DataFrame:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        return spark.sql(query)

    templates = Templates()
    seen = [
        templates.apply("step", step, {"rows": rows(spark, 1, 2), "names": names(spark, one=known)})
        for known in (1, 2)
    ]
    assert [sorted(row.n for row in frame.collect()) for frame in seen] == expected


def test_two_columns_of_one_name_stay_apart(spark: SparkSession) -> None:
    frame = rows(spark, 1).withColumn("m", F.lit(2)).toDF("x", "x")
    seen = Templates().apply("step", lambda f: f["rows"].toDF("first", "second"), {"rows": frame})
    assert seen.collect()[0].asDict() == {"first": 1, "second": 2}


def test_a_reference_is_still_broadcast(spark: SparkSession) -> None:
    """The hint holds though the frame is put in under the columns of the template."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        seen = Templates().apply(
            "step",
            lambda f: f["rows"].join(f["names"], F.col("n") == F.col("id"), "left"),
            {"rows": rows(spark, 1), "names": names(spark, one=1)},
        )
        jvm_frame: Any = seen._jdf
        plan = str(jvm_frame.queryExecution().executedPlan().toString())
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    assert "BroadcastHashJoin" in plan


def test_a_lost_block_of_a_frame_restarts_the_query(spark: SparkSession) -> None:
    """It is not computed a second time; the cause is one that passes."""
    frame, release = computed_once(rows(spark, 1))
    frame.collect()
    release()
    with pytest.raises(Exception, match=_PASSES):
        frame.collect()


def test_the_time_of_a_batch_is_its_own(spark: SparkSession) -> None:
    """What a plan says of the present time is not that of the first batch."""
    templates = Templates()

    def step(frames: Frames) -> DataFrame:
        return frames["rows"].select(F.current_timestamp().alias("at"))

    first, second = (
        templates.apply("step", step, {"rows": rows(spark, n)}).collect()[0]["at"] for n in (1, 2)
    )
    assert first < second


def test_a_frame_is_computed_once(spark: SparkSession) -> None:
    """Also when two jobs read it, and though its rows differ each time."""
    frame, release = computed_once(rows(spark, 1).select(F.rand().alias("r")))
    assert frame.collect() == frame.collect()
    release()


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda f: f.select("n", (F.col("n") * 2).alias("twice")), True),
        (lambda f: f.withColumn("m", F.lit(1)).drop("m"), True),
        (lambda f: f.where("n > 1"), False),
        (lambda f: f.withColumn("n", F.col("n") + 1), False),
        (lambda f: f.select("n", F.explode(F.array(F.lit(1), F.lit(2)))), False),
        (lambda f: f.union(f), False),
    ],
    ids=["columns", "dropped", "filtered", "changed", "exploded", "doubled"],
)
def test_a_projection_has_a_row_for_each_row(
    spark: SparkSession, step: Callable[[DataFrame], DataFrame], expected: bool
) -> None:
    """And its verdicts are those of the frame that it projects, here the column `n`."""
    frame = rows(spark, 1, 2)
    assert is_projection(step(frame), frame, "n") is expected


@pytest.mark.parametrize(
    "step",
    [
        lambda frames: frames["rows"].select(F.expr("uuid()").alias("chance")),
        lambda frames: frames["rows"].select(F.rand().alias("chance")),
        lambda frames: frames["rows"].select(F.shuffle(F.array(*map(F.lit, range(40))))),
    ],
    ids=["uuid", "rand", "shuffle"],
)
def test_chance_differs_from_batch_to_batch(
    spark: SparkSession, step: Callable[[Frames], DataFrame]
) -> None:
    """An id made by `uuid()` that came again would overwrite a row of an earlier batch."""
    templates = Templates()
    first, second = (templates.apply("step", step, {"rows": rows(spark, 1)}).first() for _ in "ab")
    assert first != second
