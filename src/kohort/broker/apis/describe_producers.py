"""DescribeProducers (61), v0. KIP-664: who writes to a partition, and whose transaction is open.

Differs from Apache Kafka: a partition that is named twice is described once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.describe_producers_request import DescribeProducersRequest
from kohort.wire.messages.describe_producers_response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DescribeProducersRequest, call: Call) -> None:
    """Describe the producers of partitions."""
    requested: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = [
        TopicResponse(name=name, partitions=[_of(node, name, index) for index in indexes])
        for name, indexes in requested.items()
    ]
    call.answer(DescribeProducersResponse(topics=topics))


def _of(node: NodeServices, topic: str, index: int) -> PartitionResponse:
    partition = node.topics.partition(topic, index)
    if partition is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        text = f"there is no {topic}-{index}"
        return PartitionResponse(partition_index=index, error_code=code, error_message=text)
    if not node.leads(partition):
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return PartitionResponse(partition_index=index, error_code=code)
    response = PartitionResponse(partition_index=index)
    if partition.log is None:
        return response
    for producer_id, producer in partition.log.producers.items():
        last = producer.batches[-1] if producer.batches else None
        response.active_producers.append(
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=-1 if last is None else last.last_sequence,
                last_timestamp=producer.last_ms if last is None else last.timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.first_offset,
            )
        )
    return response
