"""AlterPartitionReassignments (45), v0-1. KIP-455, KIP-860 (a fixed number of replicas).

Other replicas are other nodes that may lead the partition. They share one log, so the change is
done when it is answered, and there is never one to take back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
)
from kohort.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: AlterPartitionReassignmentsRequest, call: Call) -> None:
    """Change the replicas of partitions, each on its own."""
    any_number = request.allow_replication_factor_change
    responses = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[_reassign(node, topic.name, p, any_number) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    call.answer(
        AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=any_number,
            error_message=None if responses else "",
            responses=responses,
        )
    )


def _reassign(
    node: NodeServices, topic: str, partition: ReassignablePartition, any_number: bool
) -> ReassignablePartitionResponse:
    answer = ReassignablePartitionResponse(
        partition_index=partition.partition_index, error_message=None
    )
    try:
        if node.topics.partition(topic, partition.partition_index) is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no {topic}-{answer.partition_index}",
            )
        if partition.replicas is None:
            answer.error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            return answer
        _check(node, topic, partition, partition.replicas, any_number)
        node.nodes.leaders.place(topic, partition.partition_index, partition.replicas)
    except BrokerError as error:
        answer.error_code, answer.error_message = error.code, error.detail
    return answer


def _check(
    node: NodeServices,
    topic: str,
    partition: ReassignablePartition,
    replicas: list[int],
    any_number: bool,
) -> None:
    known = node.leadership.nodes
    if not replicas or len(set(replicas)) < len(replicas) or not set(replicas) <= set(known):
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"replicas {replicas} must be one or more of the brokers {list(known)}, each once",
        )
    now = node.leadership.at(topic, partition.partition_index).replicas
    if not any_number and len(replicas) != len(now):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{len(replicas)} replicas in place of {len(now)}, but the request forbids that",
        )
