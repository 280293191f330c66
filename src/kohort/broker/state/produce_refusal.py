"""The answer to a Produce request that cannot be stored; shared by the API and the fast path."""

from __future__ import annotations

from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError
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
