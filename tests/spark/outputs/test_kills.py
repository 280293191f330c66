"""The kill table: SIGKILL of drivers and executors within a batch's commit (issue 16, spec 6.3).

A checker recomputes what must be there from the input alone: nothing lost, nothing twice. Brokers,
PostgreSQL, Python workers, staging and time-outs are in test_faults.py; the same steps with two
kills and a transaction that expires meanwhile, in a model, are in test_protocol.py.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Consumer, Producer
from kohort.client.common.types import TopicPartition
from kohort.retry.stores import open_store
from kohort.spark.outputs.protocol import Step
from tests.java import skip_without

if TYPE_CHECKING:
    from kohort.testing import Cluster
    from tests.postgres import PostgresServer

_numbers = itertools.count()
ROWS, PARTITIONS, BATCH_ROWS = 120, 3, 40
MOST_ROWS = BATCH_ROWS + PARTITIONS - 1
"""Of a batch: its limit is rounded up in each partition."""
DRIVER_TIMEOUT_S = 240
RANDOM_KILLS = 100
DATABASE_STEPS = [
    Step.BEGUN,
    Step.FENCE_READ,
    Step.BEFORE_STAGING,
    Step.AFTER_STAGING,
    Step.BEFORE_FENCE,
    Step.AFTER_MERGE,
    Step.AFTER_FENCE,
    Step.BEFORE_COMMIT_LOG,
]
KAFKA_STEPS = [
    Step.BEGUN,
    Step.PRODUCER_READY,
    Step.BEFORE_STAGING,
    Step.AFTER_STAGING,
    Step.KAFKA_FENCED,
    Step.BEFORE_END,
    Step.AFTER_END,
    Step.BEFORE_COMMIT_LOG,
]
KINDS = ("sqlite", "postgres", "topic", "sqlite+topic", "postgres+topic")
USUAL = [("topic", Step.AFTER_STAGING, False), ("sqlite+topic", Step.BEFORE_END, True)]
"""`make test` runs the first, `make test-all` both, `make kill-table` the whole table."""


def steps_of(kind: str) -> list[Step]:
    """The steps of a batch into such outputs, in their order."""
    if kind == "topic":
        return KAFKA_STEPS
    both = set(KAFKA_STEPS) | set(DATABASE_STEPS) if "topic" in kind else set(DATABASE_STEPS)
    return [step for step in Step if step in both]


def param(kind: str, *values: Any, name: str, nightly: bool) -> Any:
    """A row of the table, with its marks."""
    marks = [pytest.mark.spark, pytest.mark.timeout(20 * DRIVER_TIMEOUT_S)]
    if nightly:
        marks.append(pytest.mark.nightly)
    if "postgres" in kind:
        marks.append(pytest.mark.postgres)
    return pytest.param(kind, *values, marks=marks, id=f"{kind}-{name}")


def named(stateful: bool) -> str:
    return "stateful" if stateful else "stateless"


class Job:
    """One query with topics, a database and a checkpoint of its own."""

    def __init__(self, cluster: Cluster, directory: Path, store: str, topics: tuple[str, str]):
        self.cluster, self.directory, self.store = cluster, directory, store
        self.input, self.output = topics
        self.rows = 0

    def produce(self, count: int = ROWS) -> None:
        """More numbers into the input."""
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for n in range(self.rows, self.rows + count):
                producer.send(self.input, b"%d" % n, partition=n % PARTITIONS)
        self.rows += count

    def start(self, *, kill_after_s: float | None = None, **settings: Any) -> int:
        """Run a driver to its end, or until it is killed; its exit code."""
        process = self.begin(**settings)
        try:
            return process.wait(kill_after_s or DRIVER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            if kill_after_s is None:
                raise
            return -signal.SIGKILL
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def begin(self, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a driver, in a process group of its own."""
        path = self.directory / f"settings{next(_numbers)}.json"
        path.write_text(
            json.dumps(
                {
                    "servers": self.cluster.bootstrap,
                    "input": self.input,
                    "store": self.store,
                    "output": self.output,
                    "checkpoint": str(self.directory / "checkpoint"),
                    **settings,
                }
            )
        )
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.outputs.job", str(path)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def log(self) -> str:
        return (self.directory / "log").read_text()[-4_000:]

    def records(self) -> list[tuple[int, int]]:
        """(key, value) of the output topic, as a reader with read_committed sees it."""
        at = [TopicPartition(self.output, p) for p in range(PARTITIONS)]
        read: list[tuple[int, int]] = []
        with Consumer(
            bootstrap_servers=self.cluster.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            consumer.assign(at)
            ends = consumer.end_offsets(at)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                read += [(int(r.key or b""), int(r.value or b"")) for r in consumer.poll(1)]
        return read


@pytest.fixture
def job(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: Callable[..., str],
    tmp_path: Path,
    kind: str,
    stateful: bool,
) -> Job:
    skip_without()
    store = ""
    if "sqlite" in kind:
        store = f"sqlite:///{tmp_path / 'db.sqlite'}"
    elif "postgres" in kind:
        server: PostgresServer = request.getfixturevalue("postgres")
        store = server.new_database()
    if store:
        opened = open_store(store)
        with opened.transaction() as cursor:
            columns = "k BIGINT PRIMARY KEY, total BIGINT" if stateful else "n BIGINT"
            cursor.execute(f"CREATE TABLE t ({columns})")
        opened.close()
    source = topic(PARTITIONS, name="input")
    output = topic(PARTITIONS, name="output") if "topic" in kind else ""
    made = Job(cluster, tmp_path, store, (source, output))
    made.produce()
    return made


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("kind", "step", "stateful"),
    [
        param(kind, step, stateful, name=f"{step.name}-{named(stateful)}", nightly=False)
        for kind, step, stateful in USUAL
    ],
)
def test_a_driver_is_killed_at_a_step(job: Job, step: Step, stateful: bool) -> None:
    assert job.start(step=step.name, batch=1, stateful=stateful) == -signal.SIGKILL, job.log()
    assert job.start(stateful=stateful) == 0, job.log()
    check(job, stateful)


