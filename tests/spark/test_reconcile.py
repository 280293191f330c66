"""The books of a pipeline (spec 6.3, 6.8): healthy ones balance, lossy ones do not. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Producer
from kohort.records import Record as Fetched
from kohort.retry.cluster_port import ClusterPort, WallClock
from kohort.retry.fenced import Loader, SourceRange
from kohort.retry.handling import Handlers
from kohort.retry.preparing import ensure_topics
from kohort.retry.sql_statements import Execute, Insert, statements
from kohort.spark import Permanent, Pipeline, Temporary, reconcile
from kohort.spark.outputs.table_transaction import open_batches
from kohort.spark.publisher import CopyPublisher
from kohort.spark.worker import forget
from kohort.testing import Cluster


class Sales:
    """A pipeline over one topic with one partition, and its executor without Spark."""

    def __init__(self, cluster: Cluster, directory: Path, **handler: Any) -> None:
        cluster.create_topic("sales")
        self.cluster = cluster
        self.pipeline = Pipeline(
            "p",
            store=f"sqlite:///{directory}/s.db",
            bootstrap_servers=cluster.bootstrap,
            retries="1h",
        )
        function = handler.pop("function", lambda record, store: {"n": record.data})
        settings = {"table": "sales", "origin": ("part", "at"), **handler}
        self.pipeline.handler("sales", **settings)(function)
        self.store = self.pipeline.open_store()
        self.pipeline.prepare_store(self.store)
        self.run("CREATE TABLE sales (n INTEGER, part INTEGER, at INTEGER, UNIQUE (n, at))")
        self.run("CREATE UNIQUE INDEX by_n ON sales (n) WHERE n < 0")
        port = ClusterPort(self.pipeline.client_config)
        ensure_topics("p", self.pipeline.topics, port, bootstrap=cluster.bootstrap)
        self.views = port.topics()
        port.close()
        for name in ("sales", *self.pipeline.topics["sales"].delays_ms):
            self.store.open_fence("p", name, self.views[name].topic_id, 0, 0, 0)

    def run(self, sql: str) -> None:
        self.store.execute(statements([Execute(sql)]))

    def produce(self, *values: int) -> None:
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for value in values:
                producer.send("sales", str(value).encode())

    def load(self, end: int, values: dict[int, int]) -> None:
        """One batch of the source, up to `end`; offsets that are not in `values` are gaps."""
        partitions = {name: view.partitions for name, view in self.views.items()}
        (spec,) = self.pipeline.handlers
        loader = Loader(
            "p",
            self.pipeline.topics,
            self.store,
            CopyPublisher(self.pipeline.client_config, partitions),
            Handlers([spec]),
            WallClock(),
            origins={"sales": (spec.table, spec.origin)} if spec.table and spec.origin else {},
        )
        start = next(f.next_offset for f in self.store.fences("p") if f.topic == "sales")
        span = SourceRange("sales", self.views["sales"].topic_id, 0, start, end, "sales")
        part = loader.open(span)
        part.load(
            [Fetched("sales", 0, o, value=str(n).encode()) for o, n in sorted(values.items())]
        )
        part.finish()

    def close(self) -> None:
        forget("producer", self.pipeline.client_config)
        self.store.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Sales]]:
    made: list[Sales] = []
    with Cluster() as cluster:

        def sales(**handler: Any) -> Sales:
            made.append(Sales(cluster, tmp_path, **handler))
            return made[-1]

        yield sales
        for each in made:
            each.close()


def books(sales: Sales) -> Any:
    return reconcile(sales.pipeline).of("sales")


def test_a_handler_that_returns_nothing_loses_nothing(make: Callable[..., Sales]) -> None:
    sales = make(function=lambda record, store: {"n": record.data} if record.data % 2 else None)
    sales.produce(*range(10))
    sales.load(10, {n: n for n in range(10)})
    part = books(sales)
    assert (part.inputs, part.handled, part.loaded, part.filtered) == (10, 10, 5, 5)
    assert reconcile(sales.pipeline).exact


def test_replaced_rows_are_no_loss(make: Callable[..., Sales]) -> None:
    """`key=` together with `origin=`: the later input stands in the row."""
    sales = make(key=("n", "at"), function=lambda record, store: {"n": 1, "part": 0, "at": 0})
    sales.produce(1, 1, 1)
    sales.load(3, {0: 1, 1: 1, 2: 1})
    assert reconcile(sales.pipeline).exact
    assert books(sales).loaded == 3


def test_two_rows_of_a_record_are_no_duplicates(make: Callable[..., Sales]) -> None:
    def two(record: Any, store: Any) -> Sequence[Any]:
        return [{"n": record.data}, {"n": record.data + 100}]

    sales = make(function=two)
    sales.produce(1, 2)
    sales.load(2, {0: 1, 1: 2})
    assert reconcile(sales.pipeline).exact


def test_a_step_that_owes_kafka_the_end_of_its_transaction_is_not_exact(
    make: Callable[..., Sales],
) -> None:
    """Its rows are in the table, and its records may not be in the topic yet."""
    sales = make(function=lambda record, store: {"n": record.data})
    sales.produce(1)
    sales.load(1, {0: 1})
    assert reconcile(sales.pipeline).exact
    batches = open_batches(sales.store.url, "p.owed", [])
    batches.prepare()
    with batches.store.transaction() as cursor:
        cursor.execute(
            "INSERT INTO kohort_batch_fence VALUES ('p.owed', 7, 'c', 'x', 't', 1, 0, '[]', 0, 0)"
        )
    batches.store.close()
    found = reconcile(sales.pipeline)
    assert (found.exact, found.owing) == (False, ["owed"])
    assert found.to_json()["owing"] == ["owed"]


def test_gaps_in_offsets_are_no_loss(make: Callable[..., Sales]) -> None:
    """Transaction markers, and what compaction has removed."""
    sales = make()
    sales.produce(*range(10))
    sales.load(10, {2: 2, 5: 5, 9: 9})
    part = books(sales)
    assert (part.inputs, part.handled, part.loaded) == (3, 3, 3)
    assert reconcile(sales.pipeline).exact


def test_what_fails_or_waits_is_counted_once(make: Callable[..., Sales]) -> None:
    def load(record: Any, store: Any) -> Any:
        if record.data < 0:
            raise Permanent("negative") if record.data < -1 else Temporary("not_yet")
        return {"n": record.data}

    sales = make(function=load)
    sales.produce(1, -1, -2)
    sales.load(3, {0: 1, 1: -1, 2: -2})
    part = books(sales)
    assert (part.loaded, part.retrying, part.failed) == (1, 1, {"negative": 1})
    assert (part.missing, part.duplicates, part.failed_copies) == (0, 0, 1)
    assert not reconcile(sales.pipeline).exact, "one waits"
    sales.run("DELETE FROM kohort_ledger WHERE status = 'scheduled'")
    assert books(sales).missing == 1


@pytest.mark.parametrize(
    ("harm", "missing", "duplicates"),
    [
        ("DELETE FROM sales WHERE at = 1", 1, 0),
        ("INSERT INTO sales VALUES (7, 0, 1)", 0, 1),
        ("UPDATE kohort_counts SET loaded = loaded - 1 WHERE topic = 'sales'", 1, 0),
    ],
)
def test_a_lossy_pipeline_is_noticed(
    make: Callable[..., Sales], harm: str, missing: int, duplicates: int
) -> None:
    sales = make()
    sales.produce(1, 2, 3)
    sales.load(3, {0: 1, 1: 2, 2: 3})
    assert reconcile(sales.pipeline).exact
    sales.run(harm)
    part = books(sales)
    assert (part.missing, part.duplicates) == (missing, duplicates)


def test_inputs_that_retention_has_deleted_are_no_strangers(make: Callable[..., Sales]) -> None:
    """Ten inputs were loaded; four are no longer in the topic. A row that nobody sent is told."""
    sales = make()
    sales.produce(*range(10))
    sales.load(10, {n: n for n in range(10)})
    with Admin(bootstrap_servers=sales.cluster.bootstrap) as admin:
        admin.delete_records({("sales", 0): 4})
    part = books(sales)
    assert (part.inputs, part.handled, part.loaded) == (10, 10, 10)
    assert (part.strangers, part.missing, reconcile(sales.pipeline).exact) == (0, 0, True)
    sales.store.execute(statements([Insert("sales", {"n": 1, "part": 0, "at": 12})]))
    assert books(sales).strangers > 0
