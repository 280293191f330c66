"""The outcome of a batch, shared by the futures of its records (`producer.plan.fast_send`).

Rules:
- A record's future is a reference and two numbers; nothing else is made until a caller waits.
- A delivery is completed once, by the network thread (`kohort.client.common.completion`).
- When its batch was split, it is done when both parts are, and each record's outcome is its part's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kohort.client.common.completion import Completion
from kohort.client.common.types import RecordMetadata
from kohort.errors import KafkaTimeoutError, KohortError, fresh


class Delivery(Completion):
    """The outcome of one batch, shared by its records."""

    __slots__ = (
        "append_time_ms",
        "base_offset",
        "error",
        "partition",
        "parts",
        "seen",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__()
        self.topic = topic
        self.partition = partition
        self.seen = False
        """True when its error was shown through a future."""
        self.error: KohortError | None = None
        self.base_offset = -1
        self.append_time_ms = -1
        self.parts: tuple[Delivery, int, Delivery] | None = None
        """The deliveries of a split batch: that of its first so many records, and of the rest."""

    def split(self, first: Delivery, count: int, rest: Delivery) -> None:
        """From now on `first` knows of the first `count` records, `rest` of the others."""
        self.parts = (first, count, rest)

        def settle() -> None:
            if first.done and rest.done and not self.done:
                self.error = first.error or rest.error
                self._finish()

        first.add_callback(settle)
        rest.add_callback(settle)

    def complete(
        self, error: KohortError | None, base_offset: int = -1, append_time_ms: int = -1
    ) -> None:
        """Set the outcome and wake all waiters; a second call is ignored."""
        if self.done:
            return
        self.error, self.base_offset, self.append_time_ms = error, base_offset, append_time_ms
        self._finish()


def _part(delivery: Delivery, index: int) -> tuple[Delivery, int]:
    """The delivery that knows of a record, and the record's place there."""
    while delivery.parts is not None:
        first, count, rest = delivery.parts
        delivery, index = (first, index) if index < count else (rest, index - count)
    return delivery, index


def error_of(delivery: Delivery, index: int) -> KohortError | None:
    """The error of one record of a delivery that is done."""
    delivery, _ = _part(delivery, index)
    delivery.seen = True
    return delivery.error


def metadata_of(delivery: Delivery, index: int, timestamp_ms: int) -> RecordMetadata:
    """The outcome of one record of a delivery that is done; raises its error."""
    delivery, index = _part(delivery, index)
    if delivery.error is not None:
        delivery.seen = True
        raise fresh(delivery.error)
    offset = delivery.base_offset
    return RecordMetadata(
        delivery.topic,
        delivery.partition,
        offset if offset < 0 else offset + index,
        timestamp_ms if delivery.append_time_ms < 0 else delivery.append_time_ms,
    )


def timed_out(delivery: Delivery, timeout_s: float | None) -> KafkaTimeoutError:
    """The error when there is no answer yet."""
    return KafkaTimeoutError(
        f"no answer for a record of {delivery.topic}-{delivery.partition} within {timeout_s} s; it "
        f"may still be stored"
    )


def await_delivery(
    delivery: Delivery, index: int, timestamp_ms: int
) -> Generator[Any, None, RecordMetadata]:
    """Suspend the running task until the delivery is done; its outcome for one record."""
    yield from delivery.suspend()
    return metadata_of(delivery, index, timestamp_ms)
