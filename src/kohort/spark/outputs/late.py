"""Rows that a stateful operator has dropped, because the watermark had passed them.

Shell: the clock.

Rules (spec 6.8):
- They are counted in the transaction of the batch that dropped them, as the output `late rows` of
  `kohort_batch_history`.
- Spark counts them in the plan of the running batch. It is read when the batch was computed.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from kohort.retry.store import Cursor
from kohort.spark.outputs.fence import Batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATE_ROWS: Final = "late rows"
_METRIC: Final = "numRowsDroppedByWatermark"
_INSERT: Final = (
    "INSERT INTO kohort_batch_history (query, batch_id, output, rows_read, rows_loaded, "
    "rows_deleted, committed_at) VALUES (?, ?, ?, ?, 0, 0, ?) "
    "ON CONFLICT (query, batch_id, output) DO UPDATE SET rows_read = excluded.rows_read, "
    "committed_at = excluded.committed_at"
)


def late_rows(spark: SparkSession, query_id: str) -> int:
    """How many rows the present batch of a query has dropped, once it was computed."""
    query = next((q for q in spark.streams.active if q.id == query_id), None)
    if query is None:
        return 0
    inner: Any = query._jsq
    execution = inner.streamingQuery().lastExecution()
    return 0 if execution is None else _dropped(execution.executedPlan())


def count_late(cursor: Cursor, batch: Batch, rows: int) -> None:
    """Count them, in the transaction of the batch."""
    if rows:
        now_ms = time.time_ns() // 1_000_000
        cursor.execute(_INSERT, (batch.query, batch.batch_id, LATE_ROWS, rows, now_ms))


def _dropped(plan: Any) -> int:
    metrics, children = plan.metrics(), plan.children()
    own = int(metrics.apply(_METRIC).value()) if metrics.contains(_METRIC) else 0
    return own + sum(_dropped(children.apply(i)) for i in range(children.size()))
