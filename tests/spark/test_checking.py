"""`kohort pipeline check` and `--ship`: executors are asked before a pipeline is started."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort.errors import ConfigError
from kohort.spark import Pipeline
from kohort.spark.checking import Report, addresses_of, check_executors, driver_report, problems
from kohort.spark.shipping import needed, pack, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

HERE = Report(
    host="a",
    directory="/tmp",
    python="3.11.7",
    versions={"kohort": "1.0", "pyspark": "4.3.0", "pyarrow": "20.0", "pandas": None},
    unreachable={},
    offset_ms=0,
    within_ms=10,
    free_bytes=50 << 30,
)


def problems_of(
    report: Report, *, local: bool = False, store: str = "postgresql://h/d"
) -> list[str]:
    return problems([report], HERE, 1_000, local=local, store=store)


def test_nothing_is_in_the_way() -> None:
    assert problems_of(replace(HERE, python="3.11.9", offset_ms=900)) == []
    assert problems_of(replace(HERE, offset_ms=1_009)) == [], "it may be the look that took so long"
    assert problems_of(HERE, local=True, store="sqlite:///p.db") == []


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (replace(HERE, python="3.12.1"), "a: Python 3.12.1, and the driver has 3.11.7.*PYSPARK_"),
        (replace(HERE, versions={"pyarrow": "20.0"}), "a: kohort is not installed.*--ship"),
        (replace(HERE, versions={**HERE.versions, "kohort": "0.9"}), "kohort 0.9, and the driver"),
        (replace(HERE, unreachable={"broker b:1": "refused"}), "broker b:1 is not reached .refus"),
        (replace(HERE, offset_ms=-5_000), "its clock is 5s behind: set it by NTP, or raise clock"),
        (replace(HERE, free_bytes=1 << 28), "0.2 GiB of disk are free in /tmp"),
    ],
)
def test_what_is_in_the_way(report: Report, words: str) -> None:
    import re

    (line,) = problems_of(report)
    assert re.search(words, line), line


def test_a_file_is_out_of_reach_of_executors() -> None:
    (line,) = problems_of(HERE, store="sqlite:///p.db")
    assert "a file of the driver's machine, which executors do not reach; use PostgreSQL" in line


def test_what_is_reached() -> None:
    pipeline = Pipeline("p", store="postgresql://u@db/x", bootstrap_servers="b:1,[::1]:2")
    assert addresses_of(pipeline) == [
        ("broker b:1", "b", 1),
        ("broker [::1]:2", "::1", 2),
        ("store db:5432", "db", 5432),
    ]


@pytest.mark.spark
def test_the_executor_of_this_machine(spark: SparkSession, cluster: Cluster) -> None:
    """All cores of one executor tell the same; a port that nobody has is named."""
    servers = f"{cluster.bootstrap},127.0.0.1:1"
    pipeline = Pipeline("p", store="sqlite:///p.db", bootstrap_servers=servers)
    (report,) = check_executors(pipeline, spark)
    driver = driver_report()
    assert (report.python, report.host) == (driver.python, driver.host)
    assert report.versions == driver.versions
    assert set(report.unreachable) == {"broker 127.0.0.1:1"}
    assert abs(report.offset_ms) <= report.within_ms
    (line,) = problems([report], driver, 1_000, local=True, store=pipeline.store)
    assert "broker 127.0.0.1:1 is not reached" in line


def test_what_is_shipped() -> None:
    """Spec 6.9: Kohort, and all that it needs; neither pyspark nor the tools of tests."""
    names = needed("kohort", ("spark", "sql"))
    assert {"kohort", "pyarrow", "pandas", "cramjam", "click"} <= names
    assert not {"pyspark", "py4j", "pytest", "ruff"} & names


@pytest.mark.extended
def test_an_archive_is_enough(tmp_path: Path) -> None:
    """A Python without site-packages imports kohort and pyarrow from it."""
    archive = pack(tmp_path)
    assert pack(tmp_path) == archive
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    program = "import kohort.records, pyarrow, pandas; print('SEEN', kohort.__file__)"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(tmp_path / "unpacked")},
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert f"SEEN {tmp_path}/unpacked/kohort/__init__.py" in ran.stdout, ran.stderr
    settings = settings_of(archive)
    assert settings["spark.archives"].startswith("file:///")
    assert settings["spark.executorEnv.PYTHONPATH"] == "./kohort_environment"


def test_shipping_to_this_machine_is_refused(tmp_path: Path) -> None:
    from kohort.cli.pipeline.commands import _session

    pipeline = Pipeline("p", store="sqlite:///p.db")
    for master in (None, "local[2]"):
        with pytest.raises(ConfigError, match="--ship is for clusters"):
            _session(pipeline, master, (), ship=True)
