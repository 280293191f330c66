"""Pipelines of DataFrames on a real Spark session, broker and database (spec 6.2 to 6.8)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kohort.errors import ConfigError
from kohort.spark.outputs.protocol import Step
from tests.spark.dataframes.job import Death, Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def job(cluster: Cluster, topic: Callable[..., str], tmp_path: Path) -> Job:
    return Job(cluster, topic, tmp_path)


def test_retries_dead_letters_topics_and_sums_of_one_pipeline(
    spark: SparkSession, job: Job
) -> None:
    """Each input is loaded once or failed once, and what passed after a retry is in the sums."""
    job.price("nut", 2)
    for number in range(10):
        job.order(number, "nut", number)
    job.order(20, "nut", -1)
    job.order(21, "late", 5)
    job.order(22, "never", 5)
    job.send(job.orders, (0, b"x", b"\xff{"), (1, None, {"id": "no"}), (1, b"gone", None))
    priced = False

    def until() -> bool:
        """The late price comes when its order has failed once."""
        nonlocal priced
        waits = "SELECT count(*) FROM kohort_ledger WHERE origin_topic = '{}' AND reason = '{}'"
        if not priced and job.query(waits.format(job.orders, "missing_price"))[0][0]:
            job.price("late", 9)
            priced = True
        return priced

    last = job.pipeline.run("until_idle", spark=spark, until=until, max_restarts=0)
    assert last.drained
    job.check()
    from kohort.spark import reconcile

    books = reconcile(job.pipeline).of(job.orders)
    assert (books.inputs, books.loaded, books.loaded_after_retry) == (16, 11, 1)
    assert books.failed == {"missing_price": 1, "negative": 1, "undecodable": 3}
    assert books.failed_copies == 5
    assert job.query("SELECT attempt > 0 FROM orders WHERE item = 'late'") == [(1,)]


STEPS = (
    "after staging",
    "after the database's commit",
    "before EndTxn",
    "before Spark's commit log",
)
OTHERS = (
    "fence read",
    "before staging",
    "fence in the Kafka transaction",
    "after the merge, before the database's commit",
    "after EndTxn",
)


@pytest.mark.extended
@pytest.mark.parametrize("steps", [STEPS, OTHERS])
def test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(
    spark: SparkSession, job: Job, steps: tuple[str, ...]
) -> None:
    """Kill table (spec 6.3): every step of a batch's commit, in a pipeline of two stages."""
    job.price("nut", 2)
    number = 0
    for step in steps:
        for _ in range(3):
            job.order(number, "nut", number)
            number += 1
        job.order(1_000 + number, "nut", -1)
        job.pipeline = job.made()
        Death(Step(step)).run(job.pipeline, spark)
    job.pipeline = job.made()
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.check()
    assert job.query("SELECT count(*) FROM orders") == [(number,)]


@pytest.mark.extended
def test_a_batch_of_which_a_task_could_not_write_runs_again(
    spark: SparkSession, cluster: Cluster, job: Job
) -> None:
    """Its second round reads nothing that the first has left in files."""
    job.price("nut", 2)
    for number in range(6):
        job.order(number, "nut", number)
    with cluster.faults.fail("Produce", ["INVALID_RECORD"], topic=job.changes) as fault:
        job.pipeline.run("available_now", spark=spark, max_restarts=0)
        assert fault.hits == 1
    job.check()


@pytest.mark.extended
def test_a_step_that_owes_a_transaction_keeps_its_name_until_it_has_ended(
    spark: SparkSession, job: Job
) -> None:
    """Under another name nobody would end it: the table had the rows, the topic did not."""
    job.price("nut", 2)
    for number in range(3):
        job.order(number, "nut", number)
    Death(Step.AFTER_FENCE).run(job.pipeline, spark)
    job.pipeline = job.made(source="purchases")
    with pytest.raises(ConfigError, match="last batch of step orders has not ended"):
        job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.pipeline = job.made()
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.check()
    job.pipeline = job.made(source="purchases")
    job.order(3, "nut", 3)
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    assert len(job.read(job.changes)) == 4
    job.pipeline = job.made()  # rolled back: its checkpoint is older than the store
    job.order(4, "nut", 4)
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    assert len(job.read(job.changes)) == 5
    job.check()


def test_a_pipeline_whose_store_was_deleted_counts_nothing_of_its_former_life(
    spark: SparkSession, job: Job
) -> None:
    """It reads its sources again; its intermediate topic still has the rows of the first time."""
    job.price("nut", 2)
    job.order(0, "nut", 1)
    job.order(1, "nut", 2)
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    for path in job.directory.glob("db.sqlite*"):
        path.unlink()
    shutil.rmtree(job.directory / "checkpoint")
    job.pipeline = job.made()
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    assert job.query("SELECT count(*), sum(amount) FROM orders") == [(2, 3)]
    assert job.query("SELECT item, amount FROM totals") == [("nut", 3)]


