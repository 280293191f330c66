"""Analysis of a pipeline's steps before anything is read: schemas, stages, refusals.

Rules:
- Every step is called once or twice with empty streams of the right columns; Spark's analysis of
  what it returns tells whether it keeps state, and refuses columns that are not there.
- A step that loses its rows' origin is refused here, by name (ADR 0023).
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from kohort.errors import ConfigError, KohortError, UsageError
from kohort.spark.dataframes.columns import (
    HIDDEN,
    ORIGIN,
    RAW_SCHEMA,
    passing,
    typed,
    visible,
    with_origin,
)
from kohort.spark.dataframes.graph import (
    COMPLETE,
    Graph,
    Reference,
    Source,
    Stage,
    Step,
    TableTarget,
    TopicTarget,
    mode_of,
)
from kohort.spark.formats import RowFormat, ddl_of, types_of
from kohort.spark.formats.types import quoted
from kohort.spark.outputs.merge_sql import APPEND, REPLACE
from kohort.spark.plans.logical import (
    carried,
    check_narrow,
    computed_with,
    dropna_of,
    is_stateful,
    not_narrow,
)


@dataclass(frozen=True)
class Analysis:
    """What is known of a graph before it runs.

    Attributes:
        stages: in the order in which rows pass them.
        values: how the values of sources and references become rows; not of text and bytes.
        rows: by source and step, the columns that others see.
    """

    stages: list[Stage]
    values: Mapping[str, RowFormat]
    rows: Mapping[str, StructType]


def analyse(spark: SparkSession, graph: Graph) -> Analysis:
    """Call every step with empty streams. Raises ConfigError, or what the step itself raises."""
    graph.check()
    values = {
        each.name: RowFormat.of(each.values.decoded)
        for each in (*graph.sources.values(), *graph.references.values())
        if each.values.decoded is not None
    }
    frames: dict[str, DataFrame] = {}
    for source in graph.sources.values():
        raw = _stream(spark, _raw_schema(source, values))
        frame = passing(typed(with_origin(raw, ()), source.name, source.values.name))
        _check_event_time(source, frame)
        frames[source.name] = frame
    for reference in graph.references.values():
        frames[reference.name] = spark.createDataFrame([], _row_schema(reference, values))
    stateful: dict[str, bool] = {}
    behind: dict[str, Step] = {}
    for step in graph.ordered():
        frame = call(step, frames)
        stateful[step.name] = is_stateful(frame)
        if stateful[step.name]:  # its inputs come from intermediate topics
            plain = {n: _plain(spark, frames[n]) for n in graph.rows_of(step)}
            frame = call(step, {**frames, **plain})
            behind[step.name] = step
        elif before := next((behind[n] for n in graph.rows_of(step) if n in behind), None):
            _check_behind(step, before, frame)
            behind[step.name] = before
        elif any(ORIGIN in frames[n].columns for n in graph.rows_of(step)):
            _check_hidden(step, frame)
            check_narrow(frame, step.name)
            frame = passing(carried(frame, HIDDEN, step.name))
        if isinstance(step.target, TopicTarget):
            _check_topic(step, step.target, frame)
        frames[step.name] = _plain(spark, frame) if stateful[step.name] else frame
    rows = {name: visible(frame).schema for name, frame in frames.items()}
    return Analysis(graph.stages(stateful), values, rows)


def call(step: Step, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The frame that a step makes of its inputs, which are views by their names meanwhile.

    Raises UsageError when it returns neither a frame nor the text of a query.
    """
    inputs = {name: frames[name] for name in step.inputs}
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    try:
        made: Any = step.function(**inputs)
        if isinstance(made, str):
            made = next(iter(inputs.values())).sparkSession.sql(made)
    except KohortError as error:
        error.add_note(f"in step {step.name}")
        raise
    if not isinstance(made, DataFrame):
        raise UsageError(
            f"step {step.name} returned {type(made).__name__}; a step returns a DataFrame, or the "
            "text of a SELECT over its inputs"
        )
    return dropna_of(made, HIDDEN)


def _raw_schema(source: Source, values: Mapping[str, RowFormat]) -> StructType:
    """The columns of a source's records, with those that are decoded."""
    if source.name not in values:
        return _of_ddl(RAW_SCHEMA)
    decoded = types_of({source.name: values[source.name]})
    return _of_ddl(", ".join([RAW_SCHEMA, *(f"{n} {ddl_of(t)}" for n, t in decoded.items())]))


