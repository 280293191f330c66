"""Many records at once: which of them fill which batch, for both faces of the producer.

Rules:
- Each call is a generator. It asks for what it has to wait for (room, or metadata of the topic) as
  a `Wanted`, and for nothing (None) when it has filled a batch: who shares a thread may let others
  continue there.
- It may be left at any of these: the records of the batches before have been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kohort.client.common import arguments as arguments
from kohort.client.common.future import Future
from kohort.client.producer.plan.fast_send_choice import RecordFuture, rows_by_key
from kohort.client.producer.plan.partitioner import checked, rows_by
from kohort.errors import UsageError
from kohort.records import BatchBuilder

if TYPE_CHECKING:
    from kohort.client.producer.core import ProducerCore
    from kohort.records import BinaryColumn
    from kohort.records.arrow import ArrowSource

T = TypeVar("T")
Extend = Callable[[BatchBuilder, int], int]
"""Appends rows from this one on to a builder; how many fitted."""


class Wanted(NamedTuple):
    """Wait for this until then (the core's milliseconds), else the call has failed."""

    future: Future[Any]
    deadline_ms: int


Filling = Generator["Wanted | None", None, T]


def many(
    core: ProducerCore,
    topic: str,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    partition: int | None,
    when_ms: int,
) -> Filling[list[RecordFuture]]:
    """What `send_many` does."""
    _checked(topic, partition)
    arguments.timestamp(when_ms, "send_many()")
    arguments.column(values, "send_many", "values")
    if keys is not None:
        arguments.column(keys, "send_many", "keys")
    if keys is not None and len(keys) != len(values):
        raise UsageError(f"send_many() was given {len(values)} values and {len(keys)} keys")
    count = None
    if partition is None and (core.custom is not None or (keys is not None and not core.chooses)):
        count = yield from _partition_count(core, topic)
    futures: list[RecordFuture] = []
    for number, rows in _by_partition(core, topic, len(values), keys, partition, count):
        some_values = values if rows is None else [values[row] for row in rows]
        some_keys = keys if rows is None or keys is None else [keys[row] for row in rows]

        extend = _extender(when_ms, some_keys, some_values)
        futures += yield from _fill(core, topic, number, len(some_values), extend, when_ms)
    return futures


def arrow(
    core: ProducerCore, topic: str, data: Any, partition: int | None, when_ms: int
) -> Filling[list[RecordFuture]]:
    """What `produce_arrow` does."""
    from kohort.client.consumer.arrow import require_pyarrow

    require_pyarrow("produce_arrow()")
    from kohort.client.producer.plan.arrow import pieces, require_rows

    _checked(topic, partition)
    require_rows(data)
    count = yield from _partition_count(core, topic)

    def choose(key: bytes) -> int:
        return checked(topic, core.choose(topic, key, count), count)

    def by_key(keys: BinaryColumn, rows: int) -> list[memoryview]:
        if core.custom is not None:
            return rows_by(keys, rows, count, choose)
        return rows_by_key(keys, rows, count)

    ignored = core.custom is None and core.chooses
    futures: list[RecordFuture] = []
    for number, source, rows in pieces(data, partition, when_ms, None if ignored else by_key):
        size = source.rows if rows is None else len(rows)
        extend = _row_extender(source, rows)
        futures += yield from _fill(core, topic, number, size, extend, when_ms)
    return futures


def _checked(topic: str, partition: int | None) -> None:
    arguments.name(topic, "the topic")
    if partition is not None:
        arguments.whole_number(partition, "the partition")


def _fill(
    core: ProducerCore,
    topic: str,
    partition: int | None,
    rows: int,
    extend: Extend,
    timestamp_ms: int,
) -> Filling[list[RecordFuture]]:
    """Fill batches with rows until none is left; one future a batch."""
    futures: list[RecordFuture] = []
    deadline_ms = core.now_ms() + core.config.max_block_ms
    done = 0
    while done < rows:
        filled = core.fill(topic, partition, _from_row(extend, done), timestamp_ms)
        if isinstance(filled, Future):
            yield Wanted(filled, deadline_ms)
            continue
        futures.append(filled[0])
        done += filled[1]
        yield None
        deadline_ms = core.now_ms() + core.config.max_block_ms
    return futures


def _by_partition(
    core: ProducerCore,
    topic: str,
    rows: int,
    keys: Sequence[Any] | None,
    partition: int | None,
    count: int | None,
) -> Iterator[tuple[int | None, list[int] | None]]:
    """(partition, rows) in the order of first sight; rows None for all."""
    if count is None:
        yield partition, None
        return
    rows_of: dict[int | None, list[int]] = {}
    for row in range(rows):
        key = None if keys is None else keys[row]
        rows_of.setdefault(core.choose(topic, key, count), []).append(row)
    yield from rows_of.items()


def _partition_count(core: ProducerCore, topic: str) -> Filling[int]:
    """How many partitions a topic has; waits for its metadata."""
    deadline_ms = core.now_ms() + core.config.max_block_ms
    while True:
        count = core.partition_count(topic)
        if isinstance(count, int):
            return count
        yield Wanted(count, deadline_ms)


def _extender(
    when_ms: int, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]
) -> Extend:
    return lambda builder, start: builder.extend(when_ms, keys, values, start=start)


def _row_extender(source: ArrowSource, rows: memoryview | None) -> Extend:
    return lambda builder, start: source.extend(builder, start, rows)


def _from_row(extend: Extend, start: int) -> Callable[[BatchBuilder], int]:
    return lambda builder: extend(builder, start)
