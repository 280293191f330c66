"""The pipeline on a real Spark session, broker and database (spec 5, 6.2 to 6.5)."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort import Admin, TopicPartition
from kohort.errors import ConfigError
from kohort.retry.cluster_port import ClusterPort
from kohort.spark import Pipeline, load_pipeline
from tests.clusters import Embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

Make = Callable[..., str]
Send = Callable[..., None]
e2e = pytest.mark.spark

FILE = """
import os, signal
from pathlib import Path
from kohort.spark import Permanent, Pipeline, Temporary

pipeline = Pipeline(
    "{name}", store="sqlite:///{store}", retries="300ms 300ms 3s", clock_skew="0ms",
    bootstrap_servers="{servers}", checkpoint="{checkpoint}", trigger="100ms",
)
CRASH = Path("{crash}")

@pipeline.setup
def tables(store):
    store.run("CREATE TABLE IF NOT EXISTS prices (item TEXT PRIMARY KEY, price INTEGER)")
    store.run(
        "CREATE TABLE IF NOT EXISTS orders (item TEXT NOT NULL REFERENCES prices, "
        "amount INTEGER NOT NULL CHECK (amount > 0), attempt INTEGER, p INTEGER, o INTEGER)"
    )

@pipeline.handler("{prices}", table="prices", key=("item",))
def price(record, store):
    return record.data

@pipeline.handler("{orders}", table="orders", origin=("p", "o"), threads=4)
def order(record, store):
    if CRASH.exists():
        CRASH.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    item = record.data["item"]
    if item == "killer":
        os._exit(3)
    if item == "forbidden":
        raise Permanent("forbidden_item")
    if store.one("SELECT 1 FROM prices WHERE item = ?", [item]) is None:
        raise Temporary("missing_price")
    return {{"item": item, "amount": record.data["amount"], "attempt": record.attempt}}
"""


class Job:
    """A user's pipeline file with topics of its own."""

    def __init__(self, cluster: Cluster, topic: Make, produce: Send, directory: Path) -> None:
        self.orders, self.prices = topic(name="orders"), topic(1, name="prices")
        self.directory, self.produce = directory, produce
        self.checkpoint, self.crash = directory / "checkpoint", directory / "crash"
        file = directory / f"{self.orders}_file.py"
        file.write_text(
            FILE.format(
                name=f"p-{self.orders}",
                store=directory / "db.sqlite",
                servers=cluster.bootstrap,
                checkpoint=self.checkpoint,
                orders=self.orders,
                prices=self.prices,
                crash=self.crash,
            )
        )
        self.pipeline = load_pipeline(file)
        self.priced: set[str] = set()

    def order(self, *items: str, amount: int = 1, partition: int = 0) -> None:
        rows = [json.dumps({"item": i, "amount": amount}).encode() for i in items]
        pairs = zip(items, rows, strict=True)
        self.produce(self.orders, *((partition, i.encode(), r) for i, r in pairs))

    def price(self, *items: str) -> None:
        self.priced |= set(items)
        rows = [json.dumps({"item": i, "price": 1}).encode() for i in items]
        self.produce(self.prices, *((0, None, row) for row in rows))

    def query(self, sql: str) -> list[tuple[object, ...]]:
        store = self.pipeline.open_store()
        try:
            return store.query(sql)
        finally:
            store.close()


@pytest.fixture
def job(cluster: Cluster, topic: Make, produce: Send, tmp_path: Path) -> Job:
    return Job(cluster, topic, produce, tmp_path)


