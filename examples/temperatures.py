"""Hourly temperatures of two cities: a table of readings, and the extremes of each day.

    kohort pipeline run examples/temperatures.py --master spark://host:7077

- `readings`: a row for each hour, with the state of its city;
- `days`: lowest, highest and number of readings by city and day; it keeps state;
- `hot_hours`: a topic of the hours above 70 degrees.

A reading of a city that is not known yet is retried. One without a temperature can never succeed.
The data set is `vega_datasets` (PyPI): 17,518 readings of 2010 in Seattle and San Francisco.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kohort.spark import Pipeline, SetupStore

HOT = 70.0

p = Pipeline(
    "temperatures",
    store=os.environ.get("TEMPERATURES_STORE", "sqlite:///temperatures.db"),
    retries="1s 5s 30s",
    max_offsets_per_trigger=4_000,
)
p.source(
    "measured", schema="city STRING, at TIMESTAMP, temp DOUBLE", event_time="at", name="measured"
)
p.reference("cities", key="city", schema="city STRING, state STRING")


@p.setup
def tables(store: SetupStore) -> None:
    """The tables, where they are missing."""
    store.run(
        "CREATE TABLE IF NOT EXISTS readings (city TEXT, state TEXT, at TIMESTAMP, "
        "temp DOUBLE PRECISION)"
    )
    store.run(
        "CREATE TABLE IF NOT EXISTS days (city TEXT, day DATE, low DOUBLE PRECISION, "
        "high DOUBLE PRECISION, readings BIGINT, PRIMARY KEY (city, day))"
    )


@p.table("readings")
def readings(measured: DataFrame, cities: DataFrame) -> DataFrame:
    """Readings that have a temperature, with the state of their city."""
    return (
        measured.join(cities, "city", "left")
        .transform(p.reject(F.col("temp").isNull(), "no_temperature"))
        .transform(p.retry(F.col("state").isNull(), "city_unknown"))
        .select("city", "state", "at", "temp")
    )


@p.table("days", key=("city", "day"))
def days(readings: DataFrame) -> DataFrame:
    """The extremes of each day."""
    by_day = readings.groupBy("city", F.to_date("at").alias("day"))
    return by_day.agg(
        F.min("temp").alias("low"), F.max("temp").alias("high"), F.count("*").alias("readings")
    )


@p.topic("hot_hours", key="city")
def hot_hours(readings: DataFrame) -> DataFrame:
    """Hours above 70 degrees Fahrenheit."""
    return readings.where(F.col("temp") > HOT).select("city", "at", "temp")


if __name__ == "__main__":
    p.run("until_idle")
