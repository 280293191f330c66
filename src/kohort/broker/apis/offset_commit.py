"""OffsetCommit (8), v2-10. KIP-320 (leader epochs), KIP-345, KIP-848 (topic ids).

Offsets of topics or partitions that do not exist are refused one by one; the rest goes to the
group's shard.

Differs from Apache Kafka: retention times of v2-4 are taken by the shard as Kafka does; everything
is answered only when it is safe at the broker's level of durability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._topic_names import name_of
from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.broker.coordinator.services import BY_ID_FROM
from kohort.errors import ErrorCode
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: OffsetCommitRequest, call: Call) -> None:
    """Commit what exists, refuse what does not."""
    if call.api_version < BY_ID_FROM and _all_known(node, request):
        node.groups.handle(request.group_id, request, call)
        return
    refused: list[OffsetCommitResponseTopic] = []
    kept: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        known, unknown = _split(node, topic, by_id=call.api_version >= BY_ID_FROM)
        if unknown is not None:
            refused.append(unknown)
        if known is not None:
            kept.append(known)
    if not refused:
        node.groups.handle(request.group_id, request, call)
        return
    if not kept:
        call.answer(OffsetCommitResponse(topics=refused))
        return

    def merge(answers: list[OffsetCommitResponse]) -> None:
        answers[0].topics += refused
        call.answer(answers[0])

    request.topics = kept
    node.groups.handle(request.group_id, request, SubRequest(FanIn(1, merge), call))


def _all_known(node: NodeServices, request: OffsetCommitRequest) -> bool:
    """Whether every partition exists: most commits have nothing to refuse."""
    for topic in request.topics:
        known_topic = node.topics.get(topic.name)
        if known_topic is None or not topic.partitions:
            return False
        count = len(known_topic.partitions)
        for partition in topic.partitions:
            if not 0 <= partition.partition_index < count:
                return False
    return True


def _split(
    node: NodeServices, topic: OffsetCommitRequestTopic, *, by_id: bool
) -> tuple[OffsetCommitRequestTopic | None, OffsetCommitResponseTopic | None]:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if by_id:
        topic.name = name_of(node, topic.topic_id) or ""
        if not topic.name:
            code = ErrorCode.UNKNOWN_TOPIC_ID
    known = topic.partitions
    unknown = [
        p.partition_index
        for p in known
        if node.topics.partition(topic.name, p.partition_index) is None
    ]
    if unknown:
        gone = frozenset(unknown)
        known = [p for p in known if p.partition_index not in gone]
    refused = None
    if unknown:
        refused = OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=i, error_code=code) for i in unknown
            ],
        )
    topic.partitions = known
    return (topic if known else None), refused
