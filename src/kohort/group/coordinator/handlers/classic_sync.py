"""SyncGroup (spec 2.5, 2.6): followers wait, the leader's plan is stored, everybody is answered.

Rules:
- The assignment is in the log before any member gets it.
- All answers of a generation come from the one plan that its leader sent (G7); a member that the
  plan leaves out gets an empty assignment.
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers import classic_members_in_consumer_group as classic_members
from kohort.group.coordinator.handlers.classic_rebalance import (
    refuse_parked_syncs,
    start_rebalance,
    sync_key,
)
from kohort.group.coordinator.state.classic_group import Group
from kohort.group.coordinator.state.classic_records import StoredGroup, group_record
from kohort.group.coordinator.state.classic_table import (
    GroupEvent,
    GroupState,
    RequestKind,
    Step,
    answer,
)
from kohort.group.coordinator.state.context import Workspace, refuse_sync
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.rebalance_history import Trigger
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse

NAMES_PROTOCOL_FROM = 5


def sync(
    ws: Workspace, request: SyncGroupRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer a SyncGroup, or let it wait for the leader's."""
    if request.group_id in ws.durable.consumer_groups:
        classic_members.sync(ws, request, context, now_ms, out)
        return
    group = ws.groups.get(request.group_id)
    step = _fault_of(ws, group, request, context.api_version)
    if isinstance(step, ErrorCode):
        if group is not None and step == ErrorCode.REBALANCE_IN_PROGRESS:
            ws.arm_session(group.members[request.member_id], now_ms)  # a sign of life (G13)
        refuse_sync(out, context, step)
        return
    assert group is not None
    member = group.members[request.member_id]
    group.pending_sync.pop(member.member_id, None)
    if not group.pending_sync:
        ws.timers.cancel(sync_key(group))
    if step is Step.ASSIGNMENT:
        ws.arm_session(member, now_ms)
        out.replies.append(_assignment(context, ws.stored(group), member.member_id))
        return
    if member.parked_sync is not None:  # given up by its client, who asks again
        refuse_sync(out, member.parked_sync, ErrorCode.REBALANCE_IN_PROGRESS)
    member.parked_sync = context
    if group.leader == member.member_id:
        _take_plan(ws, group, request, now_ms, out)


def _fault_of(
    ws: Workspace, group: Group | None, request: SyncGroupRequest, api_version: int
) -> ErrorCode | Step:
    """The error to answer, or the step to take."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    names = (request.protocol_type, request.protocol_name)
    if api_version >= NAMES_PROTOCOL_FROM and None in names:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    step = answer(RequestKind.SYNC, group.state if group else None)
    if group is None or group.state is GroupState.DEAD:
        return step
    fault = group.fault_of(request.member_id, request.group_instance_id)
    if fault:
        return fault
    if request.generation_id != ws.generation(group):
        return ErrorCode.ILLEGAL_GENERATION
    known = (group.protocol_type, ws.stored(group).protocol)
    if any(name is not None and name != mine for name, mine in zip(names, known, strict=True)):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return step


def _take_plan(
    ws: Workspace, group: Group, request: SyncGroupRequest, now_ms: int, out: Effects
) -> None:
    """Store the leader's plan and answer all who wait."""
    plan = {a.member_id: a.assignment for a in request.assignments}
    known = ws.stored(group)
    stored = ws.snapshot(group, known.generation, known.protocol, plan, ws.wall_ms(now_ms))
    record = group_record(group.group_id, stored)
    if len(record.value or b"") > ws.config.group_record_max_bytes:
        # As when the append of a too large record fails in Kafka.
        refuse_parked_syncs(ws, group, ErrorCode.UNKNOWN_SERVER_ERROR, now_ms, out)
        ws.caused(group, Trigger.PLAN_TOO_LARGE, now_ms, request.member_id)
        start_rebalance(ws, group, now_ms, out)
        return
    out.records.append(record)
    ws.history.assigned(group.group_id, stored, ws.wall_ms(now_ms))
    group.move(GroupEvent.ASSIGNED)
    for member in group.members.values():
        if member.parked_sync is not None:
            out.replies.append(_assignment(member.parked_sync, stored, member.member_id))
            member.parked_sync = None
            ws.arm_session(member, now_ms)


def _assignment(context: RequestContext, stored: StoredGroup, member_id: str) -> Reply:
    response = SyncGroupResponse(
        protocol_type=stored.protocol_type,
        protocol_name=stored.protocol,
        assignment=stored.members[member_id].assignment,
    )
    return Reply(context.token, response)
