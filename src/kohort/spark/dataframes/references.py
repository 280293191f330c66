"""References: topics as tables, latest row a key, kept by the driver and broadcast to the tasks.

Shell: a consumer.

Rules:
- Before a micro-batch is computed, everything that its references' topics hold by then is read
  (committed records only). So rows produced before an input are visible to it, also in partitions
  that were added meanwhile.
- A topic that was deleted and created again is read from its beginning; the old rows are dropped.
- A later record of a key replaces the earlier one; a null value removes it. Records without a key
  are all kept, and the latest row of the reference's key columns wins.
- In a partition the later offset is later, between partitions the timestamp decides: so a restart,
  which reads the partitions in any order, finds the rows that were there before it.
- A reference is bounded, and too many rows are an error: driver and every task hold it.
- Values that do not decode are left out, and counted in a warning once a refresh.
"""

# pyspark and pyarrow: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.errors import ConfigError, DataLossError, KafkaTimeoutError
from kohort.records import Record
from kohort.retry.cluster_port import ClusterPort
from kohort.retry.offset_queries import TopicView
from kohort.setting_keys import plain
from kohort.spark.dataframes.graph import Reference
from kohort.spark.formats import RowDecoder, RowFormat
from kohort.spark.formats.decoded import as_text
from kohort.spark.plans.logical import as_rdd, local_frame

log = logging.getLogger("kohort.spark")
POLL_S: Final = 1.0
SILENT_POLLS: Final = 30
_SEQUENCE: Final = "_kohort_sequence"
Key = bytes | tuple[int, int]
Stamp = tuple[int, int, int]
"""A time, a partition, an offset: the order of records, in which they need not be read."""


class _Row(NamedTuple):
    stamp: Stamp
    key: bytes | None
    value: bytes

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value)


