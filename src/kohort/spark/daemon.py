"""The mother of Spark's Python workers, with everything imported before it forks.

Shell: a process of its own (`spark.python.daemon.module`); forks workers on Spark's demand.

Rules:
- A worker is a fork. What is imported here is imported once, and not once for each worker; what is
  frozen here is never walked by the collection after each task.
- A worker that Spark no longer wants finds its pipe closed. That is no news, and is not printed.
- No client is made here: a fork starts with no sockets and no threads (invariant C14).
"""

# pyspark and pyarrow carry no complete types, so strict checking would only speak of them.
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
