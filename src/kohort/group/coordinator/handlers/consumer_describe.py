"""ConsumerGroupDescribe (KIP-848): epochs, members, what each has and is to have.

Rules:
- The answer shows what is in the log. Topics that are gone have no name and are left out.
- A group of another kind is answered GROUP_ID_NOT_FOUND; tools then ask DescribeGroups.
"""

from __future__ import annotations

from collections.abc import Mapping

from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers.consumer_target_assignment import preferred_assignor
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import MemberMetadata
from kohort.group.coordinator.state.consumer_table import RequestKind, answer
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.group_kind import group_not_found, holder_of
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_describe_response import (
    Assignment,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

MEMBER_TYPE_FROM = 1
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe(
    ws: Workspace,
    request: ConsumerGroupDescribeRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """Describe the groups asked for."""
    del now_ms
    groups = [_described(ws, group_id, context.api_version) for group_id in request.group_ids]
    out.replies.append(Reply(context.token, ConsumerGroupDescribeResponse(groups=groups)))


def _described(ws: Workspace, group_id: str, api_version: int) -> DescribedGroup:
    step = answer(RequestKind.DESCRIBE, holder_of(ws, group_id))
    if isinstance(step, ErrorCode):
        detail = group_not_found(group_id).detail
        return DescribedGroup(error_code=int(step), error_message=detail, group_id=group_id)
    group = ws.durable.consumer_groups[group_id]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state().value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=preferred_assignor(ws, group.members.values()).name,
        members=[
            _member(ws, group, member_id, member, api_version)
            for member_id, member in group.members.items()
        ],
    )


def _member(
    ws: Workspace, group: ConsumerGroup, member_id: str, member: MemberMetadata, api_version: int
) -> Member:
    current = group.current(member_id)
    shown = Member(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(ws, current.assigned),
        target_assignment=_assignment(ws, group.target(member_id)),
    )
    if api_version >= MEMBER_TYPE_FROM:
        shown.member_type = CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER
    return shown


def _assignment(
    ws: Workspace, partitions: Mapping[bytes, Mapping[int, int] | tuple[int, ...]]
) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(
                topic_id=topic_id,
                topic_name=ws.topics.by_id[topic_id].name,
                partitions=sorted(partitions[topic_id]),
            )
            for topic_id in sorted(partitions)
            if topic_id in ws.topics.by_id
        ]
    )
