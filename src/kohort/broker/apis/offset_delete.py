"""OffsetDelete (47), v0. KIP-496.

Partitions that do not exist are refused one by one (as in Apache Kafka).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.errors import ErrorCode
from kohort.wire.messages.offset_delete_request import OffsetDeleteRequest
from kohort.wire.messages.offset_delete_response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: OffsetDeleteRequest, call: Call) -> None:
    """Delete committed offsets."""
    refused: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        unknown = [
            p.partition_index
            for p in topic.partitions
            if node.topics.partition(topic.name, p.partition_index) is None
        ]
        gone = frozenset(unknown)
        topic.partitions = [p for p in topic.partitions if p.partition_index not in gone]
        if unknown:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(partition_index=i, error_code=code)
                        for i in unknown
                    ],
                )
            )
    request.topics = [topic for topic in request.topics if topic.partitions]

    def merge(answers: list[OffsetDeleteResponse]) -> None:
        if answers[0].error_code == 0:
            answers[0].topics += refused
        call.answer(answers[0])

    node.groups.handle(request.group_id, request, SubRequest(FanIn(1, merge), call))
