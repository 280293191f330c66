"""Start a pipeline's queries, watch them, restart after temporary errors, report permanent ones.

Shell: clock, sleep and files (the checkpoint's lock).

Rules (spec 6.3; invariant X6):
- Row handlers have two queries: one reads the source topics, one reads all retry topics, so that
  neither waits for the other. Both write through the same sink.
- Each stage of DataFrames is a query of its own; see `stages`.
- Queries without state start at the store's fences (X8). Their checkpoint that is gone costs
  nothing; without that of a stateful stage nothing is started.
- Nothing in Spark restarts a query. A cause that may pass (a broker away, a database locked, a
  worker killed) is restarted with back-off; anything else is raised at once, with the traceback of
  the Python process in which it happened. Restarts that follow each other are bounded; a minute
  without a failure ends such a row only if something was done, or there was nothing to do.
- One driver a checkpoint: a lock, and a wait for the JVM of a driver that was killed.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kohort.errors import (
    BrokerError,
    ConfigError,
    DataLossError,
    ErrorCode,
    KohortError,
    StorageError,
)
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.fenced import refuse_recreated
from kohort.retry.ledger_view import retry_topic_states
from kohort.retry.policy import INTERMEDIATE_TOPIC, RetryTopics
from kohort.retry.preparing import ensure_topics, plan_all
from kohort.retry.store import Store
from kohort.spark.checkpoint import (
    CheckpointLock,
    begin_anew_after_absence,
    begin_anew_for_other_topics,
    note_queries,
    topics_of,
)
from kohort.spark.checkpoint_files import (
    LOCAL_CHECKPOINTS,
    CheckpointFiles,
    LocalFiles,
    checkpoint_files,
    is_url,
)
from kohort.spark.evolution import Stored
from kohort.spark.interrupts import quiet_py4j, stopped_by_signals
from kohort.spark.offsets import TopicPartition
from kohort.spark.outputs.swapping import check_replays, owing_stages
from kohort.spark.progress import Accountable, Progress, measure
from kohort.spark.sessions import (
    check_classic,
    default_parallelism,
    ensure_java,
    jvm_pid,
    make_active,
    register,
    scheduler_pools,
    session,
    uses_connect,
)
from kohort.spark.stages import Owner, PipelineStages, checkpoint_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.dataframes.graph import Stage
    from kohort.spark.pipeline_sink import PipelineSpec

log = logging.getLogger("kohort.spark")
WATCH_S: Final = 0.2
SOURCES_S: Final = 0.02
PROGRESS_S: Final = 0.5
VACUUM_S: Final = 3_600.0
PROGRESS_COST: Final = 20
MAX_BACKOFF_S: Final = 30.0
STEADY_S: Final = 60.0
MIN_RETRY_TRIGGER_MS: Final = 500
MAX_RETRY_TRIGGER_MS: Final = 60_000
SOURCE, RETRIES = "source", "retry_topics"
BATCH_RECORDS: Final = 50_000
BATCHES: Final = {
    "targetBatchDuration": "2s",
    "targetBatchFloor": str(BATCH_RECORDS),
    "maxOffsetsPerTrigger": "1000000",
    "maxBytesPerTrigger": str(128 << 20),
}
"""Limits of a micro-batch, unless a pipeline sets its own. What Spark itself spends on one, up to a
second, does not grow with its records."""

_PASSES = re.compile(
    r"ConnectionFailedError|KafkaTimeoutError|StoreBusyError|Python worker exited unexpectedly"
    r"|Python worker failed to connect back|ConnectionRefusedError|ConnectionResetError"
    r"|BrokenPipeError|lost the race for its fence|Checkpoint block rdd_\d+_\d+ not found"
    r"|BatchFailedError"
)
_BROKER_ERROR = re.compile(r"\b([A-Z][A-Z_]{4,}) \((-?\d+)\)")
_NEVER_PASSES = re.compile(
    r"kohort\.errors\.(DataLossError|ConfigError|UsageError|ProtocolError|DecodeError)"
    r"|\bRecordTooLargeError\b"
)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):.*", re.DOTALL)


class Runnable(Owner, Accountable, Protocol):
    """A pipeline, as far as running it needs it."""

    group: str
    checkpoint: str
    max_offsets_per_trigger: int | None
    skew_ms: int
    ledger_retention_ms: int
    replaying: bool
    stopping: bool

    @property
    def topics(self) -> dict[str, RetryTopics]: ...
    @property
    def client_config(self) -> dict[str, str]: ...
    @property
    def servers(self) -> str: ...
    @property
    def lock_directory(self) -> Path: ...
    @property
    def handler_topics(self) -> dict[str, RetryTopics]: ...
    @property
    def handlers(self) -> Sequence[object]: ...
    def prepare_store(self, store: Store) -> None: ...
    def spec(self, partitions: Mapping[str, int]) -> PipelineSpec: ...
    def stop(self) -> None: ...


class PipelineFailedError(KohortError):
    """A query of a pipeline ended with an error; the message holds the cause's own traceback."""


