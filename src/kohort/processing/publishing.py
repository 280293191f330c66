"""Producing what records wait for: copies and outputs, without anybody waiting here.

Rules:
- `acks=all` and idempotent. A publication is through when all of its records are acknowledged, and
  it is reported once, from the network thread, whatever became of it.
- A copy goes to `origin partition % n` of its topic, so that all copies of a record meet.

Shell: threads (a lock).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from kohort.client.front_implementation import RecordFuture
from kohort.client.producer import Producer
from kohort.errors import BrokerError, ErrorCode, KohortError, RecordTooLargeError
from kohort.processing.outbox import Output, Publication

_TOO_LARGE: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD}
)


class Published(NamedTuple):
    """What became of a publication."""

    publication: Publication
    error: KohortError | None

    @property
    def too_large(self) -> bool:
        """Whether a smaller copy may be taken."""
        return is_too_large(self.error)


class Publisher:
    """Sends publications. `report` is called on the network thread, or at once."""

    def __init__(
        self,
        producer: Producer,
        partitions: Callable[[str], int],
        report: Callable[[Published], None],
    ) -> None:
        self._producer = producer
        self._partitions = partitions
        self._report = report

    def publish(self, publication: Publication) -> None:
        """Send all records of it."""
        left = len(publication.outputs)
        error: KohortError | None = None
        lock = threading.Lock()  # one may be settled already here, another on the network thread

        def settled(future: RecordFuture) -> None:
            nonlocal left, error
            with lock:
                error = error or future.error()
                left -= 1
                last = not left
            if last:
                self._report(Published(publication, error))

        futures: list[RecordFuture] = []
        try:
            futures = [
                send(self._producer, self._partitions, publication, output)
                for output in publication.outputs
            ]
        except KohortError as refused:
            # Those that were sent already may arrive: at least once, as promised for this mode.
            self._report(Published(publication, refused))
            return
        for future in futures:
            future.add_done_callback(settled)


def send(
    producer: Producer, partitions: Callable[[str], int], publication: Publication, output: Output
) -> RecordFuture:
    """Send one record of a publication; a copy goes where all copies of its record go."""
    partition = output.partition
    if partition is not None and publication.copy is not None:
        partition %= partitions(output.topic)
    return producer.send(output.topic, output.value, output.key, partition, headers=output.headers)


def is_too_large(error: KohortError | None) -> bool:
    """Whether a smaller record may be taken."""
    return isinstance(error, RecordTooLargeError) or (
        isinstance(error, BrokerError) and error.code in _TOO_LARGE
    )