@e2e
@pytest.mark.timeout(600)
def test_each_input_is_loaded_once_or_failed_once(spark: SparkSession, job: Job) -> None:
    """Spec 5.1 to 5.4, 6.2, 6.3; issue 2: all kinds of failure, a late dependency, the books."""
    from kohort.spark import reconcile, retries_over_time

    job.price("nut", "bolt")
    job.order("nut", "forbidden", "late", "never", "bolt")
    job.order("nut", "killer", "nut", partition=1)
    job.order("nut", amount=-1, partition=1)
    job.produce(job.orders, (1, b"k", b"\xff{not json", [("trace", b"1")]))
    failed_once = "SELECT count(*) FROM kohort_ledger WHERE origin_offset = 2"
    seen: list[int] = []

    def until() -> bool:
        """The late price comes when its order has failed once."""
        if job.query(failed_once)[0][0] and "late" not in job.priced:
            job.price("late")
        return "late" in job.priced

    last = job.pipeline.run(
        "until_idle", spark=spark, until=until, on_progress=lambda p: seen.append(p.done)
    )
    assert last.drained
    assert seen[-1] == last.inputs == 13
    books = reconcile(job.pipeline)
    orders = books.of(job.orders)
    assert orders.failed == {
        "constraint_violated": 1,
        "forbidden_item": 1,
        "missing_price": 1,
        "undecodable": 1,
        "worker_killed": 1,
    }
    assert (orders.inputs, orders.loaded) == (10, 5)
    assert orders.loaded_after_retry >= 1
    assert (orders.duplicates, orders.both, orders.missing, orders.retrying) == (0, 0, 0, 0)
    assert orders.failed_copies == 5
    assert books.exact
    assert job.query("SELECT count(*) FROM orders WHERE item = 'late' AND attempt > 0") == [(1,)]
    store = job.pipeline.open_store()
    retry_topics = retries_over_time(job.pipeline, store)
    store.close()
    assert sorted(retry_topics) == ["300ms", "3s"]
    assert sum(n for _, n in retry_topics["3s"]) >= 1


@pytest.mark.extended
@e2e
@pytest.mark.timeout(600)
def test_a_batch_that_nobody_can_read_stops_nobody(
    spark: SparkSession, topic: Make, tmp_path: Path
) -> None:
    """Issue 14, item 1: its bytes are dead-lettered with its offsets, the rest is loaded."""
    from kohort import Consumer, Producer
    from kohort.retry import headers as h
    from tests.processing.damage import damage

    with Embedded(data_dir=tmp_path / "data", durability="os") as broken:

        def make(partitions: int = 2, name: str = "t") -> str:
            broken.create_topic(name, partitions=partitions)
            return name

        def produce(name: str, *records: tuple[int, bytes | None, bytes]) -> None:
            with Producer(bootstrap_servers=broken.bootstrap, linger_ms=0) as producer:
                for partition, key, value in records:
                    producer.send(name, value, key, partition).result(30)

        job = Job(broken, make, produce, tmp_path)
        job.price("nut")
        job.order(*["nut"] * 5)
        bad = damage(broken, job.orders, 2)
        last = job.pipeline.run("until_idle", spark=spark)
        assert last.drained
        assert job.query("SELECT count(*) FROM orders") == [(4,)]
        ended = "SELECT origin_offset, reason FROM kohort_ledger WHERE status = 'failed'"
        assert job.query(ended) == [(2, "unreadable_batch")]
        dead_letter = job.pipeline.topics[job.orders].dead_letter
        with Consumer(bootstrap_servers=broken.bootstrap) as consumer:
            consumer.assign([(dead_letter, p) for p in range(2)])
            consumer.seek_to_beginning(*consumer.assignment())
            letters = consumer.poll(30)
        assert [letter.value for letter in letters] == [bad]
        parsed = h.parse(letters[0].headers)
        assert parsed is not None
        assert (parsed.origin.offset, parsed.origin_next_offset) == (2, 3)


