"""The dead-letter topic, read through the ledger: what is really failed, why, and since when.

Rules (spec 5.6, 6.3):
- A copy counts when its record's newest ledger row names its very place. Else it is inert: an
  orphan of an attempt that was killed, a duplicate, or of a round that a redrive has followed. It
  is shown only on request, and marked.
- Reading is bounded by the ends at the start, joins no group and commits nothing.
- A stub (its value was too large to copy) says so; its value is still at the origin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import TopicPartition
from kohort.records import Record
from kohort.retry.headers import Header, HeaderFault, Origin, RetryHeaders, parse
from kohort.retry.ledger import Place, backs_failed, newest
from kohort.retry.policy import RetryTopics
from kohort.retry.reading import pages_to_end
from kohort.retry.store import Store


@dataclass(frozen=True, slots=True)
class FailedCopy:
    """One copy in the dead-letter topic. `backed`: its record has failed, with this very copy."""

    place: Place
    origin: Origin
    retry: RetryHeaders
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    stored_ms: int
    backed: bool


class FailedCopies:
    """The dead-letter topic of one (topic, group), as one pipeline's ledger sees it.

    Args:
        pipeline: the name under which the ledger is kept.
        client: the client's configuration, in Kafka's names.
        partitions: how many the dead-letter topic has.
    """

    def __init__(
        self,
        pipeline: str,
        topics: RetryTopics,
        store: Store,
        client: Mapping[str, str],
        partitions: int,
    ) -> None:
        self._pipeline = pipeline
        self._topics = topics
        self._store = store
        self._client = client
        self._partitions = partitions

    def read(self, *, inert: bool = False) -> Iterator[FailedCopy]:
        """Every copy up to the present end, partition by partition in offset order.

        Args:
            inert: give copies that no ledger row backs, too.

        Raises KafkaTimeoutError when records that are there do not come.
        """
        settings = {
            **self._client,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
        }
        partitions = [TopicPartition(self._topics.dead_letter, p) for p in range(self._partitions)]
        for page in pages_to_end(ConsumerConfig.from_mapping(settings), partitions):
            yield from self._judge(page, inert)

    def _judge(self, page: Sequence[Record], inert: bool) -> Iterator[FailedCopy]:
        parsed: list[tuple[Record, RetryHeaders]] = []
        for record in page:
            try:
                parsed.append((record, parse(record.headers)))
            except HeaderFault:
                continue  # nothing of ours: a stranger's record in our topic
        states = self._store.states(self._pipeline, [r.origin.retry_id for _, r in parsed])
        for record, retry in parsed:
            place = Place(record.topic, record.partition, record.offset)
            rows = states.get(retry.origin.retry_id, ())
            backed = backs_failed(place, newest(rows), retry.redrive_count)
            if backed or inert:
                yield FailedCopy(
                    place,
                    retry.origin,
                    retry,
                    record.key,
                    record.value,
                    record.headers,
                    record.timestamp,
                    backed,
                )
