"""What may be done with groups, and with the topics whose offsets they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kohort.acl import Operation, Resource
from kohort.broker.authorization.request_check import Asking, Patch, split, with_refusals
from kohort.errors import ErrorCode
from kohort.group.explain import timeline
from kohort.wire import Message
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_describe_response import (
    ConsumerGroupDescribeResponse,
)
from kohort.wire.messages.consumer_group_describe_response import (
    DescribedGroup as DescribedConsumerGroup,
)
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.delete_groups_response import DeletableGroupResult
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribedGroup, DescribeGroupsResponse
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListGroupsResponse
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kohort.wire.messages.offset_delete_request import OffsetDeleteRequest
from kohort.wire.messages.offset_delete_response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kohort.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_O = Operation
REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_BATCHED_FROM = 4
_TRANSACTION_KEY = 1
_GROUPS_FROM = 8
_GROUP_ERROR_FROM = 2
"""From this version of OffsetFetch on an answer has a place for what is wrong with the group."""
_NO_PROTOCOL_FROM = 7


def member(response: type[Any]) -> Callable[[Asking, Any], Message | None]:
    """READ the group: of everything that members do, but for a join."""

    def screen(asking: Asking, request: Any) -> Message | None:
        if asking.group(_O.READ, request.group_id):
            return None
        return response(error_code=REFUSED)

    return screen


def join_group(asking: Asking, request: JoinGroupRequest) -> Message | None:
    """READ the group."""
    if asking.group(_O.READ, request.group_id):
        return None
    named = asking.call.api_version < _NO_PROTOCOL_FROM
    return JoinGroupResponse(error_code=REFUSED, protocol_name="" if named else None)


def consumer_group_heartbeat(
    asking: Asking, request: ConsumerGroupHeartbeatRequest
) -> Message | Patch | None:
    """READ the group, DESCRIBE the topics that it names; an expression matches no others."""
    if not asking.group(_O.READ, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=REFUSED, error_message=None)
    for name in request.subscribed_topic_names or ():
        if not asking.topic(_O.DESCRIBE, name):
            return ConsumerGroupHeartbeatResponse(error_code=TOPIC_REFUSED, error_message=None)
    asking.call.hides = lambda topic: not asking.topic(_O.DESCRIBE, topic)
    return None


def find_coordinator(asking: Asking, request: FindCoordinatorRequest) -> Message | Patch | None:
    """DESCRIBE the group, or the transactional id."""
    batched = asking.call.api_version >= _BATCHED_FROM
    transactional = request.key_type == _TRANSACTION_KEY
    may = asking.transactional if transactional else asking.group
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if transactional else REFUSED
    if not batched:
        if may(_O.DESCRIBE, request.key):
            return None
        return FindCoordinatorResponse(error_code=code, error_message=None, node_id=-1, port=-1)
    request.coordinator_keys, refused = split(
        request.coordinator_keys, lambda key: may(_O.DESCRIBE, key)
    )
    answers = [
        Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=None)
        for key in refused
    ]

    return with_refusals("coordinators", answers)


def offset_commit(asking: Asking, request: OffsetCommitRequest) -> Message | Patch | None:
    """READ the group and the topics."""
    code, refused = TOPIC_REFUSED, request.topics
    if not asking.group(_O.READ, request.group_id):
        code = REFUSED
        request.topics = []
    else:
        request.topics, refused = split(
            refused, lambda t: asking.knows(_O.READ, t.name, t.topic_id)
        )
    answers = [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                for p in topic.partitions
            ],
        )
        for topic in refused
    ]
    if answers and not request.topics:
        return OffsetCommitResponse(topics=answers)

    return with_refusals("topics", answers)


def offset_fetch(asking: Asking, request: OffsetFetchRequest) -> Message | Patch | None:
    """DESCRIBE the group and the topics."""
    if asking.call.api_version >= _GROUPS_FROM:
        return _offset_fetch_groups(asking, request)
    if not asking.group(_O.DESCRIBE, request.group_id):
        in_group = asking.call.api_version >= _GROUP_ERROR_FROM
        topics = [] if in_group else _no_offsets(request.topics or (), REFUSED)
        return OffsetFetchResponse(error_code=REFUSED, topics=topics)
    if request.topics is None:

        def hide(response: OffsetFetchResponse) -> None:
            response.topics = [t for t in response.topics if asking.topic(_O.DESCRIBE, t.name)]

        return hide
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.DESCRIBE, t.name))
    return with_refusals("topics", _no_offsets(refused, TOPIC_REFUSED))


def _no_offsets(
    topics: Iterable[OffsetFetchRequestTopic], code: ErrorCode
) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, error_code=code
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in topics
    ]


def _offset_fetch_groups(asking: Asking, request: OffsetFetchRequest) -> Message | Patch | None:
    request.groups, refused = split(
        request.groups, lambda group: asking.group(_O.DESCRIBE, group.group_id)
    )
    gone = [OffsetFetchResponseGroup(group_id=g.group_id, error_code=REFUSED) for g in refused]
    answers: dict[str, list[OffsetFetchResponseTopics]] = {}
    every: set[str] = set()
    for group in request.groups:
        if group.topics is None:
            every.add(group.group_id)
            continue
        group.topics, hidden = split(
            group.topics, lambda t: asking.knows(_O.DESCRIBE, t.name, t.topic_id)
        )
        answers[group.group_id] = [
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index, committed_offset=-1, error_code=TOPIC_REFUSED
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in hidden
        ]

    def patch(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            topics = group.topics
            if group.group_id in every:
                topics = [t for t in topics if asking.knows(_O.DESCRIBE, t.name, t.topic_id)]
            group.topics = [*topics, *answers.get(group.group_id, ())]
        response.groups = [*response.groups, *gone]

    return patch


def offset_delete(asking: Asking, request: OffsetDeleteRequest) -> Message | Patch | None:
    """DELETE the group, READ the topics."""
    if not asking.group(_O.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=REFUSED)
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.READ, t.name))
    answers = [
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponsePartition(
                    partition_index=p.partition_index, error_code=TOPIC_REFUSED
                )
                for p in topic.partitions
            ],
        )
        for topic in refused
    ]

    def patch(response: OffsetDeleteResponse) -> None:
        if not response.error_code:
            response.topics = [*response.topics, *answers]

    return patch if answers else None


def describe_groups(asking: Asking, request: DescribeGroupsRequest) -> Message | Patch | None:
    """DESCRIBE the groups."""
    request.groups, refused = split(request.groups, lambda g: asking.group(_O.DESCRIBE, g))
    answers = [DescribedGroup(group_id=g, error_code=REFUSED) for g in refused]

    def patch(response: DescribeGroupsResponse) -> None:
        if request.include_authorized_operations:
            for group in response.groups:
                bits = asking.operations(Resource.GROUP, group.group_id)
                group.authorized_operations = bits
        for group in response.groups:
            _hide_moves(asking, group)
        response.groups = [*response.groups, *answers]

    return patch


def _hide_moves(asking: Asking, group: DescribedGroup) -> None:
    """Leave out of the timeline what happened to topics that may not be described."""
    rebalances = timeline.from_tags(group.unknown_tags)
    if rebalances is None:
        return
    shown = [
        replace(one, moves=tuple(m for m in one.moves if asking.topic(_O.DESCRIBE, m.topic)))
        for one in rebalances
    ]
    group.unknown_tags = [timeline.as_tag(shown)]


def consumer_group_describe(
    asking: Asking, request: ConsumerGroupDescribeRequest
) -> Message | Patch | None:
    """DESCRIBE the groups, and every topic that their members have."""
    request.group_ids, refused = split(request.group_ids, lambda g: asking.group(_O.DESCRIBE, g))
    answers = [
        DescribedConsumerGroup(group_id=g, error_code=REFUSED, error_message=None) for g in refused
    ]

    def patch(response: ConsumerGroupDescribeResponse) -> None:
        for number, group in enumerate(response.groups):
            if not all(asking.topic(_O.DESCRIBE, name) for name in _topics_of(group)):
                response.groups[number] = DescribedConsumerGroup(
                    group_id=group.group_id,
                    error_code=TOPIC_REFUSED,
                    error_message="The group has described topic(s) that the client is not "
                    "authorized to describe.",
                )
            elif request.include_authorized_operations:
                bits = asking.operations(Resource.GROUP, group.group_id)
                group.authorized_operations = bits
        response.groups = [*response.groups, *answers]

    return patch


def _topics_of(group: DescribedConsumerGroup) -> set[str]:
    return {
        part.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for part in assignment.topic_partitions
    } | {name for member in group.members for name in member.subscribed_topic_names or ()}


def list_groups(asking: Asking, request: ListGroupsRequest) -> Message | Patch | None:
    """DESCRIBE the cluster, or else the groups: others are not shown."""
    if asking.cluster(_O.DESCRIBE):
        return None

    def patch(response: ListGroupsResponse) -> None:
        response.groups = [g for g in response.groups if asking.group(_O.DESCRIBE, g.group_id)]

    return patch


def delete_groups(asking: Asking, request: DeleteGroupsRequest) -> Message | Patch | None:
    """DELETE the groups."""
    request.groups_names, refused = split(
        request.groups_names, lambda g: asking.group(_O.DELETE, g)
    )
    answers = [DeletableGroupResult(group_id=g, error_code=REFUSED) for g in refused]

    return with_refusals("results", answers)
