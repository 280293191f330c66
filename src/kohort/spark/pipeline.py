"""`Pipeline`: what a user writes in a small Python file to load topics into a database.

With steps of DataFrames:

    from pyspark.sql import functions as F

    from kohort.spark import Pipeline

    p = Pipeline("totals", store="sqlite:///totals.db", retries="5m 30m 1h")
    p.source("orders", schema="customer STRING, amount INT")

    @p.setup
    def tables(store):
        store.run("CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, amount BIGINT)")

    @p.step
    def valid(orders):
        return orders.transform(p.reject(F.col("amount") <= 0, "no_amount"))

    @p.table("totals", key="customer")
    def totals(valid):
        return valid.groupBy("customer").agg(F.sum("amount").alias("amount"))

    if __name__ == "__main__":
        p.run()

With row handlers:

    from kohort.spark import Permanent, Pipeline, Temporary

    pipeline = Pipeline("orders", store="sqlite:///orders.db", retries="5m 30m 1h")

    @pipeline.setup
    def tables(store):
        store.run("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, customer TEXT NOT NULL)")

    @pipeline.handler("orders", table="orders", key=("id",))
    def load(record, store):
        if store.one("SELECT 1 FROM customers WHERE id = ?", [record.data["customer"]]) is None:
            raise Temporary("customer_unknown")
        return {"id": record.data["id"], "customer": record.data["customer"]}

    if __name__ == "__main__":
        pipeline.run()

Rules:
- Handlers run in Spark's executors; they are shipped by value, with what they refer to in the same
  file. They look things up and return what is to be written; they do not write.
- Every input is in the store exactly once or failed exactly once (spec 6.3), also after kills.
- Steps are called by the driver at each start, not for each micro-batch; Spark runs their plans.
- Only configuration changes between `local[*]` and a cluster, where the store is PostgreSQL.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast

from kohort.client.common.config import ConsumerConfig
from kohort.config import parse_duration_ms, parse_size_bytes
from kohort.errors import ConfigError
from kohort.remote.topics import checked_prefix
from kohort.retry.foreign_headers import makes_of
from kohort.retry.handling import Decode, HandlerSpec, SetupStore, set_up
from kohort.retry.policy import DEFAULT_RETRIES, RetryPolicy, RetryTopics
from kohort.retry.registering import (
    check_handler,
    checked_decode,
    checked_topic,
    classifier_of,
)
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.serdes.basic import Serde
from kohort.setting_keys import check_keywords, merged
from kohort.spark.checkpoint_files import LOCAL_CHECKPOINTS, is_url
from kohort.spark.dataframes.graph import (
    COMPLETE,
    Graph,
    Reference,
    Source,
    TableTarget,
    TopicTarget,
    ValueFormat,
    identifier,
)
from kohort.spark.outputs.merge_sql import APPEND, REPLACE, UPSERT, TableOutput
from kohort.spark.outputs.protocol import Step, ignore

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from kohort.client.common.typed_settings import AppClientSettings
    from kohort.spark.dataframes.columns import Transform
    from kohort.spark.pipeline_sink import PipelineSpec
    from kohort.spark.progress import Book, Progress

Function = TypeVar("Function", bound=Callable[..., Any])
SERVERS_VARIABLE: Final = "KOHORT_BOOTSTRAP_SERVERS"
DEFAULT_SERVERS: Final = "localhost:9092"
MODES: Final = ("continuous", "until_idle", "available_now")
MAX_THREADS: Final = 256


class Pipeline:
    """Topics in, tables out, with retries by retry topics.

    Args:
        name: the pipeline's name: fence and ledger are kept under it. It must not change.
        store: `sqlite:///FILE.db` or `postgresql://USER@HOST/DATABASE`.
        group: the consumer group that shows its progress, and part of the retry topics' names;
            the pipeline's name by default.
        retries: delays of the retries in order, or "none".
        bootstrap_servers: default `$KOHORT_BOOTSTRAP_SERVERS`, then localhost:9092.
        checkpoint: Spark's checkpoint directory, or a URL that Spark's Hadoop can write to
            (`s3a://...`, `hdfs://...`); default `.kohort/checkpoints/NAME`. While the pipeline does
            not run it may be deleted, unless a step keeps state: the store knows the positions.
        max_offsets_per_trigger: the most records of one micro-batch. By default a batch has up to
            50,000, and more while one takes less than two seconds: at most 1,000,000 records and
            about 128 MiB.
        chunk_rows: the most records of one transaction.
        trigger: how often new records are looked for, while there are none.
        clock_skew: how far broker and executors may differ in time; due records wait that longer.
        ledger_retention: how long the ledger remembers a record that was loaded after a retry.
            What waits or has failed is always remembered.
        transaction_timeout: the longest that a micro-batch of DataFrames may take, at most the
            broker's transaction.max.timeout.ms.
        dead_letter_headers: `spring`, `connect`, `streams` or several: dead letters carry their
            reasons under the names of these makes' headers, too, as those of an `App`.
        remote: publish its progress to the topic REMOTE.status, and obey commands from
            REMOTE.commands, while it runs; None for neither.
        client: more client settings as a mapping; dotted names are accepted. Records of aborted
            transactions are not read, unless `isolation.level` is `read_uncommitted`.
        settings: the same settings as keywords: `request_timeout_ms=10_000`. They win over
            `client`. They reach executors as text: a callable is refused.

    Raises ConfigError for what can never work; nothing is connected before `run`.
    """

    def __init__(
        self,
        name: str,
        *,
        store: str,
        group: str | None = None,
        retries: str | RetryPolicy = DEFAULT_RETRIES,
        bootstrap_servers: str | None = None,
        checkpoint: str | Path | None = None,
        max_offsets_per_trigger: int | None = None,
        chunk_rows: int = 5_000,
        trigger: str | int = "500ms",
        clock_skew: str | int = "1s",
        ledger_retention: str | int = "7d",
        transaction_timeout: str | int = "5m",
        dead_letter_headers: str | Collection[str] = (),
        remote: str | None = None,
        client: Mapping[str, Any] | None = None,
        **settings: Unpack[AppClientSettings],
    ) -> None:
        own = Pipeline.__init__.__kwdefaults__ or {}
        check_keywords("Pipeline", settings, ConsumerConfig.field_names(), own)
        if not name or "/" in name:
            raise ConfigError(f"pipeline name {name!r}: it must not be empty and not contain '/'")
        most = max_offsets_per_trigger
        if (most is not None and most < 1) or chunk_rows < 1:
            raise ConfigError("max_offsets_per_trigger and chunk_rows must be at least 1")
        self.name = name
        self.group = group or name
        self.store = store
        self.policy = retries if isinstance(retries, RetryPolicy) else RetryPolicy.parse(retries)
        self.dead_letter_headers = makes_of(dead_letter_headers)
        self.bootstrap_servers = bootstrap_servers
        self.checkpoint = str(checkpoint or LOCAL_CHECKPOINTS / name)
        self.max_offsets_per_trigger = max_offsets_per_trigger
        self.chunk_rows = chunk_rows
        self.trigger_ms = parse_duration_ms(trigger)
        self.skew_ms = parse_duration_ms(clock_skew)
        self.ledger_retention_ms = parse_duration_ms(ledger_retention)
        self.client = _as_text(merged(client, settings))
        self.transaction_timeout_ms = parse_duration_ms(transaction_timeout)
        self.remote = None if remote is None else checked_prefix(remote)
        self.stopping = False
        """Whether `stop()` was called since the last run began."""
        self.graph = Graph()
        self.reached: Callable[[Step], None] = ignore
        """Called at each step of a batch's commit, for tests that end the driver there."""
        self.now_ms: Callable[[], int] | None = None
        """The driver's clock where a test moves it; None: the wall clock."""
        self.replaying = False
        """Its tables are shadow tables; see `kohort.spark.rebuilding`."""
        self._handlers: dict[str, HandlerSpec] = {}
        self._setups: list[Callable[[SetupStore], None]] = []
        open_store(store)

    # Pipelines of DataFrames

    def source(
        self,
        topic: str,
        *,
        schema: Any = None,
        format: str = "json",
        event_time: str | None = None,
        name: str | None = None,
        schema_registry: str | None = None,
        subject: str | None = None,
        message: str | None = None,
        schema_evolution: str | None = None,
    ) -> str:
        """Register a topic whose records become rows.

        Args:
            topic: the topic. Steps read it by the parameter `name`.
            schema: for json the columns, as DDL or a StructType; for json-schema the JSON Schema;
                for avro the Avro schema that values were written with; for protobuf a descriptor
                set in base64; for debezium the columns of the table. A value that does not fit goes
                to the dead-letter topic as `undecodable`.
            format: "json", "json-schema", "avro", "protobuf" or "debezium" (columns `before`,
                `after`, `op`, `ts_ms`, `source`); or "text" or "bytes", with the columns `key` and
                `value`.
            event_time: the column of type TIMESTAMP with the time at which a record happened.
                Nothing starts where it is missing or of another type. It sets no watermark.
            name: default the topic, with `_` for what a name cannot hold.
            schema_registry: the address of the registry whose wire format the values have. Without
                a schema, the columns are those of the subject's newest one.
            subject: whose schema is read; default the topic's, `TOPIC-value`.
            message: of protobuf, the message's full name; default the first of its file.
            schema_evolution: of fields that the columns do not have: "ignore" (the default), "fail"
                (the record is undecodable) or, for json, "rescue" (JSON text in `_rescued`). With
                "widen", for avro, the columns are those of all versions of the subject.

        Returns the name. Raises ConfigError.
        """
        topic = checked_topic(topic, "pipeline.source")
        if topic in self._handlers:
            raise ConfigError(f"topic {topic} has a handler already")
        name = name or identifier(topic)
        settings = {
            "format": format,
            "schema": schema,
            "schema_registry": schema_registry,
            "subject": subject,
            "message": message,
            "schema_evolution": schema_evolution,
        }
        values = ValueFormat.of(name, topic, settings)
        return self.graph.add_source(Source(name, topic, values, event_time))

    def reference(
        self,
        topic: str,
        *,
        key: str | Iterable[str],
        schema: Any = None,
        format: str = "json",
        name: str | None = None,
        schema_registry: str | None = None,
        subject: str | None = None,
        message: str | None = None,
        max_size: str | int = "64MiB",
    ) -> str:
        """Register a topic as a table: the latest row of each key, read up to its end before each
        micro-batch that needs it.

        Args:
            topic: the topic. A null value removes the row of its record key.
            key: the columns that name a row.
            schema, format, name, schema_registry, subject, message: as `source`.
            max_size: the most bytes of values; more is an error, since the table is broadcast.

        Returns the name. Raises ConfigError.
        """
        topic = checked_topic(topic, "pipeline.reference")
        keys = (key,) if isinstance(key, str) else tuple(key)
        size = parse_size_bytes(max_size)
        name = name or identifier(topic)
        settings = {
            "format": format,
            "schema": schema,
            "schema_registry": schema_registry,
            "subject": subject,
            "message": message,
        }
        values = ValueFormat.of(name, topic, settings)
        return self.graph.add_reference(Reference(name, topic, values, keys, size))

    def table(
        self,
        table: str,
        *,
        key: str | Iterable[str] = (),
        mode: str | None = None,
        deletes: str | None = None,
        order: str | Iterable[str] = (),
        output_mode: str | None = None,
    ) -> Callable[[Function], Function]:
        """Register a function of frames whose rows go into a table of the store, exactly once.

        Its parameters name sources, references and other steps; it returns a DataFrame, or the text
        of a SELECT over them. `key`, `mode`, `deletes` and `order` are those of `to_table`.

        Args:
            output_mode: of a step that keeps state: append, update or complete; default update with
                a key, else append. With complete, every batch has the whole result: `mode` is
                replace by default, or upsert.
        """
        keys = (key,) if isinstance(key, str) else tuple(key)
        orders = (order,) if isinstance(order, str) else tuple(order)
        usual = REPLACE if output_mode == COMPLETE else UPSERT if keys else APPEND
        chosen = mode or usual
        if output_mode == COMPLETE and chosen == APPEND:
            raise ConfigError(
                f"table {table}: with output_mode complete every batch has the whole result, which "
                "mode append would add again and again; choose replace, or upsert with a key"
            )
        TableOutput(self.store, table, keys, chosen, deletes, orders)
        return self._step(TableTarget(table, keys, chosen, deletes, orders), output_mode)

    def topic(
        self,
        topic: str,
        *,
        key: str | Iterable[str] = (),
        output_mode: str | None = None,
        compression: str = "none",
        timestamp: str | None = None,
    ) -> Callable[[Function], Function]:
        """Register a function of frames whose rows become records of a topic, exactly once.

        Args:
            topic: the topic; it must exist.
            key: the columns of the record's key: one as text, several as JSON. The value is JSON of
                all columns; without a key, a column `value` is the value (as in Spark's sink).
            output_mode: as `table`.
            compression: none, gzip, snappy, lz4 or zstd.
            timestamp: a column with the records' timestamps.
        """
        keys = (key,) if isinstance(key, str) else tuple(key)
        options = {"compression": compression, "timestamp": timestamp}
        return self._step(TopicTarget(topic, keys, options), output_mode)

    def step(self, function: Function) -> Function:
        """Register a function of frames that only other steps read."""
        self.graph.add_step(function, None, None)
        return function

    def _step(
        self, target: TableTarget | TopicTarget, output_mode: str | None
    ) -> Callable[[Function], Function]:
        def take(function: Function) -> Function:
            self.graph.add_step(function, target, output_mode)
            return function

        return take

    @staticmethod
    def reject(condition: Column, reason: str, message: Column | str | None = None) -> Transform:
        """For `.transform`: rows where `condition` is true go to the dead-letter topic."""
        from kohort.spark.dataframes import columns

        return columns.reject(condition, reason, message)

    @staticmethod
    def retry(condition: Column, reason: str, message: Column | str | None = None) -> Transform:
        """For `.transform`: the inputs of rows where `condition` is true wait for another try."""
        from kohort.spark.dataframes import columns

        return columns.retry(condition, reason, message)

    @staticmethod
    def attempt() -> Column:
        """A column: the number of the retry that a row belongs to; 0 for the first try."""
        from kohort.spark.dataframes import columns

        return columns.attempt()

    # Row handlers

    def handler(
        self,
        topic: str,
        *,
        table: str | None = None,
        key: Iterable[str] = (),
        origin: tuple[str, str] | None = None,
        decode: Decode | Serde[Any] = "json",
        permanent: Iterable[type[BaseException]] = (),
        temporary: Iterable[type[BaseException]] = (),
        threads: int = 1,
    ) -> Callable[[Function], Function]:
        """Register `f(record, store)` for the records of a topic.

        It returns None (nothing to write), a row (a dict for `table`), an effect (`Insert`,
        `Upsert`, `Execute`), or a list of them; or it raises `Permanent`, `Temporary`,
        `RetryAfter`. Another exception is permanent where the record or the program causes it
        (KeyError, TypeError, ValueError and the like: `kohort.retry.classify.PROGRAM_OR_DATA`),
        else temporary; `permanent` and `temporary` say otherwise.

        Args:
            table: where plain rows go.
            key: columns of `table` by which a row replaces another.
            origin: two columns of `table` that are filled with the record's first partition and
                offset, so that `reconcile` can find each input in the table.
            decode: "json", "text", a function of the bytes, a format of `kohort.serdes` (Avro,
                Protobuf, JSON Schema with a schema registry), or None for the bytes.
            threads: records of so many keys of a partition are handled at once, those of one key in
                their order; for a function that waits for something else. 1 to 256.
        """
        if not 1 <= threads <= MAX_THREADS:
            raise ConfigError(f"threads={threads}: a handler has 1 to {MAX_THREADS}")
        return self._register(
            topic, False, table, key, origin, decode, permanent, temporary, threads
        )

    def batch_handler(
        self,
        topic: str,
        *,
        table: str | None = None,
        key: Iterable[str] = (),
        origin: tuple[str, str] | None = None,
        decode: Decode | Serde[Any] = "json",
        permanent: Iterable[type[BaseException]] = (),
        temporary: Iterable[type[BaseException]] = (),
    ) -> Callable[[Function], Function]:
        """Register `f(batch, store)` for many records of one partition at a time.

        For every index of `batch.records` it calls one of `batch.load(i, row, ...)`,
        `batch.retry(i, reason)`, `batch.fail(i, reason)`, `batch.skip(i)`.
        """
        return self._register(topic, True, table, key, origin, decode, permanent, temporary)

    def setup(self, function: Function) -> Function:
        """Register `f(store)`, run by the driver at each start, before anything is read."""
        self._setups.append(function)
        return function

    def _register(
        self,
        topic: str,
        batch: bool,
        table: str | None,
        key: Iterable[str],
        origin: tuple[str, str] | None,
        decode: Decode | Serde[Any],
        permanent: Iterable[type[BaseException]],
        temporary: Iterable[type[BaseException]],
        threads: int = 1,
    ) -> Callable[[Function], Function]:
        topic = checked_topic(topic, "pipeline.batch_handler" if batch else "pipeline.handler")
        if topic in self._handlers:
            raise ConfigError(f"topic {topic} has a handler already")
        if any(source.topic == topic for source in self.graph.sources.values()):
            raise ConfigError(f"topic {topic} is a source of DataFrames already")

        def take(function: Function) -> Function:
            arguments = ["batch" if batch else "record", "store"]
            check_handler(topic, function, arguments, may_yield=not batch, may_wait=False)
            self._handlers[topic] = HandlerSpec(
                topic,
                function,
                batch,
                table,
                tuple(key),
                origin,
                checked_decode(topic, decode),
                classifier_of(topic, permanent, temporary),
                threads=threads,
            )
            return function

        return take

    # What it is made of

    @property
    def servers(self) -> str:
        """The brokers' addresses in force."""
        return self.bootstrap_servers or os.environ.get(SERVERS_VARIABLE) or DEFAULT_SERVERS

    @property
    def client_config(self) -> dict[str, str]:
        """The configuration of every client of this pipeline: committed records, unless it says."""
        committed = {"isolation.level": "read_committed"}
        return {**committed, **self.client, "bootstrap.servers": self.servers}

    @property
    def topics(self) -> dict[str, RetryTopics]:
        """The retry topics by source topic. Raises ConfigError when there is no handler."""
        read = [*self._handlers, *(s.topic for s in self.graph.sources.values())]
        if not read:
            raise ConfigError(
                f"pipeline {self.name} reads nothing; register a source with "
                "pipeline.source(TOPIC, ...), or a row handler with @pipeline.handler(TOPIC)"
            )
        makes = self.dead_letter_headers
        return {t: RetryTopics(t, self.group, self.policy, makes) for t in read}

    @property
    def handler_topics(self) -> dict[str, RetryTopics]:
        """The part of `topics` that row handlers read."""
        return {t: names for t, names in self.topics.items() if t in self._handlers}

    @property
    def handlers(self) -> tuple[HandlerSpec, ...]:
        """What was registered, in order."""
        return tuple(self._handlers.values())

    @property
    def books(self) -> list[Book]:
        """The topics whose inputs are counted, with the tables that name them."""
        from kohort.spark.progress import Book

        handled = [Book(h.topic, h.table, h.origin, h.key) for h in self.handlers]
        return [*handled, *(Book(s.topic) for s in self.graph.sources.values())]

    def fill_instead(self, tables: Mapping[str, str]) -> None:
        """Let the row handlers fill other tables, until those are swapped."""
        self.replaying = True
        for topic, handler in self._handlers.items():
            table = handler.table and tables[handler.table]
            self._handlers[topic] = replace(handler, table=table, only_table=True)

    @property
    def lock_directory(self) -> Path:
        """Where this machine's drivers of the pipeline meet: the checkpoint, where it is local."""
        remote = is_url(self.checkpoint)
        return LOCAL_CHECKPOINTS / self.name if remote else Path(self.checkpoint)

    def open_store(self) -> Store:
        """The pipeline's store, not connected yet."""
        return open_store(self.store)

    def prepare_store(self, store: Store) -> None:
        """Make fence and ledger tables, then run the setup functions."""
        set_up(store, self._setups)

    def spec(self, partitions: Mapping[str, int]) -> PipelineSpec:
        """What executors need to know; `partitions` counts those of every retry topic."""
        from kohort.spark.decoding import shipped
        from kohort.spark.pipeline_sink import PipelineSpec

        return PipelineSpec(
            name=self.name,
            group=self.group,
            store_url=open_store(self.store).url,
            client=self.client_config,
            topics=self.handler_topics,
            partitions=dict(partitions),
            handlers=tuple(replace(h, decode=shipped(h.topic, h.decode)) for h in self.handlers),
            skew_ms=self.skew_ms,
            chunk_rows=self.chunk_rows,
        )

    # Running

    def run(
        self,
        mode: str = "continuous",
        *,
        spark: SparkSession | None = None,
        master: str | None = None,
        until: Callable[[], bool] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        max_restarts: int = 20,
    ) -> Progress:
        """Run until stopped, until idle, or once over what is there.

        Args:
            mode: `continuous`: until interrupted. `until_idle`: until every record that is there
                has been handled and no retry topic holds anything. `available_now`: what is there
                and due at the start, then stop.
            spark: a session to run on; one is made when there is none.
            master: the session's master when one is made (`local[*]`, `spark://host:7077`).
            until: with `until_idle`, asked first: False means that more will be produced.
            on_progress: called about twice a second with the present `Progress`.
            max_restarts: how many failures in a row that may pass by themselves are restarted.

        Returns the last progress. Raises the first cause of a failure that will not pass by itself.
        """
        from kohort.spark.supervise import Supervisor

        if mode not in MODES:
            raise ConfigError(f"mode {mode!r}: one of {', '.join(MODES)}")
        from kohort.remote.pipelines import reachable

        self.stopping = False
        supervisor = Supervisor(self, spark, master, max_restarts)
        if self.remote is None:
            return supervisor.run(mode, until, on_progress)
        with reachable(self, self.remote, on_progress) as note:
            return supervisor.run(mode, until, note)

    def stop(self) -> None:
        """End `run` soon. Any thread.

        What the micro-batch at hand has not committed is read again by the next run: nothing is
        lost or loaded twice.
        """
        self.stopping = True


def _as_text(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as options of Spark: dotted names, values as text. Raises ConfigError."""
    text: dict[str, str] = {}
    for name, value in settings.items():
        key = name.replace("_", ".")
        if callable(value):
            raise ConfigError(f"{key}: executors take text only; configure a token endpoint URL")
        if isinstance(value, (tuple, list)):
            text[key] = ",".join(map(str, cast("Sequence[object]", value)))
        elif value is not None:
            text[key] = str(value)
    return text


def load_pipeline(path: str | Path) -> Pipeline:
    """The one Pipeline of a Python file, ready to be run on executors that do not have the file.

    Raises ConfigError when the file has no pipeline, or more than one.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    name = f"kohort_pipeline_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    _ship_by_value(module)
    found = {id(v): v for v in vars(module).values() if isinstance(v, Pipeline)}
    if len(found) != 1:
        raise ConfigError(f"{file} defines {len(found)} pipelines; one is needed")
    return next(iter(found.values()))


def _ship_by_value(module: ModuleType) -> None:
    """Executors cannot import the user's file: pickle what it defines, not its name."""
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
