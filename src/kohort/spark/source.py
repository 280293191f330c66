"""`format("kohort")`: the data source that Spark finds, for batch reads, streams and writes.

    spark.readStream.format("kohort").option("kafka.bootstrap.servers", "localhost:9092")
         .option("subscribe", "flights").option("group.id", "reports").load()

Rules (spec 6.1, 6.7):
- Nothing connects in `__init__`: readers are pickled. The planner is made on the driver on first
  use and lives as long as the query; executors only fetch what an input partition names.
- The input partition and the options contain everything that `read` needs.
- Clients are imported where they are used: Spark asks for name, schema and reader in processes that
  end without connecting, and each of them would import for a quarter of a second.
"""

# pyspark and pyarrow: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

try:
    import pyarrow as pa
except ModuleNotFoundError as missing:  # mostly a worker that runs another Python than the driver
    raise ModuleNotFoundError(
        f"format kohort needs pyarrow, and {sys.executable} has none: set PYSPARK_PYTHON to the "
        "Python of the driver before the session starts, or pip install 'kohort[spark]' there",
        name=missing.name,
    ) from missing
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kohort.errors import ConfigError, DataLossError
from kohort.spark import arrow
from kohort.spark.formats import Rows, Typed, parse_schema
from kohort.spark.offsets import Position, Range, TopicPartition, pack
from kohort.spark.options import (
    LATEST,
    SourceOptions,
    options_to_keep,
    options_to_write,
    parse_sink,
    parse_source,
)
from kohort.spark.pushdown import Seeks
from kohort.spark.worker import keep_value, settle_down
from kohort.spark.worker.closed_pipes import ignore_closed_pipes_of_this_worker

if TYPE_CHECKING:
    from kohort.retry.cluster_port import ClusterPort
    from kohort.spark.planner import Planner
    from kohort.spark.sink import RecordSink, Sent

log = logging.getLogger("kohort.spark")
ignore_closed_pipes_of_this_worker()
NAME = "kohort"
_KEPT = "kohort.options"


class Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, spans: Sequence[Range]) -> None:
        super().__init__(tuple(tuple(span) for span in spans))

    @property
    def spans(self) -> list[Range]:
        return [Range(*span) for span in self.value]


