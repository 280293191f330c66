"""A micro-batch of one table as one Spark job: its tasks stage rows and report inputs together.

Rules:
- A task stages the rows that pass. It reports which inputs it has read and which of them pass, as
  runs of offsets, and *noted* records: those that fail, with their values, and copies that were
  read from retry topics.
- Rows are staged before the driver has decided over the inputs. Staging is inert until it is
  merged, so a batch for which that was too early is computed again, by two jobs.
- A task that notes more than NOTED_BYTES stops: values of many failures stay off the driver.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kohort.spark.dataframes.columns import ORIGIN, RAW, VERDICT, quoted
from kohort.spark.dataframes.guards import KEPT
from kohort.spark.dataframes.judging import TopicPartition
from kohort.spark.dataframes.offset_set import OffsetSet
from kohort.spark.outputs.protocol import Attempt
from kohort.spark.outputs.reports import report_batch
from kohort.spark.outputs.staging import StageSpec, attempt_id, stage
from kohort.spark.worker import settle_down

pc: Any = pyarrow.compute
NOTED_BYTES: Final = 4 << 20
"""What one task reports of records that fail or come from retry topics."""
_PLACE: Final = ("_kohort_topic", "_kohort_partition", "_kohort_offset")
_HEAD: Final = (*_PLACE, "_kohort_noted", KEPT)
"""The columns before those that are staged."""
_KINDS: Final = {pa.int32(): np.int32, pa.int64(): np.int64, pa.uint64(): np.uint64}
Batches = Iterator[pa.RecordBatch]
Runs = NDArray[np.int64]
"""Consecutive offsets, a row each: number of the topic, partition, first offset, how many."""


@dataclass(frozen=True)
class PassReport:
    """What one task reports.

    Args:
        rows: how many it has staged.
        read, passing: runs of offsets.
        noted: an Arrow stream; None where the task has stopped.
    """

    attempt: int
    rows: int
    read: bytes
    passing: bytes
    noted: bytes | None

    def encoded(self) -> dict[str, Any]:
        """The report as JSON has it: bytes in base64."""
        return {
            name: base64.b64encode(part).decode() if isinstance(part, bytes) else part
            for name, part in vars(self).items()
        }

    @classmethod
    def parsed(cls, report: Mapping[str, Any]) -> PassReport:
        """The report of what JSON had."""
        read, passing = base64.b64decode(report["read"]), base64.b64decode(report["passing"])
        noted = None if report["noted"] is None else base64.b64decode(report["noted"])
        return cls(report["attempt"], report["rows"], read, passing, noted)


@dataclass(frozen=True)
class Pass:
    """What the tasks of one batch report.

    Args:
        staged: the attempts that count.
        read: how many inputs there are, by partition.
        passing: offsets of those that pass, by partition.
        noted: records that fail or were read from retry topics: the columns of a record, `attempt`
            and the verdict, null for a copy that passes.
    """

    staged: list[Attempt]
    read: Counter[TopicPartition]
    passing: dict[TopicPartition, OffsetSet]
    noted: pa.Table


def pass_columns(
    rows: DataFrame, topics: Sequence[str], retry_topics: Sequence[str], columns: Sequence[str]
) -> DataFrame:
    """The columns that tasks get: places, noted records, and what is staged.

    Args:
        rows: the rows of the table with their hidden columns, one for each input; with `KEPT` where
            the steps filter.
        topics: those that inputs may come from.
        columns: what is staged.
    """
    origin, verdict = F.col(ORIGIN), F.col(VERDICT)
    kept = F.lit(True)
    if KEPT in rows.columns:
        kept = F.col(KEPT)
        verdict = F.when(kept, verdict)
    known = F.array(*map(F.lit, topics))
    number = (F.array_position(known, origin["topic"]) - 1).cast("int")
    record = [origin[n].alias(n) for n in (*RAW, "attempt") if n != "value"]
    value = F.when(verdict.isNotNull(), origin["value"]).alias("value")
    of_interest: Column = verdict.isNotNull()
    if retry_topics:
        of_interest = of_interest | origin["topic"].isin(*retry_topics)
    noted = F.when(of_interest, F.struct(*record, value, verdict.alias(VERDICT)))
    return rows.select(
        number.alias(_PLACE[0]),
        origin["partition"].alias(_PLACE[1]),
        origin["offset"].alias(_PLACE[2]),
        noted.alias(_HEAD[3]),
        kept.alias(KEPT),
        *(rows[quoted(name)] for name in columns),
    )


# Tasks


def staged_pass(spec: StageSpec, most_bytes: int) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`: rows of `pass_columns` in, one row of `REPORT_SCHEMA` out.

    Args:
        most_bytes: of noted records; NOTED_BYTES.
    """

    def run(batches: Batches) -> Batches:
        settle_down()
        attempt, seen = attempt_id(), _Seen(spec.columns, most_bytes)
        rows = stage(spec, attempt, seen.passing_rows(batches))
        read, passing = _bytes(seen.read), _bytes(seen.passing)
        report = PassReport(attempt, rows, read, passing, seen.noted_bytes())
        yield report_batch([report.encoded()])

    return run


