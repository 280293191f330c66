"""Issue 16: a pipeline over another real data set, on a cluster, killed and resumed, exact."""

from __future__ import annotations

import csv
import datetime as dt
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort.testing import Cluster
from tests.examples.cluster_run import ClusterRun
from tests.java import skip_without

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "temperatures.py"
CITIES = {"Seattle": ("seattle-temps.csv", "WA"), "San Francisco": ("sf-temps.csv", "CA")}
BROKEN = 7
Reading = tuple[str, dt.datetime, float]


def measured() -> Iterator[Reading]:
    """Every reading of the data set."""
    data = files("vega_datasets") / "_data"
    for city, (name, _) in CITIES.items():
        for row in csv.DictReader((data / name).read_text().splitlines()):
            stamp = dt.datetime.strptime(row["date"][:16], "%Y/%m/%d %H:%M").replace(tzinfo=dt.UTC)
            yield city, stamp, float(row["temp"])


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_killed_on_a_cluster_and_resumed_it_is_exact(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    pytest.importorskip("vega_datasets")
    skip_without()
    from tests.spark.standalone import standalone

    readings = list(measured())
    assert len(readings) == 17_518
    with Cluster() as cluster, standalone(tmp_path, workers=2, cores=1) as spark:
        run = ClusterRun(
            cluster,
            postgres.new_database(),
            tmp_path,
            file=EXAMPLE,
            store="TEMPERATURES_STORE",
            topics={"measured": 2, "cities": 1, "hot_hours": 2},
            options=("--conf", "spark.sql.shuffle.partitions=2"),
        )
        run.send("cities", [{"city": "Seattle", "state": "WA"}], "city")
        rows = [{"city": c, "at": at.isoformat(), "temp": temp} for c, at, temp in readings]
        run.send("measured", [*rows, *[{"city": "Seattle", "at": None}] * BROKEN], "city")
        run.kill_when_filled(spark.url, "readings", 400)
        run.send("cities", [{"city": "San Francisco", "state": "CA"}], "city")
        run.finish(spark.url, 600)
        check(run, readings)


def check(run: ClusterRun, readings: list[Reading]) -> None:
    """Tables and topic are what the data set says, once each."""
    states = {city: state for city, (_, state) in CITIES.items()}
    table = run.query("SELECT city, state, at, temp FROM readings")
    expected = Counter((c, states[c], at.replace(tzinfo=None), temp) for c, at, temp in readings)
    assert Counter(table) == expected
    days: dict[tuple[str, dt.date], list[float]] = {}
    for city, at, temp in readings:
        days.setdefault((city, at.date()), []).append(temp)
    assert {(c, d): (low, high, n) for c, d, low, high, n in run.query("SELECT * FROM days")} == {
        key: (min(temps), max(temps), len(temps)) for key, temps in days.items()
    }
    hot = Counter((city, temp) for city, _, temp in readings if temp > 70)
    assert Counter((r["city"], r["temp"]) for r in run.committed("hot_hours")) == hot
    failed = run.query(
        "SELECT reason, count(*) FROM kohort_ledger WHERE status = 'failed' GROUP BY 1"
    )
    assert failed == [("no_temperature", BROKEN)]
