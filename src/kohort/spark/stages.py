"""The queries of a pipeline's stages: their topics, where they start, and how they are started.

Rules:
- A stage is one query. It reads its sources together with their retry topics, or the intermediate
  topics of the stages before it, and starts where the store's positions are.
- The offsets of a batch are read from Spark's own log, which is written before the batch runs.
- With `available_now` a stage starts when those before it have ended, so that it sees all they do.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from kohort.errors import BrokerError, ConfigError, KohortError, ProtocolError
from kohort.retry.cluster_port import ClusterPort, now_ms
from kohort.retry.ledger_view import books
from kohort.retry.policy import RetryTopics
from kohort.retry.preparing import largest_messages
from kohort.retry.store import Store
from kohort.retry.topics import (
    DEFAULT_MAX_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    TopicSpec,
    most_bytes,
    room_for_rows,
)
from kohort.spark.checkpoint import begin_anew_for_other_topics, check_state, check_topics
from kohort.spark.checkpoint_files import CheckpointFiles
from kohort.spark.dataframes.analysing import Analysis, analyse, call
from kohort.spark.dataframes.books import BatchRange
from kohort.spark.dataframes.columns import taken_up, with_origin
from kohort.spark.dataframes.failing import RetrySpec
from kohort.spark.dataframes.graph import Graph, Stage, TableTarget, TopicTarget, mode_of
from kohort.spark.dataframes.stage import StageFunction, StageSetting
from kohort.spark.formats.rows import SourceRows, to_option
from kohort.spark.offsets import Position, TopicPartition
from kohort.spark.options import SMALL_TASK
from kohort.spark.outputs.late import late_rows
from kohort.spark.outputs.protocol import Step
from kohort.spark.outputs.swapping import outputs_of
from kohort.spark.plans.logical import emits_without_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("kohort.spark")
NO_OFFSET: Final = "-"
_EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_ARROW_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_UNLIMITED: Final = str(2**31 - 1)
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
MOST_PARTITIONS_PER_CORE: Final = 16
NO_OPTIONS: Final[Mapping[str, str]] = {}
_STATEFUL_OPTIONS: Final[Mapping[str, str]] = {
    "lossRemedy": "Rebuild the tables with a pipeline of another name (kohort pipeline replay)"
}
"""The reader of a step that keeps state: without the rows that are gone, its state is wrong."""
INTERMEDIATE_CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}


class Owner(Protocol):
    """What the stages ask of their `Pipeline`."""

    name: str
    graph: Graph
    trigger_ms: int
    transaction_timeout_ms: int
    max_offsets_per_trigger: int | None
    reached: Callable[[Step], None]
    now_ms: Callable[[], int] | None

    @property
    def topics(self) -> dict[str, RetryTopics]: ...
    @property
    def client_config(self) -> dict[str, str]: ...
    def open_store(self) -> Store: ...


@dataclass
class PipelineStages:
    """The stages of one run of a pipeline.

    Args:
        options: the source's options for topics and the delays of retry topics among them.
        checkpoint: the files of the queries' checkpoints.
    """

    pipeline: Owner
    spark: SparkSession
    options: Callable[[list[str], Mapping[str, int]], dict[str, str]]
    analysis: Analysis
    checkpoint: CheckpointFiles
    functions: list[StageFunction] = field(default_factory=list[StageFunction], init=False)
    _ending: bool = field(default=False, init=False)

    @classmethod
    def of(
        cls,
        pipeline: Owner,
        spark: SparkSession,
        options: Callable[[list[str], Mapping[str, int]], dict[str, str]],
        checkpoint: CheckpointFiles,
    ) -> PipelineStages:
        """Analyse the steps. Raises ConfigError, or what a step raises."""
        return cls(pipeline, spark, options, analyse(spark, pipeline.graph), checkpoint)

    @property
    def stages(self) -> list[Stage]:
        """In the order in which rows pass them."""
        return self.analysis.stages

    @property
    def intermediate_topics(self) -> dict[str, str]:
        """The intermediate topics, with the source topic whose partitions they follow."""
        found: dict[str, str] = {}
        for stage in self.stages:
            for topic in stage.forwarded_to(self.pipeline.name):
                found[topic] = self._first_topic(stage)
        return found

    def _first_topic(self, stage: Stage) -> str:
        name = stage.reads[0]
        if name in self.pipeline.graph.sources:
            return self.pipeline.graph.sources[name].topic
        before = next(s for s in self.stages if name in s.forwards)
        return self._first_topic(before)

    def ensure_topics(self, port: ClusterPort) -> None:
        """Create the intermediate topics that are missing; all have room for the largest rows."""
        views = port.topics()
        topics = self.intermediate_topics
        if not topics:
            return
        sources = [source.topic for source in self.pipeline.graph.sources.values()]
        taken = largest_messages(sources, port).values()
        room = room_for_rows(max([DEFAULT_MAX_MESSAGE_BYTES, *taken]))
        configs = {**INTERMEDIATE_CONFIGS, MAX_MESSAGE_BYTES: str(room)}
        port.create(
            TopicSpec(name, views[base].partitions, -1, configs, None)
            for name, base in topics.items()
            if name not in views
        )
        for name, size in largest_messages([t for t in topics if t in views], port).items():
            if size < room:
                _enlarge(name, room, port)

    def check_state(self, store: Store) -> None:
        """Raise ConfigError where a step keeps state, and has not that of all rows before."""
        name = self.pipeline.name
        read = {book.topic for book in books(store, name) if book.next_offset > book.since_offset}
        written = outputs_of(store, name)
        for stage in self.stages:
            if stage.stateful is not None:
                topics, _ = self.topics_of(stage)
                check_state(self.checkpoint, checkpoint_of(stage), stage.name, topics, read)
                self._check_outputs(stage, written)

    def _check_outputs(self, stage: Stage, written: Mapping[str, Collection[str]]) -> None:
        """Raise ConfigError where a stage would begin without state, and write to a table or topic
        that one which is gone has written to: it has another name now."""
        if self.checkpoint.exists(checkpoint_of(stage)):
            return
        present = {s.name for s in self.stages}
        for output in [_output_of(step.target) for step in stage.targets if step.target]:
            if gone := [name for name in written.get(output, ()) if name not in present]:
                raise ConfigError(
                    f"step {stage.name} would begin without state, and fill {output}, which step "
                    f"{gone[0]} has filled: it has another name now, as has what it reads. Nothing "
                    "was started. Put back the names, fill a new table, or rebuild the tables with "
                    "a pipeline of another name (kohort pipeline replay)"
                )

    def start(self, stage: Stage, port: ClusterPort, mode: str) -> Any:
        """Start the query of a stage."""
        pipeline = self.pipeline
        topics, delays = self.topics_of(stage)
        checkpoint = checkpoint_of(stage)
        if stage.stateful is not None:
            check_topics(self.checkpoint, checkpoint, stage.name, topics)
        elif begin_anew_for_other_topics(self.checkpoint, checkpoint, topics):
            log.info(
                "pipeline %s reads other topics than before: stage %s starts again at the store's "
                "positions",
                pipeline.name,
                stage.name,
            )
        if stage.stateful is not None and not self.checkpoint.exists(checkpoint):
            setting = self.spark.conf.get(SHUFFLE_PARTITIONS) or ""
            partitions = int(setting) if setting.isdecimal() else 0  # Databricks knows `auto`
            cores = self.spark.sparkContext.defaultParallelism
            place = self.checkpoint.location(checkpoint)
            if warning := too_many_partitions(stage.name, partitions, cores, place):
                log.warning("%s", warning)
        frame = self._frame(stage, topics, delays)
        function = StageFunction(
            self._setting(stage, checkpoint, port), pipeline.graph, self.analysis, stage
        )
        self.functions.append(function)
        writer = (
            frame.writeStream.queryName(f"{pipeline.name} {stage.name}")
            .option("checkpointLocation", self.checkpoint.location(checkpoint))
            .foreachBatch(function)
        )
        settings: dict[str, str] = {}
        if stage.stateful is not None:
            writer = writer.outputMode(mode_of(stage.stateful))
            if not emits_without_rows(frame, mode_of(stage.stateful)):
                settings[_EMPTY_BATCHES] = "false"  # one would only free state; the next one does
        elif pipeline.max_offsets_per_trigger is None and not _is_set(self.spark, _ARROW_BYTES):
            # Spark sums an Arrow batch's bytes at each row; a whole micro-batch is bounded already.
            settings[_ARROW_BYTES] = _UNLIMITED
        if mode == "available_now":
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{pipeline.trigger_ms} milliseconds")
        with settings_of_queries(self.spark, settings):
            return writer.start()

    @contextmanager
    def ending(self) -> Generator[None]:
        """Within it the queries are stopped, and a batch that this cuts off is no failure."""
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    def close(self) -> None:
        """Close the connections of stages whose queries have been stopped."""
        while self.functions:
            try:
                self.functions.pop().release()
            except KohortError as error:  # the next stage's are closed all the same
                log.debug("a stage's connections were not closed cleanly: %s", error)

    def topics_of(self, stage: Stage) -> tuple[list[str], dict[str, int]]:
        """What a stage reads, and the delays of the retry topics among it."""
        pipeline = self.pipeline
        if stage.stateful is not None:
            return [self._read_from(stage, name) for name in stage.reads], {}
        bases = [pipeline.graph.sources[name].topic for name in stage.reads]
        delays = {t: ms for b in bases for t, ms in pipeline.topics[b].delays_ms.items()}
        return [*bases, *delays], delays

    def _read_from(self, stage: Stage, node: str) -> str:
        """The intermediate topic from which a stage reads the rows of a node."""
        before = next(s for s in self.stages if node in s.forwards)
        return before.topic_for(self.pipeline.name, node, stage.name)

    def _frame(self, stage: Stage, topics: list[str], delays: Mapping[str, int]) -> DataFrame:
        if stage.stateful is None:
            return with_origin(self._read(topics, delays, self._row_formats(stage)), [*delays])
        rows = self.analysis.rows
        frames = {
            name: taken_up(self._read([topic], {}, _STATEFUL_OPTIONS), rows[name])
            for name, topic in zip(stage.reads, topics, strict=True)
        }
        return call(stage.stateful, frames)

    def _row_formats(self, stage: Stage) -> dict[str, str]:
        """The source's option for how it decodes values."""
        sources = [self.pipeline.graph.sources[name] for name in stage.reads]
        decoded = [
            SourceRows(
                s.name,
                (s.topic, *self.pipeline.topics[s.topic].delays_ms),
                self.analysis.values[s.name],
            )
            for s in sources
            if s.name in self.analysis.values
        ]
        return {"rowFormats": to_option(decoded)} if decoded else {}

    def _read(
        self, topics: list[str], delays: Mapping[str, int], more: Mapping[str, str] = NO_OPTIONS
    ) -> DataFrame:
        options = {
            **self.options(topics, delays),
            "includeHeaders": "true",
            "minRecordsPerPartition": str(SMALL_TASK),
            **more,
        }
        return self.spark.readStream.format("kohort").options(**options).load()

    def _most_bytes(self, stage: Stage, port: ClusterPort) -> dict[str, int]:
        """How large a batch the topics take that a stage fills or copies failed records to."""
        targets = [step.target for step in stage.targets]
        written = [target.topic for target in targets if isinstance(target, TopicTarget)]
        sizes: dict[str, int] = {}
        if stage.stateful is None:
            bases = [self.pipeline.graph.sources[name].topic for name in stage.reads]
            names = [self.pipeline.topics[base] for base in bases]
            copied = [name for n in names for name in (*n.delays_ms, n.dead_letter)]
            sizes = most_bytes(port.describe(copied))
        for topic in written:
            with suppress(BrokerError):  # no right to ask, or no such topic: batches are not cut
                sizes |= most_bytes(port.describe([topic]))
        return sizes

    def _setting(self, stage: Stage, checkpoint: str, port: ClusterPort) -> StageSetting:
        pipeline, views = self.pipeline, port.topics()
        spec = RetrySpec(
            pipeline.topics,
            {name: view.partitions for name, view in views.items()},
            {name: view.topic_id for name, view in views.items()},
            self._most_bytes(stage, port),
        )
        return StageSetting(
            pipeline.name,
            pipeline.open_store().url,
            pipeline.client_config,
            spec,
            lambda batch_id: read_range(self.checkpoint, checkpoint, batch_id),
            {name: view.topic_id for name, view in views.items()},
            pipeline.transaction_timeout_ms,
            pipeline.reached,
            pipeline.now_ms or now_ms,
            lambda query_id: late_rows(self.spark, query_id),
            lambda: self._ending,
        )


