"""Trials of a batch that has failed: computed into nothing, or written and undone, driver's side.

Rules:
- A trial changes nothing, neither in the database nor in Kafka nor in Spark's state.
- Only stages of narrow steps are tried: a stateful step cannot undo its state.
"""

# pyspark's and pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kohort.retry.fenced import CONSTRAINT_REASON
from kohort.retry.sql_statements import Effect, Execute, Insert, Upsert, quote, statements
from kohort.retry.sqlite import SqliteStore
from kohort.retry.store import ConstraintError, Cursor, Store
from kohort.spark.dataframes.books import BatchRange
from kohort.spark.dataframes.columns import ORIGIN, visible
from kohort.spark.dataframes.graph import TableTarget
from kohort.spark.dataframes.isolating import RowFailure, Span, culprits, row_failure
from kohort.spark.dataframes.judging import Place
from kohort.spark.dataframes.narrow import NarrowBatch
from kohort.spark.outputs.merge_sql import REPLACE, UPSERT
from kohort.spark.outputs.staging import StageSpec, copy_lines, copy_statement, rows_to_try
from kohort.spark.outputs.violations import check_count

_UNDONE: Final = "ROLLBACK TO SAVEPOINT kohort_trial"


def failing_records(
    error: Exception,
    span: BatchRange,
    inputs: DataFrame,
    batch_of: Callable[[DataFrame], NarrowBatch],
) -> dict[Place, RowFailure]:
    """The records that made a job fail; none when the trouble is not a record's, or of too many.

    Args:
        error: what the job raised.
        inputs: the frame of `foreachBatch`.
        batch_of: the batch over a part of that frame.
    """
    if row_failure(str(error)) is None:
        return {}
    kept = inputs.persist()
    try:

        def fails(spans: Sequence[Span]) -> str | None:
            trial = batch_of(kept.where(_within(spans)))
            try:
                trial.try_out()
            except Exception as again:  # any error of a job is text to look at
                return str(again)
            finally:
                trial.close()
            return None

        spans = [Span(t, p, span.start[t, p], end) for (t, p), end in span.end.items()]
        found = culprits([s for s in spans if s.size > 0], fails)
    finally:
        kept.unpersist()
    verdicts: dict[Place, RowFailure] = {}
    for each, text in (found or {}).items():
        failure = row_failure(text)
        if failure is None:
            return {}
        verdicts[each.topic, each.partition, each.start] = failure
    return verdicts


def broken_records(batch: NarrowBatch) -> dict[Place, RowFailure]:
    """The records with a row that breaks a constraint: each is tried behind a savepoint.

    As a merge does, each table is rid of what the batch deletes before rows are written.
    """
    trials: list[_Trial] = []
    for step in batch.plan.stage.targets:
        if isinstance(step.target, TableTarget) and step.target.mode != REPLACE:
            table = batch.output(step.name, "places", _with_place).toArrow()
            rows = rows_to_try(table, sqlite=isinstance(batch.store, SqliteStore))
            made = [_trial(step.target, row) for row in rows]
            trials += sorted(made, key=lambda trial: not trial.deletes)
    broken = batch.store.probe([statements([trial.effect]) for trial in trials])
    return {
        trials[index].place: RowFailure(True, CONSTRAINT_REASON, str(cause))
        for index, cause in broken.items()
    }


class _Trial(NamedTuple):
    place: Place
    effect: Effect
    deletes: bool


def _trial(target: TableTarget, row: dict[str, Any]) -> _Trial:
    topic, partition, offset = (row.pop(name) for name in _PLACE.values())
    place = (topic, partition, offset)
    deletes = target.deletes is not None and bool(row.pop(target.deletes))
    if deletes:
        return _Trial(place, _deletion(target, row), deletes)
    if target.mode == UPSERT:
        return _Trial(place, Upsert(target.table, row, target.key), deletes)
    return _Trial(place, Insert(target.table, row), deletes)


def _deletion(target: TableTarget, row: Mapping[str, Any]) -> Execute:
    """A NULL in the key is a value, as in a merge."""
    key = {name: row[name] for name in target.key}
    same = " AND ".join(
        f"{quote(name)} {'IS NULL' if value is None else '= ?'}" for name, value in key.items()
    )
    values = [value for value in key.values() if value is not None]
    return Execute(f"DELETE FROM {quote(target.table)} WHERE {same}", values)


def refused_records(batch: NarrowBatch, specs: Mapping[str, StageSpec]) -> dict[Place, RowFailure]:
    """The records with a row that PostgreSQL cannot stage, such as a text with a NUL: each is
    copied as the tasks copy it, and all is undone.

    An INSERT would not find them all: it converts values where COPY refuses their text.

    Args:
        specs: by table, how tasks stage its rows.
    """
    found: dict[Place, RowFailure] = {}
    for step in batch.plan.stage.targets:
        if not isinstance(step.target, TableTarget):
            continue
        spec = specs[step.target.table]
        if spec.path is None:
            found |= _refused(batch.store, spec, batch.output(step.name, "places", _with_place))
    return found


def _refused(store: Store, spec: StageSpec, rows: DataFrame) -> dict[Place, RowFailure]:
    """By halves, until the rows that are refused are alone."""
    found: dict[Place, RowFailure] = {}
    parts = [b for b in rows.toArrow().to_batches() if b.num_rows][::-1]
    with store.transaction() as cursor:
        cursor.execute("SAVEPOINT kohort_trial")
        while parts:
            part = parts.pop()
            error = _copied(store, cursor, spec, part)
            if error is None:
                continue
            if part.num_rows > 1:
                half = part.num_rows // 2
                parts += [part.slice(half), part.slice(0, half)]
                continue
            topic, partition, offset = (part.column(name)[0].as_py() for name in _PLACE.values())
            failure = RowFailure(True, CONSTRAINT_REASON, str(error))
            found[topic, partition, offset] = failure
            check_count(spec.output, len(found), failure.message)
    return found


def _copied(
    store: Store, cursor: Cursor, spec: StageSpec, part: pa.RecordBatch
) -> ConstraintError | None:
    """COPY, undone; why the database refuses it, or None."""
    lines = copy_lines(part.select(list(spec.columns)), 0)
    try:
        cursor.copy_in(copy_statement(spec), [memoryview(lines)])
    except Exception as error:  # psycopg has its own classes
        refused = store.refused(error)
        if refused is None:
            raise
        cursor.execute(_UNDONE)
        return refused
    cursor.execute(_UNDONE)
    return None


_PLACE: Final = {
    "topic": "_kohort_topic",
    "partition": "_kohort_partition",
    "offset": "_kohort_offset",
}
"""The fields of a row's place, and their columns beside the user's."""


def _with_place(rows: DataFrame) -> DataFrame:
    place = [F.col(f"{ORIGIN}.{field}").alias(name) for field, name in _PLACE.items()]
    return rows.select(*place, *visible(rows).columns)


def _within(spans: Sequence[Span]) -> Column:
    parts = [
        (F.col(f"{ORIGIN}.topic") == s.topic)
        & (F.col(f"{ORIGIN}.partition") == s.partition)
        & F.col(f"{ORIGIN}.offset").between(s.start, s.end - 1)
        for s in spans
    ]
    return reduce(lambda a, b: a | b, parts, F.lit(False))
