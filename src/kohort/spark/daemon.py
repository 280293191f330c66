"""The parent of Spark's Python workers: it imports everything before it forks.

Shell: a process of its own (`spark.python.daemon.module`); forks workers on Spark's demand.

Rules:
- Spark has one daemon for each of its worker modules. Only `pyspark.worker` runs tasks, so only its
  daemon imports clients; the others describe a data source and end.
- A worker is a fork. Modules are imported once, not once for each worker, and frozen, so that the
  garbage collection after each task skips them.
- A worker that Spark no longer needs finds its pipe closed; that is not printed.
- No client is made here: a fork starts with no sockets and no threads (invariant C14).
"""

# pyspark and pyarrow: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import gc
import importlib
import sys
from importlib.util import find_spec
from typing import Any, Final

import pyspark.daemon

TASKS: Final = "pyspark.worker"
SOURCE: Final = "kohort.spark.source"
CLIENTS: Final = (
    "kohort.client.consumer.arrow",
    "kohort.client.consumer.calls",
    "kohort.client.consumer.core",
    "kohort.client.consumer.finalizer",
    "kohort.client.consumer.fetch_reader",
    "kohort.client.consumer.metrics",
    "kohort.client.consumer.setup",
    "kohort.client.producer.core",
    "kohort.client.producer.finalizer",
    "kohort.client.producer.metrics",
    "kohort.records.arrow",
    "kohort.spark.dataframes.failing",
    "kohort.spark.fetch",
    "kohort.spark.outputs.staging",
    "kohort.spark.outputs.writing",
    "kohort.spark.pipeline_sink",
    "kohort.spark.sink",
)
DRIVERS: Final = ("psycopg",)
"""Imported where they are installed; each worker would spend a fifth of a second on it."""


def preloaded(worker: str) -> tuple[str, ...]:
    """What the daemon of a worker module imports before it forks."""
    if worker != TASKS:
        return (SOURCE,)
    return (worker, SOURCE, *CLIENTS, *(name for name in DRIVERS if find_spec(name)))


def main(arguments: list[str]) -> None:
    """Import, then fork workers until Spark closes the pipe."""
    from kohort.spark.worker.closed_pipes import ignore_closed_pipes

    for name in preloaded(arguments[0] if arguments else TASKS):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    daemon: Any = pyspark.daemon
    ignore_closed_pipes(daemon)
    daemon.manager()


if __name__ == "__main__":
    main(sys.argv[1:])
