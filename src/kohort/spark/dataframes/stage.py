"""One stage's function for `foreachBatch`: compute a micro-batch, commit it as one transaction.

Shell: connections, which the thread of the batches or the one that ends the query closes.

Rules (ADR 0019, ADR 0023):
- The database decides: its transaction holds the batch fence, the positions of every partition, the
  rows, the ledger and the counts. Topics, retries and dead letters are one Kafka transaction.
- A batch that the fence covers is not computed again.
- A stage of narrow steps keeps no state: it continues at its positions in the database, also with
  a new checkpoint. A stateful one may not.
- The Kafka transaction names only topics that the batch writes to, and is not begun without any.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from kohort.client.producer.plan.transaction_requests import Identity
from kohort.retry.cluster_port import now_ms
from kohort.retry.policy import RetryTopics
from kohort.retry.progress import LostRaceError
from kohort.retry.store import ConstraintError, Cursor, Transaction
from kohort.spark.dataframes.analysing import Analysis, call
from kohort.spark.dataframes.books import BatchRange, books_of
from kohort.spark.dataframes.columns import as_records, forwarded, visible
from kohort.spark.dataframes.failing import COPY_SCHEMA, RetrySpec, copies
from kohort.spark.dataframes.graph import (
    Graph,
    Stage,
    Step,
    TableTarget,
    TopicTarget,
)
from kohort.spark.dataframes.isolating import RowFailure, refused_in_a_task, temporary_failure
from kohort.spark.dataframes.judging import Judgement, Place
from kohort.spark.dataframes.narrow import NarrowBatch, NarrowPlan
from kohort.spark.dataframes.references import ReferenceTable
from kohort.spark.dataframes.trials import broken_records, failing_records, refused_records
from kohort.spark.outputs.cancelled import cut_off
from kohort.spark.outputs.fence import GROUP_PREFIX, Batch, FencePolicy
from kohort.spark.outputs.kafka import TopicTransaction
from kohort.spark.outputs.late import count_late
from kohort.spark.outputs.merge_sql import TableOutput
from kohort.spark.outputs.parts import TablePart, TopicPart
from kohort.spark.outputs.protocol import (
    Attempt,
    BatchFailedError,
    Committer,
    Outcome,
    Written,
    ignore,
)
from kohort.spark.outputs.protocol import (
    Step as Reached,
)
from kohort.spark.outputs.spool import spool_directory
from kohort.spark.outputs.staging import StageSpec
from kohort.spark.outputs.table_transaction import BatchStore, SqliteBatches, open_batches
from kohort.spark.outputs.topics import DEFAULT_BATCH_BYTES, LEAST_BATCH_BYTES, TopicOutput
from kohort.spark.outputs.work import BatchWork, StagedBeforeError, check_context, stage_spec
from kohort.spark.plans.logical import computed_once

log = logging.getLogger("kohort.spark")
QUERY_ID: Final = "sql.streaming.queryId"
INTERMEDIATE_COMPRESSION: Final = "lz4"
TWO_JOBS_BATCHES: Final = 20
"""After a batch for which one job did not do, so many are computed by two."""
_Output = Callable[[str, str, Callable[[DataFrame], DataFrame]], DataFrame]
"""What is made of the rows of a node: its name, a key of the function, the function."""


@dataclass(frozen=True)
class StageSetting:
    """What a stage needs to know of its pipeline.

    Args:
        pipeline: the name under which books are kept.
        store_url: the database.
        client: the clients' configuration in Kafka's names.
        spec: the retry topics.
        read_range: the offsets of a batch, as Spark has logged them.
        topic_ids: by topic, for positions that are opened.
        transaction_timeout_ms: how long a batch may take.
        reached: called at each step of a commit.
        now_ms: the clock.
        late_rows: by the query's id, how many rows its present batch has dropped as late.
        ending: whether the queries are being stopped.
    """

    pipeline: str
    store_url: str
    client: Mapping[str, str]
    spec: RetrySpec
    read_range: Callable[[int], BatchRange]
    topic_ids: Mapping[str, str]
    transaction_timeout_ms: int
    reached: Callable[[Reached], None] = ignore
    now_ms: Callable[[], int] = now_ms
    late_rows: Callable[[str], int] = lambda _: 0
    ending: Callable[[], bool] = lambda: False


@dataclass
class _Prepared:
    """A batch that is computed: its outputs and its books."""

    tables: dict[str, DataFrame]
    topics: list[TopicPart]
    written: set[str]
    """The topics that get records; `topics` may name more."""
    changes: list[Transaction]
    close: Callable[[], None]
    staged: list[Attempt] | None = None
    """The attempts that have staged the rows of the table already."""


class StageFunction:
    """The function of one stage; called with every micro-batch of its query."""

    def __init__(
        self, setting: StageSetting, graph: Graph, analysis: Analysis, stage: Stage
    ) -> None:
        self._setting = setting
        self._graph = graph
        self._analysis = analysis
        self._stage = stage
        self._plan = NarrowPlan(graph, analysis, stage, setting.spec)
        self.query = f"{setting.pipeline}.{stage.name}"
        self._references = [
            ReferenceTable(r, analysis.values.get(r.name), setting.client)
            for r in graph.references_of(stage.steps)
        ]
        self._database: BatchStore | None = None
        self._transaction: TopicTransaction | None = None
        self._known: set[tuple[str, int]] = set()
        self._spool: Path | None = None
        self._in_batch = threading.Lock()
        self._released = False
        self._two_jobs_until = -1
        """Batches up to this one are computed first and staged then."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit one micro-batch, or skip it when it is committed already."""
        context = frame.sparkSession.sparkContext
        query_id: Any = context.getLocalProperty(QUERY_ID)
        batch = Batch(self.query, batch_id, query_id)
        with self._in_batch:
            try:
                self._run(frame, batch, self._open_database(context))
            except BaseException:  # the next run begins with connections of its own
                self._close()
                if not self._setting.ending():
                    raise
                raise cut_off(batch) from None
        if self._released:
            self._close()

    def _run(self, frame: DataFrame, batch: Batch, database: BatchStore) -> None:
        try:
            stored = database.fence()
            settled = stored is None or stored.ended
            if stored is not None and settled and stored.fence.covers(batch):
                self._skip(frame)
            else:
                self._commit(frame, batch, database, settled)
        finally:
            database.batch_done()

    def release(self) -> None:
        """Close the connections when the query has ended, from any thread.

        A batch that was cut off may still be in a call; it closes them when it ends.
        """
        self._released = True
        if self._in_batch.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._in_batch.release()

    def _close(self) -> None:
        """Close the connections; another batch makes new ones."""
        database, self._database = self._database, None
        if database is not None:
            database.store.close()
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.close()
        for table in self._references:
            table.close()

    # One batch

    def _commit(self, frame: DataFrame, batch: Batch, database: BatchStore, settled: bool) -> None:
        verdicts: dict[Place, RowFailure] = {}
        while True:
            try:
                self._try_once(frame, batch, database, settled, verdicts)
                return
            except StagedBeforeError:
                self._two_jobs_until = batch.batch_id
            except Exception as error:  # a row's, of any class
                found = self._isolate_failures(frame, batch, database, error, verdicts)
                if found.keys() <= verdicts.keys():
                    if (failure := temporary_failure(str(error))) is not None:
                        raise _temporary(batch, failure) from error
                    raise
                log.warning(
                    "%s: %d records make the batch fail and are dead letters or retries now; "
                    "first: %s",
                    batch,
                    len(found),
                    next(iter(found.values())).message,
                )
                verdicts |= found

    def _isolate_failures(
        self,
        frame: DataFrame,
        batch: Batch,
        database: BatchStore,
        error: Exception,
        known: Mapping[Place, RowFailure],
    ) -> dict[Place, RowFailure]:
        """The records that made a batch fail; none when it is not records that did."""
        if self._stage.stateful is not None:
            return {}
        references = self._reference_frames(frame)
        in_task = refused_in_a_task(str(error))
        if in_task or isinstance(error, ConstraintError):
            work = self._narrow_batch(frame, references, database, known)
            try:
                work.compute()
                return refused_records(work, _specs(database)) if in_task else broken_records(work)
            finally:
                work.close()
        span = self._setting.read_range(batch.batch_id)
        return failing_records(
            error, span, frame, lambda part: self._narrow_batch(part, references, database, known)
        )

    def _try_once(
        self,
        frame: DataFrame,
        batch: Batch,
        database: BatchStore,
        settled: bool,
        verdicts: Mapping[Place, RowFailure],
    ) -> None:
        prepared = self._prepare_batch(frame, batch, database, verdicts)
        try:
            transaction = self._begin_transaction(prepared.written, batch, settled)
            tables = [
                TablePart(m.output, _constant(prepared.tables[m.output.name]))
                for m in database.merges
                if prepared.staged is None
            ]
            inner = BatchWork(
                frame,
                database,
                tables,
                transaction if prepared.topics else None,
                prepared.topics,
                self.query,
                self._plan.physical.job_reports,
                computed=True,
                staged=prepared.staged,
                spool=self._spool,
            )
            work = _Work(inner, lambda: self._late_rows(batch))
            database.also = lambda cursor: self._record(
                cursor, database, batch, prepared.changes, work.late
            )
            committer = Committer(self._policy(), database, transaction, self._setting.reached)
            if committer.run(batch, work) is Outcome.SKIPPED:
                self._skip(frame)
            else:
                database.sweep()
        finally:
            database.also = None
            prepared.close()

    def _late_rows(self, batch: Batch) -> int:
        if self._stage.stateful is None:
            return 0
        return self._setting.late_rows(batch.checkpoint)

    def _skip(self, frame: DataFrame) -> None:
        if self._stage.stateful is not None:  # Spark wants every batch's state to be written
            frame.write.format("noop").mode("overwrite").save()

    def _reference_frames(self, frame: DataFrame) -> dict[str, DataFrame]:
        """The reference tables by name, read up to their present ends."""
        session = frame.sparkSession
        return {t.reference.name: t.frame(session) for t in self._references}

    def _narrow_batch(
        self,
        frame: DataFrame,
        references: Mapping[str, DataFrame],
        database: BatchStore,
        verdicts: Mapping[Place, RowFailure],
    ) -> NarrowBatch:
        return NarrowBatch(
            self._plan, frame, references, database.store, self._setting.pipeline, verdicts
        )

    def _prepare_batch(
        self,
        frame: DataFrame,
        batch: Batch,
        database: BatchStore,
        verdicts: Mapping[Place, RowFailure],
    ) -> _Prepared:
        span = self._setting.read_range(batch.batch_id)
        now_ms = self._setting.now_ms()
        self._open_positions(database, span, now_ms)
        references = self._reference_frames(frame)
        if self._stage.stateful is not None:
            return self._after_state(frame, references, span, now_ms)
        work = self._narrow_batch(frame, references, database, verdicts)
        staged = None
        if self._plan.row_by_row and not verdicts and batch.batch_id > self._two_jobs_until:
            staged = work.compute_and_stage(stage_spec(database, database.merges[0]))
            if staged is None:
                self._two_jobs_until = batch.batch_id + TWO_JOBS_BATCHES
                work = self._narrow_batch(frame, references, database, verdicts)
        try:
            if staged is None:
                work.compute()
            spec = self._setting.spec
            books = books_of(
                self._setting.pipeline, span, now_ms, spec, work.judgement, work.retried
            )
            topics = self._topic_parts(work.output, work.is_filled)
            written = _names(topics)
            failed = work.failed_rows()
            if failed is not None:
                made = failed.mapInArrow(copies(spec, now_ms), COPY_SCHEMA)
                topics.append(self._copies(made))
                written |= books.copy_topics
                written.update(self._dead_letters() if work.has_strangers else ())
            tables = self._table_frames(work.output) if staged is None else {}
            return _Prepared(tables, topics, written, books.changes, work.close, staged)
        except BaseException:  # release what was kept after any error
            work.close()
            raise

    def _after_state(
        self, frame: DataFrame, references: Mapping[str, DataFrame], span: BatchRange, now_ms: int
    ) -> _Prepared:
        first, *rest = self._stage.steps
        steps = {step.name: step for step in rest}
        kept, release = computed_once(frame)
        plan = self._plan
        frames: dict[str, DataFrame] = {**references, first.name: kept}
        present = dict(frames)

        def node(name: str) -> DataFrame:
            if name not in frames:
                step = steps[name]
                frames[name] = plan.templates.apply(
                    ("step", name), lambda f: call(step, f), {n: node(n) for n in step.inputs}
                )
            return frames[name]

        def output(name: str, key: str, make: Callable[[DataFrame], DataFrame]) -> DataFrame:
            def build() -> DataFrame:
                rows = {"rows": node(name)}
                return plan.templates.apply(("output", name, key), lambda f: make(f["rows"]), rows)

            return plan.physical.frame(("output", name, key), present, build)

        topics = self._topic_parts(output, lambda _: True)
        tables = self._table_frames(output)
        books = books_of(self._setting.pipeline, span, now_ms, self._setting.spec, Judgement(), ())
        return _Prepared(tables, topics, _names(topics), books.changes, release)

    def _record(
        self,
        cursor: Cursor,
        database: BatchStore,
        batch: Batch,
        books: Sequence[Transaction],
        late: int,
    ) -> str:
        count_late(cursor, batch, late)
        try:
            for change in books:
                database.store.record(cursor, change)
        except LostRaceError as lost:
            return (
                f"a position or ledger row was changed by another driver ({lost.how}); one "
                "pipeline of this name runs at a time"
            )
        return ""

    # Outputs

    @property
    def _topic_steps(self) -> list[Step]:
        return [s for s in self._stage.targets if isinstance(s.target, TopicTarget)]

    def _table_frames(self, output: _Output) -> dict[str, DataFrame]:
        """The rows of every table, by its name."""
        return {
            s.target.table: output(s.name, "table", visible)
            for s in self._stage.targets
            if isinstance(s.target, TableTarget)
        }

    def _topic_parts(self, output: _Output, is_filled: Callable[[str], bool]) -> list[TopicPart]:
        """The records of every topic that steps fill, and of the intermediate topics.

        A topic without records is left out: it would get the markers of the transaction.
        """
        client = dict(self._setting.client)
        parts: list[TopicPart] = []
        for step in filter(lambda step: is_filled(step.name), self._topic_steps):
            target = step.target
            assert isinstance(target, TopicTarget), "chosen so"
            times = target.options.get("timestamp")
            rows = output(
                step.name, "topic", lambda f, key=target.key, t=times: as_records(f, key, t)
            )
            options = {"batch_bytes": self._batch_bytes([target.topic]), **target.options}
            parts.append(self._part(TopicOutput(target.topic, (), client, **options), rows))
        for topic, node in self._stage.forwarded_to(self._setting.pipeline).items():
            if not is_filled(node):
                continue
            written = TopicOutput(topic, (), client, compression=INTERMEDIATE_COMPRESSION)
            parts.append(self._part(written, output(node, f"handed on to {topic}", forwarded)))
        return parts

    def _copies(self, rows: DataFrame) -> TopicPart:
        names = self._copy_topics()
        client, batch_bytes = dict(self._setting.client), self._batch_bytes(names)
        return self._part(TopicOutput(None, tuple(names), client, batch_bytes=batch_bytes), rows)

    def _batch_bytes(self, topics: Sequence[str]) -> int:
        """The size of batches that each of these topics takes (`max.message.bytes`)."""
        most = [self._setting.spec.most_bytes.get(name, DEFAULT_BATCH_BYTES) for name in topics]
        return max(LEAST_BATCH_BYTES, min([DEFAULT_BATCH_BYTES, *most]))

    def _copy_topics(self) -> list[str]:
        retries = [name for t in self._retry_topics() for name in t.delays_ms]
        return [*retries, *self._dead_letters()]

    def _dead_letters(self) -> list[str]:
        return [t.dead_letter for t in self._retry_topics()]

    def _retry_topics(self) -> list[RetryTopics]:
        bases = [self._graph.sources[n].topic for n in self._stage.reads]
        return [self._setting.spec.topics[base] for base in bases]

    def _part(self, output: TopicOutput, rows: DataFrame) -> TopicPart:
        return TopicPart(output, _constant(rows), self._setting.transaction_timeout_ms)

    # The run

    def _open_database(self, context: Any) -> BatchStore:
        if self._database is None:
            outputs = [
                (
                    _table_output(self._setting.store_url, s.target),
                    self._analysis.rows[s.name].names,
                )
                for s in self._stage.targets
                if isinstance(s.target, TableTarget)
            ]
            self._database = open_batches(self._setting.store_url, self.query, outputs)
            self._prepare(self._database, context)
        return self._database

    def _prepare(self, database: BatchStore, context: Any) -> None:
        check_context(context, sqlite=isinstance(database, SqliteBatches), topics=True)
        database.reached = self._setting.reached
        database.prepare()
        self._spool = spool_directory(context, self.query)
        fences = database.store.fences(self._setting.pipeline)
        self._known = {(f.topic, f.partition) for f in fences}

    def _begin_transaction(
        self, written: set[str], batch: Batch, settled: bool
    ) -> TopicTransaction | None:
        """The Kafka transaction; None when there is nothing to write and none to settle."""
        if not written and settled:
            return None
        if self._transaction is None:
            self._transaction = TopicTransaction(
                GROUP_PREFIX + self.query,
                self._all_topics(),
                self._setting.transaction_timeout_ms,
                self._setting.client,
            )
            if settled:
                self._transaction.ensure_fence(batch)
        self._transaction.narrow(written if settled else None)
        return self._transaction

    def _all_topics(self) -> list[str]:
        own = [s.target.topic for s in self._topic_steps if isinstance(s.target, TopicTarget)]
        handed = self._stage.forwarded_to(self._setting.pipeline)
        return [*own, *handed, *([] if self._stage.stateful else self._copy_topics())]

    def _policy(self) -> FencePolicy:
        return FencePolicy(
            self.query,
            0,
            f"the store of pipeline {self._setting.pipeline}",
            "",
            restartable=self._stage.stateful is None,
            of_pipeline=True,
        )

    def _open_positions(self, database: BatchStore, span: BatchRange, now_ms: int) -> None:
        """Positions of partitions that were added while the query runs."""
        for (topic, partition), start in span.start.items():
            if (topic, partition) not in self._known:
                topic_id = self._setting.topic_ids.get(topic, "")
                database.store.open_fence(
                    self._setting.pipeline, topic, topic_id, partition, start, now_ms
                )
                self._known.add((topic, partition))


