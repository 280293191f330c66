"""The kill table beside drivers: what else dies or goes wrong within a batch (issue 16, spec 6.3).

One Spark session runs all of it: a fault strikes when the batch reaches a step, and the query is
started again when it has failed, as an operator would. A checker recomputes what must be there
from the input alone: nothing lost, nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kohort.client.admin.calls import AdminCalls
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.spark import BatchFunction, to_outputs, to_table, to_topic
from kohort.spark.outputs.protocol import Step
from kohort.testing import Cluster
from tests.spark.outputs.stream import Stream, create, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
RUNS = 4
"""So often a query may fail before the test gives up."""
ROWS = 30
KINDS = ("sqlite", "postgres", "topic", "sqlite+topic", "postgres+topic")
TOPIC_STEPS = (Step.AFTER_STAGING, Step.BEFORE_END)
"""Before the decision for a batch with a table, and after it."""
LONG_S = 400.0
"""More than the transactions' time-out."""


@dataclass
class Fault:
    """Strikes once, when a batch reaches a step."""

    step: Step
    strike: Callable[[], None]
    struck: bool = False

    def reached(self, step: Step) -> None:
        if step is self.step and not self.struck:
            self.struck = True
            self.strike()


@dataclass
class Query:
    """One query into a table, a topic or both."""

    stream: Stream
    store: Store | None
    topic: str
    stateful: bool
    failures: list[str] = field(default_factory=list[str])
    calls: list[tuple[DataFrame, int]] = field(default_factory=list["tuple[DataFrame, int]"])
    """What Spark has called the outputs with."""
    sent: int = 0
    batches: int = 0

    def __post_init__(self) -> None:
        if self.store is not None:
            columns = "k BIGINT PRIMARY KEY, total BIGINT, c BIGINT"
            create(self.store, f"CREATE TABLE t ({columns if self.stateful else 'n BIGINT'})")

    def frame(self) -> DataFrame:
        return self.stream.totals() if self.stateful else self.stream.rows()

    def function(self) -> BatchFunction:
        outputs: list[BatchFunction] = []
        if self.store is not None:
            outputs.append(to_table(self.store.url, "t", key=("k",) if self.stateful else ()))
        if self.topic:
            columns = ["k", "total"] if self.stateful else ["n", "n"]
            key, value = (f"CAST({column} AS STRING)" for column in columns)
            servers = self.stream.cluster.bootstrap
            outputs.append(
                to_topic(
                    self.topic,
                    bootstrap_servers=servers,
                    select=lambda f: f.selectExpr(f"{key} AS key", f"{value} AS value"),
                )
            )
        return to_outputs(*outputs)

    def run(self, *faults: Fault, frame: DataFrame | None = None) -> None:
        """A batch without a fault, then one for each of them, and one behind the last."""
        for fault in (None, *faults, None):
            self.stream.send(*range(self.sent, self.sent + ROWS))
            self.sent += ROWS
            self.batches += 1
            for _ in range(RUNS):
                function = _Watched(self.function(), self.calls)
                function.reached = fault.reached if fault else (lambda _: None)
                try:
                    rows = self.frame() if frame is None else frame
                    self.stream.run(rows, function, "update" if self.stateful else "append")
                    break
                except Exception as error:  # Spark has its own classes
                    self.failures.append(str(error))
            else:
                raise AssertionError(self.failures[-1])
            assert fault is None or fault.struck

    def check(self) -> None:
        """Everything is there once, by the input."""
        every = range(self.sent)
        totals: Counter[int] = Counter()
        for n in every:
            totals[n % 3] += n
        if self.store is not None:
            if self.stateful:
                assert dict(self.store.query("SELECT k, total FROM t")) == dict(totals)
            else:
                assert sorted(n for (n,) in self.store.query("SELECT n FROM t")) == list(every)
            fence = self.store.query("SELECT batch_id, ended FROM kohort_batch_fence")
            assert fence == [(self.batches - 1, 1)]
        if not self.topic:
            return
        read = records(self.stream.cluster, self.topic)
        pairs = [(int(r.key or b""), int(r.value or b"")) for r in read]
        if self.stateful:
            assert len(pairs) == 3 * self.batches, "three groups in each batch"
            assert dict(pairs) == dict(totals)
        else:
            assert sorted(pairs) == [(n, n) for n in every]


