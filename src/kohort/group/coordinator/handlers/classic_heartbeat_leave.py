"""Heartbeat and LeaveGroup (spec 2.3, 2.7, 1.10).

Rules:
- A heartbeat with a valid member, instance and generation restarts the session, also when
  its answer is REBALANCE_IN_PROGRESS.
- LeaveGroup takes out all its members first; then the group moves on once.
"""

from __future__ import annotations

from typing import Final

from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers import classic_members_in_consumer_group as classic_members
from kohort.group.coordinator.handlers.classic_rebalance import (
    drop_member,
    drop_pending,
    end_join_phase_if_all_joined,
    start_rebalance,
)
from kohort.group.coordinator.state.classic_group import Group
from kohort.group.coordinator.state.classic_table import (
    ANSWERS,
    GroupState,
    RequestKind,
    Step,
    answer,
)
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.rebalance_history import Trigger
from kohort.lean import quick
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from kohort.wire.messages.leave_group_response import LeaveGroupResponse, MemberResponse

_HEARTBEAT: Final = {
    state: int(code)
    for state, code in ANSWERS[RequestKind.HEARTBEAT].items()
    if isinstance(code, ErrorCode)
}
BATCH_LEAVE_FROM = 3


def heartbeat(
    ws: Workspace, request: HeartbeatRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer a Heartbeat."""
    if request.group_id in ws.durable.consumer_groups:
        classic_members.heartbeat(ws, request, context, now_ms, out)
        return
    code = beat(
        ws,
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        now_ms,
    )
    out.replies.append(quick(Reply, (context.token, HeartbeatResponse(error_code=code))))


def beat(
    ws: Workspace,
    group_id: str,
    member_id: str,
    instance_id: str | None,
    generation: int,
    now_ms: int,
) -> int:
    """The answer to a Heartbeat in a classic group; restarts the session. The most frequent
    request: it allocates no object."""
    if not group_id:
        return int(ErrorCode.INVALID_GROUP_ID)
    group = ws.groups.get(group_id)
    if group is None or group.state is GroupState.DEAD:
        return _HEARTBEAT[group.state if group else None]
    member = group.members.get(member_id)
    if member is None or instance_id is not None:
        code = int(group.fault_of(member_id, instance_id))
        if code:
            return code
    if generation != ws.generation(group):
        return int(ErrorCode.ILLEGAL_GENERATION)
    if member is None:
        return 0
    ws.timers.arm(member.timer_key, now_ms + member.session_timeout_ms)
    return _HEARTBEAT[group.state]


def leave(
    ws: Workspace, request: LeaveGroupRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer a LeaveGroup: of one member up to v2, of several since v3."""
    response = LeaveGroupResponse()
    out.replies.append(Reply(context.token, response))
    group = ws.groups.get(request.group_id)
    consumer = ws.durable.consumer_groups.get(request.group_id)
    if not request.group_id:
        response.error_code = int(ErrorCode.INVALID_GROUP_ID)
        return
    if group is not None and group.state is GroupState.DEAD:
        response.error_code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return
    batch = context.api_version >= BATCH_LEAVE_FROM
    leaving = request.members if batch else [MemberIdentity(member_id=request.member_id)]
    if consumer is not None:
        codes = classic_members.leave(ws, consumer, leaving, now_ms, out)
        _report(response, leaving, codes, batch=batch)
        return
    removed, codes = 0, list[ErrorCode]()
    for who in leaving:
        code, was_member = _remove(ws, group, who, now_ms, out)
        removed += was_member
        codes.append(code)
    _report(response, leaving, codes, batch=batch)
    if group is None:
        return
    if removed and answer(RequestKind.LEAVE, group.state) is Step.REMOVE_AND_REBALANCE:
        start_rebalance(ws, group, now_ms, out)
    else:
        end_join_phase_if_all_joined(ws, group, now_ms, out)


def _report(
    response: LeaveGroupResponse,
    leaving: list[MemberIdentity],
    codes: list[ErrorCode],
    *,
    batch: bool,
) -> None:
    """The code of each who leaves: at its name since v3, for the one there is before."""
    for who, code in zip(leaving, codes, strict=True):
        if batch:
            answered = MemberResponse(
                member_id=who.member_id,
                group_instance_id=who.group_instance_id,
                error_code=int(code),
            )
            response.members.append(answered)
        else:
            response.error_code = int(code)


def _remove(
    ws: Workspace, group: Group | None, who: MemberIdentity, now_ms: int, out: Effects
) -> tuple[ErrorCode, bool]:
    """The error for one who leaves, and whether it was a member.

    An administrator removes a static member by its instance id alone.
    """
    member_id, instance_id = who.member_id, who.group_instance_id
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID, False
    if not member_id:
        member_id = group.static_members.get(instance_id or "", "")
    elif member_id in group.pending_join:
        drop_pending(ws, group, member_id)
        return ErrorCode.NONE, False
    fault = group.fault_of(member_id, instance_id)
    if fault:
        return fault, False
    ws.caused(group, Trigger.LEFT, now_ms, member_id, who.reason or "")
    drop_member(ws, group, member_id, out)
    return ErrorCode.NONE, True
