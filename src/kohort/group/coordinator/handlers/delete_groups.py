"""DeleteGroups, and the records that remove a group (KIP-222).

Rules:
- Deleting removes the offsets first, pending ones too, then the group, in one batch.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers.classic_rebalance import drop_pending
from kohort.group.coordinator.state.classic_group import Group
from kohort.group.coordinator.state.classic_records import group_tombstone, offset_tombstone
from kohort.group.coordinator.state.classic_table import GroupEvent, RequestKind, Step, answer
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_timers import dissolve
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.delete_groups_response import DeletableGroupResult, DeleteGroupsResponse


def delete_groups(
    ws: Workspace,
    request: DeleteGroupsRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """Delete groups that have no members, each with all its offsets."""
    del now_ms
    response = DeleteGroupsResponse()
    for group_id in dict.fromkeys(request.groups_names):
        group = ws.groups.get(group_id)
        consumer = ws.durable.consumer_groups.get(group_id)
        if consumer is not None:
            step = ErrorCode.NON_EMPTY_GROUP if consumer.members else Step.DELETE
        else:
            step = answer(RequestKind.DELETE, group.state if group else None)
        if step is Step.DELETE:
            if consumer is not None:
                delete_consumer_group(ws, consumer, out)
            elif group is not None:
                delete_group(ws, group, out)
        code = step if isinstance(step, ErrorCode) else ErrorCode.NONE
        response.results.append(DeletableGroupResult(group_id=group_id, error_code=int(code)))
    out.replies.append(Reply(context.token, response))


def delete_group(ws: Workspace, group: Group, out: Effects) -> None:
    """Write the tombstones of an empty group. It is Dead until they are replayed, then gone."""
    for partition in ws.durable.partitions_of(group.group_id):
        out.records.append(offset_tombstone(group.group_id, partition))
    out.records.append(group_tombstone(group.group_id))
    for member_id in list(group.pending_join):
        drop_pending(ws, group, member_id)
    group.move(GroupEvent.REMOVED)
    ws.dead.append(group.group_id)


def delete_consumer_group(ws: Workspace, group: ConsumerGroup, out: Effects) -> None:
    """Write the tombstones of an empty consumer group and of its offsets."""
    for partition in ws.durable.partitions_of(group.group_id):
        out.records.append(offset_tombstone(group.group_id, partition))
    dissolve(ws, group, out)
