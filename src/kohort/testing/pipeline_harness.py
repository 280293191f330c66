"""`PipelineHarness`: a `Pipeline` over records of a test, on a clock that the test moves.

Shell: files (a directory for the store, where the test names none).

    with PipelineHarness(pipeline) as harness:
        harness.send("sales", {"customer": "ada", "amount": 5})
        harness.advance("1h")               # retries run when they are due, at once in real time
        assert harness.rows("SELECT amount FROM sales") == [(5,)]

Rules:
- Row handlers run on the calling thread, over topics in memory, by the code that Spark's tasks run:
  there is no broker and no JVM. A pipeline with DataFrames runs on a small local Spark session and
  an embedded broker.
- The store is real. A step is a place at which a driver or a task can die; after a crash only
  topics and store are left, and Spark's plan of what was to be done.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from kohort.config import parse_duration_ms
from kohort.errors import UsageError
from kohort.records import Record
from kohort.retry.headers import Header
from kohort.retry.ledger import LedgerRow, Status
from kohort.retry.store import Store
from kohort.testing.pipeline_engine import Crashed, Engine, FailedRecord
from kohort.testing.used_stores import used_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.pipeline import Pipeline

MAX_DUE_TIMES: Final = 10_000
"""So many due times without an end are taken for an endless loop."""


class PipelineHarness:
    """Runs a `Pipeline` for a test. A context manager, which closes what it has opened.

    Args:
        pipeline: as a user's file makes it; `kohort.spark.load_pipeline(FILE)` loads one. Its
            brokers, and its store unless `store` is given, are replaced.
        store: the URL of a store without progress of this pipeline; by default a SQLite file that
            is deleted with the harness.
        partitions: of every topic.
        spark: the session for DataFrames; one is made where there is none.
        crash_at: crash at this step (see `steps`), once; None: nowhere.

    Raises ConfigError for a pipeline that reads nothing, or where there is no Java for DataFrames;
    UsageError for a store that an earlier run of the pipeline has used.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        store: str | None = None,
        partitions: int = 1,
        spark: SparkSession | None = None,
        crash_at: int | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.steps: list[str] = []
        """The places passed so far at which a driver or a task could have died."""
        self.crashes = 0
        self._crash_at = crash_at
        self._stack = ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="kohort-")))
        pipeline.store = store or f"sqlite:///{directory / 'store.db'}"
        self._store: Store = pipeline.open_store()
        self._stack.callback(self._store.close)
        try:
            pipeline.prepare_store(self._store)
            _refuse_progress(self._store, pipeline.name)
            self._engine = self._made(directory, partitions, spark)
        except BaseException:  # what was opened must not stay behind
            self._stack.close()
            raise
        self._stack.callback(self._engine.close)

    def _made(self, directory: Path, partitions: int, spark: SparkSession | None) -> Engine:
        if self.pipeline.graph:
            from kohort.testing.pipeline_on_spark import SparkEngine

            return SparkEngine(self.pipeline, directory, partitions, spark, self._reach)
        from kohort.testing.pipeline_in_memory import MemoryEngine

        return MemoryEngine(self.pipeline, partitions, self._reach)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections, end the broker, delete the store that it has made."""
        self._stack.close()

    # -- records in, time --------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any,
        key: bytes | str | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        """Append a record to a topic; nothing is handled before `run` or `advance`.

        Args:
            value: bytes as they are, None, or anything else as JSON.
        """
        raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        name = key.encode() if isinstance(key, str) else key
        self._engine.append(topic, raw, name, partition, headers)

    def run(self) -> None:
        """Handle everything that can be handled now. No time passes.

        Raises what ends a pipeline.
        """
        while True:
            try:
                self._engine.run()
                return
            except Crashed:
                self.crashes += 1

    def advance(self, duration: str | int) -> None:
        """Let time pass; every record is retried when it is due.

        Args:
            duration: "5m", "1h30m", several as in "5m 30m", or milliseconds.
        """
        engine = self._engine
        until_ms = engine.moved_ms + parse_duration_ms(duration)
        self.run()
        self._run_until(until_ms)
        engine.move_to(self.now_ms + max(0, until_ms - engine.moved_ms))

    def run_to_end(self) -> None:
        """Let time pass until no record waits any more."""
        self.run()
        self._run_until(None)

    def _run_until(self, until_ms: int | None) -> None:
        """Run what is due until the clock was moved so far. Time that batches take comes on top."""
        engine = self._engine
        for _ in range(MAX_DUE_TIMES):
            due_ms = engine.next_due_ms(self.retries())
            if due_ms is None:
                return
            if until_ms is not None and due_ms - self.now_ms > until_ms - engine.moved_ms:
                return
            self._engine.move_to(max(due_ms, self.now_ms + 1))
            self.run()
        raise UsageError(f"after {MAX_DUE_TIMES} due times there is still a record that waits")

    @property
    def now_ms(self) -> int:
        """The present time of the harness, milliseconds since 1970."""
        return self._engine.now_ms

    # -- what came of it ---------------------------------------------------------------------------

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT over the store."""
        return self._store.query(sql, params)

    def records(self, topic: str) -> list[Record]:
        """The committed records of a topic, partition by partition."""
        return self._engine.records(topic)

    def retries(self) -> list[FailedRecord]:
        """The records that wait for a retry, by due time."""
        return sorted(self._in_state(Status.SCHEDULED), key=lambda r: r.due_ms or 0)

    def dead_letters(self) -> list[FailedRecord]:
        """The records that have failed, by topic, partition and offset."""
        return sorted(self._in_state(Status.FAILED), key=lambda r: (r.topic, r.partition, r.offset))

    def _in_state(self, status: Status) -> list[FailedRecord]:
        newest: dict[str, LedgerRow] = {}
        for row in self._store.rows(self.pipeline.name):
            last = newest.get(row.retry_id)
            at = (row.redrive_count, row.number)
            if last is None or at > (last.redrive_count, last.number):
                newest[row.retry_id] = row
        waits = status is Status.SCHEDULED
        return [
            FailedRecord(
                row.origin.topic,
                row.origin.partition,
                row.origin.offset,
                row.number + (not waits),
                row.reason,
                row.error_message,
                row.due_ms if waits else None,
            )
            for row in newest.values()
            if row.status is status
        ]

    def _reach(self, step: str) -> None:
        """A step: the program may die here."""
        self.steps.append(step)
        if self._crash_at == len(self.steps) - 1:
            self._crash_at = None
            raise Crashed(step)


def _refuse_progress(store: Store, pipeline: str) -> None:
    for fence in store.fences(pipeline):
        if fence.next_offset > 0:
            owner = f"pipeline {pipeline}"
            raise used_store(owner, fence.topic, fence.partition, fence.next_offset)
