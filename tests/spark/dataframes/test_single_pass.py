"""One job for a micro-batch of one table: what it reports, and when a batch needs two jobs."""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kohort.client.producer.producer import Producer
from kohort.spark import Pipeline
from kohort.spark.dataframes import narrow
from kohort.spark.dataframes.narrow import NarrowBatch
from kohort.spark.dataframes.offset_set import OffsetSet
from kohort.spark.dataframes.single_pass import PassReport, gathered, runs
from kohort.spark.outputs.protocol import Step
from kohort.spark.outputs.table_transaction import BatchStore
from tests.reading import read_committed
from tests.spark.dataframes.job import Death

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.testing import Cluster

spark_only = [pytest.mark.spark, pytest.mark.timeout(600)]


def report_of(places: list[tuple[int, int, int]], noted: bytes | None = b"") -> PassReport:
    """What one task reports, as it comes to the driver."""
    topics, partitions, offsets = (np.array(c, np.int64) for c in zip(*places, strict=True))
    read = runs(topics, partitions, offsets).tobytes()
    made = PassReport(7, len(places), read, read, noted)
    return PassReport.parsed(json.loads(json.dumps(made.encoded())))


def test_consecutive_offsets_of_a_partition_are_one_run() -> None:
    places = [(0, 0, 5), (0, 0, 6), (0, 0, 8), (0, 1, 9), (1, 1, 10), (0, 0, 7)]
    columns = [np.array(column) for column in zip(*places, strict=True)]
    expected = [[0, 0, 5, 2], [0, 0, 8, 1], [0, 1, 9, 1], [1, 1, 10, 1], [0, 0, 7, 1]]
    assert runs(*columns).tolist() == expected
    assert runs(*(column[:0] for column in columns)).tolist() == []


def test_the_reports_of_tasks_are_put_together() -> None:
    """A partition that two tasks share, in any order, is one set of offsets."""
    one = report_of([(0, 1, 8), (0, 1, 9), (1, 0, 3)])
    other = report_of([(0, 1, 5), (0, 1, 7), (0, 0, 1)])
    done = gathered([one, other], "t", ["a", "b"])
    assert done is not None
    assert done.read == {("a", 0): 1, ("a", 1): 4, ("b", 0): 1}
    assert done.passing["a", 1] == OffsetSet.of([5, 7, 8, 9])
    assert [(each.output, each.id, each.rows) for each in done.staged] == [("t", 7, 3)] * 2


def test_a_task_that_has_stopped_ends_the_pass() -> None:
    reports = [report_of([(0, 0, 1)]), report_of([(0, 0, 2)], noted=None)]
    assert gathered(reports, "t", ["a"]) is None


class Made:
    """A pipeline of one table: numbers that are rejected, retried, filtered and divided."""

    def __init__(self, cluster: Cluster, topic: Callable[..., str], directory: Path) -> None:
        self.servers, self.name = cluster.bootstrap, topic(name="rows")
        self.directory = directory
        self.pipeline = self.made()

    def made(self) -> Pipeline:
        """The pipeline, as a new process would make it."""
        from pyspark.sql import functions as F

        p = Pipeline(
            f"p-{self.name}",
            store=f"sqlite:///{self.directory / 'db.sqlite'}",
            retries="300ms",
            clock_skew="0ms",
            bootstrap_servers=self.servers,
            checkpoint=self.directory / "checkpoint",
            trigger="50ms",
        )

        @p.setup
        def tables(store: Any) -> None:
            store.run("CREATE TABLE IF NOT EXISTS rows (n INTEGER, part INTEGER, attempt INTEGER)")

        p.source(self.name, name="rows", schema="n INT")

        @p.step
        def checked(rows: Any) -> Any:
            return rows.transform(p.reject(F.col("n") == 0, "zero")).where("n < 50")

        @p.table("rows")
        def parts(checked: Any) -> Any:
            part = (60 / F.col("n")).cast("int").alias("part")
            again = (F.col("n") == 7) & (p.attempt() == 0)
            judged = checked.transform(p.retry(again, "seven")).transform(
                p.retry(F.col("n") == 9, "nine")
            )
            return judged.select("n", part, p.attempt().alias("attempt"))

        return p

    def send(self, *values: Any) -> None:
        with Producer(bootstrap_servers=self.servers) as producer:
            for number, value in enumerate(values):
                text = value if isinstance(value, bytes) else b'{"n": %d}' % value
                producer.send(self.name, text, b"k", partition=number % 2)

    def state(self) -> tuple[Any, ...]:
        """The rows, the books, and the dead letters with their values."""
        from kohort.spark import reconcile

        store = self.pipeline.open_store()
        try:
            rows = store.query("SELECT n, part, attempt FROM rows ORDER BY n, part")
        finally:
            store.close()
        books = reconcile(self.pipeline)
        assert books.exact, books.to_json()
        found = books.of(self.name)
        letters = read_committed(self.servers, self.pipeline.topics[self.name].dead_letter, 2)
        values = sorted(record.value or b"" for record in letters)
        return rows, (found.inputs, found.loaded, found.filtered, found.failed), values


