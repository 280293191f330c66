"""CreatePartitions (37), v0-3. KIP-195, KIP-599."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kohort.broker.apis.create_topics import check_assigned
from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.create_partitions_request import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kohort.wire.messages.create_partitions_response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: CreatePartitionsRequest, call: Call) -> None:
    """Grow topics, each on its own."""
    names = Counter(t.name for t in request.topics)
    results = [
        _grow(node, topic, request.validate_only, names[topic.name] > 1)
        for topic in {t.name: t for t in request.topics}.values()
    ]
    call.answer(CreatePartitionsResponse(results=results))


def _grow(
    node: NodeServices, request: CreatePartitionsTopic, validate_only: bool, twice: bool
) -> CreatePartitionsTopicResult:
    topic = node.topics.get(request.name)
    try:
        if twice:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.internal:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{topic.name} is the broker's own")
        replicas: list[list[int]] = []
        if request.assignments is not None:
            replicas = [a.broker_ids for a in request.assignments]
            if len(replicas) != request.count - len(topic.partitions):
                raise BrokerError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "one assignment for each new partition"
                )
            check_assigned(node, replicas)
        node.topics.add_partitions(
            topic, request.count, validate_only=validate_only, replicas=replicas
        )
    except BrokerError as error:
        return CreatePartitionsTopicResult(
            name=request.name, error_code=error.code, error_message=error.detail or None
        )
    return CreatePartitionsTopicResult(name=request.name, error_message=None)