@pytest.mark.extended
@e2e
@pytest.mark.timeout(600)
def test_crashes_and_lost_checkpoints_change_nothing(
    spark: SparkSession, cluster: Cluster, job: Job
) -> None:
    """X1, X3, X8, B62: a killed worker, a lost commit file, a lost checkpoint; and X4."""
    from kohort.spark import reconcile
    from tests.spark.test_source import committed

    job.price("nut")
    job.order(*["nut"] * 50)
    job.crash.touch()
    job.pipeline.run("until_idle", spark=spark)
    assert not job.crash.exists()
    assert reconcile(job.pipeline).exact

    job.order(*["nut"] * 10)
    job.pipeline.run("available_now", spark=spark)
    commits = sorted((job.checkpoint / "source" / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    job.pipeline.run("available_now", spark=spark)
    assert reconcile(job.pipeline).exact

    shutil.rmtree(job.checkpoint)
    job.order("nut", "forbidden", partition=1)
    job.pipeline.run("available_now", spark=spark)
    books = reconcile(job.pipeline).of(job.orders)
    assert (books.inputs, books.loaded, books.duplicates, books.missing) == (62, 61, 0, 0)
    assert committed(cluster, f"p-{job.orders}", job.orders) == [60, 2]


@pytest.mark.extended
@e2e
@pytest.mark.timeout(600)
def test_a_run_in_a_thread_of_its_own(spark: SparkSession, job: Job) -> None:
    """6.1: Spark looks its sinks up in the active session, and a new thread has none."""
    job.price("nut")
    job.order(*["nut"] * 5)
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(job.pipeline.run, "until_idle", spark=spark).result(300)
    assert last.drained
    assert job.query("SELECT count(*) FROM orders") == [(5,)]


@pytest.mark.extended
@e2e
@pytest.mark.timeout(600)
def test_a_store_that_was_emptied_is_refused(spark: SparkSession, job: Job) -> None:
    """E2: a fence behind the checkpoint is loud, and the message says what to do."""
    from kohort.spark import PipelineFailedError

    job.price("nut")
    job.order("nut", "nut")
    # `until_idle` may end before Spark has noted its last batch: the checkpoint is as empty then.
    job.pipeline.run("available_now", spark=spark)
    (job.directory / "db.sqlite").unlink()
    for file in job.directory.glob("db.sqlite-*"):
        file.unlink()
    job.order("nut")
    with pytest.raises(PipelineFailedError, match="behind the checkpoint"):
        job.pipeline.run("until_idle", spark=spark, max_restarts=0)


@pytest.mark.extended
@e2e
@pytest.mark.timeout(600)
def test_a_pipeline_continues_without_lost_records_as_diff_says(
    spark: SparkSession, cluster: Cluster, job: Job
) -> None:
    """Retention was shorter than a pause. The fence was moved, and the checkpoint went first."""
    from kohort.spark import PipelineFailedError
    from kohort.spark.evolution import changes
    from kohort.spark.supervise import stored_state

    pipeline = job.pipeline
    job.price("nut")
    pipeline.run("available_now", spark=spark)
    job.order("nut", "nut")
    pipeline.run("available_now", spark=spark)
    job.order("nut", "nut", "nut")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_records({TopicPartition(job.orders, 0): 4})
    with pytest.raises(PipelineFailedError, match=r"records 2 to 3 are gone .* pipeline diff"):
        pipeline.run("available_now", spark=spark, max_restarts=0)
    store, port = pipeline.open_store(), ClusterPort(pipeline.client_config)
    try:
        stored = stored_state(pipeline, store, port)
        (lost,) = changes(pipeline.topics, stored, pipeline.handler_topics)
    finally:
        port.close()
        store.close()
    assert lost.what == "2 records were deleted before they were read"
    assert lost.effect.endswith(f"delete the checkpoint {job.checkpoint}/source")
    with closing(sqlite3.connect(job.directory / "db.sqlite")) as database, database:
        database.execute(
            "UPDATE kohort_fence SET next_offset = 4 WHERE topic = ? AND partition = 0",
            [job.orders],
        )
    shutil.rmtree(job.checkpoint / "source")
    pipeline.run("available_now", spark=spark, max_restarts=0)
    assert job.query("SELECT o FROM orders ORDER BY o") == [(0,), (1,), (4,)]


def test_a_file_must_hold_one_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "none.py"
    file.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="defines 0 pipelines"):
        load_pipeline(file)
    with pytest.raises(ConfigError, match="no file"):
        load_pipeline(tmp_path / "absent.py")


def test_what_can_never_work_is_refused_at_once() -> None:
    """Issue 2, "Bad input": before anything is connected."""
    with pytest.raises(ConfigError, match="is not a store"):
        Pipeline("p", store="mysql://x")
    with pytest.raises(ConfigError, match="in memory"):
        Pipeline("p", store="sqlite:///:memory:")
    with pytest.raises(ConfigError, match="duration"):
        Pipeline("p", store="sqlite:///x.db", retries="5 minutes")
    pipeline = Pipeline("p", store="sqlite:///x.db")
    with pytest.raises(ConfigError, match="reads nothing"):
        _ = pipeline.topics
    with pytest.raises(ConfigError, match="one of continuous"):
        pipeline.run("forever")
    pipeline.handler("t")(lambda record, store: None)
    with pytest.raises(ConfigError, match="handler already"):
        pipeline.handler("t")