def _row_schema(reference: Reference, values: Mapping[str, RowFormat]) -> StructType:
    found = values.get(reference.name)
    if found is None:
        kind = "binary" if reference.values.name == "bytes" else "string"
        return _of_ddl(f"key {kind}, value {kind}")
    return _of_ddl(", ".join(f"{quoted(f.name)} {ddl_of(f.type)}" for f in found.type))


def _of_ddl(text: str) -> StructType:
    made = StructType.fromDDL(text)
    assert isinstance(made, StructType), "a list of columns is a struct"
    return made


def _plain(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """A stream of the same columns without a history."""
    return _stream(spark, visible(frame).schema)


def _stream(spark: SparkSession, schema: StructType) -> DataFrame:
    ticks = spark.readStream.format("rate").load()
    return ticks.select(*(F.lit(None).cast(f.dataType).alias(f.name) for f in schema.fields))


def _check_hidden(step: Step, frame: DataFrame) -> None:
    """Refuse a step that makes another column of a hidden one: a cast of every column, or
    `to_json(struct(*))`, which would write key, value and headers of the record, too."""
    for field in frame.schema.fields:
        if field.name in HIDDEN and not isinstance(field.dataType, StructType):
            raise UsageError(
                f"step {step.name} changes the column {field.name}, by which Kohort knows the "
                "record of a row and whether it failed. Leave such columns as they are, or out: "
                f"[c for c in rows.columns if not c.startswith({ORIGIN!r})]"
            )
    if expression := computed_with(frame, ORIGIN):
        raise UsageError(
            f"step {step.name}: {expression} has the column {ORIGIN}, by which Kohort knows the "
            "record of a row. Name the columns, or take all others: "
            f"struct(*[c for c in rows.columns if not c.startswith({ORIGIN!r})]). A topic's rows "
            "without a column `value` are written as JSON"
        )


def _check_behind(step: Step, stateful: Step, frame: DataFrame) -> None:
    """Refuse a step that takes the rows of one micro-batch of a stateful step for all of them, or
    all of them for new ones."""
    mode = step.target.mode if isinstance(step.target, TableTarget) else ""
    if mode_of(stateful) == COMPLETE:
        if mode == APPEND:
            raise ConfigError(
                f"step {step.name}: each micro-batch has the whole result of step {stateful.name} "
                "(output_mode complete), which mode append would add again and again; choose "
                'mode="replace"'
            )
        return
    kind = not_narrow(frame) or ("mode replace" if mode == REPLACE else "")
    if kind:
        raise ConfigError(
            f"step {step.name}: {kind} sees only the rows of step {stateful.name} that one "
            f"micro-batch has changed. Give step {stateful.name} output_mode="
            f'"complete" and this one mode="replace", or query the table of step {stateful.name}'
        )


def _check_topic(step: Step, target: TopicTarget, frame: DataFrame) -> None:
    """Refuse a key and timestamps that no column has: at the start, not at the first row."""
    columns = visible(frame)
    kinds = {f.name.lower(): f.dataType for f in columns.schema.fields}  # as Spark resolves names
    there = ", ".join(columns.columns)
    if missing := [name for name in target.key if name.lower() not in kinds]:
        raise ConfigError(
            f"step {step.name}: key={missing[0]!r} of topic {target.topic} is not a column; there "
            f"are {there}"
        )
    timestamp = target.options.get("timestamp")
    times = TimestampType | TimestampNTZType
    if timestamp is not None and not isinstance(kinds.get(timestamp.lower()), times):
        raise ConfigError(
            f"step {step.name}: timestamp={timestamp!r} of topic {target.topic} is not a column of "
            f"type TIMESTAMP; there are {there}"
        )


def _check_event_time(source: Source, frame: DataFrame) -> None:
    if source.event_time is None:
        return
    kinds = {f.name: f.dataType for f in frame.schema.fields}
    if not isinstance(kinds.get(source.event_time), TimestampType | TimestampNTZType):
        raise ConfigError(
            f"source {source.name}: event_time={source.event_time!r} is not a column of type "
            f"TIMESTAMP; there are {', '.join(visible(frame).columns)}"
        )
