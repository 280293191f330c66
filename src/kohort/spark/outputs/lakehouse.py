"""Tables of Delta Lake and Iceberg: a batch is one commit of the table, which names the batch.

Rules:
- Delta Lake: `txnAppId` and `txnVersion` make a commit idempotent, against a second driver, too.
  They are of the checkpoint, because batch ids of another one begin at 0 and would be skipped in
  silence. The query's last batch is in the history of the table (`userMetadata`).
- Iceberg: the snapshot's properties name query, checkpoint and batch. They are read before a write;
  against a second driver at the same moment there is nothing but Spark's own checkpoint.
- Their jars are the user's to bring: this module only calls Spark.
"""

# pyspark's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kohort.errors import ConfigError
from kohort.spark.outputs.fence import GROUP_PREFIX, Batch, Fence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODES: Final = ("append", "replace")
PROPERTY: Final = "kohort."


def check_mode(name: str, mode: str) -> None:
    """Raise ConfigError unless the mode is known."""
    if mode not in MODES:
        raise ConfigError(f"{name}: mode {mode!r}; choose one of {', '.join(MODES)}")


@dataclass(frozen=True)
class DeltaOutput:
    """A Delta table by its path; see `to_delta`."""

    path: str
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check_mode(self.name, self.mode)
        if "`" in self.path or not self.path:
            raise ConfigError(f"Delta table {self.path!r}: a path without backquotes is needed")

    @property
    def name(self) -> str:
        return f"the Delta table {self.path}"

    @property
    def remedy(self) -> str:
        return "write into a new table"

    def fence(self, spark: SparkSession, batch: Batch) -> Fence | None:
        """See `CommitOutput`. Raises ConfigError where Spark has no Delta Lake."""
        context: Any = spark.sparkContext
        log = context._jvm.org.apache.hadoop.fs.Path(f"{self.path.rstrip('/')}/_delta_log")
        if not log.getFileSystem(context._jsc.hadoopConfiguration()).exists(log):
            return None
        history = spark.sql(f"DESCRIBE HISTORY delta.`{self.path}`")
        prefix = json.dumps({"kohort": batch.query})[:-1]
        ours = history.where(history["userMetadata"].startswith(prefix))
        found = ours.orderBy("version", ascending=False).select("userMetadata").first()
        if found is None:
            return None
        metadata = json.loads(found[0])
        return Fence(metadata["batch"], metadata["checkpoint"])

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `CommitOutput`."""
        metadata = {"kohort": batch.query, "checkpoint": batch.checkpoint, "batch": batch.batch_id}
        writer = (
            frame.write.format("delta")
            .mode("append" if self.mode == "append" else "overwrite")
            .options(**self.options)
            .option("txnAppId", f"{GROUP_PREFIX}{batch.query}.{batch.checkpoint}")
            .option("txnVersion", str(batch.batch_id))
            .option("userMetadata", json.dumps(metadata))
        )
        (writer.partitionBy(*self.partition_by) if self.partition_by else writer).save(self.path)


@dataclass(frozen=True)
class IcebergOutput:
    """An Iceberg table by its name; see `to_iceberg`."""

    table: str
    mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check_mode(self.name, self.mode)
        if not self.table:
            raise ConfigError("Iceberg: name the table, as to_iceberg('lake.db.flights')")

    @property
    def name(self) -> str:
        return f"the Iceberg table {self.table}"

    @property
    def remedy(self) -> str:
        return "write into a new table"

    def fence(self, spark: SparkSession, batch: Batch) -> Fence | None:
        """See `CommitOutput`. The table must exist."""
        snapshots = spark.table(f"{self.table}.snapshots")
        summary = snapshots["summary"]
        ours = snapshots.where(summary[f"{PROPERTY}query"] == batch.query)
        latest = ours.orderBy("committed_at", ascending=False).select("summary").first()
        if latest is None:
            return None
        latest_summary = latest[0]
        return Fence(
            int(latest_summary[f"{PROPERTY}batch"]), latest_summary[f"{PROPERTY}checkpoint"]
        )

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `CommitOutput`."""
        properties = {
            "query": batch.query,
            "checkpoint": batch.checkpoint,
            "batch": str(batch.batch_id),
        }
        writer = frame.writeTo(self.table)
        for key, value in {
            **self.options,
            **{f"snapshot-property.{PROPERTY}{k}": v for k, v in properties.items()},
        }.items():
            writer = writer.option(key, value)
        if self.mode == "append":
            writer.append()
        else:
            from pyspark.sql import functions

            writer.overwrite(functions.lit(True))
