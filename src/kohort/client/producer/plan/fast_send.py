"""The producer's hot path: specification, and fallback where `_fast_send.pyx` is not compiled.

Rules:
- `send` adds a record to the batch that its partition's slot shows as open. All else there is
  to do (no such topic yet, no open batch, a full one, headers, values that are not plain bytes) is
  `add_slowly`'s matter, which returns a future or raises.
- A slot shows the open batch's builder and delivery; no builder where there is none, or one thread
  alone is filling it.
- The slots are changed under the guard. The compiled `send` only looks whether the guard is free:
  it runs no Python code between that look and the end of the append, and the interpreter's lock
  does the rest. This one takes the guard.

Shell: threads, the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

from kohort.client.common.types import RecordMetadata
from kohort.client.producer.plan.delivery import (
    Delivery,
    await_delivery,
    error_of,
    metadata_of,
    timed_out,
)
from kohort.client.producer.plan.partitioner import for_key
from kohort.errors import KohortError
from kohort.records import BatchBuilder

Headers = Iterable[tuple[str, bytes | None]]
"""Names and values of a record's headers, in order; a name may occur twice."""


class RecordFuture:
    """The delivery of one record: `result()` blocks, `await` suspends; both raise its error."""

    __slots__ = ("_delivery", "_index", "_timestamp_ms")

    def __init__(self, delivery: Delivery, index: int, timestamp_ms: int) -> None:
        self._delivery = delivery
        self._index = index
        self._timestamp_ms = timestamp_ms

    @property
    def done(self) -> bool:
        """True when the record is stored, or will not be."""
        return self._delivery.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record was stored; waits up to `timeout_s` seconds (None: for ever).

        Raises the error that kept it from being stored, or KafkaTimeoutError when `timeout_s` runs
        out; the record may still be stored then (`delivery_timeout_ms` bounds it).
        """
        if not self._delivery.wait(timeout_s):
            raise timed_out(self._delivery, timeout_s)
        return metadata_of(self._delivery, self._index, self._timestamp_ms)

    def error(self, timeout_s: float | None = None) -> KohortError | None:
        """The error, or None when the record is stored; waits like `result`."""
        if not self._delivery.wait(timeout_s):
            raise timed_out(self._delivery, timeout_s)
        return error_of(self._delivery, self._index)

    def add_done_callback(self, fn: Callable[[RecordFuture], object]) -> None:
        """Call `fn(self)` when it is done: on the network thread (be quick), or at once.

        What it raises is logged (`kohort.client`).
        """
        self._delivery.add_callback(lambda: fn(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return await_delivery(self._delivery, self._index, self._timestamp_ms)


class Guard:
    """The producer's lock, as a context manager."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def reset(self) -> None:
        """In the child of a fork: the thread that held it does not exist here."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._lock.release()


class Slot:
    """What `send` sees of a partition: its open batch."""

    __slots__ = ("builder", "delivery")

    def __init__(self) -> None:
        self.builder: BatchBuilder | None = None
        self.delivery: Delivery | None = None


class TopicSlots:
    """What `send` sees of a topic: its partitions, and the one for records without a key."""

    __slots__ = ("slots", "sticky")

    def __init__(self) -> None:
        self.slots: list[Any] = []
        self.sticky = 0


def _binary(data: bytes | None) -> bool:
    return data is None or type(data) is bytes


def _plain(number: int | None) -> bool:
    return number is None or (type(number) is int and 0 <= number < 1 << 63)


class Front:
    """`send` over the topics in `routes`; `chooses`: a partitioner of the user's own chooses."""

    def __init__(
        self,
        guard: Guard,
        routes: dict[str, Any],
        chooses: bool,
        add_slowly: Callable[..., RecordFuture],
    ) -> None:
        self._guard = guard
        self._routes = routes
        self._chooses = chooses
        self._add_slowly = add_slowly

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> RecordFuture:
        """Add a record to its batch; the future tells where it was stored, or why not.

        `timestamp_ms` is now by default. Waits at most `max_block_ms` for memory or for the topic's
        metadata, then raises KafkaTimeoutError, or BrokerError when the topic does not exist.
        Raises RecordTooLargeError, UsageError (no such partition), ClosedError. When it raises,
        nothing has been sent.
        """
        with self._guard:
            slow = headers or not (_binary(value) and _binary(key))
            slow = slow or not (_plain(partition) and _plain(timestamp_ms))
            route = None if slow else self._routes.get(topic)
            slot = None if route is None else self._slot(route, key, partition)
            if slot is not None and slot.builder is not None:
                when_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
                index = slot.builder.append(when_ms, key, value, headers)
                if index >= 0:
                    return RecordFuture(cast(Delivery, slot.delivery), index, when_ms)
        return self._add_slowly(topic, value, key, partition, timestamp_ms, headers)

    def _slot(self, route: TopicSlots, key: bytes | None, partition: int | None) -> Slot | None:
        """The slot of a record's partition; None when it takes more to say."""
        if partition is None:
            if self._chooses:
                return None
            partition = route.sticky if key is None else for_key(key, len(route.slots))
        return route.slots[partition] if 0 <= partition < len(route.slots) else None
