"""What a session of ours does otherwise than PySpark's own."""

from __future__ import annotations

import os
import socketserver
from types import SimpleNamespace
from typing import Any

import pytest

from kohort.errors import ConfigError
from kohort.spark import Pipeline, sessions
from kohort.spark.sessions import (
    check_classic,
    end_quietly,
    jvm_pid,
    make_active,
    scheduler_pools,
)
from tests.known import fake


@pytest.mark.parametrize(("error", "expected"), [(EOFError(), ""), (ValueError("bad"), "bad")])
def test_the_end_of_the_jvm_is_no_error(
    capfd: pytest.CaptureFixture[str], error: Exception, expected: str
) -> None:
    """A run that ended well left a traceback of PySpark's accumulator server, now and then."""
    server = object.__new__(socketserver.BaseServer)
    end_quietly(SimpleNamespace(_accumulatorServer=server))
    try:
        raise error
    except Exception:
        server.handle_error(fake(None), ("127.0.0.1", 1))
    printed = capfd.readouterr().err
    assert expected in printed
    assert bool(printed) is bool(expected)


def test_a_context_without_such_a_server() -> None:
    end_quietly(SimpleNamespace())


def of_frames() -> Pipeline:
    pipeline = Pipeline("p", store="sqlite:///p.db")
    pipeline.source("t", schema="n INT")
    pipeline.table("rows")(copied)
    return pipeline


def copied(t: Any) -> Any:
    return t


def test_spark_connect_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 17: before anything is begun, by the session, the master or the environment."""
    pytest.importorskip("pyspark")
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    message = "pipeline p needs a driver of its own.*Nothing was started.*spark-submit"
    with pytest.raises(ConfigError, match=message):
        check_classic("pipeline p", remote)
    with pytest.raises(ConfigError, match=f"which has steps of DataFrames, {message[11:]}"):
        of_frames().run(spark=fake(remote))
    check_classic("pipeline p", SimpleNamespace())


def test_what_spark_connect_has_no_part_in() -> None:
    """A session of it has no JVM here, no pools, and is active by itself."""
    remote = fake(type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})())
    make_active(remote)
    assert jvm_pid(remote) is None
    with scheduler_pools(remote) as use_pool:
        use_pool("a")


def test_the_pool_of_before_comes_back() -> None:
    properties = {"spark.scheduler.pool": "theirs"}
    context = SimpleNamespace(
        getLocalProperty=properties.get, setLocalProperty=properties.__setitem__
    )
    spark = fake(SimpleNamespace(sparkContext=context))
    with scheduler_pools(spark) as use_pool:
        use_pool("ours")
        assert properties["spark.scheduler.pool"] == "ours"
    assert properties["spark.scheduler.pool"] == "theirs"


def test_a_session_by_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert sessions._remote("sc://host:15002") == "sc://host:15002"
    assert sessions._remote("local[2]") is None
    assert sessions._remote(None) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    assert sessions._remote(None) == "sc://other"
    assert sessions._remote("local[2]") is None, "what the program says wins over the environment"


@pytest.mark.parametrize(
    ("asked", "submitted", "used"),
    [
        (None, {}, "local[*]"),
        ("spark://a:1", {}, "spark://a:1"),
        (None, {"spark.master": "yarn"}, "yarn"),
        ("local[1]", {"spark.master": "yarn"}, "yarn"),
    ],
)
def test_the_master_of_spark_submit_wins(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, submitted: dict[str, str], used: str
) -> None:
    """Spec 6.9: local[*] by default; a master URL is all that changes."""
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    assert sessions._master(asked, submitted) == used


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local[3]", 3), ("local[3,4]", 3), ("local", 1), ("local[*]", os.cpu_count())],
)
def test_shuffle_partitions_are_the_cores(master: str, cores: int) -> None:
    assert sessions._cores(master) == cores
    assert "spark.sql.shuffle.partitions" not in sessions.PROFILES["local"]