def _output_of(target: TableTarget | TopicTarget) -> str:
    """What a step fills, as `outputs_of` calls it."""
    return target.table if isinstance(target, TableTarget) else f"topic {target.topic}"


def checkpoint_of(stage: Stage) -> str:
    """Where a stage's checkpoint is below the pipeline's."""
    return f"stage-{stage.name}"


def _enlarge(topic: str, room: int, port: ClusterPort) -> None:
    """Let an intermediate topic take larger batches, or warn that the user may not change it."""
    try:
        port.admin.alter_configs(topic, {MAX_MESSAGE_BYTES: str(room)})
    except BrokerError as error:
        if error.retriable:
            raise
        log.warning(
            "the intermediate topic %s may be too small for the largest rows, and its "
            "configuration could not be changed (%s): set its %s to %d",
            topic,
            error,
            MAX_MESSAGE_BYTES,
            room,
        )


def too_many_partitions(step: str, partitions: int, cores: int, checkpoint: str) -> str:
    """What to do when a step that keeps state begins with far more tasks than cores; else ""."""
    if partitions <= MOST_PARTITIONS_PER_CORE * cores:
        return ""
    return (
        f"step {step} keeps its state in {partitions} parts, for {cores} cores: each micro-batch "
        "runs as many tasks. The first batch fixes the number. To choose another one, stop now, "
        f"delete {checkpoint}, and start with --conf {SHUFFLE_PARTITIONS}={cores}"
    )


