"""Row handlers over records of a test, without a JVM (DataFrames: tests/spark)."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import ConfigError, UsageError
from kohort.spark import Permanent, Pipeline, RetryAfter, Temporary
from kohort.testing import PipelineHarness, crash_everywhere


def sales() -> Pipeline:
    """Sales of known customers into a table; who is unknown may come yet."""
    pipeline = Pipeline("sales", store="sqlite:///unused.db", retries="5m 30m")

    @pipeline.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY)")
        store.run("CREATE TABLE IF NOT EXISTS sales (customer TEXT, amount INTEGER, n INTEGER)")

    @pipeline.handler("customers", table="customers", key=("name",))
    def customer(record: Any, store: Any) -> Any:
        return record.data

    @pipeline.handler("sales", table="sales")
    def sale(record: Any, store: Any) -> Any:
        if record.data["amount"] <= 0:
            raise Permanent("no_amount")
        if store.one("SELECT 1 FROM customers WHERE name = ?", [record.data["customer"]]) is None:
            raise Temporary("customer_unknown", "nobody knows them")
        return {**record.data, "n": record.attempt}

    return pipeline


def test_results_retries_and_dead_letters_of_row_handlers() -> None:
    """Spec 9.2: no socket, no Spark, and hours pass at once."""
    with PipelineHarness(sales(), partitions=2) as harness:
        harness.send("customers", {"name": "ada"}, "ada")
        for amount in (5, -1):
            harness.send("sales", {"customer": "ada", "amount": amount}, partition=0)
        harness.send("sales", {"customer": "bob", "amount": 7}, partition=1)
        harness.send("sales", {"customer": "eve", "amount": 9}, partition=1)
        harness.send("sales", b"{", partition=1)
        harness.run()
        assert harness.rows("SELECT * FROM sales") == [("ada", 5, 0)]
        waiting = harness.retries()
        assert [(r.partition, r.offset, r.reason) for r in waiting] == [
            (1, 0, "customer_unknown"),
            (1, 1, "customer_unknown"),
        ]
        assert waiting[0].due_ms == harness.now_ms + 300_000
        harness.send("customers", {"name": "bob"})
        harness.advance("5m 30m")
        assert sorted(harness.rows("SELECT * FROM sales")) == [("ada", 5, 0), ("bob", 7, 1)]
        assert harness.retries() == []
        dead = [
            (r.topic, r.partition, r.offset, r.attempts, r.reason) for r in harness.dead_letters()
        ]
        assert dead == [
            ("sales", 0, 1, 1, "no_amount"),
            ("sales", 1, 1, 3, "customer_unknown"),
            ("sales", 1, 2, 1, "undecodable"),
        ]
        assert len(harness.records("sales.sales.dlt")) == 3


def test_a_record_is_loaded_once_wherever_the_program_dies() -> None:
    def scenario(harness: PipelineHarness) -> None:
        harness.send("sales", {"customer": "ada", "amount": 1})
        harness.send("sales", {"customer": "ada", "amount": -1})
        harness.run()
        harness.send("customers", {"name": "ada"})
        harness.run_to_end()

    crashes = 0
    for harness in crash_everywhere(lambda: PipelineHarness(sales()), scenario):
        assert harness.rows("SELECT * FROM sales") == [("ada", 1, 1)]
        assert [r.reason for r in harness.dead_letters()] == ["no_amount"]
        crashes += harness.crashes
    assert crashes == 20, "one for each step"


def test_a_delay_of_a_records_own_takes_its_time() -> None:
    pipeline = Pipeline("p", store="sqlite:///unused.db", retries="30m 1h")

    @pipeline.setup
    def tables(store: Any) -> None:
        store.run("CREATE TABLE IF NOT EXISTS t (n INTEGER)")

    @pipeline.handler("in", table="t")
    def handle(record: Any, store: Any) -> Any:
        if not record.attempt:
            raise RetryAfter("90m", "closed")
        return {"n": 1}

    with PipelineHarness(pipeline) as harness:
        harness.send("in", {})
        harness.advance("89m")
        assert harness.rows("SELECT * FROM t") == []
        harness.advance("1m")
        assert harness.rows("SELECT * FROM t") == [(1,)]


def test_a_store_of_ones_own_is_kept(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    with PipelineHarness(sales(), store=url) as harness:
        harness.send("customers", {"name": "ada"})
        harness.run()
    store = sales().open_store()
    assert store.url != url
    assert (tmp_path / "mine.db").exists()


def test_a_store_of_an_earlier_run_is_refused(tmp_path: Any) -> None:
    """Its progress is ahead of the topics, which are new: records were skipped, or `run` hung."""
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    with PipelineHarness(sales(), store=url) as harness:
        harness.send("customers", {"name": "ada"})
        harness.run()
    with pytest.raises(UsageError, match=r"pipeline sales \(customers-0 .* offset 1\)"):
        PipelineHarness(sales(), store=url)


def test_a_store_in_which_nothing_was_done_may_be_used_again(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    PipelineHarness(sales(), store=url).close()
    with PipelineHarness(sales(), store=url) as harness:
        harness.send("customers", {"name": "ada"})
        harness.run()
        assert harness.rows("SELECT * FROM customers") == [("ada",)]


class SlowEngine:
    """One record that fails twice, on a clock that moves while batches run, as Spark's does."""

    def __init__(self) -> None:
        self.now_ms = self.moved_ms = 0
        self.due_ms: int | None = 0
        self.attempts = 0

    def run(self) -> None:
        self.now_ms += 700
        if self.due_ms is not None and self.due_ms <= self.now_ms:
            self.attempts += 1
            self.due_ms = self.now_ms + 3_600_000 if self.attempts < 3 else None
        self.now_ms += 700

    def next_due_ms(self, waiting: Any) -> int | None:
        return self.due_ms

    def move_to(self, time_ms: int) -> None:
        ms = max(0, time_ms - self.now_ms)
        self.moved_ms += ms
        self.now_ms += ms + 2_000

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("duration", "attempts"), [("59m", 1), ("1h", 2), ("1h59m", 2), ("2h", 3)])
def test_time_that_batches_take_is_not_part_of_an_advance(
    monkeypatch: pytest.MonkeyPatch, duration: str, attempts: int
) -> None:
    """A retry that was due within the hour was left out, as its copy was written later."""
    engine = SlowEngine()
    monkeypatch.setattr(PipelineHarness, "_made", lambda *_: engine)
    with PipelineHarness(sales()) as harness:
        harness.advance(duration)
    assert engine.attempts == attempts


def test_what_cannot_be_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="reads nothing"):
        PipelineHarness(Pipeline("p", store="sqlite:///unused.db"))