class Supervisor:
    """One run of one pipeline."""

    def __init__(
        self, pipeline: Runnable, spark: SparkSession | None, master: str | None, max_restarts: int
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._master = master
        self._max_restarts = max_restarts
        self._stages: PipelineStages | None = None
        self._waiting: list[Stage] = []
        self._passed: dict[TopicPartition, int] = {}
        self._next_vacuum = 0.0
        self._reached: Mapping[TopicPartition, int] | None = None
        self._advanced = False
        """Whether the queries have got further since they started, or had nothing to do."""

    def run(
        self,
        mode: str,
        until: Callable[[], bool] | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> Progress:
        """See `Pipeline.run`."""
        pipeline = self._pipeline
        topics = pipeline.topics
        connect = uses_connect(self._spark, self._master)
        if pipeline.graph:
            check_classic(
                f"pipeline {pipeline.name}, which has steps of DataFrames,",
                self._spark,
                self._master,
            )
        if self._spark is None and not connect:
            ensure_java()  # before the store and the topics are touched
        store = pipeline.open_store()
        port = ClusterPort(pipeline.client_config)
        try:
            who = f"pipeline {pipeline.name}"
            plan_all(
                who, topics, port.topics()
            )  # a wrong topic is refused before anything is created
            # With Spark Connect the checkpoint is a place of the server.
            locks = LOCAL_CHECKPOINTS / pipeline.name if connect else pipeline.lock_directory
            with CheckpointLock(locks, own_jvm=self._own_jvm) as lock:
                self._check_replays(store)
                pipeline.prepare_store(store)
                check_waiting(pipeline, store)
                ensure_topics(who, topics, port, bootstrap=pipeline.servers)
                spark = self._session()
                lock.note_jvm(jvm_pid(spark))
                register(spark)
                if pipeline.graph:
                    self._stages = PipelineStages.of(
                        pipeline,
                        spark,
                        lambda t, d: self._options(spark, store, t, d),
                        checkpoint_files(pipeline.checkpoint, spark),
                    )
                names = [s.name for s in self._stages.stages] if self._stages else []
                check_owed(pipeline.name, names, store)
                if self._stages is not None:
                    self._stages.ensure_topics(port)
                log.info("pipeline %s reads %s", pipeline.name, ", ".join(topics))
                with stopped_by_signals(pipeline.stop):
                    return self._supervise(spark, store, port, mode, until, on_progress)
        finally:
            port.close()
            store.close()

    def _supervise(
        self,
        spark: SparkSession,
        store: Store,
        port: ClusterPort,
        mode: str,
        until: Callable[[], bool] | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> Progress:
        failures = 0
        while True:
            began, self._advanced = time.monotonic(), False
            queries: list[Any] = []
            try:
                self._check_replays(store)
                if self._stages is not None:
                    self._stages.check_state(store)
                open_fences(self._pipeline, store, port, self._forwarded)
                queries = self._start(spark, store, port, mode)
                last = self._watch(queries, store, port, mode, until, on_progress)
                self._end(queries)
                self._publish(port, last)
                return last
            except PipelineFailedError as error:
                cause = error
                if not passes(str(error)):
                    self._check_replays(store)  # it may have been replaced meanwhile
                    raise
            except KohortError as error:
                cause = error
                if not error.retriable:
                    raise
            finally:
                self._end(queries)
            # a batch may need minutes to fail, again and again
            steady = self._advanced and time.monotonic() - began > STEADY_S
            failures = 1 if steady else failures + 1
            if failures > self._max_restarts:
                raise cause
            pause = min(MAX_BACKOFF_S, 0.5 * 2**failures)
            log.warning("restarting in %.0f s after: %s", pause, last_line(str(cause)))
            if self._stopped_within(pause):
                return measure(self._pipeline, store, port, self._forwarded)

    def _stopped_within(self, seconds: float) -> bool:
        """Wait this long, or until the run is asked to stop."""
        until = time.monotonic() + seconds
        while not self._pipeline.stopping:
            rest = until - time.monotonic()
            if rest <= 0:
                return False
            time.sleep(min(rest, WATCH_S))
        return True

    def _own_jvm(self) -> int | None:
        """The JVM of the session that was passed in: it runs before the lock is taken."""
        return None if self._spark is None else jvm_pid(self._spark)

    def _check_replays(self, store: Store) -> None:
        pipeline = self._pipeline
        check_replays(store, pipeline.name, replaying=pipeline.replaying)

    def _session(self) -> SparkSession:
        """The session of this run, made when there is none."""
        if self._spark is None:
            self._spark = session(f"kohort {self._pipeline.name}", master=self._master)
        return self._spark

    def _vacuum(self, store: Store) -> None:
        pipeline = self._pipeline
        before_ms = time.time_ns() // 1_000_000 - pipeline.ledger_retention_ms
        rows = store.vacuum(pipeline.name, before_ms)
        if rows:
            log.info("forgot %d ledger rows of records that were loaded long ago", rows)

    def _purge(self, store: Store, port: ClusterPort) -> None:
        """Delete what intermediate topics have handed on.

        Spark may replay the last batch, so only what was passed an hour ago is deleted.
        """
        forwarded = self._forwarded
        passed = {
            (f.topic, f.partition): f.next_offset
            for f in store.fences(self._pipeline.name)
            if f.topic in forwarded
        }
        try:
            if self._passed:
                port.delete_before(self._passed)
        except KohortError as error:
            log.warning("intermediate topics were not shortened: %s", error)
        self._passed = passed

    def _publish(self, port: ClusterPort, last: Progress) -> None:
        """Show the end in the group. It is advisory: all is loaded, and the next run shows it."""
        group = self._pipeline.group
        try:
            port.commit(group, last.next_offsets)
        except KohortError as error:
            log.warning("the progress of group %s was not published: %s", group, error)

    @property
    def _forwarded(self) -> list[str]:
        """The intermediate topics."""
        return list(self._stages.intermediate_topics) if self._stages is not None else []

    def _end(self, queries: list[Any]) -> None:
        if self._stages is None:
            _stop(queries)
            return
        with self._stages.ending():
            _stop(queries)
        self._stages.close()

    # Starting

    def _start(self, spark: SparkSession, store: Store, port: ClusterPort, mode: str) -> list[Any]:
        queries: list[Any] = []
        make_active(spark)
        self._note_queries(checkpoint_files(self._pipeline.checkpoint, spark))
        try:
            if self._pipeline.handlers:
                queries += self._start_handlers(spark, store, port, mode)
            if self._stages is not None:
                self._waiting = list(self._stages.stages)
                queries += self._start_stages(spark, port, mode)
        except BaseException:  # stop what was started after any error
            _stop(queries)
            raise
        return queries

    def _note_queries(self, files: CheckpointFiles) -> None:
        """Note what runs, and let queries that were away begin at the store's fences."""
        pipeline = self._pipeline
        stages = self._stages.stages if self._stages is not None else []
        stateless = [SOURCE, RETRIES] if pipeline.handlers else []
        stateless += [checkpoint_of(s) for s in stages if s.stateful is None]
        for name in begin_anew_after_absence(files, stateless):
            log.info(
                "pipeline %s did not have query %s when it ran last: it starts again at the "
                "store's fences",
                pipeline.name,
                name,
            )
        stateful = [checkpoint_of(s) for s in stages if s.stateful is not None]
        note_queries(files, [*stateless, *stateful])

    def _start_stages(self, spark: SparkSession, port: ClusterPort, mode: str) -> list[Any]:
        """Start all stages; with available_now the next: it reads what those before it write."""
        assert self._stages is not None, "asked for where there are stages"
        count = 1 if mode == "available_now" else len(self._waiting)
        queries: list[Any] = []
        try:
            with scheduler_pools(spark) as use_pool:
                for stage in self._waiting[:count]:
                    use_pool(f"kohort {self._pipeline.name} {stage.name}")
                    queries.append(self._stages.start(stage, port, mode))
                    self._await_sources(queries[-1])
        except BaseException:  # as above
            _stop(queries)
            raise
        del self._waiting[:count]
        return queries

    def _await_sources(self, query: Any) -> None:
        """Wait until a query reads, has failed, or the run is asked to stop.

        Spark gives a process of a source ten seconds to connect. Those of all queries at once need
        longer on a few busy cores.
        """
        while not self._pipeline.stopping and initializes(query):
            time.sleep(SOURCES_S)

    def _start_handlers(
        self, spark: SparkSession, store: Store, port: ClusterPort, mode: str
    ) -> list[Any]:
        from kohort.spark.pipeline_sink import sink_class

        pipeline = self._pipeline
        sink = f"kohort-pipeline-{pipeline.name}"
        views = port.topics()
        partitions = {name: view.partitions for name, view in views.items()}
        spark.dataSource.register(sink_class(pipeline.spec(partitions), sink))
        read = pipeline.handler_topics
        delays = {t: ms for names in read.values() for t, ms in names.delays_ms.items()}
        plan: list[tuple[str, dict[str, int], list[str], int]] = [
            (SOURCE, {}, list(read), pipeline.trigger_ms),
            (RETRIES, delays, list(delays), self._retry_trigger_ms(delays)),
        ]
        files = checkpoint_files(pipeline.checkpoint, spark)
        queries: list[Any] = []
        try:
            with scheduler_pools(spark) as use_pool:
                for label, retry_delays, topics, trigger_ms in plan:
                    if begin_anew_for_other_topics(files, label, topics):
                        log.info(
                            "pipeline %s reads other topics than before: its %s query starts again "
                            "at the store's fences",
                            pipeline.name,
                            label,
                        )
                    options = self._options(spark, store, topics, retry_delays)
                    options["rangeMarkers"] = "true"
                    reader = spark.readStream.format("kohort").options(**options).load()
                    writer = (
                        reader.writeStream.format(sink)
                        .queryName(f"{pipeline.name} {label}")
                        .option("checkpointLocation", files.location(label))
                    )
                    if mode == "available_now":
                        writer = writer.trigger(availableNow=True)
                    else:
                        writer = writer.trigger(processingTime=f"{trigger_ms} milliseconds")
                    # Pools share the cores: a retry that is due does not queue behind sources.
                    use_pool(f"kohort {pipeline.name} {label}")
                    queries.append(writer.start())
                    self._await_sources(queries[-1])
        except BaseException:  # stop what was started after any error
            _stop(queries)
            raise
        return queries

    def _options(
        self, spark: SparkSession, store: Store, topics: list[str], delays: Mapping[str, int]
    ) -> dict[str, str]:
        pipeline = self._pipeline
        starting: dict[str, dict[str, int]] = {}
        for fence in store.fences(pipeline.name):
            if fence.topic in topics:
                starting.setdefault(fence.topic, {})[str(fence.partition)] = fence.next_offset
        options = {
            **{f"kafka.{key}": value for key, value in pipeline.client_config.items()},
            "subscribe": ",".join(topics),
            "startingOffsets": json.dumps(starting),
            "group.id": pipeline.group,
            "minPartitions": str(default_parallelism(spark)),
            "clockSkewMs": str(pipeline.skew_ms),
            "lossRemedy": "`kohort pipeline diff` says how to continue",
        }
        if pipeline.max_offsets_per_trigger is None:
            options |= BATCHES
        else:
            options["maxOffsetsPerTrigger"] = str(pipeline.max_offsets_per_trigger)
        if delays:
            options["retryDelaysMs"] = json.dumps(dict(delays))
        return options

    def _retry_trigger_ms(self, delays: Mapping[str, int]) -> int:
        """A twentieth of the shortest delay, within bounds: what it costs is only lateness."""
        shortest = min((ms for ms in delays.values() if ms > 0), default=MAX_RETRY_TRIGGER_MS)
        return max(MIN_RETRY_TRIGGER_MS, min(shortest // 20, MAX_RETRY_TRIGGER_MS))

    # Watching

    def _watch(
        self,
        queries: list[Any],
        store: Store,
        port: ClusterPort,
        mode: str,
        until: Callable[[], bool] | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> Progress:
        next_measure = 0.0
        while True:
            running = False
            for query in queries:
                error = query.exception()
                if error is not None:
                    raise PipelineFailedError(explain(str(error)))
                running = running or query.isActive
            if not running and self._waiting:
                queries += self._start_stages(self._session(), port, mode)
                continue
            complete = until is None or until()
            now = time.monotonic()
            if now >= self._next_vacuum:  # across restarts: Spark may replay the last batch
                self._next_vacuum = now + VACUUM_S
                self._vacuum(store)
                self._purge(store, port)
            stopping = self._pipeline.stopping
            if now >= next_measure or not running or stopping:
                progress = measure(self._pipeline, store, port, self._forwarded)
                spent = time.monotonic() - now
                self._note_progress(progress)
                ending = mode == "until_idle" and complete and progress.ending
                next_measure = now + (
                    PROGRESS_S if ending else max(PROGRESS_S, PROGRESS_COST * spent)
                )
                if on_progress is not None:
                    on_progress(progress)
                idle = mode == "until_idle" and complete and progress.drained
                if not running or stopping or (idle and all(map(waits, queries))):
                    return progress
            time.sleep(WATCH_S)

    def _note_progress(self, progress: Progress) -> None:
        """Note whether the queries get further, or have nothing to do."""
        moved = progress.next_offsets != self._reached
        self._reached = progress.next_offsets
        self._advanced = self._advanced or moved or progress.drained


def check_waiting(pipeline: Runnable, store: Store) -> None:
    """Raise ConfigError where a failed record waits in a topic that nothing reads any more."""
    retry_topics = {n for r in pipeline.topics.values() for n in r.delays_ms}
    states = retry_topic_states(store, pipeline.name, (), time.time_ns() // 1_000_000)
    left = [s for s in states if s.waiting and s.topic not in retry_topics]
    if left:
        waiting = ", ".join(f"{s.waiting:,} in {s.topic}" for s in left)
        raise ConfigError(
            f"pipeline {pipeline.name}: records wait for another try in topics that it does not "
            f"read any more, because a handler, the group or retries= has changed: {waiting}. "
            "Nothing was started. Put back what was changed, run with the mode until_idle until "
            "none of them waits, then change it"
        )


def check_owed(pipeline: str, stages: Collection[str], store: Store) -> None:
    """Raise ConfigError where a stage that is there no longer owes Kafka the end of a transaction.

    Only a query of its name would end it, or send its records again: the database has the rows of
    that batch, and its topics would never have them.
    """
    owing = [stage for stage in owing_stages(store, pipeline) if stage not in stages]
    if owing:
        raise ConfigError(
            f"pipeline {pipeline}: the Kafka transaction of the last batch of step "
            f"{', '.join(owing)} has not ended, and none has this name any more (steps without "
            "state have that of the first source that they read). Nothing was started. Put the "
            "step back under its name, run once, then change it"
        )


def stored_state(pipeline: Runnable, store: Store, port: ClusterPort) -> Stored:
    """What the store, the cluster and the checkpoint hold of a pipeline; nothing is changed."""
    views, place = port.topics(), pipeline.checkpoint
    try:
        states = retry_topic_states(store, pipeline.name, (), time.time_ns() // 1_000_000)
    except StorageError:  # it has never run
        return Stored((), {}, views)
    fences = [f for f in store.fences(pipeline.name) if not INTERMEDIATE_TOPIC.fullmatch(f.topic)]
    there = [
        (f.topic, f.partition)
        for f in fences
        if f.topic in pipeline.topics
        and f.topic in views
        and f.partition < views[f.topic].partitions
    ]
    return Stored(
        fences,
        {s.topic: s.waiting for s in states if s.waiting},
        views,
        port.earliest(there) if there else {},
        {} if is_url(place) else _checkpoints(LocalFiles(Path(place))),
        place,
    )


def _checkpoints(files: LocalFiles) -> dict[str, Sequence[str] | None]:
    return {label: topics_of(files, label) for label in (SOURCE, RETRIES)}


def open_fences(
    pipeline: Runnable, store: Store, port: ClusterPort, forwarded: Iterable[str] = ()
) -> None:
    """A fence for every partition, made at the log's start where there is none.

    Args:
        forwarded: the intermediate topics. One without any fence begins at its end: the rows there
            are of an earlier store, and those of this store are yet to be written.

    The queries then start at the fences, and a retry topic has its fence before any copy is read.
    Raises DataLossError when a topic is there no longer, or was deleted and created again.
    """
    views = port.topics()
    names = [n for t, r in pipeline.topics.items() for n in (t, *r.delays_ms)]
    intermediate = set(forwarded)
    names += sorted(intermediate)
    gone = [n for n in names if n not in views]
    if gone:
        raise DataLossError(
            f"pipeline {pipeline.name}: topic {', '.join(gone)} was deleted while it ran. Remove "
            "the handler of the topic to continue without it"
        )
    fences = store.fences(pipeline.name)
    for fence in fences:
        if fence.topic in names:
            refuse_recreated(pipeline.name, fence, views[fence.topic].topic_id)
    known = {(f.topic, f.partition) for f in fences}
    missing = [(n, p) for n in names for p in range(views[n].partitions) if (n, p) not in known]
    if not missing:
        return
    now = int(time.time() * 1000)
    # What an open transaction of the earlier store holds back is aborted before a step writes.
    anew = intermediate - {topic for topic, _ in known}
    at_end = [at for at in missing if at[0] in anew]
    at_start = [at for at in missing if at[0] not in anew]
    starts = port.earliest(at_start) if at_start else {}
    starts |= port.latest(at_end) if at_end else {}
    for (topic, partition), start in starts.items():
        store.open_fence(pipeline.name, topic, views[topic].topic_id, partition, start, now)


def waits(query: Any) -> bool:
    """True between two triggers, of which the last one had no new data.

    Stopping a query that starts leaves tracebacks of its processes. What is loaded cannot tell: an
    idle run has everything loaded before its queries have begun. After a batch with data, the next
    trigger may run one without: it emits the windows that the watermark has closed.
    """
    if not query.isActive:
        return True
    status = query.status
    return str(status["message"]).startswith("Waiting") and not status["isDataAvailable"]


def initializes(query: Any) -> bool:
    """Whether a query is still starting the processes of its sources."""
    return bool(query.isActive) and str(query.status["message"]).startswith("Initializing")


def _stop(queries: list[Any]) -> None:
    with quiet_py4j():
        for query in queries:
            try:
                query.stop()
            except Exception as error:  # py4j raises its own kinds when the JVM has gone
                log.warning(
                    "a query could not be stopped (%s); its Spark has probably ended", error
                )


def passes(text: str) -> bool:
    """May this failure pass by itself?"""
    if _NEVER_PASSES.search(text):
        return False
    if _PASSES.search(text):
        return True
    found = _BROKER_ERROR.findall(text)
    return any(BrokerError(int(code)).retriable for name, code in found if _is_code(name))


def explain(text: str) -> str:
    """The Python traceback inside a Spark error, and its last line first; else the text itself."""
    match = _TRACEBACK.search(text)
    if match is None:
        return text
    trace = re.split(r"\n\s*(?:at |\*\*\*|=== |Driver stacktrace|SQLSTATE)", match[0])[0].rstrip()
    return f"{last_line(trace)}\n\n{trace}"


def last_line(text: str) -> str:
    """The last line of a traceback: the error itself."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[0] if lines and not lines[0].startswith("Traceback") else (lines or [""])[-1]


def _is_code(name: str) -> bool:
    return name in ErrorCode.__members__
