"""Pipelines of DataFrames over records of a test (`kohort.testing.PipelineHarness`)."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kohort.errors import ConfigError, UsageError
from kohort.spark import Pipeline
from kohort.testing import PipelineHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def league() -> Pipeline:
    """Matches of teams in a reference; sums in a stateful step, and a topic."""
    from pyspark.sql import functions as F

    p = Pipeline("league", store="sqlite:///unused.db", retries="1h 1h")

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS results (team TEXT, city TEXT, attempt INTEGER)")
        store.run("CREATE TABLE IF NOT EXISTS standings (team TEXT PRIMARY KEY, goals BIGINT)")

    p.source("matches", schema="team STRING, goals INT")
    p.reference("teams", key="team", schema="team STRING, city STRING")

    @p.table("results")
    def results(matches: Any, teams: Any) -> Any:
        return (
            matches.join(teams, "team", "left")
            .transform(p.reject(F.col("goals") < 0, "negative_goals"))
            .transform(p.retry(F.col("city").isNull(), "team_unknown"))
            .select("team", "city", p.attempt().alias("attempt"))
        )

    @p.topic("announcements", key="team")
    def announcements(results: Any) -> Any:
        return "SELECT team FROM results"

    @p.step
    def scored(matches: Any) -> Any:
        return matches.select("team", "goals")

    @p.table("standings", key="team")
    def standings(scored: Any) -> Any:
        return "SELECT team, sum(goals) AS goals FROM scored GROUP BY team"

    return p


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_dataframes_with_retries_of_hours_and_a_driver_that_dies(spark: SparkSession) -> None:
    with PipelineHarness(league(), spark=spark, crash_at=4) as harness:
        harness.send("teams", {"team": "reds", "city": "Oslo"})
        for team, goals in [("reds", 2), ("blues", 1), ("reds", -1), ("greens", 5)]:
            harness.send("matches", {"team": team, "goals": goals})
        harness.run()
        assert harness.crashes == 1
        assert harness.rows("SELECT * FROM results") == [("reds", "Oslo", 0)]
        assert [r.reason for r in harness.retries()] == ["team_unknown"] * 2
        harness.advance("59m")
        assert harness.rows("SELECT count(*) FROM results") == [(1,)]
        harness.send("teams", {"team": "blues", "city": "Bergen"})
        harness.advance("2h")
        rows = sorted(harness.rows("SELECT * FROM results"))
        assert rows == [("blues", "Bergen", 1), ("reds", "Oslo", 0)]
        dead = [(r.offset, r.attempts, r.reason) for r in harness.dead_letters()]
        assert dead == [(2, 1, "negative_goals"), (3, 3, "team_unknown")]
        assert len(harness.records("announcements")) == 2
        assert sorted(harness.rows("SELECT * FROM standings")) == [("blues", 1), ("reds", 2)]


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_an_advance_without_a_run_before_it_retries_what_is_due(spark: SparkSession) -> None:
    with PipelineHarness(league(), spark=spark) as harness:
        harness.send("matches", {"team": "blues", "goals": 1})
        harness.advance("1h")
        assert [r.attempts for r in harness.retries()] == [2]


@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_a_column_has_the_timestamps_of_a_topics_records(spark: SparkSession) -> None:
    """Of rows that become JSON, with a key and without."""
    p = Pipeline("played", store="sqlite:///unused.db", retries="none")
    p.source("matches", schema="team STRING, at TIMESTAMP", event_time="at")

    @p.topic("keyed", key="team", timestamp="at")
    def keyed(matches: Any) -> Any:
        return matches.select("team", "at")

    @p.topic("unkeyed", timestamp="at")
    def unkeyed(matches: Any) -> Any:
        return matches.select("team", "at")

    with PipelineHarness(p, spark=spark) as harness:
        harness.send("matches", {"team": "reds", "at": "2026-05-01T18:00:00Z"})
        harness.run()
        for topic in ("keyed", "unkeyed"):
            (record,) = harness.records(topic)
            assert record.timestamp == 1_777_658_400_000


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp": "when"}, "timestamp='when' of topic out is not a column of type TIMESTAMP"),
        ({"timestamp": "team"}, "timestamp='team' of topic out is not a column of type TIMESTAMP"),
        ({"key": "name"}, "key='name' of topic out is not a column; there are team"),
    ],
)
def test_what_no_column_has_is_refused_before_anything_starts(
    spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    p = Pipeline("wrong", store="sqlite:///unused.db", retries="none")
    p.source("matches", schema="team STRING")

    @p.topic("out", **options)
    def out(matches: Any) -> Any:
        return matches.select("team")

    with pytest.raises(ConfigError, match=message), PipelineHarness(p, spark=spark) as harness:
        harness.run()


@pytest.mark.spark
def test_row_handlers_and_dataframes_are_tested_apart(spark: SparkSession) -> None:
    pipeline = league()
    pipeline.handler("other", table="results")(lambda record, store: None)
    with pytest.raises(UsageError, match="not both"):
        PipelineHarness(pipeline, spark=spark)