@pytest.mark.extended
def test_narrow_stages_do_without_their_checkpoint(spark: SparkSession, job: Job) -> None:
    """Their positions are in the database; a stateful stage's truth includes its checkpoint."""
    job.price("nut", 2)
    job.order(0, "nut", 1)
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    shutil.rmtree(job.directory / "checkpoint" / "stage-orders")
    job.order(1, "nut", 1)
    job.pipeline = job.made()
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.check()
    shutil.rmtree(job.directory / "checkpoint" / "stage-totals")
    job.order(2, "nut", 1)
    job.pipeline = job.made()
    with pytest.raises(ConfigError, match="step totals would begin without state"):
        job.pipeline.run("available_now", spark=spark, max_restarts=0)


@pytest.mark.extended
def test_a_step_that_keeps_state_is_not_renamed(spark: SparkSession, job: Job) -> None:
    """Under another name it would begin empty, and write over the sums of all rows before.

    With the step that it reads renamed, too, its intermediate topic is a new one.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    job.price("nut", 2)
    job.order(0, "nut", 1)
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.order(1, "nut", 1)
    job.pipeline = job.made(sums="sums")
    with pytest.raises(ConfigError, match="step sums would begin without state, and rows of"):
        job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.pipeline = job.made(sums=None)

    @job.pipeline.step
    def valued(priced: DataFrame) -> DataFrame:
        return priced

    @job.pipeline.table("totals", key="item")
    def sums(valued: DataFrame) -> DataFrame:
        return valued.groupBy("item").agg(F.sum("amount").alias("amount"))

    with pytest.raises(ConfigError, match="fill totals, which step totals has filled"):
        job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.pipeline = job.made()
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.check()


@pytest.mark.extended
def test_a_step_that_keeps_state_does_not_come_back(spark: SparkSession, job: Job) -> None:
    """The rows of the runs without it would be missing in its sums."""
    job.price("nut", 2)
    for number, sums in enumerate(("totals", None)):
        job.order(number, "nut", 1)
        job.pipeline = job.made(sums=sums)
        job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.pipeline = job.made()
    for _ in range(2):
        with pytest.raises(ConfigError, match="step totals was taken out for a run"):
            job.pipeline.run("available_now", spark=spark, max_restarts=0)


def test_two_steps_that_keep_state_read_the_rows_of_one(
    spark: SparkSession, cluster: Cluster, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Both see every row once; it was two queries that moved one position."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from kohort import Producer
    from kohort.retry.stores import open_store
    from kohort.spark import Pipeline, SetupStore

    orders = topic(2)
    pipeline = Pipeline(
        "two-readers",
        store=f"sqlite:///{tmp_path / 'two.db'}",
        checkpoint=tmp_path / "checkpoint",
        bootstrap_servers=cluster.bootstrap,
        max_offsets_per_trigger=40,
    )
    pipeline.source(orders, name="orders", schema="item STRING, amount INT")

    @pipeline.setup
    def tables(store: SetupStore) -> None:
        store.run("CREATE TABLE IF NOT EXISTS sums (item TEXT PRIMARY KEY, amount BIGINT)")
        store.run("CREATE TABLE IF NOT EXISTS counts (item TEXT PRIMARY KEY, orders BIGINT)")

    @pipeline.step
    def clean(orders: DataFrame) -> DataFrame:
        return orders.transform(pipeline.reject(F.col("amount") < 0, "negative"))

    @pipeline.table("sums", key="item")
    def sums(clean: DataFrame) -> DataFrame:
        return clean.groupBy("item").agg(F.sum("amount").alias("amount"))

    @pipeline.table("counts", key="item")
    def counts(clean: DataFrame) -> DataFrame:
        return clean.groupBy("item").agg(F.count("*").alias("orders"))

    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(120):
            amount = -1 if number % 10 == 9 else number
            producer.send(orders, b'{"item": "nut", "amount": %d}' % amount)
    pipeline.run("until_idle", spark=spark, max_restarts=0)
    store = open_store(f"sqlite:///{tmp_path / 'two.db'}")
    try:
        assert store.query("SELECT * FROM sums") == [
            ("nut", sum(n for n in range(120) if n % 10 != 9))
        ]
        assert store.query("SELECT * FROM counts") == [("nut", 108)]
    finally:
        store.close()


def test_rows_that_a_stateful_step_has_not_read_have_not_ended(
    spark: SparkSession, job: Job
) -> None:
    """Their records are loaded, and the sums are without them."""
    from kohort.spark import reconcile

    job.price("nut", 2)
    job.order(1, "nut", 3)
    begun = 0

    def reached(step: Step) -> None:
        nonlocal begun
        begun += step is Step.BEGUN
        if begun == 2:  # the stage of the sums
            raise RuntimeError("the driver is gone")

    job.pipeline.reached = reached
    with pytest.raises(Exception, match="the driver is gone"):
        job.pipeline.run("available_now", spark=spark, max_restarts=0)
    found = reconcile(job.pipeline)
    assert found.of(job.orders).loaded == 1
    assert not found.exact
    assert found.to_json()["behind"] == {"priced": 2}  # with the marker of the transaction
    job.pipeline = job.made()
    job.pipeline.run("available_now", spark=spark, max_restarts=0)
    job.check()