class _Work:
    """The `Work` of one batch, and the rows that its stateful operator has dropped by then."""

    def __init__(self, inner: BatchWork, late_rows: Callable[[], int]) -> None:
        self._inner = inner
        self._late_rows = late_rows
        self.late = 0

    def run(self, identity: Identity | None) -> Written:
        """See `protocol.Work`."""
        written = self._inner.run(identity)
        self.late = self._late_rows()
        return written


def _temporary(batch: Batch, failure: RowFailure) -> BatchFailedError:
    raised = f"{failure.reason}: {failure.message}" if failure.message else failure.reason
    return BatchFailedError(
        f"{batch} failed: a step raised {raised}, and not for a few records alone. It may pass: "
        "the query restarts. If it does not, look at what the step calls"
    )


def _names(parts: Sequence[TopicPart]) -> set[str]:
    return {name for part in parts for name in part.output.names}


def _specs(database: BatchStore) -> dict[str, StageSpec]:
    """How tasks stage the rows of each table."""
    return {m.output.table: stage_spec(database, m) for m in database.merges}


def _constant(frame: DataFrame) -> Callable[[DataFrame], DataFrame]:
    return lambda _: frame


def _table_output(store_url: str, target: TableTarget) -> TableOutput:
    how = (target.key, target.mode, target.deletes, target.order)
    return TableOutput(store_url, target.table, *how)
