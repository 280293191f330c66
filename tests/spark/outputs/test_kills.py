"""The kill table: SIGKILL of a driver at every step of a batch's commit (issue 16, spec 6.3).

A checker recomputes what must be there from the input alone: nothing lost, nothing twice. The same
steps, with two kills and a transaction that expires meanwhile, are in test_protocol.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort import Consumer
from kohort.client.common.types import TopicPartition
from kohort.retry.stores import open_store
from kohort.spark.outputs.protocol import Step
from tests.java import skip_without

if TYPE_CHECKING:
    from kohort.testing import Cluster
    from tests.postgres import PostgresServer

ROWS, PARTITIONS, BATCH_ROWS = 120, 3, 40
DRIVER_TIMEOUT_S = 240
DATABASE_STEPS = [
    Step.FENCE_READ, Step.BEFORE_STAGING, Step.AFTER_STAGING, Step.BEFORE_FENCE, Step.AFTER_MERGE,
    Step.AFTER_FENCE, Step.BEFORE_COMMIT_LOG,
]  # fmt: skip
KAFKA_STEPS = [
    Step.PRODUCER_READY, Step.BEFORE_STAGING, Step.AFTER_STAGING, Step.KAFKA_FENCED,
    Step.BEFORE_END, Step.AFTER_END, Step.BEFORE_COMMIT_LOG,
]  # fmt: skip
BOTH_STEPS = list(dict.fromkeys([*DATABASE_STEPS, *KAFKA_STEPS]))
USUAL = [
    ("sqlite", Step.AFTER_MERGE, False),
    ("topic", Step.AFTER_STAGING, False),
    ("both", Step.BEFORE_END, True),
]
"""Which rows of the table `make test` runs; `make nightly` runs all."""
TABLE = [
    (kind, step, stateful)
    for kind, steps in [
        ("sqlite", DATABASE_STEPS), ("postgres", DATABASE_STEPS), ("topic", KAFKA_STEPS),
        ("both", BOTH_STEPS),
    ]
    for step in steps
    for stateful in (False, True)
]  # fmt: skip


def row(kind: str, step: Step, stateful: bool) -> Any:
    marks = [pytest.mark.spark, pytest.mark.timeout(2 * DRIVER_TIMEOUT_S)]
    if (kind, step, stateful) not in USUAL:
        marks.append(pytest.mark.nightly)
    if kind in ("postgres", "both"):
        marks.append(pytest.mark.postgres)
    name = f"{kind}-{step.name.lower()}-{'stateful' if stateful else 'stateless'}"
    return pytest.param(kind, step, stateful, marks=marks, id=name)


class Job:
    """One query with topics, a database and a checkpoint of its own."""

    def __init__(self, cluster: Cluster, directory: Path, store: str, topics: tuple[str, str]):
        self.cluster, self.directory, self.store = cluster, directory, store
        self.input, self.output = topics

    def start(self, **settings: Any) -> int:
        """Run a driver to its end; its exit code."""
        path = self.directory / "settings.json"
        path.write_text(
            json.dumps(
                {
                    "servers": self.cluster.bootstrap, "input": self.input, "store": self.store,
                    "output": self.output, "checkpoint": str(self.directory / "checkpoint"),
                    **settings,
                }
            )
        )  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.outputs.job", str(path)],
                stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            try:
                return process.wait(DRIVER_TIMEOUT_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def log(self) -> str:
        return (self.directory / "log").read_text()[-4_000:]

    def records(self) -> list[tuple[int, int]]:
        """(key, value) of the output topic, as a reader with read_committed sees it."""
        at = [TopicPartition(self.output, p) for p in range(PARTITIONS)]
        found: list[tuple[int, int]] = []
        with Consumer(
            bootstrap_servers=self.cluster.bootstrap, isolation_level="read_committed",
            auto_offset_reset="earliest", enable_auto_commit=False,
        ) as consumer:  # fmt: skip
            consumer.assign(at)
            ends = consumer.end_offsets(at)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                found += [(int(r.key or b""), int(r.value or b"")) for r in consumer.poll(1)]
        return found


@pytest.fixture
def job(
    request: pytest.FixtureRequest, cluster: Cluster, topic: Callable[..., str],
    produce: Callable[..., None], tmp_path: Path, kind: str,
) -> Job:  # fmt: skip
    skip_without()
    store = ""
    if kind == "sqlite":
        store = f"sqlite:///{tmp_path / 'db.sqlite'}"
    elif kind in ("postgres", "both"):
        server: PostgresServer = request.getfixturevalue("postgres")
        store = server.new_database()
    source = topic(PARTITIONS, name="input")
    output = topic(PARTITIONS, name="output") if kind in ("topic", "both") else ""
    produce(source, *((n % PARTITIONS, None, b"%d" % n) for n in range(ROWS)))
    return Job(cluster, tmp_path, store, (source, output))


@pytest.mark.parametrize(("kind", "step", "stateful"), [row(*r) for r in TABLE])
def test_a_driver_killed_at_any_step(job: Job, kind: str, step: Step, stateful: bool) -> None:
    if job.store:
        made = open_store(job.store)
        with made.transaction() as cursor:
            columns = "k BIGINT PRIMARY KEY, total BIGINT" if stateful else "n BIGINT"
            cursor.execute(f"CREATE TABLE t ({columns})")
        made.close()
    assert job.start(step=step.name, batch=1, stateful=stateful) == -signal.SIGKILL, job.log()
    assert job.start(stateful=stateful, batch=0) == 0, job.log()
    if job.store:
        check_table(job.store, stateful)
    if job.output:
        check_topic(job.records(), stateful)


def expected_totals() -> dict[int, int]:
    found: Counter[int] = Counter()
    for n in range(ROWS):
        found[n % 7] += n
    return dict(found)


def check_table(url: str, stateful: bool) -> None:
    store = open_store(url)
    if stateful:
        assert dict(store.query("SELECT k, total FROM t")) == expected_totals()
    else:
        assert sorted(n for (n,) in store.query("SELECT n FROM t")) == list(range(ROWS))
    books = store.query(
        "SELECT batch_id, rows_read, rows_loaded FROM kohort_batch_history WHERE output = 't' "
        "ORDER BY 1"
    )
    assert [batch_id for batch_id, _, _ in books] == list(range(len(books)))
    assert len(books) >= ROWS // BATCH_ROWS
    assert all(read == loaded for _, read, loaded in books)
    assert store.query("SELECT ended FROM kohort_batch_fence") == [(1,)]
    assert store.query("SELECT count(*) FROM kohort_outbox") == [(0,)]
    store.close()


def check_topic(records: list[tuple[int, int]], stateful: bool) -> None:
    if not stateful:
        assert sorted(records) == [(n, n) for n in range(ROWS)]
        return
    last = dict(records)  # a key's records stand in one partition, in the order of the batches
    assert last == expected_totals()
    assert len(set(records)) == len(records), "a batch was written twice"
    assert len(records) >= 7 * (ROWS // BATCH_ROWS)
