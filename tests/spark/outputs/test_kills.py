"""The kill table: SIGKILL of drivers and executors within a batch's commit (issue 16, spec 6.3).

A driver runs a query of each kind side by side: into tables, topics and both, stateless and
stateful. They wait for each other at a step of their batches, and there the process is killed: one
start of a JVM kills ten queries at the same step. A checker recomputes what must be there from the
input alone: nothing lost, nothing twice.

Brokers, PostgreSQL, Python workers, staging and time-outs are in test_faults.py; the same steps
with two kills and a transaction that expires meanwhile, in a model, are in test_protocol.py.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Producer
from kohort.retry.stores import open_store
from kohort.spark.outputs.protocol import Step
from tests.java import skip_without
from tests.reading import read_committed
from tests.spark.outputs.job import BATCH_ROWS
from tests.spark.standalone import Standalone, standalone

if TYPE_CHECKING:
    from kohort.testing import Cluster
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.spark
_numbers = itertools.count()
PARTITIONS, FIRST_ROWS = 3, 3 * BATCH_ROWS
MOST_ROWS = BATCH_ROWS + PARTITIONS - 1
"""Of a batch: its limit is rounded up in each partition."""
DRIVER_TIMEOUT_S = 600
RANDOM_KILLS = int(os.environ.get("KOHORT_KILLS", "100"))
MOST_STEPS, LONGEST_DELAY_S = 200, 1.0
"""Before a kill at a random moment: a batch of ten queries has a hundred steps."""
DATABASE_STEPS = {
    Step.BEGUN,
    Step.FENCE_READ,
    Step.BEFORE_STAGING,
    Step.AFTER_STAGING,
    Step.BEFORE_FENCE,
    Step.AFTER_MERGE,
    Step.AFTER_FENCE,
    Step.BEFORE_COMMIT_LOG,
}
KAFKA_STEPS = {
    Step.BEGUN,
    Step.PRODUCER_READY,
    Step.FENCE_READ,
    Step.BEFORE_STAGING,
    Step.AFTER_STAGING,
    Step.KAFKA_FENCED,
    Step.BEFORE_END,
    Step.AFTER_END,
    Step.BEFORE_COMMIT_LOG,
}
DATABASES, TOPICS = ("sqlite", "postgres"), ("topic", "sqlite+topic", "postgres+topic")
ON_A_CLUSTER = ("postgres", "topic", "postgres+topic")
"""A file of SQLite's is of one machine."""


@dataclass
class Query:
    """A query into outputs of its own."""

    kind: str
    stateful: bool
    store: str
    output: str
    checkpoint: str

    @property
    def name(self) -> str:
        return f"{self.kind}-{'stateful' if self.stateful else 'stateless'}"

    def has(self, step: Step) -> bool:
        """Whether its batches pass a step."""
        return bool(
            (self.store and step in DATABASE_STEPS) or (self.output and step in KAFKA_STEPS)
        )

    def settings(self) -> dict[str, Any]:
        return {
            "name": Path(self.checkpoint).name,
            "stateful": self.stateful,
            "store": self.store,
            "output": self.output,
            "checkpoint": self.checkpoint,
        }


