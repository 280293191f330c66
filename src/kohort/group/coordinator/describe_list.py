"""DescribeGroups and ListGroups (KIP-222, 518, 848 types, 1043).

Rules:
- A group without members and without a record of its own, which only has offsets, is shown as
  `Empty` with protocol type "".
- Subscriptions and assignments are shown in `Stable` only; elsewhere they are about to change.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers.classic_rebalance import CONSUMER_PROTOCOL_TYPE
from kohort.group.coordinator.state.classic_table import GroupState, RequestKind, Step, answer
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.explain import timeline
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListedGroup, ListGroupsResponse

GROUP_ID_NOT_FOUND_FROM = 6
CLASSIC, CONSUMER = "classic", "consumer"


def describe(
    ws: Workspace,
    request: DescribeGroupsRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """Describe the groups asked for; one that does not exist is `Dead`."""
    del now_ms
    groups = [_described(ws, group_id, context.api_version) for group_id in request.groups]
    if last := timeline.asks(request.unknown_tags):
        for group in groups:
            entries = ws.history.of(group.group_id)[-last:]
            group.unknown_tags = [timeline.as_tag(timeline.describe_all(entries))]
    out.replies.append(Reply(context.token, DescribeGroupsResponse(groups=groups)))


def _described(ws: Workspace, group_id: str, api_version: int) -> DescribedGroup:
    group = ws.groups.get(group_id)
    step = answer(RequestKind.DESCRIBE, group.state if group else None)
    if group is None or step is Step.SHOW_DEAD:
        dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if api_version >= GROUP_ID_NOT_FOUND_FROM:
            dead.error_code = int(ErrorCode.GROUP_ID_NOT_FOUND)
            dead.error_message = f"Group {group_id} not found."
        return dead
    stored, in_full = ws.stored(group), step is Step.SHOW_ALL
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(stored.protocol or "") if in_full else "",
    )
    for member in group.members.values():
        shown = DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
        )
        if in_full:
            shown.member_metadata = member.metadata(stored.protocol)
            shown.member_assignment = stored.members[member.member_id].assignment
        described.members.append(shown)
    return described


def list_groups(
    ws: Workspace, request: ListGroupsRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """List the groups of this shard, by state and type where a filter is given."""
    del now_ms
    states = {name.lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    response = ListGroupsResponse()
    if not types or CLASSIC in types:
        for group in ws.groups.values():
            if not states or group.state.value.lower() in states:
                response.groups.append(
                    ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type or "",
                        group_state=group.state.value,
                        group_type=CLASSIC,
                    )
                )
    if not types or CONSUMER in types:
        response.groups += _listed_consumer_groups(ws, states)
    out.replies.append(Reply(context.token, response))


def _listed_consumer_groups(ws: Workspace, states: set[str]) -> list[ListedGroup]:
    listed: list[ListedGroup] = []
    for group in ws.durable.consumer_groups.values():
        state = group.state().value
        if not states or state.lower() in states:
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=CONSUMER_PROTOCOL_TYPE,
                    group_state=state,
                    group_type=CONSUMER,
                )
            )
    return listed
