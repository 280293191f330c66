"""The answer to a Produce request that cannot be stored; shared by the API and the fast path."""

from __future__ import annotations

from typing import Final

from kohort.broker.log.producers import Producers
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchHeader
from kohort.wire.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

MAX_REFUSED: Final = 1_000
"""Partitions whose log could not be made, of which refused batches are remembered."""


def refuse(response: PartitionProduceResponse, error: BrokerError) -> None:
    """Fill in the answer for one partition."""
    response.error_code = error.code
    response.error_message = error.detail or None
    response.base_offset = -1


def hold_back(partition: Partition, batch: BatchHeader) -> None:
    """A batch was refused for now: those behind it, which are on their way, may not pass it."""
    if partition.log is not None:
        partition.log.producers.hold_back(batch)
        return
    refused = partition.topic.services.refused
    if partition in refused or len(refused) < MAX_REFUSED:
        refused.setdefault(partition, Producers()).hold_back(batch)


def hold_back_without_room(partition: Partition, batch: BatchHeader, error: BrokerError) -> None:
    """A batch that found no room is sent again."""
    is_numbered = batch.producer_id >= 0 and batch.base_sequence >= 0
    if is_numbered and error.code == ErrorCode.KAFKA_STORAGE_ERROR:
        hold_back(partition, batch)


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