@dataclass
class Job:
    """Drivers that run such queries over one topic."""

    cluster: Cluster
    directory: Path
    input: str
    queries: list[Query] = field(default_factory=list[Query])
    rows: int = 0

    def produce(self, count: int) -> None:
        """More numbers into the input."""
        with Producer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for n in range(self.rows, self.rows + count):
                producer.send(self.input, b"%d" % n, partition=n % PARTITIONS)
        self.rows += count

    def start(self, step: Step | None = None, **settings: Any) -> int:
        """Run a driver to its end; its exit code."""
        with self.driver(step, **settings) as process:
            return process.wait(DRIVER_TIMEOUT_S)

    @contextmanager
    def driver(
        self, step: Step | None = None, **settings: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A driver, in a process group of its own, which is killed when the block ends."""
        path = self.directory / f"settings{next(_numbers)}.json"
        queries = [q.settings() for q in self.queries if step is None or q.has(step)]
        full = {
            "servers": self.cluster.bootstrap,
            "input": self.input,
            "queries": queries,
            "step": step and step.name,
            "master": "local[2]",
            "worker": 0,
            "steps": 0,
            "delay_s": 0.0,
            **settings,
        }
        path.write_text(json.dumps(full))
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.outputs.job", str(path)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def log(self) -> str:
        return (self.directory / "log").read_text()[-4_000:]

    def records(self, topic: str) -> list[tuple[int, int]]:
        """(key, value) of an output topic, as a reader with read_committed sees it."""
        found = read_committed(self.cluster.bootstrap, topic, PARTITIONS)
        return [(int(r.key or b""), int(r.value or b"")) for r in found]


@pytest.fixture
def job(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    topic: Callable[..., str],
    tmp_path: Path,
    kinds: Sequence[str],
) -> Job:
    """A query of each kind, stateless and stateful."""
    skip_without()
    made = Job(cluster, tmp_path, topic(PARTITIONS, name="input"))
    for number, (kind, stateful) in enumerate(itertools.product(kinds, (False, True))):
        store = ""
        if "sqlite" in kind:
            store = f"sqlite:///{tmp_path / f'{number}.sqlite'}"
        elif "postgres" in kind:
            server: PostgresServer = request.getfixturevalue("postgres")
            store = server.new_database()
        if store:
            columns = "k BIGINT PRIMARY KEY, total BIGINT" if stateful else "n BIGINT"
            opened = open_store(store)
            with opened.transaction() as cursor:
                cursor.execute(f"CREATE TABLE t ({columns})")
            opened.close()
        output = topic(PARTITIONS, name="output") if "topic" in kind else ""
        checkpoint = str(tmp_path / f"{made.input}-{number}")
        made.queries.append(Query(kind, stateful, store, output, checkpoint))
    made.produce(FIRST_ROWS)
    return made


def table_row(kinds: Sequence[str], name: str, *marks: Any) -> Any:
    """Kinds of queries that a driver runs side by side, with the marks of such a row."""
    of_postgres = [pytest.mark.postgres] if any("postgres" in kind for kind in kinds) else []
    timeout = pytest.mark.timeout(20 * DRIVER_TIMEOUT_S)
    return pytest.param(kinds, marks=[timeout, *of_postgres, *marks], id=name)


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("kinds", "step"),
    [
        pytest.param(("topic",), Step.AFTER_STAGING, id="topic-AFTER_STAGING"),
        pytest.param(("sqlite+topic",), Step.BEFORE_END, id="sqlite+topic-BEFORE_END"),
    ],
)
@pytest.mark.timeout(2 * DRIVER_TIMEOUT_S)
def test_a_driver_is_killed_at_a_step(job: Job, step: Step) -> None:
    """`make test` runs the first, `make test-all` both, `make kill-table` every step below."""
    assert job.start(step) == -signal.SIGKILL, job.log()
    assert job.start() == 0, job.log()
    check(job)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kinds", [table_row(DATABASES, "tables"), table_row(TOPICS, "topics-and-both")]
)
def test_a_driver_is_killed_at_every_step(job: Job) -> None:
    """Each driver replays what the one before it left, and dies in the batch after."""
    for step in Step:
        if not any(query.has(step) for query in job.queries):
            continue
        assert job.start(step) == -signal.SIGKILL, f"{step.value}: {job.log()}"
        check_so_far(job, step)
        job.produce(BATCH_ROWS)
    assert job.start() == 0, job.log()
    check(job)


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [table_row(("sqlite+topic", "postgres", "topic"), "all")])
def test_two_drivers_run_one_query(job: Job) -> None:
    """At the same time, over one checkpoint: one of them commits each batch, the other skips it or
    ends with an error."""
    with job.driver() as one, job.driver() as other:
        for driver in (one, other):
            driver.wait(DRIVER_TIMEOUT_S)
    assert job.start() == 0, job.log()
    check(job)


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master with two workers of one core each."""
    skip_without()
    with standalone(tmp_path_factory.mktemp("cluster"), workers=2, cores=1) as made:
        yield made


@pytest.mark.nightly
@pytest.mark.parametrize("step", [Step.BEFORE_STAGING, Step.AFTER_STAGING], ids=lambda s: s.name)
@pytest.mark.parametrize("kinds", [table_row(ON_A_CLUSTER, "all")])
def test_an_executor_of_a_cluster_is_killed(
    job: Job, step: Step, spark_cluster: Standalone
) -> None:
    """The queries go on with the other worker's, and end exact."""
    if job.start(step, master=spark_cluster.url, worker=spark_cluster.workers[0]):
        assert job.start(master=spark_cluster.url) == 0, job.log()
    check(job)


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [table_row(ON_A_CLUSTER, "all")])
def test_a_driver_of_a_cluster_is_killed(job: Job, spark_cluster: Standalone) -> None:
    """As the steps above, on two workers: after staging, in the middle of the commit, before
    Spark's commit log."""
    for step in (Step.AFTER_STAGING, Step.AFTER_FENCE, Step.BEFORE_END, Step.BEFORE_COMMIT_LOG):
        code = job.start(step, master=spark_cluster.url)
        assert code == -signal.SIGKILL, f"{step.value}: {job.log()}"
        check_so_far(job, step)
        job.produce(BATCH_ROWS)
    assert job.start(master=spark_cluster.url) == 0, job.log()
    check(job)


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [table_row(("sqlite", *TOPICS, "postgres"), "all")])
def test_a_hundred_kills_at_random_moments(job: Job) -> None:
    """SIGKILL of a driver of ten queries; when one comes through, again with more rows.

    KOHORT_KILLS is how many, KOHORT_SEED another draw.
    """
    draw = random.Random(int(os.environ.get("KOHORT_SEED", "16")))
    kills = 0
    while kills < RANDOM_KILLS:
        moment = {"steps": draw.randint(1, MOST_STEPS), "delay_s": draw.uniform(0, LONGEST_DELAY_S)}
        code = job.start(**moment)
        if code:
            assert code == -signal.SIGKILL, job.log()
            kills += 1
            check_so_far(job, f"kill {kills}: {moment}")
        else:
            check(job)
            job.produce(FIRST_ROWS)
    assert job.start() == 0, job.log()
    check(job)


