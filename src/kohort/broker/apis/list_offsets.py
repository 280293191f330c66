"""ListOffsets (2), v1-11. KIP-79, KIP-207, KIP-320, KIP-405, KIP-734 (max timestamp), KIP-1005.

By time: the first record, by offset, whose timestamp is not below the one asked for, bounded by the
high watermark, or with READ_COMMITTED by the last stable offset (KIP-98); -1 when there is none.
The answer
has the record's own timestamp.

Differs from Apache Kafka: the search does not end in a segment whose matching records all lie below
the log's start (there it answers -1 although later ones match). Nothing is tiered: -4 is the log's
start, -5 and -6 have no offset.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.broker.log.log import TimedOffset
from kohort.broker.state.partition import Partition
from kohort.errors import BrokerError, CorruptRecordError, ErrorCode
from kohort.wire.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest
from kohort.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
_LEADER_EPOCH_FROM = 4
READ_COMMITTED = 1
_FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}


def handle(node: NodeServices, request: ListOffsetsRequest, call: Call) -> None:
    """Look up one offset for each partition."""
    requested = Counter((t.name, p.partition_index) for t in request.topics for p in t.partitions)
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                _answer(
                    node.topics.partition(topic.name, part.partition_index),
                    part,
                    node.node_id,
                    call.api_version,
                    request.isolation_level == READ_COMMITTED,
                    requested[topic.name, part.partition_index] > 1,
                )
                for part in {p.partition_index: p for p in topic.partitions}.values()
            ],
        )
        for topic in request.topics
    ]
    call.answer(ListOffsetsResponse(topics=topics))


def _answer(
    partition: Partition | None,
    partition_request: ListOffsetsPartition,
    node_id: int,
    version: int,
    committed: bool,
    twice: bool,
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=partition_request.partition_index)
    try:
        if twice:
            raise BrokerError(ErrorCode.INVALID_REQUEST)
        if partition is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.offline:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR)
        fault = partition.refusal(node_id, partition_request.current_leader_epoch)
        if fault:
            raise BrokerError(fault)
        if (
            version < _FIRST_VERSION.get(partition_request.timestamp, 0)
            or partition_request.timestamp < EARLIEST_PENDING
        ):
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION)
        entry = _look_up(partition, partition_request.timestamp, committed=committed)
    except BrokerError as error:
        answer.error_code = error.code
    except (OSError, CorruptRecordError) as error:
        assert partition is not None
        partition.fail_unreadable(error)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        if entry is not None:
            answer.offset, answer.timestamp = entry.offset, entry.timestamp
            answer.leader_epoch = entry.leader_epoch if version >= _LEADER_EPOCH_FROM else -1
    return answer


def _look_up(partition: Partition, timestamp: int, *, committed: bool) -> TimedOffset | None:
    if timestamp == LATEST:
        end = partition.stable_offset if committed else partition.end_offset
        return TimedOffset(end, -1, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return TimedOffset(partition.start_offset, -1, partition.epoch_at(partition.start_offset))
    if timestamp == MAX_TIMESTAMP:
        return partition.max_timestamp(committed=committed)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING):
        return None
    return partition.offset_for_time(timestamp, committed=committed)
