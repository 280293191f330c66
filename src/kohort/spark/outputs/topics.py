"""The topic outputs: what was asked for, and which partition of which topic each row goes to. Pure.

Rules:
- Columns as in Spark's Kafka sink: `value`, and optionally `key`, `headers`, `topic`, `partition`;
  others are ignored, so that a topic can be mirrored. Of the option and a column topic, the option
  wins.
- The partition of a row: its `partition`, else murmur2 of its key as every Kafka client computes
  it, else the partitions in turn, one an Arrow batch.
- A task encodes whole record batches for each partition. They are what is shuffled, compressed
  already, so that one task sends all of a partition.
"""

# pyarrow's types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from kohort.client.producer.plan.arrow import Piece, pieces
from kohort.client.producer.plan.fast_send_choice import rows_by_key
from kohort.client.shared.transaction import EncodedBatch
from kohort.errors import ConfigError, UsageError
from kohort.records import BatchBuilder
from kohort.records.columns import BinaryColumn
from kohort.records.compression import Compression, check_level
from kohort.spark.formats.plain_arrays import plain_array
from kohort.spark.formats.record_columns import header_column

SINK_COLUMNS: Final = ("key", "value", "headers", "topic", "partition")
DEFAULT_BATCH_BYTES: Final = 512 << 10
LEAST_BATCH_BYTES: Final = 1_024


@dataclass(frozen=True)
class TopicOutput:
    """The topics of a query; see `to_topic` for the meaning of the arguments."""

    topic: str | None
    topics: tuple[str, ...]
    client: dict[str, str] = field(repr=False)
    compression: str = "none"
    level: int | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    include_headers: bool = True
    timestamp: str | None = None

    def __post_init__(self) -> None:
        if (self.topic is None) == (not self.topics):
            raise ConfigError(
                "name the topic, or all topics that a column topic may name: "
                'to_topic("changes", ...) or to_topic(topics=["a", "b"], ...)'
            )
        if self.batch_bytes < LEAST_BATCH_BYTES:
            raise ConfigError(f"batch_bytes={self.batch_bytes}: at least {LEAST_BATCH_BYTES}")
        codec = Compression.parse(self.compression)
        if self.level is not None:
            check_level(codec, self.level)

    @property
    def names(self) -> tuple[str, ...]:
        """Every topic that is written."""
        return (self.topic,) if self.topic is not None else self.topics

    def columns(self, frame: Sequence[str]) -> tuple[str, ...]:
        """The columns of a frame that are written. Raises ConfigError where some are amiss."""
        chosen = [c for c in SINK_COLUMNS if c in frame]
        if not {"key", "value"} & set(chosen):
            raise ConfigError(
                f"a frame with the columns {', '.join(frame)} cannot be written to a topic; there "
                "must be value or key"
            )
        if self.topic is not None and "topic" in chosen:
            chosen.remove("topic")
        elif self.topic is None and "topic" not in chosen:
            raise ConfigError("name the topic: to_topic(TOPIC, ...), or a column topic")
        if not self.include_headers and "headers" in chosen:
            chosen.remove("headers")
        if self.timestamp is not None and self.timestamp not in frame:
            raise ConfigError(f"the frame has no column {self.timestamp} for timestamps")
        return tuple(chosen)


class OutputRecord(NamedTuple):
    """One record of a topic that a transaction of the query writes, as a dead letter is."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None


def encode_records(
    records: Sequence[OutputRecord], partitions: Mapping[str, int], now_ms: int
) -> list[EncodedBatch]:
    """Records as record batches by partition. Raises UsageError for a topic without partitions."""
    if not records:
        return []
    output = TopicOutput(None, tuple(partitions) or ("-",), {})
    encoder = Encoder(output, partitions, now_ms)
    columns = {
        "topic": plain_array([r.topic for r in records], pa.string()),
        "key": plain_array([r.key for r in records], pa.binary()),
        "value": plain_array([r.value for r in records], pa.binary()),
        "partition": plain_array([r.partition for r in records], pa.int32()),
        "headers": header_column([r.headers for r in records]),
    }
    return [*encoder.encode(pa.RecordBatch.from_pydict(columns)), *encoder.rest()]


class Encoder:
    """Rows of one task as record batches by partition.

    Args:
        partitions: partition count by topic.
        now_ms: the timestamp of rows without one.
        turn: where the partitions of rows without a key begin.
    """

    def __init__(
        self, output: TopicOutput, partitions: Mapping[str, int], now_ms: int, turn: int = 0
    ) -> None:
        self._output = output
        self._partitions = partitions
        self._now_ms = now_ms
        self._turn = turn
        self._codec = Compression.parse(output.compression)
        self._builders: dict[tuple[str, int], BatchBuilder] = {}

    def encode(self, batch: pa.RecordBatch) -> Iterator[EncodedBatch]:
        """The batches that these rows have filled."""
        if not batch.num_rows:
            return
        for topic, rows in self._by_topic(batch):
            count = self._partitions.get(topic)
            if count is None:
                raise UsageError(
                    f"a row names topic {topic!r}, which is not among the topics of this output "
                    f"({', '.join(self._partitions)})"
                )

            def by_key(keys: BinaryColumn, number: int, count: int = count) -> list[memoryview]:
                return rows_by_key(keys, number, count)

            for piece in pieces(rows, None, self._now_ms, by_key):
                yield from self._append(topic, count, piece)
        self._turn += 1

    def rest(self) -> Iterator[EncodedBatch]:
        """What is left when there are no more rows."""
        for (topic, partition), builder in self._builders.items():
            if len(builder):
                yield self._built(topic, partition, builder)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._output.topic is not None:
            yield self._output.topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise UsageError("the topic column holds null; every row needs a topic")
        # Through importlib, because pyarrow.compute makes its functions when it is imported.
        pc: Any = importlib.import_module("pyarrow.compute")
        names = pc.unique(column).to_pylist()
        for name in names:
            rows = batch if len(names) == 1 else batch.filter(pc.equal(column, name))
            yield name, rows.drop_columns(["topic"])

    def _append(self, topic: str, count: int, piece: Piece) -> Iterator[EncodedBatch]:
        partition = self._turn % count if piece.partition is None else piece.partition
        if not 0 <= partition < count:
            raise UsageError(
                f"a row names partition {partition}; topic {topic} has partitions 0 to {count - 1}"
            )
        builder = self._builders.get((topic, partition))
        if builder is None:
            builder = self._builders[topic, partition] = BatchBuilder(
                self._codec, self._output.batch_bytes, level=self._output.level
            )
        done, rows = 0, piece.source.rows if piece.rows is None else len(piece.rows)
        while True:
            done += piece.source.extend(builder, done, piece.rows)
            if done == rows:
                return
            yield self._built(topic, partition, builder)

    def _built(self, topic: str, partition: int, builder: BatchBuilder) -> EncodedBatch:
        records = len(builder)
        payload = bytes(builder.build(transactional=True))
        builder.clear()
        return EncodedBatch(topic, partition, records, payload)


def owners(partitions: Mapping[str, int], tasks: int) -> dict[str, int]:
    """The owner of partition 0 by topic: partition p of a topic belongs to task (owner + p) % n."""
    found: dict[str, int] = {}
    at = 0
    for topic in sorted(partitions):
        found[topic] = at % max(1, tasks)
        at += partitions[topic]
    return found
