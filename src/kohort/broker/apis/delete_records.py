"""DeleteRecords (21), v0-2. KIP-107, KIP-204.

Moves the start of a log; -1 means the high watermark. The new start is durable when it is answered;
segments that lie below it are deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.delete_records_request import DeleteRecordsRequest
from kohort.wire.messages.delete_records_response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DeleteRecordsRequest, call: Call) -> None:
    """Delete records before an offset, in each partition on its own."""
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                _delete(node, topic.name, part.partition_index, part.offset)
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    call.answer(DeleteRecordsResponse(topics=topics))


def _delete(
    node: NodeServices, topic: str, index: int, offset: int
) -> DeleteRecordsPartitionResult:
    partition = node.topics.partition(topic, index)
    try:
        if partition is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        refusal = partition.refusal(node.node_id)
        if refusal:
            raise BrokerError(refusal)
        if partition.topic.config.compact and not partition.topic.config.delete:
            raise BrokerError(ErrorCode.POLICY_VIOLATION, "the topic is compacted, not deleted")
        new_start = partition.end_offset if offset == -1 else offset
        if not 0 <= new_start <= partition.end_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if partition.log is not None:
            node.keep_log_start(partition, new_start)  # first: when it fails nothing is deleted
            partition.log.delete_before(new_start)
    except BrokerError as error:
        return DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=-1, error_code=error.code
        )
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=partition.start_offset)
