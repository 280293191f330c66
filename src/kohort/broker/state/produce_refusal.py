"""The answer to a Produce request that cannot be stored; shared by the API and the fast path."""

from __future__ import annotations

from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchHeader
from kohort.wire.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)


def refuse(response: PartitionProduceResponse, error: BrokerError) -> None:
    """Fill in the answer for one partition."""
    response.error_code = error.code
    response.error_message = error.detail or None
    response.base_offset = -1


def hold_back(partition: Partition, batch: BatchHeader, error: BrokerError) -> None:
    """A batch that found no room is sent again: what its producer has sent behind it may not pass
    it."""
    is_numbered = batch.producer_id >= 0 and batch.base_sequence >= 0
    if is_numbered and error.code == ErrorCode.KAFKA_STORAGE_ERROR:
        partition.hold_back(batch)


def refused(partition: Partition, error: BrokerError) -> ProduceResponse:
    """The answer to a request of one batch that could not be stored."""
    response = PartitionProduceResponse(index=partition.index)
    response.log_start_offset = partition.start_offset
    refuse(response, error)
    topic = partition.topic
    answer = TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=[response]
    )
    return ProduceResponse(responses=[answer])
