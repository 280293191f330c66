"""Exactly-once outputs of any streaming DataFrame, as functions for `foreachBatch`.

    from kohort.spark import to_outputs, to_table, to_topic

    standings.writeStream.queryName("standings").outputMode("update").foreachBatch(
        to_outputs(
            to_table("postgresql://...", "standings", key=("season", "team"), mode="upsert"),
            to_topic("standings-changes", bootstrap_servers="localhost:9092", select=as_records),
        )
    ).start()

A micro-batch is one transaction (ADR 0019): of the database, of Kafka, or of both, with the batch
id inside it as the fence. `protocol` has the steps, `staging` a task's rows, `table_transaction`
fence and merge (SQL in `merge_sql`), `kafka` and `writing` the Kafka transaction, `spool` encoded
batches on one machine, `idempotent_outputs` files and lakehouse tables. Tasks import `staging` and
`writing` only.
"""

from __future__ import annotations

from kohort.spark.outputs.batches import (
    BatchFunction,
    to_delta,
    to_files,
    to_iceberg,
    to_outputs,
    to_table,
    to_topic,
)
from kohort.spark.outputs.merge_sql import Rejected
from kohort.spark.outputs.topics import OutputRecord

__all__ = [
    "BatchFunction",
    "OutputRecord",
    "Rejected",
    "to_delta",
    "to_files",
    "to_iceberg",
    "to_outputs",
    "to_table",
    "to_topic",
]
