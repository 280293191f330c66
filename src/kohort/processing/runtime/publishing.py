"""Producing what records wait for: copies and outputs, without anybody waiting here.

Rules:
- `acks=all` and idempotent. A publication is through when all of its records are acknowledged, and
  it is reported once, from the network thread, with any outcome.
- A copy goes to `origin partition % n` of its topic, so that all copies of a record meet.
- An unavailable topic (it does not exist, or writing is not allowed) is waited for briefly, and not
  again at once: the publisher has other records to send.
- A record that no later try can publish (too large, an invalid topic name) is `unfit`: a copy
  becomes smaller, and a record whose handler sent it fails permanently. An error that a person can
  repair (a missing topic, a missing right) is retried without limit, and no record is skipped.

Shell: threads (a lock), the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from kohort.client.common.completion import steady_s, wall_ms
from kohort.client.producer.plan.fast_send_choice import RecordFuture
from kohort.client.producer.producer import Producer
from kohort.errors import (
    BrokerError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
    RecordTooLargeError,
    UsageError,
    fresh,
)
from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.output import Output

BLOCKED_S: Final = 5.0
MOST_BLOCKED: Final = 1_000
_UNFIT: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)


class Published(NamedTuple):
    """What became of a publication."""

    publication: Publication
    error: KohortError | None

    @property
    def unfit(self) -> bool:
        """Whether only another record may be taken."""
        return is_unfit(self.error)


class Sends:
    """Sends records of publications, and knows which topics cannot be had at present."""

    def __init__(
        self,
        producer: Producer,
        partitions: Callable[[str], int],
        now_s: Callable[[], float] = steady_s,
    ) -> None:
        self._producer = producer
        self._partitions = partitions
        self._now_s = now_s
        self._blocked: dict[str, tuple[float, KohortError]] = {}
        self.skew_ms: int | None = None
        """How far the clock of the broker that appended the last copy is ahead of ours, at least.

        What lies between sending and acknowledgement is no skew. None before the first.
        """

    def refusal(self, topic: str) -> KohortError | None:
        """Why nothing can be sent to a topic at present, as far as is known."""
        until_s, error = self._blocked.get(topic, (0.0, None))
        return error if self._now_s() < until_s else None

    def send(self, publication: Publication, output: Output) -> RecordFuture:
        """Send one record; a copy goes where all copies of its record go. Raises KohortError."""
        refusal = self.refusal(output.topic)
        if refusal is not None:
            raise fresh(refusal)
        partition = output.partition
        if partition is not None and publication.copy is not None:
            partition %= self._partitions(output.topic)
        sent_ms = wall_ms()
        try:
            future = self._producer.send(
                output.topic, output.value, output.key, partition, headers=output.headers
            )
        except (BrokerError, KafkaTimeoutError) as error:  # after as long as `send` waits at most
            if len(self._blocked) >= MOST_BLOCKED:
                self._blocked.clear()
            self._blocked[output.topic] = (self._now_s() + BLOCKED_S, error)
            raise
        if publication.copy is not None:  # to a topic that keeps the broker's append time
            future.add_done_callback(lambda settled: self._appended(settled, sent_ms))
        return future

    def _appended(self, settled: RecordFuture, sent_ms: int) -> None:
        if settled.error() is None:
            stamp_ms, now_ms = settled.result().timestamp_ms, wall_ms()
            self.skew_ms = stamp_ms - min(max(stamp_ms, sent_ms), now_ms)


class Publisher:
    """Sends publications. `report` is called on the network thread, or at once."""

    def __init__(
        self,
        producer: Producer,
        partitions: Callable[[str], int],
        report: Callable[[Published], None],
    ) -> None:
        self._sends = Sends(producer, partitions)
        self._report = report

    @property
    def skew_ms(self) -> int | None:
        """As `Sends.skew_ms`."""
        return self._sends.skew_ms

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
            futures = [self._sends.send(publication, output) for output in publication.outputs]
        except KohortError as refused:
            # Those that were sent already may arrive: at least once, as promised for this mode.
            self._report(Published(publication, refused))
            return
        for future in futures:
            future.add_done_callback(settled)


def is_unfit(error: KohortError | None) -> bool:
    """Whether no later try of the same record may be taken."""
    if type(error) is UsageError:  # no such partition; a ClosedError says nothing of the record
        return True
    return isinstance(error, RecordTooLargeError) or (
        isinstance(error, BrokerError) and error.code in _UNFIT
    )
