"""Publishing copies from executors.

Rules:
- `acks=all` and idempotent: a retry inside the producer makes no second copy, and a copy's offset
  is known when it is acknowledged. Nothing is reported before every acknowledgement is there.
- A copy goes to `origin partition % n` of its topic, so all copies of a record meet one fence.
- A copy that is found too large is sent again alone and ever smaller, down to a stub (retry
  A2); any other error ends the task, and nothing has been written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kohort.client.common.config import ProducerConfig, known_to
from kohort.client.producer.plan.fast_send_choice import RecordFuture
from kohort.client.producer.producer import Producer
from kohort.errors import BrokerError, ErrorCode, KohortError, RecordTooLargeError
from kohort.retry.copies import Copy, ladder
from kohort.retry.ledger import Place
from kohort.spark.worker import forget, keep

MAX_REQUEST_BYTES = 16 << 20
_TOO_LARGE = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD}
)


def producer_for(config: Mapping[str, str]) -> Producer:
    """This process's producer for a cluster; the broker decides what is too large, not it."""
    return keep(
        "producer",
        config,
        lambda: Producer(
            {
                "max_request_size": MAX_REQUEST_BYTES,
                **known_to(ProducerConfig, config),
                "acks": "all",
            }
        ),
    )


class CopyPublisher:
    """The `Publisher` of `kohort.retry.fenced`.

    Args:
        partitions: partition count by topic, of every retry topic.
    """

    def __init__(self, config: Mapping[str, str], partitions: Mapping[str, int]) -> None:
        self._config = config
        self._partitions = partitions

    def publish(self, copies: Sequence[Copy]) -> list[Place]:
        """Send all, wait for all; their places, in order."""
        producer = producer_for(self._config)
        try:
            waiting = [(copy, self._try(producer, copy)) for copy in copies]
            return [self._place(producer, copy, future) for copy, future in waiting]
        except KohortError:
            forget("producer", self._config)
            raise

    def _try(self, producer: Producer, copy: Copy) -> RecordFuture | None:
        """The delivery of a copy; None when it is too large even to be sent."""
        try:
            return producer.send(
                copy.topic, copy.value, copy.key, self._partition(copy), headers=copy.headers
            )
        except RecordTooLargeError:
            return None

    def _place(self, producer: Producer, copy: Copy, future: RecordFuture | None) -> Place:
        """The location of the copy, or of the first smaller one that is accepted."""
        place = _taken(future)
        if place is not None:
            return place
        for smaller in ladder(copy):
            place = _taken(self._try(producer, smaller))
            if place is not None:
                return place
        raise RecordTooLargeError(
            f"{copy.topic}: not even a stub of {copy.retry.origin.retry_id} is taken; raise the "
            "topic's max.message.bytes"
        )

    def _partition(self, copy: Copy) -> int:
        return copy.partition_hint % self._partitions[copy.topic]


def _taken(future: RecordFuture | None) -> Place | None:
    """The place of a delivered copy; None when it was too large."""
    if future is None:
        return None
    try:
        stored = future.result()
    except RecordTooLargeError:
        return None
    except BrokerError as error:
        if error.code in _TOO_LARGE:
            return None
        raise
    return Place(stored.topic, stored.partition, stored.offset)
