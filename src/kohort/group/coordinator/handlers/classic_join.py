"""JoinGroup (spec 2.4, 2.5, 2.8, 2.13): new members, known members, static members.

Rules:
- A refused join affects no member and creates nothing.
- Since v4 a dynamic member first gets its id and then joins with it (KIP-394), so a client that
  gives up and retries leaves an id behind that expires, not a member.
- A static member that comes back under a new id takes its old place; the old id is fenced. In
  `Stable` that needs no rebalance unless the chosen protocol or the topics it reads change.
- The new id of a static member is in the log before its JoinGroup is answered (KAFKA-10284).
"""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers.classic_members_in_consumer_group import (
    join as admit_classic,
)
from kohort.group.coordinator.handlers.classic_rebalance import (
    drop_member,
    drop_pending,
    end_join_phase_if_all_joined,
    join_response,
    start_or_continue,
    start_rebalance,
    subscription_topics,
)
from kohort.group.coordinator.state import consumer_table as consumer_states
from kohort.group.coordinator.state import consumer_timers
from kohort.group.coordinator.state.classic_group import SESSION, Group, Member, Protocols
from kohort.group.coordinator.state.classic_records import StoredGroup, group_record
from kohort.group.coordinator.state.classic_table import GroupState, RequestKind, Step, answer
from kohort.group.coordinator.state.context import (
    MAX_CLIENT_ID_CHARS,
    MAX_ID_BYTES,
    Workspace,
    refuse_join,
    refuse_sync,
)
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.group_kind import holder_of
from kohort.group.coordinator.state.rebalance_history import Trigger
from kohort.wire.messages.join_group_request import JoinGroupRequest

MEMBER_ID_REQUIRED_FROM = 4
CLASSIC_JOIN = consumer_states.RequestKind.CLASSIC_JOIN
SKIP_ASSIGNMENT_FROM = 9


