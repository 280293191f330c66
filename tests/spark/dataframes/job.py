"""A pipeline of DataFrames over topics of its own, for tests, and a checker of what it has done."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.client.producer.producer import Producer
from kohort.spark import Pipeline
from kohort.spark.outputs.protocol import Step
from kohort.testing import Cluster
from tests.reading import read_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = "id INT, item STRING, amount INT, at TIMESTAMP"


class Death:
    """Ends the driver when the commit of a batch reaches a step, once."""

    def __init__(self, step: Step) -> None:
        self._step: Step | None = step

    def __call__(self, reached: Step) -> None:
        if reached is self._step:
            self._step = None
            raise RuntimeError("the driver is gone")

    def run(self, pipeline: Pipeline, spark: SparkSession) -> None:
        """Run the pipeline until it has died there."""
        pipeline.reached = self
        with pytest.raises(Exception, match="the driver is gone"):
            pipeline.run("available_now", spark=spark, max_restarts=0)
        assert self._step is None, f"no commit reached {self._step}"


class Job:
    """Orders, joined with prices: into a table, a topic, and sums by item (a stateful step)."""

    def __init__(self, cluster: Cluster, topic: Callable[..., str], directory: Path) -> None:
        self.servers = cluster.bootstrap
        self.orders, self.prices = topic(name="orders"), topic(1, name="prices")
        self.changes = topic(name="changes")
        self.directory = directory
        self.pipeline = self.made()

    def made(self, source: str = "orders", sums: str | None = "totals") -> Pipeline:
        """The pipeline, as a new process would make it.

        Args:
            source: the name of the source, orders or purchases.
            sums: the name of the step that fills the table totals; None leaves it out.
        """
        from pyspark.sql import functions as F

        p = Pipeline(
            f"p-{self.orders}",
            store=f"sqlite:///{self.directory / 'db.sqlite'}",
            retries="300ms 300ms 2s",
            clock_skew="0ms",
            bootstrap_servers=self.servers,
            checkpoint=self.directory / "checkpoint",
            trigger="50ms",
        )

        @p.setup
        def tables(store: Any) -> None:
            store.run(
                "CREATE TABLE IF NOT EXISTS orders (id INTEGER, item TEXT, amount INTEGER, "
                "price INTEGER CHECK (price < 1000), attempt INTEGER)"
            )
            store.run("CREATE TABLE IF NOT EXISTS totals (item TEXT PRIMARY KEY, amount BIGINT)")

        p.source(self.orders, name=source, schema=ORDER, event_time="at")
        p.reference(self.prices, name="prices", key="item", schema="item STRING, price INT")

        if source != "orders":

            @p.step
            def orders(purchases: Any) -> Any:
                return purchases

        @p.table("orders")
        def priced(orders: Any, prices: Any) -> Any:
            return (
                orders.join(prices, "item", "left")
                .transform(p.reject(F.col("amount") < 0, "negative"))
                .transform(p.retry(F.col("price").isNull(), "missing_price"))
                .select("id", "item", "amount", "price", p.attempt().alias("attempt"))
            )

        @p.topic(self.changes, key="item")
        def changes(priced: Any) -> Any:
            return "SELECT id, item, amount * price AS total FROM priced"

        def totals(priced: Any) -> Any:
            return priced.groupBy("item").agg(F.sum("amount").alias("amount"))

        if sums is not None:
            totals.__name__ = sums
            p.table("totals", key="item")(totals)
        return p

    def send(self, topic: str, *rows: tuple[int, bytes | None, Any]) -> None:
        with Producer(bootstrap_servers=self.servers) as producer:
            for partition, key, row in rows:
                value = row if isinstance(row, bytes) or row is None else json.dumps(row).encode()
                producer.send(topic, value, key, partition)
            producer.flush()

    def order(self, number: int, item: str, amount: int, **more: Any) -> None:
        row = {"id": number, "item": item, "amount": amount, "at": "2026-01-01T00:00:00Z", **more}
        self.send(self.orders, (number % 2, item.encode(), row))

    def price(self, item: str, price: int) -> None:
        self.send(self.prices, (0, item.encode(), {"item": item, "price": price}))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        store = self.pipeline.open_store()
        try:
            return store.query(sql)
        finally:
            store.close()

    def read(self, topic: str) -> list[Any]:
        """The values of all committed records."""
        found = read_committed(self.servers, topic, 2)
        return [json.loads(r.value or b"null") for r in found]

    def check(self) -> None:
        """Table, topic and sums agree, and every input has ended once."""
        from kohort.spark import reconcile

        rows = self.query("SELECT id, item, amount, price FROM orders ORDER BY id")
        assert len({row[0] for row in rows}) == len(rows), "an order is loaded twice"
        totals = [{"id": n, "item": i, "total": a * p} for n, i, a, p in rows]
        assert sorted(self.read(self.changes), key=lambda r: r["id"]) == totals
        sums: dict[str, int] = {}
        for _, item, amount, _ in rows:
            sums[item] = sums.get(item, 0) + amount
        assert dict(self.query("SELECT item, amount FROM totals")) == sums
        books = reconcile(self.pipeline)
        assert books.exact, books.to_json()
        assert books.of(self.orders).loaded == len(rows)
