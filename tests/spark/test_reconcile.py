"""The books of a pipeline over what its topic still holds (spec 6.3); no Spark is needed."""

from __future__ import annotations

from pathlib import Path

from kohort import Admin, Producer
from kohort.retry.effects import Insert, statements
from kohort.spark import Pipeline, reconcile
from kohort.testing import Cluster


def test_inputs_that_retention_has_deleted_are_no_strangers(tmp_path: Path) -> None:
    """Ten inputs were loaded; four are no longer in the topic. A row that nobody sent is told."""
    with Cluster() as cluster:
        cluster.create_topic("sales")
        pipeline = Pipeline(
            "p", store=f"sqlite:///{tmp_path}/s.db", bootstrap_servers=cluster.bootstrap
        )

        @pipeline.setup
        def tables(store) -> None:
            store.run("CREATE TABLE IF NOT EXISTS sales (part INTEGER, at INTEGER)")

        @pipeline.handler("sales", table="sales", origin=("part", "at"))
        def sale(record, store) -> None:
            """Nothing is run here."""

        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for _ in range(10):
                producer.send("sales", b"{}")
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.delete_records({("sales", 0): 4})
        store = pipeline.open_store()
        pipeline.prepare_store(store)
        rows = [Insert("sales", {"part": 0, "at": at}) for at in range(10)]
        store.execute(statements(rows))
        store.open_fence("p", "sales", "", 0, 10, 0)
        books = reconcile(pipeline).of("sales")
        assert (books.inputs, books.handled, books.loaded) == (6, 6, 6)
        assert (books.strangers, books.missing, reconcile(pipeline).exact) == (0, 0, True)
        store.execute(statements([Insert("sales", {"part": 0, "at": 12})]))
        assert reconcile(pipeline).of("sales").strangers > 0
        store.close()