class KohortDataSource(DataSource):
    """The data source `kohort`; see the options in `kohort.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str | StructType:
        """The JVM connector's columns, without those that were not asked for."""
        options = parsed(self.options)
        decoded = Rows(options.rows) if options.rows else Typed(options.formats)
        names, types = columns(options), arrow.TYPES | decoded.types
        kept = options_to_keep(self.options)
        if kept is None:
            return arrow.ddl(names, types)
        return keeping(kept, arrow.schema(names, types))

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check_schema(schema)
        options = parse_source(self._read_options(schema), streaming=False)
        reader = PushingReader if options.push_filters else BatchReader
        return reader(options, typed(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check_schema(schema)
        options = parse_source(self._read_options(schema), streaming=True)
        return StreamReader(options, typed(options, schema))

    def _check_schema(self, requested: StructType) -> None:
        """Refuse a schema of the user's: what is read follows from the options."""
        if requested.names != list(columns(parsed(self._read_options(requested)))):
            raise ConfigError(
                "the schema of format kohort follows from its options: leave .schema(...) out, "
                "choose columns by the option columns, and give the schema of values as valueSchema"
            )

    def _read_options(self, schema: StructType) -> Mapping[str, str]:
        """The options of this read: of a table those that it keeps, and what the query adds."""
        return self._kept(schema) | dict(self.options)

    def _kept(self, schema: StructType) -> dict[str, str]:
        kept = kept_by(schema)
        if not kept and not self.options:
            raise ConfigError(
                "this table keeps no options: it has columns of its own, comes from a query (AS "
                "SELECT, saveAsTable), or is older than Kohort 0.2. Drop it, which deletes no "
                "record, and create it with CREATE TABLE ... USING kohort OPTIONS (...) alone"
            )
        return kept

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise ConfigError(
                'mode("overwrite") would delete the records of a topic, which format kohort does '
                'not do; write with mode("append")'
            )
        return BatchWriter(self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> RecordSink:
        from kohort.spark.sink import RecordSink, check_types

        options = options_to_write(self._kept(schema)) | dict(self.options)
        sink = RecordSink(parse_sink(options), tuple(schema.fieldNames()))
        check_types(schema)
        return sink


def parsed(options: Mapping[str, str]) -> SourceOptions:
    """The options of either kind of read: Spark asks for the schema before it says which."""
    try:
        return parse_source(options, streaming=True)
    except ConfigError:
        return parse_source(options, streaming=False)


def keeping(options: Mapping[str, str], schema: pa.Schema) -> StructType:
    """The schema of a table; its first column keeps the options."""
    from pyspark.sql.pandas.types import from_arrow_schema

    made: Any = from_arrow_schema(schema)
    made.fields[0].metadata = {_KEPT: json.dumps(options)}
    return made


def kept_by(schema: StructType) -> dict[str, str]:
    """The options that a table's columns keep; none of any other schema."""
    for each in schema.fields:
        if _KEPT in each.metadata:
            return dict(json.loads(each.metadata[_KEPT]))
    return {}


def typed(options: SourceOptions, schema: StructType) -> Typed | Rows | None:
    """What decodes into Spark's schema; None when keys and values stay bytes."""
    if options.rows:
        return Rows(options.rows)
    if not (options.formats.key or options.formats.value):
        return None
    return Typed(options.formats, {f.name: f.type for f in parse_schema(schema.json())})


def kept(typed: Typed | Rows | None) -> Typed | Rows | None:
    """This worker's own: schemas that one task asked a registry for serve the next."""
    return None if typed is None else keep_value(pickle.dumps(typed), lambda: typed)


def columns(options: SourceOptions) -> tuple[str, ...]:
    """The columns that a reader gives; range markers need all of them and one more."""
    if options.range_markers:
        return tuple(arrow.TYPES)
    return options.shown_columns


def default_tasks() -> int:
    """This machine's cores. On a cluster give `minPartitions`: the driver cannot see its size."""
    return os.cpu_count() or 1


def read(
    options: SourceOptions, typed: Typed | Rows | None, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    from kohort.spark.fetch import read_ranges

    settle_down()
    assert isinstance(partition, Ranges), "Spark passes what partitions() returned"
    return read_ranges(options, partition.spans, columns(options), kept(typed))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's planner and the executors' `read`, as Spark calls them."""

    def __init__(self, options: SourceOptions, typed: Typed | Rows | None = None) -> None:
        self._options, self._typed = options, typed
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_typed": self._typed, "_planner": None}

    def planner(self) -> Planner:
        """The driver's planner, made on first use."""
        if self._planner is None:
            from kohort.retry.cluster_port import ClusterPort, now_ms
            from kohort.spark.planner import Planner

            port = ClusterPort(self._options.client)
            self._planner = Planner(self._options, port, now_ms, default_tasks())
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        return self.planner().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        wanted = self._options.max_offsets
        return ReadMaxRows(wanted) if wanted else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner().freeze()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self.planner().latest(Position.from_json(start), rows).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = self.planner().ends
        return Position(next=ends).to_json() if ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = self.planner().tasks(Position.from_json(start), Position.from_json(end))
        return [Ranges(spans) for spans in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._typed, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes one batch late, and never for the last (progress is in `latest`)."""

    def stop(self) -> None:
        """Nothing: the process that holds the connections ends with the query."""


class BatchReader(DataSourceReader):
    """One read from the starting to the ending offsets, fixed when the plan is made."""

    def __init__(self, options: SourceOptions, typed: Typed | Rows | None = None) -> None:
        self._options, self._typed = options, typed
        self._seeks = Seeks()

    def partitions(self) -> Sequence[InputPartition]:
        from kohort.retry.cluster_port import ClusterPort, now_ms
        from kohort.spark.planner import Planner

        options = self._options
        port = ClusterPort(options.client)
        try:
            planner = Planner(options, port, now_ms, default_tasks())
            start = planner.initial()
            spans = self._seeks.spans(
                self._spans(planner, start, port),
                lambda times: {at: s.offset for at, s in port.by_time(times).items()},
            )
        finally:
            port.close()
        tasks = pack(
            spans,
            start.tasks,
            max_records=options.max_records_per_partition,
            split=True,
            least=options.least_records_a_task,
        )
        # Spark refuses a read without partitions; one without ranges gives no rows.
        return [Ranges(spans) for spans in tasks] or [Ranges([])]

    def _spans(self, planner: Planner, start: Position, port: ClusterPort) -> list[Range]:
        from kohort.spark.planner import check_named, times_of

        options = self._options
        stop = planner.latest(start).next
        if options.ending_ms is not None:
            if isinstance(options.ending_ms, dict):
                check_named(options.ending_ms, list(stop), "endingOffsetsByTimestamp")
            found = port.by_time(times_of(list(stop), options.ending_ms))
            stop = {at: s.offset if s.offset >= 0 else stop[at] for at, s in found.items()}
        elif isinstance(options.ending, dict):
            check_named(options.ending, list(stop), "endingOffsets")
            ends = {at: options.ending[at[0]][at[1]] for at in stop}
            stop = {at: self._within(at, o, stop[at]) for at, o in ends.items()}
        for at, end in stop.items():
            if end < start.next[at]:
                raise ConfigError(
                    f"{at[0]}/{at[1]}: the range ends at {end}, before its start {start.next[at]}"
                )
        return [
            Range(t, p, start.next[t, p], end, start.ids.get(t, ""))
            for (t, p), end in sorted(stop.items())
            if end > start.next[t, p]
        ]

    def _within(self, at: TopicPartition, offset: int, end: int) -> int:
        """Where a partition's range ends: at most at the end of its log."""
        if offset == LATEST or offset <= end:
            return end if offset == LATEST else offset
        text = f"endingOffsets: {at[0]}/{at[1]}: {offset} is past the log's end at {end}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. Say -1 for its end, or failOnDataLoss=false to end there")
        log.warning("%s; the range ends there", text)
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, self._typed, partition)


class PushingReader(BatchReader):
    """A batch read that seeks by predicates.

    A class of its own: Spark fails every read by a reader that has `pushFilters` when its setting
    `spark.sql.python.filterPushdown.enabled` is off, as it is by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            column = getattr(each, "attribute", ())
            value = getattr(each, "value", None)
            kind = type(each).__name__
            if len(column) != 1 or not self._seeks.take(kind, column[0], value):
                yield each


class BatchWriter(DataSourceArrowWriter):
    """Writes rows as records, at least once."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        settle_down()
        return self._sink.write(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes rows as records, at least once: a task that is tried again writes again."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        settle_down()
        return self._sink.write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Nothing: every record was acknowledged before its task ended."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Nothing: what was written stays written; the batch is tried again."""
