"""A pipeline continues on the store and the checkpoint of an earlier release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort import Producer
from tests.upgrade import release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", release.versions())
def test_a_pipeline_continues(spark: SparkSession, version: str, tmp_path: Path) -> None:
    """Rows, retries and the state of an aggregation of then, and new records: each counts once."""
    from kohort.spark import load_pipeline, reconcile

    home = release.unpack(version, tmp_path)
    with release.broker(home) as cluster:
        pipeline = load_pipeline(release.write_pipeline(home, cluster.bootstrap))
        store = pipeline.open_store()
        assert store.query("SELECT * FROM standings") == [("reds", 2)]
        with store.transaction() as cursor:  # her sale is due at once, maybe before her record
            cursor.execute("INSERT INTO customers (name) VALUES (?)", ("eve",))
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            producer.send("customers", b'{"name": "eve"}')
            producer.send("sales", b'{"customer": "ada", "amount": 6}')
            producer.send("matches", b'{"team": "reds", "goals": 3}')
        assert pipeline.run("until_idle", spark=spark).drained
        sales = sorted(store.query("SELECT customer, amount FROM sales"))
        assert sales == [("ada", 5), ("ada", 6), ("eve", 7)]
        assert store.query("SELECT * FROM standings") == [("reds", 5)]
        store.close()
        books = reconcile(pipeline)
        assert books.exact
        assert books.of("matches").failed == {"negative_goals": 1}
        assert books.of("sales").failed == {}
