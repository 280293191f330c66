"""Steps as one plan that keeps the rows which fail or are filtered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from kohort.spark.dataframes.columns import HIDDEN, ORIGIN, VERDICT, VERDICT_TYPE, reject, retry
from kohort.spark.dataframes.guards import KEPT, NotRowByRowError, guarded
from kohort.spark.dataframes.narrow import first_verdicts
from kohort.spark.plans.logical import carried, dropna_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Step = Callable[["DataFrame"], "DataFrame"]


def source(spark: SparkSession, *numbers: int | None) -> DataFrame:
    """Rows of one number; the record of each null did not decode."""
    table: Any = [(n, number) for n, number in enumerate(numbers)]
    rows = spark.createDataFrame(table, "offset LONG, n INT")
    broken = F.struct(F.lit(True), F.lit("undecodable"), F.lit("no number")).cast(VERDICT_TYPE)
    verdict = F.when(F.col("n").isNull(), broken).alias(VERDICT)
    return rows.select("n", F.struct("offset").alias(ORIGIN), verdict)


def made(rows: DataFrame, *steps: Step) -> list[tuple[Any, ...]]:
    """Offset, reason, whether the row is kept, and the other columns, of every row."""
    for step in steps:
        hidden = HIDDEN if KEPT not in rows.columns else (*HIDDEN, KEPT)
        rows = guarded(carried(step(rows), hidden), rows)
    kept = F.col(KEPT) if KEPT in rows.columns else F.lit(True)
    shown = rows.drop(*HIDDEN, KEPT).columns
    picked = rows.select(f"{ORIGIN}.offset", f"{VERDICT}.reason", kept, *shown)
    return sorted(tuple(row) for row in picked.collect())


def ratio(rows: DataFrame) -> DataFrame:
    return rows.select((60 / F.col("n")).cast("int").alias("ratio"))


def test_a_later_step_is_evaluated_for_rows_without_a_verdict_only(spark: SparkSession) -> None:
    """A division by zero behind a rejection would fail the batch."""
    rows = source(spark, 2, 0, None, 5)
    checked = reject(F.col("n") == 0, "zero")
    assert made(rows, checked, ratio) == [
        (0, None, True, 30),
        (1, "zero", True, None),
        (2, "undecodable", True, None),
        (3, None, True, 12),
    ]


def test_a_filter_keeps_its_rows_and_guards_what_follows(spark: SparkSession) -> None:
    """In one step, in the next one, and with a condition that is null."""
    rows = source(spark, 2, 0, None, 5)

    def where(rows: DataFrame) -> DataFrame:
        return rows.where("n > 0").select((60 / F.col("n")).cast("int").alias("ratio"))

    expected = [(0, None, True, 30), (1, None, False, None), (2, "undecodable", True, None)]
    assert made(rows, where)[:3] == expected
    assert made(rows, lambda f: f.where("n > 0"), ratio)[:3] == expected
    unknown = made(rows, lambda f: f.where("IF(n = 5, null, true)"), lambda f: f.select("n"))
    assert unknown[3] == (3, None, False, 5)
    twice = made(rows, lambda f: f.where("n <> 5"), lambda f: f.where("n > 0"), ratio)
    assert [row[2] for row in twice] == [True, False, True, False]


@pytest.mark.parametrize(
    ("how", "kept"), [({}, [0, 1]), ({"how": "all"}, [0, 1]), ({"thresh": 1}, [0, 1])]
)
def test_dropna_looks_at_the_rows_own_columns(
    spark: SparkSession, how: dict[str, Any], kept: list[int]
) -> None:
    """The verdict is null in every row that passes: all of them were dropped."""
    rows = source(spark, 2, 0).select("n", ORIGIN, F.lit(None).cast(VERDICT_TYPE).alias(VERDICT))
    other = F.struct(F.lit(9).cast("long").alias("offset"))
    rows = rows.union(rows.select(F.lit(None).cast("int"), other, VERDICT))
    found = dropna_of(rows.dropna(**how).where("n IS NULL OR n < 5"), HIDDEN)
    assert sorted(row[ORIGIN].offset for row in found.collect()) == kept
    plain = rows.where("n > 0")
    assert dropna_of(plain, HIDDEN) is plain


def test_one_verdict_of_each_input_is_copied(spark: SparkSession) -> None:
    """The one that `judge` books: a permanent one, then by reason and message."""
    verdicts = [
        (1, False, "a", "x"),
        (1, True, "b", "y"),
        (1, True, "b", None),
        (2, False, "c", ""),
    ]
    rows = spark.createDataFrame(
        verdicts, "offset LONG, permanent BOOLEAN, reason STRING, m STRING"
    )
    place = F.struct(F.lit("t").alias("topic"), F.lit(0).alias("partition"), "offset").alias(ORIGIN)
    verdict = F.struct("permanent", "reason", F.col("m").alias("message"))
    hidden = rows.select(place, verdict.cast(VERDICT_TYPE).alias(VERDICT))
    for order in (F.col(VERDICT).asc(), F.col(VERDICT).desc()):
        found = first_verdicts(hidden.orderBy(order)).collect()
        shown = sorted((row[ORIGIN].offset, *row[VERDICT]) for row in found)
        assert shown == [(1, True, "b", None), (2, False, "c", "")]


def test_a_row_that_its_own_step_rejects_and_then_filters_is_filtered(spark: SparkSession) -> None:
    """The filter of that step sees it; a filter of a later step does not."""
    rows = source(spark, 1, 2)
    rejects: Step = retry(F.col("n") == 1, "one")
    assert made(rows, lambda f: rejects(f).where("n > 1"))[0][2] is False
    assert made(rows, rejects, lambda f: f.where("n > 1"))[0][:3] == (0, "one", True)


def test_the_first_verdict_stays(spark: SparkSession) -> None:
    rows = source(spark, 1)
    steps = (reject(F.col("n") == 1, "first"), reject(F.lit(True), "second"))
    assert made(rows, *steps) == [(0, "first", True, 1)]


@pytest.mark.parametrize(
    "step",
    [
        lambda f: f.join(f.select(F.col("n").alias("m")), F.col("n") == F.col("m")),
        lambda f: f.select("n", F.explode(F.array("n", "n"))),
        lambda f: f.select(F.udf("int")(lambda n: n)("n").alias("n")),
        lambda f: f.select(F.rand().alias("n")),
        lambda f: f.select(F.monotonically_increasing_id().alias("n")),
        lambda f: f.where("n = (SELECT 1)"),
        lambda f: f.union(f),
    ],
    ids=["join", "explode", "python", "random", "id", "subquery", "union"],
)
def test_a_step_that_does_more_is_refused(spark: SparkSession, step: Step) -> None:
    with pytest.raises(NotRowByRowError):
        made(source(spark, 1), step)
