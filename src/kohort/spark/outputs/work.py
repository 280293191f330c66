"""The tasks of one micro-batch, as Spark jobs over the frame of `foreachBatch`.

Shell: randomness (job tags).

Rules:
- All tables and topics of a batch are one job. Its tasks share the partitions of the topics. A
  frame that several outputs read is computed once and kept until the batch ends.
- Attempts come back as rows, so they are exactly those that Spark counts as successful.
- A stage that Spark has run a second time (lost shuffle files) may have two attempts under one
  epoch, which no task can see. The driver asks Spark, once all its events are in.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from kohort.client.common.types import TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.errors import ConfigError
from kohort.spark.outputs.kafka import TopicTransaction
from kohort.spark.outputs.merge_sql import Merge, Rejected
from kohort.spark.outputs.parts import TablePart, TopicPart
from kohort.spark.outputs.protocol import Attempt, Written
from kohort.spark.outputs.reports import REPORT_SCHEMA, Report
from kohort.spark.outputs.spool import emptied
from kohort.spark.outputs.staging import StageSpec, staged_rows
from kohort.spark.outputs.table_transaction import BatchStore, stage_file
from kohort.spark.outputs.topics import TopicOutput, owners
from kohort.spark.outputs.writing import (
    ENCODED_SCHEMA,
    IDENTITY,
    WriteSpec,
    encoded,
    written,
)

REPORTS: Final = from_arrow_schema(REPORT_SCHEMA)
_ENCODED: Final = from_arrow_schema(ENCODED_SCHEMA)
"""As Spark's types: their text would be parsed for each batch."""
Frames = Mapping[str, DataFrame]
Job = Callable[[Frames], DataFrame]
Run = Callable[[Hashable, Frames, Job], list[Any]]


class StagedBeforeError(Exception):
    """What was staged before the commit began does not count any more: stage again."""


@dataclass
class BatchWork:
    """The `Work` of one batch.

    Args:
        frame: what `foreachBatch` was called with.
        database: the query's tables; None without any.
        tables: the table outputs, in the order of `database.merges`.
        transaction: the query's Kafka transaction; None without topics.
        topics: the topic outputs.
        query: the query's name.
        run_job: runs the job of a key over the frames that it reads, planned by the function or as
            for an earlier batch, and returns its reports.
        computed: what outputs select is kept by the caller already.
        staged: the attempts that have staged the rows of all tables before; None where this work
            stages them. They do for one round: `run` raises StagedBeforeError at the next.
        spool: where tasks put encoded batches; None where the shuffle carries them.
    """

    frame: DataFrame
    database: BatchStore | None
    tables: Sequence[TablePart]
    transaction: TopicTransaction | None
    topics: Sequence[TopicPart]
    query: str
    run_job: Run
    computed: bool = False
    staged: Sequence[Attempt] | None = None
    spool: Path | None = None
    _rounds: int = field(default=0, init=False)
    _kept: bool = field(default=False, init=False)

    def run(self, identity: Identity | None) -> Written:
        """Stage and write everything; a later round uses the frame that the first has computed."""
        self._rounds += 1
        if self.staged is not None and self._rounds > 1:
            raise StagedBeforeError
        own = self.staged is None
        merges = self.database.merges if self.database is not None and own else []
        parts = len(merges) + sum(not topic.letters for topic in self.topics)
        if parts > 1 and not (self._kept or self.computed):
            self.keep()
        writes = identity is not None and self.transaction is not None
        sent = [t for t in self.topics if not t.letters] if writes else []
        result = Written(staged=list(self.staged or ()))
        if not merges and not sent:
            return result
        context = self.frame.sparkSession.sparkContext
        if sent:
            context.setLocalProperty(IDENTITY, json.dumps(identity))
        with emptied(self.spool if sent else None), _Tagged(context) as tagged:
            reports = self._reports(merges, sent)
            if sent:  # staging is idempotent: an attempt that does not count is inert
                result.tainted = tagged.second_attempts()
        self._note(reports, result)
        return result

    def _note(self, reports: Sequence[Report], result: Written) -> None:
        """Put the reports of the tasks together."""
        outbox: set[int] = set()
        for report in reports:
            if report.topic is None:
                result.staged.append(Attempt(report.output, report.attempt, report.rows))
                for values, message in json.loads(report.rejected):
                    result.rejected.append(Rejected(report.output, values, message))
                continue
            outbox.add(report.attempt)
            result.tainted = result.tainted or report.problem
            if report.rows:
                result.records[TopicPartition(report.topic, report.partition)] = report.rows
        if self.database is not None:
            result.outbox = sorted(outbox)

    def keep(self) -> None:
        """Compute the frame once, for all that read it."""
        self.frame.persist()
        self._kept = True

    def close(self) -> None:
        """Let go of the frame that was kept."""
        if self._kept:
            self.frame.unpersist()

    def _reports(self, merges: Sequence[Merge], sent: Sequence[TopicPart]) -> list[Report]:
        """Stage and write everything in one job."""
        selected = [part.select for part in (*self.tables, *sent)]
        frames = {
            str(number): self._of_round(select(self.frame) if select else self.frame)
            for number, select in enumerate(selected)
        }

        def job(frames: Frames) -> DataFrame:
            rows = list(frames.values())
            parts = [self._staged(merge, frame) for merge, frame in zip(merges, rows, strict=False)]
            if sent:
                assert self.transaction is not None, "topics are sent within a transaction"
                parts.append(self._written(self.transaction, sent, rows[len(merges) :]))
            return union_all(parts)

        partitions = tuple(sorted(self.transaction.partitions.items())) if self.transaction else ()
        names = str(([m.output.name for m in merges], [t.output.names for t in sent]))
        reports = self.run_job(("job", names, partitions), frames, job)
        return [Report(**report) for report in reports]

    def _of_round(self, frame: DataFrame) -> DataFrame:
        """The frame; in a later round under a plan of its own.

        Over the same frame Spark would skip the stage whose shuffle files it still has, and they
        hold places in the spool of the round before, which is deleted.
        """
        return frame if self._rounds == 1 else frame.select("*")

    def _staged(self, merge: Merge, frame: DataFrame) -> DataFrame:
        """The staging of one table, as reports."""
        assert self.database is not None, "a merge belongs to a database"
        spec = stage_spec(self.database, merge)
        if list(spec.columns) != frame.columns:
            frame = frame.select(*map(_quoted, spec.columns))
        return frame.mapInArrow(staged_rows(spec), REPORTS)

    def _written(
        self,
        transaction: TopicTransaction,
        topics: Sequence[TopicPart],
        frames: Sequence[DataFrame],
    ) -> DataFrame:
        """The writing of all topics, as reports."""
        partitions = transaction.partitions
        context = self.frame.sparkSession.sparkContext
        tasks = max(1, min(sum(partitions.values()), context.defaultParallelism))
        owner_of = owners(partitions, tasks)
        batches = union_all(
            [
                _encoded(topic.output, frame, partitions, owner_of, tasks, self.spool)
                for topic, frame in zip(topics, frames, strict=True)
            ]
        )
        outbox = self.database.store.url if self.database is not None else None
        spec = WriteSpec(topics[0].output.client, outbox, self.query, self.spool)
        shuffled = batches.repartitionById(tasks, batches["owner"])
        return shuffled.mapInArrow(written(spec), REPORTS)


