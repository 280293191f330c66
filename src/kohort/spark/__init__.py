"""Spark: the source and sink `format("kohort")`, and `Pipeline`, which loads topics exactly once.

    from kohort.spark import Pipeline, session

    spark = session()                                         # a session with fitting settings
    rows = (spark.readStream.format("kohort")
            .option("kafka.bootstrap.servers", "localhost:9092")
            .option("subscribe", "flights").option("group.id", "reports").load())

Needs the extra `kohort[spark]` and Java 17 or later; `session()` says what is missing. Names are
loaded when they are used, so importing this package needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kohort.retry.classify import Fatal, Permanent, RetryAfter, Temporary
from kohort.retry.effects import Execute, Insert, Upsert
from kohort.retry.handling import Batch, Lookup, Record
from kohort.spark.pipeline import Pipeline, SetupStore, load_pipeline

if TYPE_CHECKING:
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

_LATER = {
    "Progress": "progress",
    "Reconciliation": "progress",
    "TopicReconciliation": "progress",
    "measure": "progress",
    "reconcile": "progress",
    "retries_over_time": "progress",
    "PipelineFailedError": "supervise",
    "Replayed": "rebuilding",
    "replay": "rebuilding",
    "QueryHealth": "health",
    "QueryWatch": "watching",
    "watch": "watching",
    "BatchFunction": "outputs.batches",
    "OutputRecord": "outputs.topics",
    "Rejected": "outputs.tables",
    "to_delta": "outputs.batches",
    "to_files": "outputs.batches",
    "to_iceberg": "outputs.batches",
    "to_outputs": "outputs.batches",
    "to_table": "outputs.batches",
    "to_topic": "outputs.batches",
}


def __getattr__(name: str) -> Any:
    """The names that need a client are loaded when they are asked for."""
    if name in ("session", "register"):
        return getattr(importlib.import_module("kohort.spark.sessions"), name)
    if name in _LATER:
        return getattr(importlib.import_module(f"kohort.spark.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
