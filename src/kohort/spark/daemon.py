"""The parent of Spark's Python workers: it imports everything before it forks.

Shell: a process of its own (`spark.python.daemon.module`); forks workers on Spark's demand.

Rules:
- A worker is a fork. Modules are imported once, not once for each worker, and frozen, so that the
  garbage collection after each task skips them.
- A worker that Spark no longer needs finds its pipe closed; that is not printed.
- No client is made here: a fork starts with no sockets and no threads (invariant C14).
"""

# pyspark and pyarrow: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import gc
from typing import Any

import pyspark.daemon

import kohort.client.consumer.arrow
import kohort.client.consumer.setup
import kohort.records.arrow
import kohort.spark.pipeline_sink
import kohort.spark.source
from kohort.spark.closed_pipes import ignore_closed_pipes

PRELOADED = (
    kohort.client.consumer.arrow,
    kohort.client.consumer.setup,
    kohort.records.arrow,
    kohort.spark.pipeline_sink,
    kohort.spark.source,
)


if __name__ == "__main__":
    import pyspark.worker

    gc.collect()
    gc.freeze()
    daemon: Any = pyspark.daemon
    ignore_closed_pipes(daemon)
    daemon.manager()
