"""The tasks of the topic outputs: encode rows, send a partition's batches from one task.

Shell: the clock, randomness (ids of attempts).

Rules (ADR 0019):
- A task never writes in a second attempt, and never raises after it has begun to write: Spark would
  start another attempt under the same epoch. It reports, and the driver aborts the transaction.
- What is sent is kept in the outbox too, where a database decides: under the attempt's id, before
  the task ends. Rows of an attempt that does not count are ignored there.
"""

# pyarrow and pyspark: their types are incomplete, so strict checking would report nothing else.
# pyright: basic
from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from kohort.client.common.types import TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import EncodedBatch
from kohort.client.shared.writer import SharedWriter
from kohort.errors import KohortError, UsageError
from kohort.records.compression import Readable
from kohort.retry.store import Store
from kohort.retry.stores import open_store
from kohort.spark.formats.plain_arrays import plain_array
from kohort.spark.outputs.merge_sql import ATTEMPT_BITS
from kohort.spark.outputs.reports import report_batch
from kohort.spark.outputs.spool import Place, SpoolReader, SpoolWriter
from kohort.spark.outputs.table_transaction import INTO_OUTBOX
from kohort.spark.outputs.topics import Encoder, TopicOutput
from kohort.spark.worker import forget, keep, settle_down

IDENTITY: Final = "kohort.transaction.identity"
"""The local property of a job in which its tasks find whose transaction they write into. So the
plan of a job says nothing of its batch, and the next batch can use it again."""
_FLUSH_BYTES: Final = 4 << 20
ENCODED_SCHEMA: Final = pa.schema(
    [
        ("owner", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int32()),
        ("payload", pa.binary()),
        ("file", pa.string()),
        ("at", pa.int64()),
        ("size", pa.int64()),
    ]
)
"""Encoded batches: each by its bytes, or by its place in the spool."""
Batches = Iterator[pa.RecordBatch]
Spooling = Callable[[Readable], Place] | None
"""Puts a batch into the spool; None where the shuffle carries it."""


@dataclass(frozen=True)
class WriteSpec:
    """What a writing task needs to know.

    Args:
        client: the configuration of the clients.
        outbox: where what is sent is kept too; None without a database.
        query: the name under which it is kept.
        spool: the directory of encoded batches; None where the shuffle carries them.
    """

    client: dict[str, str] = field(repr=False)
    outbox: str | None
    query: str
    spool: Path | None = None