@contextmanager
def settings_of_queries(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """Settings of the queries that start within this: each copies the session's when it starts."""
    before = {name: spark.conf.get(name) or "" for name in settings if _is_set(spark, name)}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            if name in before:
                spark.conf.set(name, before[name])
            else:
                spark.conf.unset(name)


def _is_set(spark: SparkSession, name: str) -> bool:
    """Whether a value was chosen: Spark's own default is not listed."""
    return name in spark.conf.getAll


def read_range(files: CheckpointFiles, query: str, batch_id: int) -> BatchRange:
    """The offsets of a batch, from Spark's log of them. A partition that is new begins where the
    plan says so.

    Raises ProtocolError for a log that is not as Spark 4 writes it.
    """
    end = _positions(files, query, batch_id)
    before = _positions(files, query, batch_id - 1).next if batch_id else {}
    start: dict[TopicPartition, int] = {
        at: before[at] if at in before else end.began.get(at, offset)
        for at, offset in end.next.items()
    }
    return BatchRange(start, end.next)


def _positions(files: CheckpointFiles, query: str, batch_id: int) -> Position:
    """The ends of all sources of a query at a batch."""
    name = f"{query}/offsets/{batch_id}"
    version, _, *sources = [*(files.read(name) or "nothing\n").splitlines(), ""]
    if version != "v1":
        raise ProtocolError(
            f"{files.location(name)} is of version {version!r}; v1 is known (Spark 4.0 to 4.3)"
        )
    whole = Position()
    for line in sources:
        if line and line != NO_OFFSET:
            one = Position.from_json(json.loads(line))
            whole.next.update(one.next)
            whole.began.update(one.began)
    return whole
