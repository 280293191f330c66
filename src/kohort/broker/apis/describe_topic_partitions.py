"""DescribeTopicPartitions (75), v0. KIP-966: topics in pages.

Topics come by name, at most 2,000 partitions an answer; `next_cursor` says where the next page
begins. Nothing is ever created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kohort.broker.apis._operations import TOPIC_OPERATIONS
from kohort.broker.apis.metadata import describe
from kohort.broker.base.request import Call
from kohort.broker.log.directory import topic_name_fault
from kohort.errors import ErrorCode
from kohort.wire.messages.describe_topic_partitions_request import DescribeTopicPartitionsRequest
from kohort.wire.messages.describe_topic_partitions_response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kohort.wire.messages.metadata_response import MetadataResponsePartition

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

PARTITIONS_MAX: Final = 2_000


def handle(node: NodeServices, request: DescribeTopicPartitionsRequest, call: Call) -> None:
    """Describe one page."""
    named = {topic.name for topic in request.topics}
    cursor = request.cursor
    if cursor is not None and (
        cursor.partition_index < 0 or (named and cursor.topic_name not in named)
    ):
        call.answer(_refused(request))
        return
    hides = call.hides
    names = sorted(named or {t.name for t in node.topics if hides is None or not hides(t.name)})
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    answer = DescribeTopicPartitionsResponse()
    left = max(1, min(PARTITIONS_MAX, request.response_partition_limit))
    for name in names:
        at_cursor = cursor is not None and name == cursor.topic_name
        first = cursor.partition_index if cursor is not None and at_cursor else 0
        if left == 0:
            answer.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic, more = _page(node, name, first, left)
        answer.topics.append(topic)
        left -= len(topic.partitions)
        if more:
            answer.next_cursor = Cursor(
                topic_name=name, partition_index=first + len(topic.partitions)
            )
            break
    call.answer(answer)


def _refused(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    code = ErrorCode.INVALID_REQUEST
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=code)
            for topic in request.topics
        ]
    )


def _page(
    node: NodeServices, name: str, first: int, most: int
) -> tuple[DescribeTopicPartitionsResponseTopic, bool]:
    """Partitions of a topic from `first` on, and whether there are more of them."""
    topic = node.topics.get(name)
    if topic is None:
        bad = topic_name_fault(name) is not None
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        unknown = DescribeTopicPartitionsResponseTopic(
            name=name, error_code=code, topic_authorized_operations=TOPIC_OPERATIONS
        )
        return unknown, False
    description = describe(node, topic)
    shown = description.partitions[first : first + most]
    page = DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=description.topic_id,
        is_internal=description.is_internal,
        partitions=[_partition(part) for part in shown],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
    return page, first + len(shown) < len(description.partitions)


def _partition(part: MetadataResponsePartition) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=part.error_code,
        partition_index=part.partition_index,
        leader_id=part.leader_id,
        leader_epoch=part.leader_epoch,
        replica_nodes=part.replica_nodes,
        isr_nodes=part.isr_nodes,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=part.offline_replicas,
    )
