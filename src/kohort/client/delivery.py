"""What `send` returns: one delivery for a batch, and a light view of it for each record.

Rules:
- A record's future is two references and two numbers; nothing else is made until somebody waits.
- A delivery is completed once, by the network thread. As in `kohort.client.future`, a waiter puts
  its own lock into the list and then looks again, so that completing needs no lock.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

from kohort.client.types import RecordMetadata
from kohort.errors import KafkaTimeoutError, KohortError


class Delivery:
    """The outcome of one batch, shared by its records."""

    __slots__ = (
        "_callbacks",
        "_waiters",
        "append_time_ms",
        "base_offset",
        "done",
        "error",
        "partition",
        "seen",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.done = False
        self.seen = False
        """True when its error was shown to somebody through a future."""
        self.error: KohortError | None = None
        self.base_offset = -1
        self.append_time_ms = -1
        self._waiters: list[threading.Lock] | None = None
        self._callbacks: list[Callable[[], object]] | None = None

    def complete(
        self, error: KohortError | None, base_offset: int = -1, append_time_ms: int = -1
    ) -> None:
        """Set the outcome and wake whoever waits; a second time is ignored."""
        if self.done:
            return
        self.error, self.base_offset, self.append_time_ms = error, base_offset, append_time_ms
        self.done = True
        if self._waiters is not None:
            for lock in self._waiters:
                lock.release()
        self._run_callbacks()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the outcome; False when the time ran out first."""
        if self.done:
            return True
        lock = threading.Lock()
        lock.acquire()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(lock)
        if self.done:
            return True
        return lock.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)) or self.done

    def add_callback(self, fn: Callable[[], object]) -> None:
        """Call `fn()` when it is done: on the network thread, or at once."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(fn)
        if self.done:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                fn = callbacks.pop(0)
            except IndexError:  # the other thread took the last one
                return
            fn()


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
        delivery = self._delivery
        if not delivery.wait(timeout_s):
            raise KafkaTimeoutError(
                f"no answer for a record of {delivery.topic}-{delivery.partition} within "
                f"{timeout_s} s; it may still be stored"
            )
        if delivery.error is not None:
            delivery.seen = True
            raise delivery.error
        offset = delivery.base_offset
        return RecordMetadata(
            delivery.topic,
            delivery.partition,
            offset if offset < 0 else offset + self._index,
            self._timestamp_ms if delivery.append_time_ms < 0 else delivery.append_time_ms,
        )

    def error(self, timeout_s: float | None = None) -> KohortError | None:
        """The error, or None when the record is stored; waits like `result`."""
        if not self._delivery.wait(timeout_s):
            raise KafkaTimeoutError(f"no answer within {timeout_s} s; it may still come")
        self._delivery.seen = True
        return self._delivery.error

    def add_done_callback(self, fn: Callable[[RecordFuture], object]) -> None:
        """Call `fn(self)` when it is done: on the network thread (be quick), or at once."""
        self._delivery.add_callback(lambda: fn(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._delivery.done:
            yield from _suspend(self._delivery)
        return self.result()


def _suspend(delivery: Delivery) -> Generator[Any, None, None]:
    """Suspend the running task until the delivery is done."""
    import asyncio  # only tasks need it, and they have it

    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done() -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            return  # the task's loop is closed: nobody waits any more

    delivery.add_callback(done)
    yield from waiter.__await__()