@dataclass
class _Seen:
    """The inputs that one task has read."""

    columns: Sequence[str]
    most_bytes: int
    read: list[Runs] = field(default_factory=list[Runs])
    passing: list[Runs] = field(default_factory=list[Runs])
    noted: list[pa.RecordBatch] = field(default_factory=list[pa.RecordBatch])
    size: int = 0

    def passing_rows(self, batches: Batches) -> Batches:
        """The rows to stage. Ends early when too much is noted."""
        for batch in batches:
            places = [_numbers(batch.column(i)) for i in range(len(_PLACE))]
            noted, kept = batch.column(3), batch.column(4)
            arrays = batch.columns[len(_HEAD) :]
            rows = pa.RecordBatch.from_arrays(arrays, names=list(self.columns))
            self.read.append(runs(*places))
            if noted.null_count == len(noted) and kept.false_count == 0:
                self.passing.append(self.read[-1])
                yield rows
                continue
            passes = pc.and_(kept, pc.is_null(pc.struct_field(noted, VERDICT)))
            chosen = _numbers(pc.indices_nonzero(passes))
            self.passing.append(runs(*(place[chosen] for place in places)))
            if not self._note(noted.drop_null()):
                return
            yield rows.filter(passes)

    def _note(self, noted: pa.StructArray) -> bool:
        made = pa.RecordBatch.from_arrays(noted.flatten(), [f.name for f in noted.type])
        self.noted.append(made)
        self.size += made.nbytes
        return self.size <= self.most_bytes

    def noted_bytes(self) -> bytes | None:
        """The noted records; None when they are too many."""
        if self.size > self.most_bytes:
            return None
        if not self.noted:
            return b""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.noted[0].schema) as stream:
            for batch in self.noted:
                stream.write_batch(batch)
        return sink.getvalue().to_pybytes()


def _numbers(column: pa.Array) -> NDArray[Any]:
    """A column without nulls; `to_numpy` would import pandas into every process of Spark's."""
    kind = _KINDS[column.type]
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset :][: len(column)]


def runs(topics: NDArray[Any], partitions: NDArray[Any], offsets: NDArray[Any]) -> Runs:
    """The places of rows, consecutive offsets of one partition as one run."""
    count = len(offsets)
    if not count:
        return np.empty((0, 4), np.int64)
    begins = np.ones(count, np.bool_)
    np.not_equal(offsets[1:], offsets[:-1] + 1, out=begins[1:])
    begins[1:] |= topics[1:] != topics[:-1]
    begins[1:] |= partitions[1:] != partitions[:-1]
    first = np.flatnonzero(begins)
    lengths = np.diff(first, append=count)
    return np.stack([topics[first], partitions[first], offsets[first], lengths], 1).astype(np.int64)


def _bytes(parts: Sequence[Runs]) -> bytes:
    return b"".join(part.tobytes() for part in parts)


# Driver


def gathered(reports: Sequence[PassReport], output: str, topics: Sequence[str]) -> Pass | None:
    """The reports of all tasks put together; None when one has stopped."""
    if any(report.noted is None for report in reports):
        return None
    read: Counter[TopicPartition] = Counter()
    for at, part in _by_partition(_runs(r.read for r in reports), topics).items():
        read[at] = int(part[:, 3].sum())
    passing = _by_partition(_runs(r.passing for r in reports), topics)
    streams = [pa.ipc.open_stream(report.noted) for report in reports if report.noted]
    return Pass(
        [Attempt(output, report.attempt, report.rows) for report in reports],
        read,
        {at: OffsetSet.of_runs(part[:, 2], part[:, 3]) for at, part in passing.items()},
        pa.concat_tables([stream.read_all() for stream in streams]) if streams else pa.table({}),
    )


def _runs(reports: Iterable[bytes]) -> Runs:
    return np.frombuffer(b"".join(reports), np.int64).reshape(-1, 4)


def _by_partition(whole: Runs, topics: Sequence[str]) -> Mapping[TopicPartition, Runs]:
    """Runs by partition, in the order of their offsets."""
    if not len(whole):
        return {}
    ordered = whole[np.lexsort((whole[:, 2], whole[:, 1], whole[:, 0]))]
    keys = ordered[:, :2]
    begins = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    parts = np.split(ordered, begins)
    return {(str(topics[part[0, 0]]), int(part[0, 1])): part for part in parts}


def failures(noted: pa.Table) -> pa.Table:
    """Hidden columns of the noted records with a verdict, as `copies` reads them."""
    bad = noted.filter(pc.is_valid(noted[VERDICT])).combine_chunks()
    names = [name for name in bad.column_names if name != VERDICT]
    columns = [bad[name].combine_chunks() for name in names]
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    origins = pa.StructArray.from_arrays(columns, fields=fields)
    return pa.table({ORIGIN: origins, VERDICT: bad[VERDICT]})
