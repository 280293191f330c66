"""What a step may not do, found before anything is read (ADR 0023)."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from kohort.errors import KohortError
from kohort.spark.dataframes.analysing import analyse
from kohort.spark.dataframes.graph import Graph, Reference, Source, TableTarget, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def graph(step: Any) -> Graph:
    schema = {"schema": "team STRING, goals INT, at TIMESTAMP"}
    made = Graph()
    made.add_source(Source("matches", "t", ValueFormat.of("matches", "t", schema)))
    teams = ValueFormat.of("teams", "u", {"schema": "team STRING"})
    made.add_reference(Reference("teams", "u", teams, ("team",), 1 << 20))
    made.add_step(step, None, None)
    return made


def watermarked(matches: Any) -> Any:
    return matches.withWatermark("at", "1 minute").where("goals > 0")


def all_as_text(matches: Any) -> Any:
    return matches.select([F.col(name).cast("string") for name in matches.columns])


def others_as_text(matches: Any) -> Any:
    kept = [F.col(name).cast("string") for name in matches.columns if name != "_kohort"]
    return matches.select(*kept)


def all_as_json(matches: Any) -> Any:
    return matches.select(F.to_json(F.struct("*")).alias("value"))


def renamed(matches: Any) -> Any:
    return matches.toDF(*(name.upper() for name in matches.columns))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (watermarked, "step watermarked: withWatermark has no effect here"),
        (all_as_text, "step all_as_text changes the column _kohort,"),
        (others_as_text, "step others_as_text changes the column _kohort_verdict,"),
        (all_as_json, r"step all_as_json: to_json\(.* has the column _kohort, .* take all others"),
        (renamed, "step renamed: _kohort AS .* has the column _kohort, "),
    ],
)
def test_what_a_step_may_not_do(spark: SparkSession, step: Any, message: str) -> None:
    with pytest.raises(KohortError, match=message):
        analyse(spark, graph(step))


def by_udf(matches: Any) -> Any:
    size = F.udf(lambda row: len(row), "int")
    return matches.withColumn("size", size(F.struct("*"))).withColumn("n", F.col("goals") + 1)


def test_a_udf_may_take_whole_rows(spark: SparkSession) -> None:
    assert "size" in analyse(spark, graph(by_udf)).rows["by_udf"].names


def top(totals: Any) -> Any:
    return totals.orderBy(F.desc("n")).limit(3)


def all_of(totals: Any) -> Any:
    return totals.where("n > 1")


@pytest.mark.parametrize(
    ("output_mode", "step", "mode", "message"),
    [
        ("update", top, "append", r"step top: .*Limit sees only the rows of step totals that one"),
        ("update", all_of, "replace", "step all_of: mode replace sees only the rows of step"),
        ("complete", top, "append", "has the whole result of step totals"),
        ("complete", top, "replace", ""),
        ("update", all_of, "append", ""),
    ],
)
def test_steps_behind_a_stateful_one(
    spark: SparkSession, output_mode: str, step: Any, mode: str, message: str
) -> None:
    """The top three were those of the last changes, or added again at each batch."""

    def totals(matches: Any) -> Any:
        return matches.groupBy("team").agg(F.count("*").alias("n"))

    made = graph(totals)
    made.steps["totals"] = replace(made.steps["totals"], output_mode=output_mode)
    made.add_step(step, TableTarget("t", (), mode, None, ()), None)
    if not message:
        assert analyse(spark, made).rows[step.__name__].names == ["team", "n"]
        return
    with pytest.raises(KohortError, match=message):
        analyse(spark, made)


def known(matches: Any, teams: Any) -> Any:
    return "SELECT team FROM matches WHERE team IN (SELECT team FROM teams)"


def complete(matches: Any) -> Any:
    return matches.dropna()


def text_once(matches: Any) -> Any:
    """A step that keeps state gets no hidden columns."""
    return all_as_text(matches).dropDuplicates(["team"])


@pytest.mark.parametrize(
    ("step", "columns"),
    [
        (known, ["team"]),
        (complete, ["team", "goals", "at"]),
        (text_once, ["team", "goals", "at"]),
    ],
)
def test_what_a_step_may_do(spark: SparkSession, step: Any, columns: list[str]) -> None:
    assert analyse(spark, graph(step)).rows[step.__name__].names == columns
