"""OffsetForLeaderEpoch (23), v2-4. KIP-101, KIP-279, KIP-320.

Returns where a leader epoch ended, so that a reader learns that a recovery cut off its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from kohort.wire.messages.offset_for_leader_epoch_response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: OffsetForLeaderEpochRequest, call: Call) -> None:
    """Say where epochs ended."""
    call.answer(
        OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[_end(node, topic.topic, part) for part in topic.partitions],
                )
                for topic in request.topics
            ]
        )
    )


def _end(
    node: NodeServices, topic: str, partition_request: OffsetForLeaderPartition
) -> EpochEndOffset:
    partition = node.topics.partition(topic, partition_request.partition)
    if partition is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return EpochEndOffset(partition=partition_request.partition, error_code=code)
    fault = partition.refusal(node.node_id, partition_request.current_leader_epoch)
    if fault:
        return EpochEndOffset(partition=partition_request.partition, error_code=fault)
    epoch, end = partition.epoch_end(partition_request.leader_epoch)
    return EpochEndOffset(partition=partition_request.partition, leader_epoch=epoch, end_offset=end)
