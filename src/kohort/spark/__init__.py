"""Spark: the source and sink `format("kohort")`, and `Pipeline`, which loads topics exactly once.

    from kohort.spark import Pipeline, session

    spark = session()                                         # a session with fitting settings
    rows = (spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("subscribe", "flights").option("group.id", "reports").load())

A query: `source` is Spark's entry, `planner` (driver) decides how far a batch reads, `fetch`
(executors) reads it, `sink` writes. A pipeline: `pipeline` registers handlers and DataFrame steps,
`supervise` starts and restarts their queries, `pipeline_sink` runs handlers in tasks, `outputs`
write exactly once, `dataframes` turns steps into transactions; `evolution` compares a changed
program with what is stored, `rebuilding` replays.

Needs the extra `kohort[spark]` and Java 17 or later; `session()` says what is missing. Names are
loaded when they are used, so importing this package needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.retry.classify import Fatal, Permanent, RetryAfter, Temporary
    from kohort.retry.handling import Batch, Lookup, Record
    from kohort.retry.sql_statements import Execute, Insert, Upsert
    from kohort.spark.health import QueryHealth
    from kohort.spark.outputs import (
        BatchFunction,
        OutputRecord,
        Rejected,
        to_delta,
        to_files,
        to_iceberg,
        to_outputs,
        to_table,
        to_topic,
    )
    from kohort.spark.pipeline import Pipeline, SetupStore, load_pipeline
    from kohort.spark.progress import (
        Progress,
        Reconciliation,
        TopicReconciliation,
        measure,
        reconcile,
        retries_over_time,
    )
    from kohort.spark.rebuilding import Replayed, replay
    from kohort.spark.sessions import register, session
    from kohort.spark.supervise import PipelineFailedError
    from kohort.spark.watching import QueryWatch, watch

__all__ = [
    "Batch",
    "BatchFunction",
    "Execute",
    "Fatal",
    "Insert",
    "Lookup",
    "OutputRecord",
    "Permanent",
    "Pipeline",
    "PipelineFailedError",
    "Progress",
    "QueryHealth",
    "QueryWatch",
    "Reconciliation",
    "Record",
    "Rejected",
    "Replayed",
    "RetryAfter",
    "SetupStore",
    "Temporary",
    "TopicReconciliation",
    "Upsert",
    "load_pipeline",
    "measure",
    "reconcile",
    "register",
    "replay",
    "retries_over_time",
    "session",
    "to_delta",
    "to_files",
    "to_iceberg",
    "to_outputs",
    "to_table",
    "to_topic",
    "watch",
]

_HOMES = {
    "kohort.retry.classify": ("Fatal", "Permanent", "RetryAfter", "Temporary"),
    "kohort.retry.sql_statements": ("Execute", "Insert", "Upsert"),
    "kohort.retry.handling": ("Batch", "Lookup", "Record"),
    "kohort.spark.health": ("QueryHealth",),
    "kohort.spark.outputs.batches": (
        "BatchFunction",
        "to_delta",
        "to_files",
        "to_iceberg",
        "to_outputs",
        "to_table",
        "to_topic",
    ),
    "kohort.spark.outputs.merge_sql": ("Rejected",),
    "kohort.spark.outputs.topics": ("OutputRecord",),
    "kohort.spark.pipeline": ("Pipeline", "SetupStore", "load_pipeline"),
    "kohort.spark.progress": (
        "Progress",
        "Reconciliation",
        "TopicReconciliation",
        "measure",
        "reconcile",
        "retries_over_time",
    ),
    "kohort.spark.rebuilding": ("Replayed", "replay"),
    "kohort.spark.sessions": ("register", "session"),
    "kohort.spark.supervise": ("PipelineFailedError",),
    "kohort.spark.watching": ("QueryWatch", "watch"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: each query of `format("kohort")` starts processes that
    import this package and need none of them.
    """
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
