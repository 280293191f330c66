"""Trials of a batch that has failed: computed into nothing, or written and undone, driver's side.

Rules:
- A trial changes nothing, neither in the database nor in Kafka nor in Spark's state.
- Only stages of narrow steps are tried: a stateful step cannot undo its state.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kohort.retry.fenced import CONSTRAINT_REASON
from kohort.retry.sql_statements import Effect, Insert, Statement, Upsert, statements
from kohort.spark.dataframes.books import BatchRange
from kohort.spark.dataframes.columns import ORIGIN, visible
from kohort.spark.dataframes.graph import TableTarget
from kohort.spark.dataframes.isolating import RowFailure, Span, culprits, row_failure
from kohort.spark.dataframes.judging import Place
from kohort.spark.dataframes.narrow import NarrowBatch
from kohort.spark.outputs.merge_sql import REPLACE


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
            try:
                batch_of(kept.where(_within(spans))).try_out()
            except Exception as again:  # any error of a job is text to look at
                return str(again)
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
    """The records with a row that breaks a constraint: each is tried behind a savepoint."""
    places: list[Place] = []
    parts: list[list[Statement]] = []
    for step in batch.plan.stage.targets:
        if not isinstance(step.target, TableTarget) or step.target.mode == REPLACE:
            continue
        table = batch.output(step.name, "places", _with_place).toArrow()
        for row in table.to_pylist():
            where = (row.pop("_topic"), row.pop("_partition"), row.pop("_offset"))
            if step.target.deletes is not None and row.pop(step.target.deletes):
                continue
            places.append(where)
            parts.append(statements([_effect(step.target, row)]))
    broken = batch.store.probe(parts)
    return {
        places[index]: RowFailure(True, CONSTRAINT_REASON, str(cause))
        for index, cause in broken.items()
    }


_PLACE = ("topic", "partition", "offset")


def _with_place(rows: DataFrame) -> DataFrame:
    place = [F.col(f"{ORIGIN}.{name}").alias(f"_{name}") for name in _PLACE]
    return rows.select(*place, *visible(rows).columns)


def _effect(target: TableTarget, row: Mapping[str, Any]) -> Effect:
    plain = {name: _plain(value) for name, value in row.items()}
    if target.key and target.mode != "append":
        return Upsert(target.table, plain, target.key)
    return Insert(target.table, plain)


def _plain(value: Any) -> Any:
    """A value as both databases take it for a parameter."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    return str(value) if isinstance(value, Decimal) else value


def _within(spans: Sequence[Span]) -> Column:
    parts = [
        (F.col(f"{ORIGIN}.topic") == s.topic)
        & (F.col(f"{ORIGIN}.partition") == s.partition)
        & F.col(f"{ORIGIN}.offset").between(s.start, s.end - 1)
        for s in spans
    ]
    return reduce(lambda a, b: a | b, parts, F.lit(False))
