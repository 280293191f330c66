"""Rows fail, queries do not (spec 6.5): exceptions, casts, constraints and dead workers."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.spark import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def made(cluster: Cluster, topic: Callable[..., str], tmp_path: Path) -> tuple[Pipeline, str]:
    """A step with a UDF, a cast and a constraint, and the topic that it reads."""
    from pyspark.sql import functions as F

    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=f"sqlite:///{tmp_path / 'db.sqlite'}",
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS rows (number INTEGER CHECK (number < 50), part REAL)")

    p.source(name, name="rows", format="text")

    @F.udf("double")
    def part(number):  # with hints Spark would look for a vectorised function, and warn
        if number == 13:
            import os

            os._exit(1)
        return 10 / number

    @p.table("rows")
    def parts(rows: Any) -> Any:
        number = F.col("value").cast("int")
        return rows.select(number.alias("number"), part(number).alias("part"))

    return p, name


def reasons(p: Pipeline) -> dict[str, int]:
    from kohort.spark import reconcile

    books = reconcile(p)
    assert books.exact, books.to_json()
    (found,) = books.topics.values()
    return found.failed


def loaded(p: Pipeline) -> list[int]:
    store = p.open_store()
    try:
        return [n for (n,) in store.query("SELECT number FROM rows ORDER BY number")]
    finally:
        store.close()


def test_an_exception_a_cast_and_a_constraint_fail_their_rows(
    spark: SparkSession, made: tuple[Pipeline, str], produce: Callable[..., None]
) -> None:
    """Each becomes a dead letter with its reason, and its neighbours are loaded."""
    p, name = made
    values = ["1", "2", "0", "4", "many", "6", "99", "8"]
    produce(name, *((i % 2, None, v.encode()) for i, v in enumerate(values)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [1, 2, 4, 6, 8]
    assert reasons(p) == {"CAST_INVALID_INPUT": 1, "ZeroDivisionError": 1, "constraint_violated": 1}


@pytest.mark.extended
def test_a_row_that_kills_its_worker_is_a_dead_letter(
    spark: SparkSession, made: tuple[Pipeline, str], produce: Callable[..., None]
) -> None:
    p, name = made
    produce(name, *((0, None, str(n).encode()) for n in (1, 2, 13, 4)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [1, 2, 4]
    assert reasons(p) == {"worker_killed": 1}


@pytest.mark.postgres
@pytest.mark.parametrize("deletes", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_value_that_a_column_refuses_fails_its_row(
    spark: SparkSession,
    cluster: Cluster,
    topic: Callable[..., str],
    produce: Callable[..., None],
    database: str,
    tmp_path: Path,
    deletes: bool,
) -> None:
    """COPY reads it inside a task, so it came as Spark's error, and no step failed for a record.

    A double that is no whole number is refused by COPY, and rounded by an INSERT.
    """
    name = topic(name="rows")
    p = Pipeline(
        f"p-{name}",
        store=database,
        retries="none",
        bootstrap_servers=cluster.bootstrap,
        checkpoint=tmp_path / "checkpoint",
        trigger="50ms",
    )

    @p.setup
    def tables(store: Any) -> None:
        store.run(
            "CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, s TEXT, "
            "short VARCHAR(3), part INTEGER)"
        )

    schema = "number INT, s STRING, short STRING, part DOUBLE, gone BOOLEAN"
    p.source(name, name="rows", schema=schema)

    @p.table("rows", key="number", deletes="gone" if deletes else None)
    def loaded_rows(rows: Any) -> Any:
        return rows if deletes else rows.drop("gone")

    plain = {"s": "x", "short": "abc", "part": 1.0, "gone": False}
    odd = [{}, {"s": "x\0y"}, {"short": "abcd", "gone": deletes}, {"part": 1.5}, {}]
    rows = [{"number": n, **plain, **values} for n, values in enumerate(odd)]
    produce(name, *((n % 2, None, json.dumps(row).encode()) for n, row in enumerate(rows)))
    p.run("available_now", spark=spark, max_restarts=0)
    assert loaded(p) == [0, 4]
    assert reasons(p) == {"constraint_violated": 3}
