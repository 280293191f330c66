"""What a step may not do, found before anything is read (ADR 0023)."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from kohort.errors import KohortError
from kohort.spark.dataframes.analysing import analyse
from kohort.spark.dataframes.graph import Graph, Reference, Source, ValueFormat

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


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (watermarked, "step watermarked: withWatermark has no effect here"),
        (all_as_text, "step all_as_text changes the column _kohort"),
    ],
)
def test_what_a_step_may_not_do(spark: SparkSession, step: Any, message: str) -> None:
    with pytest.raises(KohortError, match=message):
        analyse(spark, graph(step))


def known(matches: Any, teams: Any) -> Any:
    return "SELECT team FROM matches WHERE team IN (SELECT team FROM teams)"


def complete(matches: Any) -> Any:
    return matches.dropna()


@pytest.mark.parametrize(
    ("step", "columns"), [(known, ["team"]), (complete, ["team", "goals", "at"])]
)
def test_what_a_step_may_do(spark: SparkSession, step: Any, columns: list[str]) -> None:
    assert analyse(spark, graph(step)).rows[step.__name__].names == columns
