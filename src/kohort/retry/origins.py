"""The records that stubs refer to: where they were first, for as long as they are there.

Rules:
- A record is gone only if that is known: its topic or partition does not exist, its offset is
  outside the log, compaction took it, its batch cannot be read, or another record has its place
  (the topic was created again). Everything else raises, for a later try may find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kohort.client.admin.admin import Admin
from kohort.client.common.config import AdminConfig, ConsumerConfig, known_to
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.errors import BrokerError, ErrorCode, NoOffsetForPartitionError
from kohort.records import Record
from kohort.retry.headers import Origin
from kohort.retry.reading import pages_between


class Origins:
    """Reads single records at their origin. Connects when the first is asked for.

    Args:
        client: the clients' configuration, in Kafka's names.
    """

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._client = client
        self._consumer: Consumer | None = None
        self._partitions: dict[str, int] = {}

    def __enter__(self) -> Origins:
        return self

    def __exit__(self, *_: object) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def record(self, origin: Origin) -> Record | None:
        """The record of an origin; None when it is gone.

        Raises KafkaTimeoutError when it does not come, and what the cluster refuses.
        """
        if origin.partition >= self._partitions_of(origin.topic):
            return None
        tp = TopicPartition(origin.topic, origin.partition)
        consumer = self._consumer or self._connected()
        first, end = consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]
        if not first <= origin.offset < end:
            return None
        try:
            pages = pages_between(consumer, {tp: origin.offset}, {tp: origin.offset + 1}, 1)
            found = [record.detach() for page in pages for record in page]
        except NoOffsetForPartitionError:
            return None  # retention has taken it meanwhile
        return next((each for each in found if each.timestamp == origin.timestamp_ms), None)

    def _connected(self) -> Consumer:
        ours = {"allow_auto_create_topics": False, "auto_offset_reset": "none"}
        mine = known_to(ConsumerConfig, self._client)
        self._consumer = Consumer(ConsumerConfig.from_mapping({**mine, **ours}))
        return self._consumer

    def _partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; 0 when it does not exist."""
        if topic not in self._partitions:
            with Admin(**known_to(AdminConfig, self._client)) as admin:
                try:
                    described = admin.describe_topics([topic])
                except BrokerError as error:
                    if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                    described = {}
            self._partitions[topic] = sum(len(each.partitions) for each in described.values())
        return self._partitions[topic]