def join(
    ws: Workspace, request: JoinGroupRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer a JoinGroup, or let it wait for the end of the join phase."""
    fault = _fault_of_request(ws, request)
    if fault:
        refuse_join(out, context, request.member_id, fault)
        return
    group = ws.groups.get(request.group_id)
    if request.group_id in ws.durable.consumer_groups:
        step = consumer_states.answer(CLASSIC_JOIN, holder_of(ws, request.group_id))
        join_it = _join_missing_group if step is consumer_states.Step.REPLACE else admit_classic
        join_it(ws, request, context, now_ms, out)
    elif group is None:
        _join_missing_group(ws, request, context, now_ms, out)
    elif not _has_room(ws, group, request):
        _turn_away(ws, group, request.member_id, now_ms, out)
        refuse_join(out, context, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif group.state is GroupState.DEAD:
        refuse_join(out, context, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif not group.supports(request.protocol_type, _protocols(request)):
        refuse_join(out, context, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif not request.member_id:
        _join_new(ws, group, request, context, now_ms, out)
    else:
        _join_known(ws, group, request, context, now_ms, out)


def _fault_of_request(ws: Workspace, request: JoinGroupRequest) -> ErrorCode:
    if not request.group_id or _too_long(request.group_id):
        return ErrorCode.INVALID_GROUP_ID
    config = ws.config
    lowest, highest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not lowest <= request.session_timeout_ms <= highest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if any(map(_too_long, (request.protocol_type, *(p.name for p in request.protocols)))):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.group_instance_id is not None and (
        not request.group_instance_id or _too_long(request.group_instance_id)
    ):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _too_long(text: str) -> bool:
    return len(text.encode()) > MAX_ID_BYTES


def _protocols(request: JoinGroupRequest) -> Protocols:
    return tuple((p.name, p.metadata) for p in request.protocols)


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """JoinGroup v0 has none: its session timeout serves for both."""
    timeout_ms = request.rebalance_timeout_ms
    return timeout_ms if timeout_ms >= 0 else request.session_timeout_ms


def _has_room(ws: Workspace, group: Group, request: JoinGroupRequest) -> bool:
    """Whether the group may take this member (G12).

    During a join phase those who have joined are counted, with the static members that keep their
    places: a group that is too large sheds its last joiners. Kafka leaves the latter out, and
    turns away a static member that comes back to a full group; here its place is its own.
    """
    member_id = request.member_id
    if not member_id and request.group_instance_id is not None:
        member_id = group.static_members.get(request.group_instance_id, "")
    member = group.members.get(member_id)
    if group.state in (GroupState.EMPTY, GroupState.DEAD):
        has_place = True
    elif group.state is GroupState.PREPARING:
        taken = group.awaiting_join + sum(
            group.members[i].parked_join is None for i in group.static_members.values()
        )
        if member is not None and member.instance_id is not None and member.parked_join is None:
            taken -= 1
        has_place = (member is not None and member.parked_join is not None) or (
            taken < ws.config.group_max_size
        )
    else:
        has_place = member is not None or len(group.members) < ws.config.group_max_size
    added_bytes = max((len(p.metadata) for p in request.protocols), default=0)
    if member is not None:
        added_bytes -= max((len(m) for _, m in member.protocols), default=0)
        fits = added_bytes <= 0
    else:
        added_bytes += 3 * MAX_CLIENT_ID_CHARS
        fits = False
    return has_place and (
        fits or group.members_bytes + added_bytes <= ws.config.group_record_max_bytes
    )


def _turn_away(ws: Workspace, group: Group, member_id: str, now_ms: int, out: Effects) -> None:
    """No place: the id that asked is forgotten, be it a member's or a pending one."""
    if member_id in group.pending_join:
        drop_pending(ws, group, member_id)
    elif member_id in group.members:
        ws.caused(group, Trigger.NO_ROOM, now_ms, member_id)
        drop_member(ws, group, member_id, out)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            start_rebalance(ws, group, now_ms, out)
    else:
        return
    if group.state is GroupState.PREPARING:
        end_join_phase_if_all_joined(ws, group, now_ms, out)


def _join_missing_group(
    ws: Workspace, request: JoinGroupRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Only somebody without a member id makes a group; its birth is recorded."""
    if request.member_id:
        code = answer(RequestKind.JOIN_MEMBER, None)
        assert isinstance(code, ErrorCode)
        refuse_join(out, context, request.member_id, code)
        return
    if not request.protocol_type or not request.protocols:
        refuse_join(out, context, "", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return
    group = ws.create_group(request.group_id)
    if group is None:
        refuse_join(out, context, "", ErrorCode.POLICY_VIOLATION)
        return
    empty, generation = ws.durable.consumer_groups.get(request.group_id), 0
    if empty is not None:
        consumer_timers.dissolve(ws, empty, out)
        generation = empty.epoch  # it keeps rising (G3)
    born = StoredGroup(None, generation, None, None, ws.wall_ms(now_ms))
    out.records.append(group_record(group.group_id, born))
    _join_new(ws, group, request, context, now_ms, out)


def _join_new(
    ws: Workspace,
    group: Group,
    request: JoinGroupRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """A JoinGroup without a member id."""
    instance_id = request.group_instance_id
    if instance_id is not None:
        member_id = f"{instance_id}-{ws.new_id()}"
        old_id = group.static_members.get(instance_id)
        if old_id is None:
            _add(ws, group, member_id, request, context, now_ms, out)
        else:
            _replace(ws, group, old_id, member_id, request, context, now_ms, out)
        return
    member_id = f"{context.client_id[:MAX_CLIENT_ID_CHARS]}-{ws.new_id()}"
    if context.api_version < MEMBER_ID_REQUIRED_FROM:
        _add(ws, group, member_id, request, context, now_ms, out)
        return
    size = len(member_id.encode())
    if ws.pending_join_bytes + size > ws.config.group_pending_members_max_bytes:
        refuse_join(out, context, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        return
    ws.pending_join_bytes += size
    group.pending_join[member_id] = None
    key = (SESSION, group.group_id, member_id)
    ws.timers.arm(key, now_ms + request.session_timeout_ms)
    refuse_join(out, context, member_id, ErrorCode.MEMBER_ID_REQUIRED)


def _join_known(
    ws: Workspace,
    group: Group,
    request: JoinGroupRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """A JoinGroup with a member id."""
    member_id = request.member_id
    if member_id in group.pending_join:
        if request.group_instance_id is not None:  # ids are never pending for static members
            refuse_join(out, context, member_id, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        drop_pending(ws, group, member_id)
        _add(ws, group, member_id, request, context, now_ms, out)
        return
    fault = group.fault_of(member_id, request.group_instance_id)
    step = answer(RequestKind.JOIN_MEMBER, group.state)
    if fault or isinstance(step, ErrorCode):
        refuse_join(out, context, member_id, fault or ErrorCode.UNKNOWN_MEMBER_ID)
        return
    member = group.members[member_id]
    changed = member.protocols != _protocols(request)
    waits = (
        step is Step.PARK
        or changed
        or (step is Step.PARK_IF_CHANGED_OR_LEADER and group.leader == member_id)
    )
    timeouts = (member.rebalance_timeout_ms, member.session_timeout_ms)
    _update(group, member, request)
    if waits:
        if step is not Step.PARK:
            trigger = Trigger.CHANGED if changed else Trigger.LEADER
            ws.caused(group, trigger, now_ms, member_id, request.reason or "")
        _park(group, member, context, out)
        start_or_continue(ws, group, now_ms, out)
        return
    if timeouts != (member.rebalance_timeout_ms, member.session_timeout_ms):
        ws.store_again(group, ws.assignments(group), out)
    ws.arm_session(member, now_ms)
    response = join_response(group, ws.stored(group), member)
    out.replies.append(Reply(context.token, response))


def _update(group: Group, member: Member, request: JoinGroupRequest) -> None:
    rebalance_ms = _rebalance_timeout_ms(request)
    group.update(member, _protocols(request), rebalance_ms, request.session_timeout_ms)


def _park(group: Group, member: Member, context: RequestContext, out: Effects) -> None:
    """Let the JoinGroup wait. One that this member had waiting was given up by its client."""
    earlier = group.park_join(member, context)
    if earlier is not None:
        refuse_join(out, earlier, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)


def _new_member(
    group: Group, member_id: str, request: JoinGroupRequest, context: RequestContext
) -> Member:
    return Member(
        group_id=group.group_id,
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id[:MAX_CLIENT_ID_CHARS],
        client_host=context.client_host,
        protocols=_protocols(request),
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
        session_timeout_ms=request.session_timeout_ms,
    )


def _add(
    ws: Workspace,
    group: Group,
    member_id: str,
    request: JoinGroupRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """Take in a new member; its JoinGroup waits, five minutes at most."""
    member = _new_member(group, member_id, request, context)
    member.is_new = True
    if group.state is GroupState.PREPARING and group.previous_state is GroupState.EMPTY:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    _park(group, member, context, out)
    ws.timers.arm(member.timer_key, now_ms + ws.config.group_new_member_join_timeout_ms)
    ws.caused(group, Trigger.JOINED, now_ms, member_id, request.reason or "")
    start_or_continue(ws, group, now_ms, out)


def _replace(
    ws: Workspace,
    group: Group,
    old_id: str,
    new_id: str,
    request: JoinGroupRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    """A static member came back under a new id (KIP-345, KIP-814)."""
    member = _new_member(group, new_id, request, context)
    leader_until_now = group.leader or ""
    assignments = ws.assignments(group)
    assignments[new_id] = assignments.pop(old_id, b"")
    old = group.members[old_id]
    parked_join, parked_sync = group.unpark_join(old), old.parked_sync
    group.replace_static(old_id, member)
    ws.timers.cancel(old.timer_key)
    ws.arm_session(member, now_ms)
    if parked_join is not None:
        refuse_join(out, parked_join, old_id, ErrorCode.FENCED_INSTANCE_ID)
    if parked_sync is not None:
        refuse_sync(out, parked_sync, ErrorCode.FENCED_INSTANCE_ID)
    protocol = ws.stored(group).protocol
    if (
        group.state is not GroupState.STABLE
        or group.vote() != protocol
        or _reads_other_topics(old.metadata(protocol), member.metadata(protocol))
    ):
        ws.caused(group, Trigger.STATIC_BACK, now_ms, new_id, request.reason or "")
        _park(group, member, context, out)
        start_or_continue(ws, group, now_ms, out)
        return
    ws.store_again(group, assignments, out)
    response = join_response(group, ws.stored(group), member)
    if context.api_version >= SKIP_ASSIGNMENT_FROM:
        response.skip_assignment = group.leader == new_id
    else:
        # An older leader would compute a new assignment that a stable group never receives: with
        # the old id as the leader's id, it acts as a follower.
        response.leader, response.members = leader_until_now, []
    out.replies.append(Reply(context.token, response))


def _reads_other_topics(old: bytes, new: bytes) -> bool:
    """Whether the subscribed topics differ; owned partitions and user data may (spec 2.10)."""
    topics = subscription_topics(new)
    return topics is not None and topics != subscription_topics(old)