@pytest.mark.parametrize(
    ("kind", "stateful"),
    [
        param(kind, stateful, name=named(stateful), nightly=True)
        for kind in KINDS
        for stateful in (False, True)
    ],
)
def test_a_driver_is_killed_at_every_step(job: Job, kind: str, stateful: bool) -> None:
    """Each driver replays what the one before it left, and dies in the batch after."""
    for step in steps_of(kind):
        code = job.start(step=step.name, batch=1, stateful=stateful)
        assert code == -signal.SIGKILL, f"{step.value}: {job.log()}"
        check_so_far(job, stateful, step)
        job.produce(2 * BATCH_ROWS)
    assert job.start(stateful=stateful) == 0, job.log()
    check(job, stateful)


@pytest.mark.parametrize(
    ("kind", "stateful"),
    [
        param(kind, stateful, name=named(stateful), nightly=True)
        for kind in ("sqlite+topic", "postgres", "topic")
        for stateful in (False, True)
    ],
)
def test_two_drivers_run_one_query(job: Job, stateful: bool) -> None:
    """At the same time, over one checkpoint: one of them commits each batch, the other skips it or
    ends with an error."""
    drivers = [job.begin(stateful=stateful) for _ in range(2)]
    try:
        for driver in drivers:
            driver.wait(DRIVER_TIMEOUT_S)
    finally:
        for driver in drivers:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
    assert job.start(stateful=stateful) == 0, job.log()
    check(job, stateful)


@pytest.mark.parametrize("step", [Step.BEFORE_STAGING, Step.AFTER_STAGING], ids=lambda s: s.name)
@pytest.mark.parametrize(
    ("kind", "stateful"),
    [
        param(kind, stateful, name=named(stateful), nightly=True)
        for kind in ("postgres", "topic", "postgres+topic")
        for stateful in (False, True)
    ],
)
def test_an_executor_of_a_cluster_is_killed(
    job: Job, stateful: bool, step: Step, tmp_path: Path
) -> None:
    """A master with two workers: the query goes on with the other one, and ends exact."""
    from tests.spark.standalone import standalone

    with standalone(tmp_path, workers=2, cores=1) as spark:
        how = {"master": spark.url, "worker": spark.workers[0], "step": step.name}
        if job.start(batch=1, stateful=stateful, **how):
            assert job.start(stateful=stateful, master=spark.url) == 0, job.log()
    check(job, stateful)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "stateful"), [param("postgres+topic", True, name="stateful", nightly=False)]
)
@pytest.mark.timeout(100 * DRIVER_TIMEOUT_S)
def test_a_hundred_kills_at_random_moments(job: Job) -> None:
    """SIGKILL of the driver after a drawn time; when a run comes through, again with more rows."""
    draw = random.Random(16)
    kills = 0
    while kills < RANDOM_KILLS:
        code = job.start(stateful=True, kill_after_s=draw.uniform(3.0, 12.0))
        kills += code == -signal.SIGKILL
        if not code:
            check(job, True)
            job.produce()
    assert job.start(stateful=True) == 0, job.log()
    check(job, True)


# What must be there, by the input


def totals_of(rows: int) -> dict[int, int]:
    totals: Counter[int] = Counter()
    for n in range(rows):
        totals[n % 7] += n
    return dict(totals)


def check_so_far(job: Job, stateful: bool, step: Step) -> None:
    """Between two drivers: no row is there that is not in the input, and none is there twice."""
    if job.store and not stateful:
        rows = query(job.store, "SELECT n FROM t")
        assert len(set(rows)) == len(rows) <= job.rows, step
    if job.output:
        read = job.records()
        assert len(set(read)) == len(read), step


def check(job: Job, stateful: bool) -> None:
    """All of the input, once, and nothing that is owed."""
    if job.store:
        check_table(job.store, stateful, job.rows)
    if job.output:
        check_topic(job.records(), stateful, job.rows)


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    store = open_store(url)
    try:
        return store.query(sql)
    finally:
        store.close()


def check_table(url: str, stateful: bool, rows: int) -> None:
    if stateful:
        assert dict(query(url, "SELECT k, total FROM t")) == totals_of(rows)
    else:
        assert sorted(n for (n,) in query(url, "SELECT n FROM t")) == list(range(rows))
    books = query(
        url,
        "SELECT batch_id, rows_read, rows_loaded FROM kohort_batch_history WHERE output = 't' "
        "ORDER BY 1",
    )
    assert [batch_id for batch_id, _, _ in books] == list(range(len(books)))
    assert len(books) * MOST_ROWS >= rows
    assert all(read == loaded for _, read, loaded in books)
    assert query(url, "SELECT ended FROM kohort_batch_fence") == [(1,)]
    assert query(url, "SELECT count(*) FROM kohort_outbox") == [(0,)]


def check_topic(records: list[tuple[int, int]], stateful: bool, rows: int) -> None:
    if not stateful:
        assert sorted(records) == [(n, n) for n in range(rows)]
        return
    last = dict(records)  # a key's records are in one partition, in the order of the batches
    assert last == totals_of(rows)
    assert len(set(records)) == len(records), "a batch was written twice"
    assert len(records) * MOST_ROWS >= 7 * rows