class ReferenceTable:
    """One reference of one stage.

    Args:
        reference: what was registered.
        rows: how values become rows; None for text and bytes.
        config: the client's configuration, in Kafka's names.
    """

    def __init__(
        self, reference: Reference, rows: RowFormat | None, config: Mapping[str, str]
    ) -> None:
        self.reference = reference
        self._decoder = None if rows is None else RowDecoder(rows)
        self._config = dict(config)
        self._port: ClusterPort | None = None
        self._consumer: Consumer | None = None
        self._topic_id = ""
        self._rows: dict[Key, _Row] = {}
        self._bytes = 0
        self._removed: dict[Key, Stamp] = {}
        """Keys that a refresh has removed; what it reads next may be older."""
        self._times: dict[int, int] = {}
        """The greatest timestamp of each partition: time never goes back in it."""
        self._frame: DataFrame | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """The present table, read up to the topic's end; the same frame until it changes."""
        changed = self._refresh()
        if changed or self._frame is None:
            self._frame = F.broadcast(as_rdd(local_frame(spark, self._latest())))
        return self._frame

    def close(self) -> None:
        """Close the connections and forget what was read."""
        self._forget()
        if self._port is not None:
            self._port.close()
            self._port = None

    def _forget(self) -> None:
        """Forget what was read: without its consumer the topic is read from its beginning."""
        self._frame = None
        self._rows.clear()
        self._bytes = 0
        self._removed.clear()
        self._times.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # Reading

    def _refresh(self) -> bool:
        """Read to the present end; whether the rows may have changed."""
        view = self._view()
        changed, silent = self._drop_deleted(view), 0
        consumer = self._open(view.partitions)
        partitions = list(consumer.assignment())
        ends = consumer.end_offsets(partitions)
        while left := [tp for tp in partitions if consumer.position(tp) < ends[tp]]:
            page = consumer.poll(POLL_S)
            for record in page:
                self._take(record)
            changed = changed or bool(page)
            silent = 0 if page else silent + 1
            if silent > SILENT_POLLS:
                raise KafkaTimeoutError(
                    f"reference {self.reference.name}: {left[0]} has records up to "
                    f"{ends[left[0]]}, but none came after {consumer.position(left[0])}"
                )
        self._removed.clear()
        return changed

    def _view(self) -> TopicView:
        """The topic as it is now. Raises DataLossError when it does not exist any more."""
        if self._port is None:
            self._port = ClusterPort(self._config)
        topic = self.reference.topic
        view = self._port.topics([topic]).get(topic)
        if view is None:
            raise DataLossError(
                f"reference {self.reference.name}: topic {topic} was deleted. Create it again, or "
                "take the reference out of the pipeline"
            )
        return view

    def _drop_deleted(self, view: TopicView) -> bool:
        """Forget the rows of a topic that was created again; whether there was one."""
        before, self._topic_id = self._topic_id, view.topic_id
        if not before or before == view.topic_id:
            return False
        log.warning(
            "reference %s: topic %s was deleted and created again; it is read from its beginning",
            self.reference.name,
            self.reference.topic,
        )
        self._forget()
        return True

    def _open(self, count: int) -> Consumer:
        """The consumer, with all partitions; those that were read keep their positions."""
        if self._consumer is None:
            ours: dict[str, Any] = {
                "enable_auto_commit": False,
                "auto_offset_reset": "earliest",
                "isolation_level": "read_committed",
                "allow_auto_create_topics": False,
            }
            rest = {k: v for k, v in self._config.items() if plain(k) not in ours}
            self._consumer = Consumer(config=ConsumerConfig.from_mapping({**rest, **ours}))
        if len(self._consumer.assignment()) != count:
            topic = self.reference.topic
            self._consumer.assign([TopicPartition(topic, p) for p in range(count)])
        return self._consumer

    def _take(self, record: Record) -> None:
        """Let a record replace what is there of its key, unless that is later."""
        stamp = self._stamp(record)
        at = (record.partition, record.offset) if record.key is None else record.key
        old = self._rows.get(at)
        known = self._removed.get(at) if old is None else old.stamp
        if known is not None and known > stamp:
            return
        self._removed.pop(at, None)
        if old is not None:
            del self._rows[at]
            self._bytes -= old.size
        if record.value is None:
            self._removed[at] = stamp
            return
        self._rows[at] = row = _Row(stamp, record.key, record.value)
        self._bytes += row.size
        if self._bytes > self.reference.max_bytes:
            raise ConfigError(
                f"reference {self.reference.name}: topic {self.reference.topic} holds more than "
                f"{self.reference.max_bytes >> 20} MiB of rows. A reference is held in the "
                "driver and in every task: raise max_size=, or read the topic as a source and "
                "join the two streams"
            )

    def _stamp(self, record: Record) -> Stamp:
        """The place of a record in the order of all. Called once a record, by rising offsets."""
        partition = record.partition
        time_ms = max(record.timestamp, self._times.get(partition, record.timestamp))
        self._times[partition] = time_ms
        return time_ms, partition, record.offset

    # The table

    def _latest(self) -> pa.Table:
        """The latest row of each key."""
        table = self._table()
        key = list(self.reference.key)
        lacking = [k for k in key if k not in table.column_names]
        if lacking:
            raise ConfigError(
                f"reference {self.reference.name}: topic {self.reference.topic} has no column "
                f"{', '.join(lacking)}; it has {', '.join(table.column_names)}"
            )
        order = pa.array(range(len(table)), pa.int64())
        rows = table.select(key).append_column(_SEQUENCE, order)
        last = rows.group_by(key).aggregate([(_SEQUENCE, "max")])
        return table.take(last.column(f"{_SEQUENCE}_max").combine_chunks())

    def _table(self) -> pa.Table:
        """The values as columns, from the earliest on, without those that do not decode."""
        found = sorted(self._rows.values(), key=lambda row: row.stamp)
        keys = pa.array([row.key for row in found], pa.binary())
        values = pa.array([row.value for row in found], pa.binary())
        if self._decoder is not None:
            rows, errors = self._decoder.decode(values)
            columns = dict(zip(rows.type.names, rows.flatten(), strict=True))
        elif self.reference.values.name == "text":
            texts, errors = as_text(values)
            columns = {"key": as_text(keys)[0], "value": texts}
        else:
            columns, errors = {"key": keys, "value": values}, None
        table = pa.table(columns)
        if errors is None:
            return table
        first = errors.drop_null()
        log.warning(
            "reference %s: %d rows of topic %s do not decode and are left out; the first: %s",
            self.reference.name,
            len(first),
            self.reference.topic,
            first[0],
        )
        return table.filter(errors.is_null())
