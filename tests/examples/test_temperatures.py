"""Issue 16: a pipeline over another real data set, on a cluster, killed and resumed, exact."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Consumer, Producer
from kohort.client.common.types import TopicPartition
from kohort.retry.stores import open_store
from kohort.testing import Cluster
from tests.java import skip_without
from tests.patience import PATIENCE_S, until

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


class Run:
    """Topics, a database, and drivers of the example."""

    def __init__(self, cluster: Cluster, url: str, directory: Path) -> None:
        self.cluster, self.url, self.directory = cluster, url, directory
        cluster.create_topic("measured", partitions=2)
        cluster.create_topic("cities", partitions=1)
        cluster.create_topic("hot_hours", partitions=2)

    def send(self, topic: str, *rows: dict[str, Any]) -> None:
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for row in rows:
                producer.send(topic, json.dumps(row).encode(), row["city"].encode())
            producer.flush()

    def begin(self, master: str) -> subprocess.Popen[bytes]:
        command = ["pipeline", "run", str(EXAMPLE), "--master", master, "--mode", "until_idle"]
        return subprocess.Popen(
            [sys.executable, "-m", "kohort", *command],
            cwd=self.directory,
            stdout=(self.directory / "out").open("ab"),
            stderr=(self.directory / "log").open("ab"),
            start_new_session=True,
            env={
                **os.environ,
                "TEMPERATURES_STORE": self.url,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "KOHORT_BOOTSTRAP_SERVERS": self.cluster.bootstrap,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
        )

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        store = open_store(self.url)
        try:
            return store.query(sql)
        finally:
            store.close()

    def loaded(self) -> int:
        if not self.query("SELECT 1 WHERE to_regclass('readings') IS NOT NULL"):
            return 0
        return int(self.query("SELECT count(*) FROM readings")[0][0])

    def hot_hours(self) -> list[tuple[str, float]]:
        at = [TopicPartition("hot_hours", p) for p in range(2)]
        found: list[tuple[str, float]] = []
        with Consumer(
            bootstrap_servers=self.cluster.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            consumer.assign(at)
            ends = consumer.end_offsets(at)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                rows = [json.loads(r.value or b"") for r in consumer.poll(1)]
                found += [(row["city"], row["temp"]) for row in rows]
        return found


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
        run = Run(cluster, postgres.new_database(), tmp_path)
        run.send("cities", {"city": "Seattle", "state": "WA"})
        rows = [{"city": c, "at": at.isoformat(), "temp": temp} for c, at, temp in readings]
        run.send("measured", *rows, *[{"city": "Seattle", "at": None}] * BROKEN)
        driver = run.begin(spark.url)
        until(lambda: run.loaded() > 0 or driver.poll() is not None, "the first rows", PATIENCE_S)
        assert driver.poll() is None, (tmp_path / "log").read_text()[-4_000:]
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        run.send("cities", {"city": "San Francisco", "state": "CA"})
        driver = run.begin(spark.url)
        assert driver.wait(600) == 0, (tmp_path / "log").read_text()[-4_000:]
        check(run, readings)


def check(run: Run, readings: list[Reading]) -> None:
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
    assert Counter(run.hot_hours()) == hot
    failed = run.query(
        "SELECT reason, count(*) FROM kohort_ledger WHERE status = 'failed' GROUP BY 1"
    )
    assert failed == [("no_temperature", BROKEN)]
