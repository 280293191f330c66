"""OffsetFetch (9), v1-10. KIP-447 (require stable), KIP-709 (batches), KIP-848 (topic ids).

v8 and later may ask for several groups: each is answered by its own shard, in the order asked.

Differs from Apache Kafka: a group or a partition that is named twice is answered once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kohort.broker.apis._topic_names import name_of
from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.broker.coordinator.services import BY_ID_FROM
from kohort.errors import ErrorCode
from kohort.wire import ZERO_UUID
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_BATCHED_FROM = 8
T = TypeVar("T", OffsetFetchRequestTopic, OffsetFetchRequestTopics)


def handle(node: NodeServices, request: OffsetFetchRequest, call: Call) -> None:
    """Read committed offsets."""
    if call.api_version < _BATCHED_FROM:
        if request.topics is not None:
            request.topics = _merged(request.topics)
        node.groups.handle(request.group_id, request, call)
        return
    request.groups = _groups_once(request.groups)
    unknown = {
        group.group_id: _take_unknown(node, group) if call.api_version >= BY_ID_FROM else []
        for group in request.groups
    }
    order = {group.group_id: at for at, group in enumerate(request.groups)}

    def merge(answers: list[OffsetFetchResponse]) -> None:
        groups = [group for answer in answers for group in answer.groups]
        for group in groups:
            _finish(node, group, unknown[group.group_id])
        groups.sort(key=lambda g: order[g.group_id])
        call.answer(OffsetFetchResponse(groups=groups))

    fan_in = FanIn(len(request.groups), merge)
    for group in request.groups:
        one = OffsetFetchRequest(groups=[group], require_stable=request.require_stable)
        node.groups.handle(group.group_id, one, SubRequest(fan_in, call))


def _groups_once(groups: list[OffsetFetchRequestGroup]) -> list[OffsetFetchRequestGroup]:
    """Each group once, with all that is asked of it."""
    once: dict[str, OffsetFetchRequestGroup] = {}
    for group in groups:
        first = once.setdefault(group.group_id, group)
        if first.topics is None or group.topics is None:
            first.topics = None
        elif first is not group:
            first.topics += group.topics
    for group in once.values():
        if group.topics is not None:
            group.topics = _merged(group.topics)
    return list(once.values())


def _merged(topics: list[T]) -> list[T]:
    """Each topic once, and each of its partitions."""
    once: dict[tuple[str, bytes], tuple[T, dict[int, None]]] = {}
    for topic in topics:
        topic_id = topic.topic_id if isinstance(topic, OffsetFetchRequestTopics) else ZERO_UUID
        _, indexes = once.setdefault((topic.name, bytes(topic_id)), (topic, {}))
        indexes.update(dict.fromkeys(topic.partition_indexes))
    for topic, indexes in once.values():
        topic.partition_indexes = list(indexes)
    return [topic for topic, _ in once.values()]


def _take_unknown(
    node: NodeServices, group: OffsetFetchRequestGroup
) -> list[OffsetFetchResponseTopics]:
    """Give names to ids; topics with an unknown id are answered here."""
    if group.topics is None:
        return []
    refused: list[OffsetFetchResponseTopics] = []
    for topic in group.topics:
        topic.name = name_of(node, topic.topic_id) or ""
        if not topic.name:
            refused.append(
                OffsetFetchResponseTopics(
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetFetchResponsePartitions(
                            partition_index=i,
                            committed_offset=-1,
                            metadata="",
                            error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                        )
                        for i in topic.partition_indexes
                    ],
                )
            )
    group.topics = [topic for topic in group.topics if topic.name]
    return refused


def _finish(
    node: NodeServices, group: OffsetFetchResponseGroup, refused: list[OffsetFetchResponseTopics]
) -> None:
    """Ids for the names of an answer about all topics, and the unknown topics."""
    for topic in group.topics:
        known = node.topics.get(topic.name)
        if known is not None:
            topic.topic_id = known.topic_id
    group.topics += refused
