"""`df.write.format("kohort")`: rows as records, at least once.

Rules:
- Columns as in the JVM connector: `value`, and optionally `key`, `headers`, `topic`, `partition`.
  Without a `topic` column the option `topic` names it; with both, the option wins.
- Other columns are left out, as the JVM connector does: what was read from a topic can be written.
- A task ends when every record of it is acknowledged. A task that is tried again writes again; for
  exactly once, load through a `Pipeline`.
"""

# pyarrow and pyspark: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from kohort.client.producer.plan.fast_send_choice import RecordFuture
from kohort.client.producer.producer import Producer
from kohort.errors import ConfigError, KohortError
from kohort.spark.options import SinkOptions
from kohort.spark.publisher import producer_for
from kohort.spark.worker import forget

pc: Any = pyarrow.compute
TYPES: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "key": ("string or binary", lambda t: isinstance(t, StringType | BinaryType)),
    "value": ("string or binary", lambda t: isinstance(t, StringType | BinaryType)),
    "headers": ("array<struct<key:string,value:binary>>", lambda t: _are_headers(t)),
    "topic": ("string", lambda t: isinstance(t, StringType)),
    "partition": ("int", lambda t: isinstance(t, IntegerType)),
}
"""Of each column that is written, its type as text and as a check."""
COLUMNS = frozenset(TYPES)


def _are_headers(type_: DataType) -> bool:
    match type_:
        case ArrayType(
            elementType=StructType(
                fields=[
                    StructField(name="key", dataType=StringType()),
                    StructField(name="value", dataType=BinaryType()),
                ]
            )
        ):
            return True
    return False


def check_types(schema: StructType) -> None:
    """Refuse a column of another type than the JVM connector takes, before anything is written."""
    for column in schema.fields:
        words, fits = TYPES.get(column.name, ("", lambda _: True))
        if not fits(column.dataType):
            raise ConfigError(
                f"column {column.name} is of type {column.dataType.simpleString()}, and must be "
                f"{words}: cast it, for example {column.name}.cast({words.split()[0]!r})"
            )


class Sent(WriterCommitMessage):
    """What one task reports: how many records it has written."""

    def __init__(self, records: int) -> None:
        self.records = records


class RecordSink:
    """Writes batches of rows as records; checked when it is made, on the driver."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        if not {"key", "value"} & set(columns):
            raise ConfigError(
                f"columns {', '.join(columns)} cannot be written; there must be value or key, and "
                "there may be headers, topic and partition; other columns are not written"
            )
        if options.topic is None and "topic" not in columns:
            raise ConfigError("name the topic: by the option topic, or by a column topic")
        self._options = options
        left_out = set() if options.include_headers else {"headers"}
        self._columns = [c for c in columns if c in COLUMNS - left_out]

    def write(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Send all rows and wait until every one is acknowledged."""
        config = self._options.client
        producer = producer_for(config)
        count = 0
        try:
            futures: list[RecordFuture] = []
            for batch in batches:
                count += len(batch)
                futures += self._send(producer, batch)
            for future in futures:
                future.result()
        except KohortError:
            forget("producer", config)
            raise
        return Sent(count)

    def _send(self, producer: Producer, batch: pa.RecordBatch) -> list[RecordFuture]:
        batch = batch.select(self._columns)
        topics: list[tuple[str, pa.RecordBatch]] = []
        if self._options.topic is not None:
            topics.append((self._options.topic, batch))
        else:
            column = batch.column("topic")
            if column.null_count:
                raise ConfigError("the topic column holds null; every row needs a topic")
            for name in pc.unique(column).to_pylist():
                topics.append((name, batch.filter(pc.equal(column, name))))
        futures: list[RecordFuture] = []
        for topic, rows in topics:
            if "topic" in rows.schema.names:
                rows = rows.drop_columns(["topic"])
            futures += producer.produce_arrow(topic, rows)
        return futures