def stage_spec(database: BatchStore, merge: Merge) -> StageSpec:
    """How tasks stage the rows of one table."""
    return StageSpec(
        merge.output.name,
        database.store.url,
        merge.stage,
        stage_file(database),
        (*merge.columns, *merge.output.staged_only),
        merge.shown if merge.output.rejects else (),
    )


def _encoded(
    output: TopicOutput,
    frame: DataFrame,
    partitions: dict[str, int],
    owner_of: dict[str, int],
    tasks: int,
    spool: Path | None,
) -> DataFrame:
    columns = [frame[_quoted(c)] for c in output.columns(frame.columns)]
    if output.timestamp is not None:
        columns.append(frame[_quoted(output.timestamp)].alias("timestamp"))
    names = {name: partitions[name] for name in output.names}
    function = encoded(output, names, owner_of, tasks, spool)
    return frame.select(*columns).mapInArrow(function, _ENCODED)


def union_all(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all frames, at least one, whose columns are of the same types."""
    return reduce(lambda whole, part: whole.unionAll(part), frames)


class _Tagged:
    """Jobs that are started within it can be asked about."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._tag = f"kohort-{secrets.token_hex(8)}"

    def __enter__(self) -> _Tagged:
        self._context.addJobTag(self._tag)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._context.removeJobTag(self._tag)

    def second_attempts(self) -> str:
        """Why a stage may have run a second time; "" when none has."""
        jvm_context = self._context._jsc.sc()
        jvm_context.listenerBus().waitUntilEmpty()
        tracker = jvm_context.statusTracker()
        jobs = list(tracker.getJobIdsForTag(self._tag))
        if not jobs:
            return "Spark does not know the job any more (spark.ui.retainedJobs)"
        for job in jobs:
            info = tracker.getJobInfo(job)
            for stage_id in list(info.get().stageIds()) if info.isDefined() else [-1]:
                stage = tracker.getStageInfo(stage_id)
                if not stage.isDefined():
                    continue  # a stage that was skipped: its shuffle files were there already
                if stage.get().currentAttemptId() or stage.get().numFailedTasks():
                    return f"stage {stage_id} was run, or a task of it was started, a second time"
        return ""


def check_context(context: Any, *, sqlite: bool, topics: bool) -> None:
    """Refuse settings with which an output would not be exact. Raises ConfigError."""
    if sqlite and not context.master.startswith("local"):
        raise ConfigError(
            f"a SQLite database is a file of the driver's machine, and executors of "
            f"{context.master} do not reach it; use PostgreSQL"
        )
    if topics and context.getConf().get("spark.speculation", "false").lower() == "true":
        raise ConfigError(
            "spark.speculation starts tasks twice, and both would write into one transaction; "
            "switch it off for a query with topic outputs"
        )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
