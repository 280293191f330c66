"""Rebuild the tables of a pipeline from its topics, beside the live one, and swap them in.

Shell: the clock.

Rules (spec 6.10):
- A replay is a pipeline of its own: another name, so other fences, retry topics and checkpoints. It
  fills shadow tables until it has caught up; then one transaction swaps them for the tables.
- After the swap it continues as the live pipeline, at its own fences. The replaced pipeline cannot
  commit any more, and does not start.
- Killed at any moment, the same replay continues where it was.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kohort.errors import ConfigError
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.handling import UNDIRECTED
from kohort.retry.ledger import FenceRow
from kohort.retry.policy import INTERMEDIATE_TOPIC, retry_topics_among
from kohort.retry.store import Store
from kohort.spark.dataframes.graph import TableTarget, TopicTarget
from kohort.spark.outputs.swapping import Replay, outputs_of, swapping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kohort.spark.pipeline import Pipeline
    from kohort.spark.progress import Progress


@dataclass(frozen=True)
class Replayed:
    """How a replay has ended.

    Args:
        progress: of the new pipeline.
        tables: by table, what the old one is called now; empty when nothing was swapped.
    """

    progress: Progress
    tables: Mapping[str, str]


def replay(
    pipeline: Pipeline,
    *,
    replaces: str,
    into: Mapping[str, str],
    since_ms: int | None = None,
    swap: bool = True,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Replayed:
    """Rebuild the tables of another pipeline with this one, and swap them in.

    The pipeline reads its topics from the beginning into shadow tables, while the other one goes
    on. When it has caught up, one transaction of the store puts the shadow tables in the place of
    the tables, and ends the other pipeline. The old tables are kept as `TABLE_of_OTHER`.

    Args:
        pipeline: with the new logic, under a name of its own.
        replaces: the name of the pipeline whose tables it rebuilds, in the same store.
        into: the shadow of every table that the pipeline fills. One that is missing is made like
            the table; one that is there must be empty.
        since_ms: read records from this time on, in ms since 1970; default all that are there.
        swap: False rebuilds without swapping; the same call with True continues and swaps.
        spark, master, on_progress: as `Pipeline.run`.

    Returns the progress and the names of the old tables. Raises ConfigError for what
    cannot be replayed or swapped, and what `Pipeline.run` raises.
    """
    wanted = Replay(pipeline.name, replaces, dict(into))
    check(pipeline, wanted)
    store = pipeline.open_store()
    try:
        begun = _begin(pipeline, store, wanted, since_ms)
        if begun.swapped:
            raise ConfigError(
                f"pipeline {pipeline.name} has replaced {replaces} already; start it with "
                "`kohort pipeline run`"
            )
        redirect(pipeline, begun.tables)
        last = pipeline.run("until_idle", spark=spark, master=master, on_progress=on_progress)
        _check_effects(pipeline, store)
        if not swap:
            return Replayed(last, {})
        swapping(store).swap(begun, _now_ms())
        return Replayed(last, {table: begun.kept(table) for table in begun.tables})
    finally:
        store.close()


def check(pipeline: Pipeline, wanted: Replay) -> None:
    """Raise ConfigError for a replay that cannot be, by the pipeline alone."""
    if wanted.pipeline == wanted.replaces:
        raise ConfigError(
            f"pipeline {wanted.pipeline} cannot replace itself: fences, retry topics and the "
            "checkpoint are kept under its name. Give the pipeline of this file another name, "
            f"such as {wanted.pipeline}-2"
        )
    tables = tables_of(pipeline)
    if missing := [t for t in tables if t not in wanted.tables]:
        raise ConfigError(
            f"the pipeline fills table {missing[0]}, too: say where its rows go until the swap, "
            f"with --into {missing[0]}={missing[0]}_next"
        )
    if unknown := [t for t in wanted.tables if t not in tables]:
        raise ConfigError(
            f"the pipeline does not fill table {unknown[0]}; it fills {', '.join(tables) or 'none'}"
        )
    names = [*wanted.tables, *wanted.tables.values()]
    if len(set(names)) != len(names):
        raise ConfigError("each table needs a shadow table of another name")
    free = [h.topic for h in pipeline.handlers if h.table is None]
    if free:
        raise ConfigError(
            f"the handler of {free[0]} names no table (table=), so what it writes cannot be sent "
            "to a shadow table"
        )


def tables_of(pipeline: Pipeline) -> list[str]:
    """The tables that a pipeline fills, as far as it names them."""
    steps = [s.target for s in pipeline.graph.steps.values()]
    filled = [t.table for t in steps if isinstance(t, TableTarget)]
    return list(dict.fromkeys([*filled, *(h.table for h in pipeline.handlers if h.table)]))


def redirect(pipeline: Pipeline, tables: Mapping[str, str]) -> None:
    """Let a pipeline fill other tables than those that its file names."""
    steps = pipeline.graph.steps
    for name, step in steps.items():
        if isinstance(step.target, TableTarget):
            target = replace(step.target, table=tables[step.target.table])
            steps[name] = replace(step, target=target)
    pipeline.fill_instead(tables)


def _begin(pipeline: Pipeline, store: Store, wanted: Replay, since_ms: int | None) -> Replay:
    """The replay as it was begun, now or by a run that was killed."""
    shadows = swapping(store)
    shadows.prepare()
    known = {r.pipeline: r for r in shadows.replays()}
    begun = known.get(wanted.pipeline)
    if begun is not None:
        if (begun.replaces, dict(begun.tables)) != (wanted.replaces, dict(wanted.tables)):
            into = ", ".join(f"{table}={shadow}" for table, shadow in begun.tables.items())
            raise ConfigError(
                f"pipeline {wanted.pipeline} has begun to replace {begun.replaces} with "
                f"--into {into}; continue with the same, or begin under another name"
            )
        return begun
    pipeline.prepare_store(store)
    _check_books(pipeline, store, wanted)
    shadows.begin(wanted, _now_ms(), _fences_at(pipeline, since_ms))
    return wanted


def _check_books(pipeline: Pipeline, store: Store, wanted: Replay) -> None:
    if store.fences(wanted.pipeline):
        raise ConfigError(
            f"pipeline {wanted.pipeline} has run already, into its own tables; a replay needs a "
            "name that is new to the store"
        )
    if not store.fences(wanted.replaces):
        rows = store.query("SELECT DISTINCT pipeline FROM kohort_fence ORDER BY 1")
        raise ConfigError(
            f"the store knows no pipeline {wanted.replaces}; it knows "
            f"{', '.join(name for (name,) in rows) or 'none'}"
        )
    if left := _left_alone(pipeline, store, wanted.replaces):
        raise ConfigError(
            f"pipeline {wanted.replaces} reads {', '.join(left)}, too, which this pipeline does "
            "not: no handler would read it after the swap. Register it in the file, with its table"
        )
    targets = [s.target for s in pipeline.graph.steps.values()]
    topics = [t.topic for t in targets if isinstance(t, TopicTarget)]
    written = outputs_of(store, wanted.replaces)
    if both := [t for t in topics if f"topic {t}" in written]:
        raise ConfigError(
            f"pipeline {wanted.replaces} writes to topic {both[0]}, too, and records cannot be "
            "taken out of a topic: they would be there twice. Let this pipeline write to a new "
            "topic, and let readers move to it after the swap"
        )


def _left_alone(pipeline: Pipeline, store: Store, replaces: str) -> list[str]:
    """The source topics of the replaced pipeline that the new one does not read."""
    read = {fence.topic for fence in store.fences(replaces)}
    own = retry_topics_among(read) | {t for t in read if INTERMEDIATE_TOPIC.fullmatch(t)}
    return sorted(read - own - pipeline.topics.keys())


def _check_effects(pipeline: Pipeline, store: Store) -> None:
    """Raise ConfigError when a handler named a table itself: its rows are in no shadow table."""
    rows = store.query(
        "SELECT origin_topic, error_message FROM kohort_ledger WHERE pipeline = ? AND reason = ? "
        "LIMIT 1",
        (pipeline.name, UNDIRECTED),
    )
    if rows:
        raise ConfigError(
            f"nothing was swapped: {rows[0][1]}, and begin under another pipeline name"
        )


def _fences_at(pipeline: Pipeline, since_ms: int | None) -> list[FenceRow]:
    """With a time, the fences of the sources at the first records from that time on."""
    if since_ms is None:
        return []
    port = ClusterPort(pipeline.client_config)
    try:
        views = port.topics()
        at = [(t, p) for t in pipeline.topics if t in views for p in range(views[t].partitions)]
        first, ends = port.by_time(dict.fromkeys(at, since_ms)), port.latest(at)
    finally:
        port.close()
    fences: list[FenceRow] = []
    for topic, partition in at:
        stamped = first[topic, partition].offset
        start = ends[topic, partition] if stamped < 0 else stamped
        fences.append(FenceRow(topic, views[topic].topic_id, partition, start))
    return fences


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
