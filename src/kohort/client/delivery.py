"""The outcome of a batch, which all its records' futures look at (`kohort.client.front`).

Rules:
- A record's future is a reference and two numbers; nothing else is made until somebody waits.
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


def metadata_of(delivery: Delivery, index: int, timestamp_ms: int) -> RecordMetadata:
    """The outcome of one record of a delivery that is done; raises its error."""
    if delivery.error is not None:
        delivery.seen = True
        raise delivery.error
    offset = delivery.base_offset
    return RecordMetadata(
        delivery.topic,
        delivery.partition,
        offset if offset < 0 else offset + index,
        timestamp_ms if delivery.append_time_ms < 0 else delivery.append_time_ms,
    )


def timed_out(delivery: Delivery, timeout_s: float | None) -> KafkaTimeoutError:
    """The error when nobody has answered yet."""
    return KafkaTimeoutError(
        f"no answer for a record of {delivery.topic}-{delivery.partition} within {timeout_s} s; it "
        f"may still be stored"
    )


def await_delivery(
    delivery: Delivery, index: int, timestamp_ms: int
) -> Generator[Any, None, RecordMetadata]:
    """Suspend the running task until the delivery is done; its outcome for one record."""
    if not delivery.done:
        yield from _suspend(delivery)
    return metadata_of(delivery, index, timestamp_ms)


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