class Jobs:
    """How many batches one job has done, and how many were computed by two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.one = self.two = self.failures = 0
        single, compute = NarrowBatch.compute_and_stage, NarrowBatch.compute

        def counted(batch: NarrowBatch, spec: Any) -> Any:
            staged = single(batch, spec)
            self.one += staged is not None
            self.failures += len(batch.judgement.failed)
            return staged

        def by_two(batch: NarrowBatch) -> None:
            self.two += 1
            compute(batch)

        monkeypatch.setattr(NarrowBatch, "compute_and_stage", counted)
        monkeypatch.setattr(NarrowBatch, "compute", by_two)


OF_TOPICS = (Step.PRODUCER_READY, Step.KAFKA_FENCED, Step.BEFORE_END, Step.AFTER_END)
VALUES = (1, 0, 2, 60, 7, b"{", 9, 3, 70, 30)
STATE = (
    [(1, 60, 0), (2, 30, 0), (3, 20, 0), (7, 8, 1), (30, 2, 0)],
    (10, 5, 2, {"zero": 1, "undecodable": 1, "nine": 1}),
    [b"{", b'{"n": 0}', b'{"n": 9}'],
)


@pytest.fixture
def made(cluster: Cluster, topic: Callable[..., str], tmp_path: Path) -> Made:
    return Made(cluster, topic, tmp_path)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    return Jobs(monkeypatch)


class TestPipeline:
    pytestmark = spark_only

    def test_one_job_rejects_retries_filters_and_loads(
        self, spark: SparkSession, made: Made, jobs: Jobs
    ) -> None:
        """Failures with their values, retries that succeed and end, all by one job a batch."""
        made.send(*VALUES)
        made.pipeline.run("until_idle", spark=spark, max_restarts=0)
        assert made.state() == STATE
        assert jobs.one
        assert not jobs.two
        assert jobs.failures == 5  # of them two are retried: one ends

    def test_two_jobs_do_the_same(
        self, spark: SparkSession, made: Made, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A batch of which much fails keeps the values of its failures off the driver."""
        monkeypatch.setattr(narrow, "NOTED_BYTES", 100)
        made.send(*VALUES)
        made.pipeline.run("until_idle", spark=spark, max_restarts=0)
        assert made.state() == STATE
        assert jobs.two

    def test_a_copy_that_is_there_twice_is_run_once(
        self, spark: SparkSession, made: Made, jobs: Jobs
    ) -> None:
        made.send(7)
        made.pipeline.run("available_now", spark=spark, max_restarts=0)
        delays = made.pipeline.topics[made.name].delays_ms
        (retry_topic,) = (name for name, delay_ms in delays.items() if delay_ms)
        (copy,) = read_committed(made.servers, retry_topic, 2)
        with Producer(bootstrap_servers=made.servers) as producer:
            producer.send(retry_topic, copy.value, copy.key, copy.partition, headers=copy.headers)
        made.pipeline.run("until_idle", spark=spark, max_restarts=0)
        rows, counts, _ = made.state()
        assert rows == [(7, 8, 1)]
        assert counts[:2] == (1, 1)
        assert jobs.two == 1

    def test_rows_are_staged_again_when_a_commit_finds_them_gone(
        self, spark: SparkSession, made: Made, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PostgreSQL empties staging when it recovers from a crash."""
        commit, refusals = BatchStore.commit, ["staged rows are gone"]

        def refusing(store: BatchStore, *args: Any) -> str:
            return refusals.pop() if refusals else commit(store, *args)

        monkeypatch.setattr(BatchStore, "commit", refusing)
        made.send(*VALUES)
        made.pipeline.run("until_idle", spark=spark, max_restarts=0)
        assert made.state() == STATE
        assert jobs.two == 1
        assert not refusals

    @pytest.mark.extended
    @pytest.mark.parametrize("fails", [False, True], ids=["all-load", "some-fail"])
    def test_a_driver_that_dies_at_any_step_loses_and_doubles_nothing(
        self, spark: SparkSession, made: Made, jobs: Jobs, fails: bool
    ) -> None:
        """Also between the job that has staged and the beginning of the commit."""
        steps = [*Step] if fails else [s for s in Step if s not in OF_TOPICS]
        for number, step in enumerate(steps, 10):
            made.send(number, *[0] * fails)
            made.pipeline = made.made()
            Death(step).run(made.pipeline, spark)
        made.pipeline = made.made()
        made.pipeline.run("available_now", spark=spark, max_restarts=0)
        rows, (inputs, loaded, *_), letters = made.state()
        assert [n for n, *_ in rows] == [*range(10, 10 + len(steps))]
        assert (inputs, loaded, len(letters)) == (
            len(steps) * (1 + fails),
            len(rows),
            inputs - loaded,
        )
        assert jobs.one
        assert not jobs.two
