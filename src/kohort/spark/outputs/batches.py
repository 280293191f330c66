"""`to_table`, `to_topic`, `to_files` and their like: functions for `foreachBatch`, exactly once.

Rules:
- A function is made of plain values and refused before anything is connected. What it holds while a
  query runs (connections, staging) is made with the first batch of a run. Spark does not
  report the end of a query, so connections are closed when the function is closed or dropped.
- One function is one query's: its fence is kept under the query's name.
- Every start of a query begins a run: a notebook may give a changed query the same function and
  checkpoint, and what a run keeps (merges, plans) fits the columns of one query only.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kohort.client.common.config import AdminConfig, known_to
from kohort.config import parse_duration_ms
from kohort.errors import ConfigError, UsageError
from kohort.retry.stores import open_store
from kohort.spark.outputs.cancelled import cut_off, is_cancelled
from kohort.spark.outputs.fence import GROUP_PREFIX, Batch, FencePolicy
from kohort.spark.outputs.files import FileOutput
from kohort.spark.outputs.idempotent_outputs import CommitPart
from kohort.spark.outputs.lakehouse import DeltaOutput, IcebergOutput
from kohort.spark.outputs.merge_sql import APPEND, FAIL, UPSERT, OnViolation, TableOutput
from kohort.spark.outputs.parts import Select, TablePart, TopicPart
from kohort.spark.outputs.protocol import Committer, Outcome, Step, ignore
from kohort.spark.outputs.topics import DEFAULT_BATCH_BYTES, TopicOutput
from kohort.spark.outputs.violations import dead_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from kohort.spark.outputs.kafka import TopicTransaction
    from kohort.spark.outputs.table_transaction import BatchStore
    from kohort.spark.outputs.work import BatchWork
    from kohort.spark.plans.physical import PhysicalPlans

log = logging.getLogger("kohort.spark")
DEFAULT_TRANSACTION_TIMEOUT: Final = "5m"
QUERY_ID: Final = "sql.streaming.queryId"
JOB_GROUP: Final = "spark.jobGroup.id"
"""For the jobs of a streaming query Spark sets it to the id of the run."""


@dataclass(frozen=True)
class _Start:
    """Which query runs, and since which start.

    Args:
        query: its name.
        query_id: the id that its checkpoint keeps.
        run_id: another one for each start.
    """

    query: str
    query_id: str
    run_id: str


@dataclass
class _Run:
    """What one run of a query holds."""

    start: _Start
    database: BatchStore | None
    transaction: TopicTransaction | None
    committer: Committer
    plans: PhysicalPlans
    spool: Path | None


def to_table(
    store: str,
    table: str,
    *,
    key: Iterable[str] = (),
    mode: str | None = None,
    deletes: str | None = None,
    order: str | Iterable[str] = (),
    on_violation: OnViolation | BatchFunction = FAIL,
    carry: Iterable[str] = (),
    select: Select | None = None,
    query: str | None = None,
    first_batch: int = 0,
) -> BatchFunction:
    """Write each micro-batch into a table, exactly once; a function for `foreachBatch`.

    Every output mode of Spark works. The table must exist; the frame's columns are
    filled by name. `kohort_batch_history` counts the rows of each batch.

    Args:
        store: `sqlite:///FILE.db` or `postgresql://USER@HOST/DATABASE`.
        table: the table, or `schema.table`.
        key: the columns by which a row replaces another; they need a unique index.
        mode: `append` inserts, `upsert` inserts or replaces by key (the default with a key),
            `replace` makes the batch the whole table (for output mode complete).
        deletes: with upsert, a boolean column that is not in the table: rows where it is true are
            deleted by key.
        order: with upsert, columns whose greatest value wins where a batch has several rows of one
            key. Without it such a batch is refused.
        on_violation: what becomes of a row that the database refuses (a broken constraint, a text
            that is no date): `fail` the batch; `keep` it in the table kohort_rejected, with the
            reason, and load the others; `to_topic(TOPIC, ...)`, to which it goes as JSON, with the
            reason in headers; or a function of the batch's rejected rows (`list[Rejected]`) that
            returns records (`OutputRecord`) for topics of the query, or None. Such dead letters are
            in the batch's Kafka transaction.
        carry: columns of the frame, cast to string, that are not in the table: a rejected row shows
            them.
        select: what is made of the batch first, `f(frame) -> frame`.
        query: the name under which the fence is kept; default the query's `queryName`.
        first_batch: the batch with which the output begins, when it is added to a query that has
            run before; default 0.

    Returns the function. Raises ConfigError; the function raises DataLossError when table and
    checkpoint have lost each other (a deleted checkpoint, a restored backup), ConstraintError,
    StoreBusyError.
    """
    keys = tuple(key)
    orders = (order,) if isinstance(order, str) else tuple(order)
    url = open_store(store).url
    chosen = mode or (UPSERT if keys else APPEND)
    rejected, topics = _letters(on_violation)
    output = TableOutput(url, table, keys, chosen, deletes, orders, rejected, tuple(carry))
    return BatchFunction((TablePart(output, select),), topics, query, first_batch)


def to_topic(
    topic: str | None = None,
    *,
    topics: Iterable[str] = (),
    bootstrap_servers: str,
    compression: str = "none",
    compression_level: int | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    include_headers: bool = True,
    timestamp: str | None = None,
    transaction_timeout: str | int = DEFAULT_TRANSACTION_TIMEOUT,
    select: Select | None = None,
    query: str | None = None,
    first_batch: int = 0,
    **client: Any,
) -> BatchFunction:
    """Write each micro-batch to a topic, exactly once; a function for `foreachBatch`.

    A micro-batch is one Kafka transaction, shared by its tasks: readers with `read_committed` see
    all of it or nothing. Columns are those of Spark's Kafka sink: `value`, and optionally `key`,
    `headers`, `topic`, `partition`, binary or string; others are ignored. Keys go to the partition
    where every Kafka client puts them.

    Args:
        topic: the topic of every row.
        topics: instead, all topics that the column `topic` may name.
        bootstrap_servers: `HOST:PORT,...`.
        compression: none, gzip, snappy, lz4 or zstd; `compression_level` as its codec has it.
        batch_bytes: record batches before compression; below the topic's max.message.bytes.
        timestamp: a column whose times become the records' timestamps; default the present time.
        transaction_timeout: the longest that a batch may take, at most the broker's
            transaction.max.timeout.ms. Readers wait that long for a driver that died and is not
            started again.
        select, query, first_batch: as `to_table`. The transactional id, and the group that keeps
            the fence, are `kohort.spark.QUERY`.
        client: further client configuration, in Kafka's names with `_`.

    Returns the function. Raises ConfigError; the function raises DataLossError as `to_table`'s,
    TransactionLostError when another driver runs the query, BatchFailedError when the batch did not
    end within its time-out or its tasks failed, BrokerError, RecordTooLargeError.
    """
    config = {name: str(value) for name, value in client.items()}
    config["bootstrap_servers"] = bootstrap_servers
    AdminConfig.from_mapping(known_to(AdminConfig, config))
    output = TopicOutput(
        topic,
        tuple(topics),
        config,
        compression,
        compression_level,
        batch_bytes,
        include_headers,
        timestamp,
    )
    part = TopicPart(output, select, parse_duration_ms(transaction_timeout))
    return BatchFunction((), (part,), query, first_batch)


def to_files(
    path: str,
    *,
    format: str = "parquet",
    partition_by: str | Iterable[str] = (),
    options: Mapping[str, str] | None = None,
    select: Select | None = None,
    query: str | None = None,
    first_batch: int = 0,
) -> BatchFunction:
    """Write each micro-batch as files, exactly once; a function for `foreachBatch`.

    A batch is the directory `kohort_batch=N` below `path`. It appears when its manifest does, so
    that readers of `path` see whole batches, each once; on an object store, where moving a
    directory takes a while, the manifests in `_kohort/manifests` name the files that count.

    Args:
        path: a directory of this query alone, by any URL that Spark can write to.
        format: parquet, orc, json, csv, avro or text.
        partition_by: columns that become directories.
        options: of Spark's writer, such as `{"compression": "zstd"}`.
        select, query, first_batch: as `to_table`.

    Returns the function. Raises ConfigError; the function raises DataLossError as `to_table`'s.
    """
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    output = FileOutput(path, format, columns, dict(options or {}))
    return BatchFunction((), (), query, first_batch, (CommitPart(output, select),))


def to_delta(
    path: str,
    *,
    mode: str = "append",
    partition_by: str | Iterable[str] = (),
    options: Mapping[str, str] | None = None,
    select: Select | None = None,
    query: str | None = None,
    first_batch: int = 0,
) -> BatchFunction:
    """Write each micro-batch to a Delta table, exactly once; a function for `foreachBatch`.

    A batch is one commit with `txnAppId` and `txnVersion`. The session needs Delta Lake's jars,
    its extension and its catalog; the newest release, 4.4.0, is for Spark 4.2.

    Args:
        path: the table's directory.
        mode: `append`, or `replace`: the batch becomes the whole table (output mode complete).
        partition_by, options: of Spark's writer.
        select, query, first_batch: as `to_table`.

    Returns the function. Raises ConfigError; the function raises DataLossError as `to_table`'s.
    """
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    output = DeltaOutput(path, mode, columns, dict(options or {}))
    return BatchFunction((), (), query, first_batch, (CommitPart(output, select),))


def to_iceberg(
    table: str,
    *,
    mode: str = "append",
    options: Mapping[str, str] | None = None,
    select: Select | None = None,
    query: str | None = None,
    first_batch: int = 0,
) -> BatchFunction:
    """Write each micro-batch to an Iceberg table, exactly once; a function for `foreachBatch`.

    A batch is one snapshot, whose properties name query, checkpoint and batch. The session needs
    Iceberg's jar and a catalog; the table must exist. Not tried with a real table yet: Iceberg
    1.12.0 runs on Spark 4.1, and Kohort on 4.2 and later.

    Args:
        table: `CATALOG.DATABASE.TABLE`.
        mode: `append`, or `replace`: the batch becomes the whole table (output mode complete).
        options: of Iceberg's writer.
        select, query, first_batch: as `to_table`.

    Returns the function. Raises ConfigError; the function raises DataLossError as `to_table`'s.
    """
    output = IcebergOutput(table, mode, dict(options or {}))
    return BatchFunction((), (), query, first_batch, (CommitPart(output, select),))


def to_outputs(
    *functions: BatchFunction, query: str | None = None, first_batch: int = 0
) -> BatchFunction:
    """Several outputs of one query, committed together; a function for `foreachBatch`.

    The frame is computed once. With tables and topics the database decides: its transaction holds
    the fence and names the Kafka transaction, which is ended after it, also after a crash. Until
    then `kohort_outbox` has what was sent, to send it again if Kafka has aborted it. Files
    and lakehouse tables are committed after them, in the order of the arguments.

    Args:
        functions: what `to_table`, `to_topic`, `to_files`, `to_delta` and `to_iceberg` have made.
            Tables share one store, topics one cluster; two outputs into one table are refused.
        query, first_batch: as `to_table`.
    """
    tables = tuple(part for function in functions for part in function.tables)
    topics = tuple(part for function in functions for part in function.topics)
    commits = tuple(part for function in functions for part in function.commits)
    if not tables and not topics and not commits:
        raise ConfigError("to_outputs() needs at least one of to_table(...) and to_topic(...)")
    if len({part.output.name for part in commits}) != len(commits):
        raise ConfigError("two outputs into one place; make one frame of them (union) first")
    if len({t.output.store_url for t in tables}) > 1:
        raise ConfigError("the tables of one query share one store: a batch is one transaction")
    if len({t.output.table for t in tables}) != len(tables):
        raise ConfigError("two outputs into one table; make one frame of them (union) first")
    if any(t.output.client != topics[0].output.client for t in topics):
        raise ConfigError("the topics of one query share one cluster and configuration")
    names = {query, *(f.query for f in functions)} - {None}
    if len(names) > 1:
        raise ConfigError(f"the outputs of one query have one name, not {sorted(map(str, names))}")
    return BatchFunction(tables, topics, next(iter(names), None), first_batch, commits)


def _letters(
    on_violation: OnViolation | BatchFunction,
) -> tuple[OnViolation, tuple[TopicPart, ...]]:
    """What becomes of rejected rows, and the topic of dead letters that it needs."""
    if not isinstance(on_violation, BatchFunction):
        return on_violation, ()
    topics = on_violation.topics
    if on_violation.tables or len(topics) != 1 or topics[0].output.topic is None:
        raise ConfigError("on_violation takes one topic: to_topic(TOPIC, bootstrap_servers=...)")
    return dead_letters(topics[0].output.topic), (replace(topics[0], letters=True),)


@dataclass
class BatchFunction:
    """A function for `foreachBatch`; made by `to_table`, `to_topic` and their like."""

    tables: Sequence[TablePart]
    topics: Sequence[TopicPart]
    query: str | None
    first_batch: int = 0
    commits: Sequence[CommitPart] = ()
    reached: Callable[[Step], None] = field(default=ignore, repr=False)
    """Called with each step of a commit, for tests that end the driver there."""
    _runs: list[_Run] = field(default_factory=list[_Run], init=False, repr=False)
    """The run under way, if there is one; closed when this function is dropped."""

    def __post_init__(self) -> None:
        weakref.finalize(self, _close_all, self._runs)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit one micro-batch, or skip it when it is committed already."""
        from kohort.spark.outputs.work import BatchWork

        start = self._start(frame)
        query = start.query
        if not self._runs or self._runs[0].start != start:
            self.close()
            self._runs.append(self._begin(frame, start))
        run = self._runs[0]
        work = BatchWork(
            frame,
            run.database,
            self.tables,
            run.transaction,
            self.topics,
            query,
            run.plans.job_reports,
            spool=run.spool,
        )
        if len(self.commits) + bool(self.tables or self.topics) > 1:
            work.keep()
        try:
            outcomes = self._commit(run, Batch(query, batch_id, start.query_id), work)
            if Outcome.COMMITTED not in outcomes:  # Spark wants every batch's state to be written
                frame.write.format("noop").mode("overwrite").save()
            elif run.database is not None:
                run.database.sweep()
        except BaseException as error:  # the next run begins with connections of its own
            self.close()
            if not is_cancelled(error):
                raise
            log.debug("batch %d of query %s was cut off", batch_id, query, exc_info=True)
            raise cut_off(f"batch {batch_id} of query {query}") from None
        finally:
            work.close()
            if run.database is not None:
                run.database.batch_done()

    def _commit(self, run: _Run, batch: Batch, work: BatchWork) -> list[Outcome]:
        """Commit to every output, in their order."""
        outcomes: list[Outcome] = []
        if self.tables or self.topics:
            outcomes.append(run.committer.run(batch, work))
        return outcomes + [part.run(work.frame, batch, self.first_batch) for part in self.commits]

    def close(self) -> None:
        """Close the connections, after a query has ended; another batch makes new ones."""
        _close_all(self._runs)

    def _begin(self, frame: DataFrame, start: _Start) -> _Run:
        from kohort.spark.outputs.spool import spool_directory
        from kohort.spark.plans.physical import PhysicalPlans

        query = start.query
        name = GROUP_PREFIX + query
        place, remedy = f"the group {name}", f"delete the group {name} (kohort group delete)"
        if self.tables:
            place = f"the database of {', '.join(t.output.table for t in self.tables)}"
            remedy = f"delete the row of query {query!r} from kohort_batch_fence"
        policy = FencePolicy(query, self.first_batch, place, remedy)
        with contextlib.ExitStack() as opened:
            database = self._open_database(frame, query)
            if database is not None:
                opened.callback(database.store.close)
                database.prepare()
            transaction = self._open_transaction(name)
            if transaction is not None:
                opened.callback(transaction.close)
            committer = Committer(policy, database, transaction, self.reached)
            spool = spool_directory(frame.sparkSession.sparkContext, query) if transaction else None
            opened.pop_all()  # from here on the run closes them
        return _Run(start, database, transaction, committer, PhysicalPlans(), spool)

    def _open_database(self, frame: DataFrame, query: str) -> BatchStore | None:
        from kohort.spark.outputs.table_transaction import SqliteBatches, open_batches
        from kohort.spark.outputs.work import check_context

        context = frame.sparkSession.sparkContext
        if not self.tables:
            check_context(context, sqlite=False, topics=bool(self.topics))
            return None
        frames = [(t.output, (t.select(frame) if t.select else frame).columns) for t in self.tables]
        database = open_batches(self.tables[0].output.store_url, query, frames)
        is_sqlite = isinstance(database, SqliteBatches)
        check_context(context, sqlite=is_sqlite, topics=bool(self.topics))
        database.reached = self.reached
        return database

    def _open_transaction(self, name: str) -> TopicTransaction | None:
        from kohort.spark.outputs.kafka import TopicTransaction

        if not self.topics:
            return None
        names = dict.fromkeys(n for t in self.topics for n in t.output.names)
        timeout_ms = max(t.timeout_ms for t in self.topics)
        return TopicTransaction(name, names, timeout_ms, self.topics[0].output.client)

    def _start(self, frame: DataFrame) -> _Start:
        """The start of the query that calls this function."""
        context: Any = getattr(frame.sparkSession, "sparkContext", None)
        if context is None:
            raise UsageError(
                "exactly-once outputs need classic Spark: on Spark Connect, foreachBatch runs in a "
                "process of the server that knows neither query nor tasks"
            )
        query_id = context.getLocalProperty(QUERY_ID)
        if not query_id:
            raise UsageError("this function is for foreachBatch: call it in a streaming query only")
        query = self.query or _query_name(context)
        if not query:
            raise ConfigError(
                'name the query: .queryName("...") before start(), or query= of the output. The '
                "fence is kept under that name, so it must not change"
            )
        return _Start(query, query_id, context.getLocalProperty(JOB_GROUP) or "")


def _close_all(runs: list[_Run]) -> None:
    while runs:
        run = runs.pop()
        if run.transaction is not None:
            run.transaction.close()
        if run.database is not None:
            run.database.store.close()


def _query_name(context: Any) -> str:
    """The `queryName`: the first line of what Spark says a batch's job does."""
    first, _, rest = (context.getLocalProperty("spark.job.description") or "").partition("\n")
    return first if rest.startswith("id = ") else ""