# What must be there, by the input


def totals_of(rows: int) -> dict[int, int]:
    totals: Counter[int] = Counter()
    for n in range(rows):
        totals[n % 7] += n
    return dict(totals)


def check_so_far(job: Job, at: object) -> None:
    """Between two drivers: no row is there that is not in the input, and none is there twice."""
    for one in job.queries:
        where = f"{one.name}, {at}"
        if one.store and not one.stateful:
            rows = query(one.store, "SELECT n FROM t")
            assert len(set(rows)) == len(rows) <= job.rows, where
        if one.output:
            read = job.records(one.output)
            assert len(set(read)) == len(read), where


def check(job: Job) -> None:
    """All of the input, once, and nothing that is owed."""
    for one in job.queries:
        if one.store:
            check_table(one, job.rows)
        if one.output:
            check_topic(one, job.records(one.output), job.rows)


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    store = open_store(url)
    try:
        return store.query(sql)
    finally:
        store.close()


def check_table(one: Query, rows: int) -> None:
    if one.stateful:
        assert dict(query(one.store, "SELECT k, total FROM t")) == totals_of(rows), one.name
    else:
        read = sorted(n for (n,) in query(one.store, "SELECT n FROM t"))
        assert read == list(range(rows)), one.name
    books = query(
        one.store,
        "SELECT batch_id, rows_read, rows_loaded FROM kohort_batch_history WHERE output = 't' "
        "ORDER BY 1",
    )
    assert [batch_id for batch_id, _, _ in books] == list(range(len(books))), one.name
    assert len(books) * MOST_ROWS >= rows, one.name
    assert all(read == loaded for _, read, loaded in books), one.name
    assert query(one.store, "SELECT ended FROM kohort_batch_fence") == [(1,)], one.name
    assert query(one.store, "SELECT count(*) FROM kohort_outbox") == [(0,)], one.name


def check_topic(one: Query, records: list[tuple[int, int]], rows: int) -> None:
    if not one.stateful:
        assert sorted(records) == [(n, n) for n in range(rows)], one.name
        return
    last = dict(records)  # a key's records are in one partition, in the order of the batches
    assert last == totals_of(rows), one.name
    assert len(set(records)) == len(records), f"{one.name}: a batch was written twice"
    assert len(records) * MOST_ROWS >= 7 * rows, one.name