class _Watched(BatchFunction):
    """The outputs, noting their calls."""

    def __init__(self, function: BatchFunction, calls: list[tuple[DataFrame, int]]) -> None:
        super().__init__(function.tables, function.topics, function.query)
        self._calls = calls

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self._calls.append((frame, batch_id))
        super().__call__(frame, batch_id)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A broker of its own: it is killed, and its clock is moved ahead of everybody else's.

    With the session's broker, records that a later test retried were due 400 s later.
    """
    with Cluster() as made:
        yield made


@pytest.fixture
def query(
    request: pytest.FixtureRequest,
    stream: Stream,
    store: Store,
    topic: Callable[..., str],
    kind: str,
    stateful: bool,
) -> Iterator[Query]:
    target: Store | None = None if kind == "topic" else store
    if "postgres" in kind:
        target = open_store(request.getfixturevalue("database"))
    out = topic(3, name="out") if "topic" in kind else ""
    yield Query(stream, target, out, stateful)
    if target is not None:
        target.close()


def rows(*usual: tuple[str, bool], kinds: str) -> list[Any]:
    """Every kind, stateless and stateful; `make kill-table` runs what is not usual."""
    params = []
    for kind in kinds.split():
        for stateful in (False, True):
            marks = [] if (kind, stateful) in usual else [pytest.mark.nightly]
            if "postgres" in kind:
                marks.append(pytest.mark.postgres)
            name = f"{kind}-{'stateful' if stateful else 'stateless'}"
            params.append(pytest.param(kind, stateful, marks=marks, id=name))
    return params


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "stateful"), rows(("postgres", True), kinds="postgres postgres+topic")
)
def test_postgresql_is_stopped_at_once(query: Query, postgres: PostgresServer) -> None:
    """Immediate stop: it recovers when it starts, and its unlogged staging tables are empty."""

    def strike() -> None:
        postgres.stop(crash=True)
        postgres.start()

    query.run(*(Fault(step, strike) for step in (Step.AFTER_STAGING, Step.AFTER_MERGE)))
    query.check()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "stateful"), rows(("topic", False), kinds="topic sqlite+topic postgres+topic")
)
def test_the_broker_is_killed(query: Query, cluster: Cluster) -> None:
    def strike() -> None:
        cluster.kill()
        cluster.start()

    query.run(*(Fault(step, strike) for step in TOPIC_STEPS))
    query.check()


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    ("kind", "stateful"),
    rows(("topic", True), ("sqlite+topic", False), kinds="topic sqlite+topic postgres+topic"),
)
def test_the_transaction_times_out(
    query: Query, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the decision the batch runs again; after it, the outbox is sent anew."""
    now_ms = AdminCalls._now_ms
    later = 0

    def strike() -> None:
        """As long a batch, for the broker and for the driver.

        Deadlines come from the same clock as the waits that they end: with one of them moved, the
        first retriable error would be final.
        """
        nonlocal later
        cluster.advance(LONG_S)
        later += int(LONG_S * 1000)
        monkeypatch.setattr(AdminCalls, "_now_ms", lambda calls: now_ms(calls) + later)

    query.run(*(Fault(step, strike) for step in TOPIC_STEPS))
    query.check()
    assert not query.failures, "no restart of the query is needed"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "stateful"),
    rows(("sqlite", False), kinds="sqlite postgres sqlite+topic postgres+topic"),
)
def test_staging_is_deleted(query: Query, tmp_path: Path) -> None:
    def strike() -> None:
        assert query.store is not None
        if query.store.url.startswith("sqlite"):
            for path in tmp_path.glob("db.sqlite-staging-*"):
                path.unlink()
            return
        with query.store.transaction() as cursor:
            tables = cursor.query(
                "SELECT relname FROM pg_class WHERE relname LIKE 'kohort_stage_%' AND relkind = 'r'"
            )
            for (name,) in tables:
                cursor.execute(f'DELETE FROM "{name}"')

    query.run(Fault(Step.BEFORE_FENCE, strike))
    query.check()


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "stateful"), rows(("sqlite+topic", True), kinds=" ".join(KINDS)))
def test_a_python_worker_dies_within_a_batch(query: Query, tmp_path: Path) -> None:
    """Before a row of its task is staged or written. The task is tried again, or the query is."""
    mark = tmp_path / "died"

    def once(batches: Any) -> Any:
        import os

        for batch in batches:
            if batch.num_rows and not mark.exists():
                mark.touch()
                os._exit(1)
            yield batch

    fault = Fault(Step.BEFORE_STAGING, lambda: mark.unlink())
    mark.touch()
    frame = query.frame()
    query.run(fault, frame=frame.mapInArrow(once, frame.schema))
    assert mark.exists(), "a worker has died"
    query.check()


TABLE_STEPS = (
    Step.FENCE_READ,
    Step.BEFORE_STAGING,
    Step.AFTER_STAGING,
    Step.BEFORE_FENCE,
    Step.AFTER_FENCE,
    Step.BEFORE_COMMIT_LOG,
)
KAFKA_STEPS = (
    Step.PRODUCER_READY,
    Step.FENCE_READ,
    Step.BEFORE_STAGING,
    Step.AFTER_STAGING,
    Step.KAFKA_FENCED,
    Step.BEFORE_END,
    Step.BEFORE_COMMIT_LOG,
)
BOTH_STEPS = (*TABLE_STEPS, Step.BEFORE_END)
SECOND_STEPS = {"sqlite": TABLE_STEPS, "postgres": TABLE_STEPS, "topic": KAFKA_STEPS}
"""Where the second driver runs the batch of the first; with table and topic, BOTH_STEPS."""


@pytest.mark.parametrize(("kind", "stateful"), rows(kinds=" ".join(KINDS)))
def test_a_second_driver_runs_the_same_batch(query: Query, kind: str) -> None:
    """At each step of the first. One of them commits it; the first may end with an error."""
    second = query.function()

    def strike() -> None:
        second(*query.calls[-1])

    steps = SECOND_STEPS.get(kind, BOTH_STEPS)
    query.run(*(Fault(step, strike) for step in steps))
    query.check()
    second.close()
