"""A year of flights, joined with their weather, planes and airports, on Spark DataFrames.

    kohort pipeline run examples/flights_pipeline.py

Four topics with schemas go in; two tables and a topic come out, each exactly once:

- `flights`: a row for each flight that could be joined;
- `delays_by_hour`: flights and departure delays by airport and hour, a window over event time;
- `departures`: the topic of the joined flights.

What can go wrong here goes wrong in real data. 7,602 flights go to airports that the airport table
does not have: no retry can help, they are rejected. Some weather comes late: a flight without its
weather is retried, and loaded when the weather is there; when it never comes, the flight ends in
the dead-letter topic.

`kohort demo flights` produces the data, runs this file and balances the books.
`flights_handlers.py` loads the same flights with row handlers.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kohort.spark import Pipeline, SetupStore

STORE = os.environ.get("FLIGHTS_STORE", "sqlite:///build/demo/flights.db")
RETRIES = os.environ.get("FLIGHTS_RETRIES", "1s 1s 3s 3s 3s 6s")
CHECKPOINT = os.environ.get("FLIGHTS_CHECKPOINT", "build/demo/checkpoint")
HOUR = "yyyy-MM-dd'T'HH:mm:ss'Z'"

pipeline = Pipeline(
    "flights",
    group="flights-loader",
    store=STORE,
    retries=RETRIES,
    checkpoint=CHECKPOINT,
)

pipeline.source(
    "flights",
    name="scheduled",
    event_time="time_hour",
    schema="time_hour TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, sched_dep_time INT, dep_delay INT, arr_delay INT, air_time INT, distance INT",
)
pipeline.reference(
    "weather",
    key=("origin", "time_hour"),
    schema="origin STRING, time_hour TIMESTAMP, temp DOUBLE, wind_speed DOUBLE, visib DOUBLE",
)
pipeline.reference("planes", key="tailnum", schema="tailnum STRING, model STRING, seats INT")
pipeline.reference("airports", key="faa", schema="faa STRING, name STRING, tzone STRING")


@pipeline.setup
def tables(store: SetupStore) -> None:
    """Create the tables."""
    store.run(
        "CREATE TABLE IF NOT EXISTS flights ("
        "time_hour TEXT NOT NULL, carrier TEXT NOT NULL, flight INTEGER NOT NULL, "
        "origin TEXT NOT NULL, dest TEXT NOT NULL, dest_name TEXT NOT NULL, tailnum TEXT, "
        "model TEXT, seats INTEGER, temp REAL, wind_speed REAL, visib REAL, "
        "sched_dep_time INTEGER, dep_delay INTEGER, arr_delay INTEGER, air_time INTEGER, "
        "distance INTEGER, attempt INTEGER NOT NULL, loaded_at DOUBLE PRECISION NOT NULL, "
        "PRIMARY KEY (time_hour, carrier, flight, origin))"
    )
    store.run(
        "CREATE TABLE IF NOT EXISTS delays_by_hour (origin TEXT NOT NULL, hour TEXT NOT NULL, "
        "flights BIGINT NOT NULL, dep_delay_sum BIGINT NOT NULL, PRIMARY KEY (origin, hour))"
    )


@pipeline.step
def joined(
    scheduled: DataFrame, weather: DataFrame, planes: DataFrame, airports: DataFrame
) -> DataFrame:
    """Each flight with its destination, its weather and its plane, if the plane is known."""
    observed = weather.withColumn("observed", F.lit(True))
    destinations = airports.select(F.col("faa").alias("dest"), F.col("name").alias("dest_name"))
    return (
        scheduled.join(destinations, "dest", "left")
        .transform(pipeline.reject(F.col("dest_name").isNull(), "unknown_airport", F.col("dest")))
        .join(observed, ["origin", "time_hour"], "left")
        .transform(pipeline.retry(F.col("observed").isNull(), "missing_weather"))
        .join(planes, "tailnum", "left")
    )


@pipeline.table("flights", key=("time_hour", "carrier", "flight", "origin"))
def flights(joined: DataFrame) -> DataFrame:
    """A row for each flight."""
    return joined.select(
        F.date_format("time_hour", HOUR).alias("time_hour"),
        "carrier",
        "flight",
        "origin",
        "dest",
        "dest_name",
        "tailnum",
        "model",
        "seats",
        "temp",
        "wind_speed",
        "visib",
        "sched_dep_time",
        "dep_delay",
        "arr_delay",
        "air_time",
        "distance",
        pipeline.attempt().alias("attempt"),
        F.current_timestamp().cast("double").alias("loaded_at"),
    )


@pipeline.topic("departures", key=("carrier", "flight", "origin", "time_hour"))
def departures(joined: DataFrame) -> DataFrame:
    """The same flights, for consumers of the topic."""
    return joined.select(
        "time_hour",
        "carrier",
        "flight",
        "origin",
        "dest",
        "dest_name",
        "model",
        "dep_delay",
        "temp",
        "wind_speed",
        "visib",
    )


@pipeline.step
def delays(joined: DataFrame) -> DataFrame:
    """The columns of a flight that the sums need."""
    return joined.select("origin", "time_hour", "dep_delay")


@pipeline.table("delays_by_hour", key=("origin", "hour"))
def delays_by_hour(delays: DataFrame) -> DataFrame:
    """Flights and delays of each hour and airport.

    A run plays a year in a minute, so a flight that is retried for six seconds is months late: the
    watermark keeps all hours of the year open.
    """
    hours = F.window("time_hour", "1 hour")
    return (
        delays.withWatermark("time_hour", "400 days")
        .groupBy(hours, "origin")
        .agg(F.count("*").alias("flights"), F.sum("dep_delay").alias("dep_delay_sum"))
        .select(
            "origin",
            F.date_format("window.start", HOUR).alias("hour"),
            "flights",
            F.coalesce("dep_delay_sum", F.lit(0)).alias("dep_delay_sum"),
        )
    )


if __name__ == "__main__":
    pipeline.run()