def encoded(
    output: TopicOutput,
    partitions: Mapping[str, int],
    owner_of: Mapping[str, int],
    tasks: int,
    spool: Path | None = None,
) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`: rows in, encoded batches with their owning task out."""

    def run(batches: Batches) -> Batches:
        if spool is None:
            yield from encode(batches, None)
            return
        with contextlib.closing(SpoolWriter(spool)) as file:
            yield from encode(batches, file.put)

    def encode(batches: Batches, place: Spooling) -> Batches:
        settle_down()
        context = TaskContext.get()
        turn = context.partitionId() if context else 0
        encoder = Encoder(output, partitions, time.time_ns() // 1_000_000, turn)
        ready: list[EncodedBatch] = []
        for batch in batches:
            ready.extend(encoder.encode(batch))
            if sum(len(b.payload) for b in ready) >= _FLUSH_BYTES:
                yield _rows(ready, owner_of, tasks, place)
                ready = []
        ready.extend(encoder.rest())
        yield _rows(ready, owner_of, tasks, place)

    return run


def _rows(
    ready: list[EncodedBatch], owner_of: Mapping[str, int], tasks: int, place: Spooling
) -> pa.RecordBatch:
    rows: list[tuple[object, ...]] = []
    for batch in ready:
        owner = (owner_of[batch.topic] + batch.partition) % tasks
        head = (owner, batch.topic, batch.partition, batch.records)
        if place is None:
            rows.append((*head, batch.payload, None, None, None))
        else:
            rows.append((*head, None, *place(batch.payload)))
    columns = [*zip(*rows, strict=True)] or [()] * len(ENCODED_SCHEMA)
    arrays = [plain_array(c, f.type) for c, f in zip(columns, ENCODED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED_SCHEMA)


def written(spec: WriteSpec) -> Callable[[Batches], Batches]:
    """The function for `mapInArrow`: encoded batches in, rows of `REPORT_SCHEMA` out."""

    def run(batches: Batches) -> Batches:
        settle_down()
        context = TaskContext.get()
        attempt = secrets.randbits(ATTEMPT_BITS)
        if context is not None and context.attemptNumber():
            yield _report(attempt, {}, "a task was started a second time")
            return
        records: dict[TopicPartition, int] = {}
        problem = ""
        try:
            identity = _identity(context)
            reader = SpoolReader(spec.spool) if spec.spool else contextlib.nullcontext()
            with reader as spool:
                records = _write(spec, identity, attempt, _read(batches, spool))
        except Exception as error:  # after any error: a second attempt must not follow
            problem = f"{type(error).__name__}: {error}"
        yield _report(attempt, records, problem)

    return run


def _identity(context: TaskContext | None) -> Identity:
    text = None if context is None else context.getLocalProperty(IDENTITY)
    if text is None:
        raise UsageError(f"the job of this task has no local property {IDENTITY}")
    return Identity(*json.loads(text))


def _report(attempt: int, records: Mapping[TopicPartition, int], problem: str) -> pa.RecordBatch:
    rows = [
        {"attempt": attempt, "topic": topic, "partition": partition, "rows": count}
        for (topic, partition), count in records.items()
    ]
    return report_batch(rows or [{"attempt": attempt, "topic": "", "problem": problem}])


def _read(batches: Batches, spool: SpoolReader | None) -> Iterator[EncodedBatch]:
    for batch in batches:
        columns = [batch.column(name) for name in ("topic", "partition", "records")]
        payloads = batch.column("payload")
        places = [batch.column(name) for name in Place._fields]
        for row in range(batch.num_rows):
            topic, partition, records = (column[row].as_py() for column in columns)
            if spool is None:
                payload = memoryview(payloads[row].as_buffer())
            else:
                payload = spool.get(Place(*(column[row].as_py() for column in places)))
            yield EncodedBatch(topic, partition, records, payload)


def _write(
    spec: WriteSpec, identity: Identity, attempt: int, batches: Iterator[EncodedBatch]
) -> dict[TopicPartition, int]:
    writer: SharedWriter = keep("shared writer", spec.client, lambda: SharedWriter(spec.client))
    try:
        if spec.outbox is not None:
            url = spec.outbox
            store: Store = keep("store", {"url": url}, lambda: open_store(url))
            batches = kept(store, spec.query, attempt, batches)
        return writer.write(identity, batches)
    except KohortError:
        forget("shared writer", spec.client)
        if spec.outbox is not None:
            forget("store", {"url": spec.outbox})
        raise


def kept(
    store: Store, query: str, attempt: int, batches: Iterator[EncodedBatch]
) -> Iterator[EncodedBatch]:
    """Pass batches on, and put them into the outbox: some megabytes in one transaction."""
    waiting: list[tuple[object, ...]] = []
    size = 0
    for number, batch in enumerate(batches):
        row = (query, attempt, number, batch.topic, batch.partition, batch.records)
        waiting.append((*row, bytes(batch.payload)))
        size += len(batch.payload)
        if size >= _FLUSH_BYTES:
            _flush(store, waiting)
            waiting, size = [], 0
        yield batch
    _flush(store, waiting)


def _flush(store: Store, waiting: list[tuple[object, ...]]) -> None:
    if waiting:
        with store.transaction() as cursor:
            cursor.execute_many(INTO_OUTBOX, waiting)
