"""Members that speak the classic protocol inside a consumer group (KIP-848, online migration).

Rules:
- To them the member epoch is the generation, and the group has no leader: JoinGroup and SyncGroup
  are answered at once, and SyncGroup returns the coordinator's assignment.
- A member's JoinGroup names its owned partitions, so each join is one step towards the target, as a
  heartbeat is for the others. When a next step is due, its heartbeat is answered
  REBALANCE_IN_PROGRESS; it then has its rebalance timeout to join, and after that to sync.
- The ids that MEMBER_ID_REQUIRED hands out are not remembered: a member that brings one may join,
  unless it claims partitions. Such a member was fenced and does not know yet; UNKNOWN_MEMBER_ID
  makes it drop what others may have by now (G1). Apache Kafka takes it in.
- A static member that takes the place of the last one of the newer protocol turns the group into a
  classic one (downgrade). Nothing has moved by that, so nobody else is asked to join again.
"""

from __future__ import annotations

from kohort.errors import BrokerError, DecodeError, ErrorCode
from kohort.group.assignors.base import AssignorError, MemberView
from kohort.group.assignors.protocol import decode_subscription, encode_assignment
from kohort.group.coordinator.handlers.classic_rebalance import (
    CONSUMER_PROTOCOL_TYPE,
    start_rebalance,
)
from kohort.group.coordinator.handlers.consumer_heartbeat import (
    check_size,
    reached,
    step_on,
    take_word,
)
from kohort.group.coordinator.handlers.consumer_leave import fence, static_member, unknown_member
from kohort.group.coordinator.handlers.consumer_reconcile import Owned
from kohort.group.coordinator.handlers.consumer_target_assignment import accept, retarget
from kohort.group.coordinator.handlers.downgrade import (
    convert,
    held_by,
    may_downgrade,
    protocol_version,
)
from kohort.group.coordinator.state import consumer_timers
from kohort.group.coordinator.state.classic_group import Protocols
from kohort.group.coordinator.state.consumer_draft import Draft
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import ClassicMetadata, Current, MemberMetadata
from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.context import (
    MAX_CLIENT_ID_CHARS,
    Workspace,
    refuse_join,
    refuse_sync,
)
from kohort.group.coordinator.state.effects import Effects, Reply, RequestContext
from kohort.group.coordinator.state.rebalance_history import REASON_CHARS_MAX, Trigger
from kohort.group.coordinator.state.topics_image import by_name
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import MemberIdentity
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse

MEMBER_ID_REQUIRED_FROM = 4


# JoinGroup


def join(
    ws: Workspace, request: JoinGroupRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer a JoinGroup to a consumer group that has members."""
    group = ws.durable.consumer_groups[request.group_id]
    try:
        _join(ws, group, request, context, now_ms, out)
    except BrokerError as error:
        member_id = "" if error.code == ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        refuse_join(out, context, member_id, ErrorCode(error.code))
    except AssignorError:
        refuse_join(out, context, request.member_id, ErrorCode.UNKNOWN_SERVER_ERROR)


def _join(
    ws: Workspace,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    context: RequestContext,
    now_ms: int,
    out: Effects,
) -> None:
    instance_id = request.group_instance_id
    holder = group.static_members.get(instance_id) if instance_id is not None else None
    if request.member_id not in group.members and holder is None:
        check_size(ws, group)
    protocols = tuple((p.name, p.metadata) for p in request.protocols)
    if sum(len(name) + len(data) for name, data in protocols) > ws.config.group_record_max_bytes:
        raise BrokerError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    _check_protocols(group, request, protocols)
    member_id = request.member_id
    if not member_id:
        member_id = f"{instance_id or context.client_id[:MAX_CLIENT_ID_CHARS]}-{ws.new_id()}"
        if instance_id is None and context.api_version >= MEMBER_ID_REQUIRED_FROM:
            refuse_join(out, context, member_id, ErrorCode.MEMBER_ID_REQUIRED)
            return
    elif instance_id is not None:
        static_member(group, instance_id, member_id)
    view = _subscription(member_id, protocols)
    draft = Draft(group, Effects())
    owned = _owned(ws, view)
    if holder is not None and holder != member_id:
        # Kafka lets it start in the target's epoch, and then it would not be led to the target.
        draft.replace(holder, member_id, group.current(holder)._replace(epoch=0, previous_epoch=0))
    if member_id not in group.members and not _covers(draft.current(member_id), owned):
        raise unknown_member(member_id)
    old = draft.member(member_id)
    member = _described(old, view, request, context, protocols)
    changed = take_word(ws, draft, member_id, old, member, now_ms)
    if holder is not None and may_downgrade(ws, group, [holder], joins=1):
        generation = _downgrade(ws, draft, holder, member_id, changed, now_ms, out)
    else:
        retarget(ws, draft)
        step_on(ws, draft, member_id, member, owned)
        accept(ws, draft, now_ms, out)
        _arm_joined(ws, group.group_id, member_id, member, now_ms)
        reached(ws, group.group_id, member_id, draft.current(member_id), now_ms)
        generation = draft.current(member_id).epoch
        if holder is not None and holder != member_id:
            consumer_timers.cancel(ws, group.group_id, holder)
    response = JoinGroupResponse(
        generation_id=generation,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocols[0][0],
        member_id=member_id,
    )
    out.replies.append(Reply(context.token, response))


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest, protocols: Protocols) -> None:
    """Raises BrokerError when the other classic members could not share a group with this one."""
    shared = request.protocol_type == CONSUMER_PROTOCOL_TYPE and bool(protocols)
    if shared:
        others = [m.classic for m in group.members.values() if m.classic is not None]
        supported = [{name for name, _ in classic.protocols} for classic in others]
        shared = any(all(name in names for names in supported) for name, _ in protocols)
    if not shared:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _subscription(member_id: str, protocols: Protocols) -> MemberView:
    try:
        return decode_subscription(member_id, protocols[0][1])
    except DecodeError as error:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _described(
    old: MemberMetadata | None,
    view: MemberView,
    request: JoinGroupRequest,
    context: RequestContext,
    protocols: Protocols,
) -> MemberMetadata:
    timeout_ms = request.rebalance_timeout_ms
    rack_id = view.rack if view.rack is not None or old is None else old.rack_id
    return MemberMetadata(
        instance_id=request.group_instance_id,
        rack_id=rack_id,
        client_id=context.client_id[:MAX_CLIENT_ID_CHARS],
        client_host=context.client_host,
        topics=tuple(sorted(view.topics)),
        regex="",
        rebalance_timeout_ms=timeout_ms if timeout_ms >= 0 else request.session_timeout_ms,
        server_assignor=old.server_assignor if old is not None else None,
        classic=ClassicMetadata(request.session_timeout_ms, protocols),
    )


def _owned(ws: Workspace, view: MemberView) -> Owned:
    """The partitions that it claims, by topic id. Topics that are gone have no owner."""
    by_id: dict[bytes, frozenset[int]] = {}
    for name, numbers in view.owned.items():
        topic = ws.topics.by_name.get(name)
        if topic is not None:
            by_id[topic.topic_id] = frozenset(numbers)
    return by_id


def _covers(current: Current, owned: Owned) -> bool:
    """Whether everything that is owned is what the member has, as far as is known here."""
    return all(
        number in current.assigned.get(topic_id, ()) or number in current.pending.get(topic_id, ())
        for topic_id, numbers in owned.items()
        for number in numbers
    )


def _arm_joined(
    ws: Workspace, group_id: str, member_id: str, member: MemberMetadata, now_ms: int
) -> None:
    """It has joined: now it has to sync."""
    consumer_timers.cancel(ws, group_id, member_id, consumer_timers.JOIN, consumer_timers.REBALANCE)
    consumer_timers.arm_session(ws, group_id, member_id, member, now_ms)
    consumer_timers.arm(ws, consumer_timers.SYNC, group_id, member_id, member, now_ms)


def _downgrade(
    ws: Workspace,
    draft: Draft,
    holder: str,
    member_id: str,
    changed: bool,
    now_ms: int,
    out: Effects,
) -> int:
    """The last member of the newer protocol is replaced: the generation of the classic group."""
    group = draft.group
    settled = not changed and draft.epoch == group.epoch and _had_settled(group, holder)
    consumer_timers.dissolve(ws, group, out)
    members = dict(draft.members())
    held = {m: draft.target(m) if settled else held_by(draft.current(m)) for m in members}
    classic = convert(ws, group.group_id, draft.epoch, members, held, now_ms, out, settled=settled)
    if not settled:
        ws.caused(classic, Trigger.DOWNGRADED, now_ms)
        start_rebalance(ws, classic, now_ms, out)
    return draft.epoch


def _had_settled(group: ConsumerGroup, holder: str) -> bool:
    """Whether everybody had what the target gives, the member that is replaced too."""
    for member_id in group.members:
        current, target = group.current(member_id), group.target(member_id)
        in_epoch = member_id == holder or current.epoch == group.epoch
        has = {t: tuple(sorted(numbers)) for t, numbers in current.assigned.items()}
        if not in_epoch or current.pending or has != target:
            return False
    return group.epoch == group.target_epoch


# SyncGroup, Heartbeat, LeaveGroup


def _classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[MemberMetadata, ClassicMetadata]:
    """The member, which must speak the classic protocol. Raises BrokerError."""
    if instance_id is not None:
        static_member(group, instance_id, member_id)
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        raise unknown_member(member_id)
    return member, member.classic


def _check_generation(current: Current, generation: int) -> None:
    if generation != current.epoch:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION)


def sync(
    ws: Workspace, request: SyncGroupRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer a SyncGroup to a consumer group that has members."""
    group = ws.durable.consumer_groups[request.group_id]
    try:
        response = _synced(ws, group, request, now_ms)
    except BrokerError as error:
        refuse_sync(out, context, ErrorCode(error.code))
        return
    out.replies.append(Reply(context.token, response))


def _synced(
    ws: Workspace, group: ConsumerGroup, request: SyncGroupRequest, now_ms: int
) -> SyncGroupResponse:
    member_id = request.member_id
    member, classic = _classic(group, member_id, request.group_instance_id)
    current = group.current(member_id)
    _check_generation(current, request.generation_id)
    name, metadata = classic.protocols[0]
    requested = (request.protocol_type, request.protocol_name)
    if requested[0] not in (None, CONSUMER_PROTOCOL_TYPE) or requested[1] not in (None, name):
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    consumer_timers.arm_session(ws, group.group_id, member_id, member, now_ms)
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
        consumer_timers.arm_join_if_needed(ws, group.group_id, member_id, member, now_ms)
        raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer_timers.cancel(ws, group.group_id, member_id, consumer_timers.SYNC)
    assigned = {t: tuple(sorted(numbers)) for t, numbers in current.assigned.items()}
    return SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=name,
        assignment=encode_assignment(
            by_name(ws.topics, assigned), version=protocol_version(metadata)
        ),
    )


def heartbeat(
    ws: Workspace, request: HeartbeatRequest, context: RequestContext, now_ms: int, out: Effects
) -> None:
    """Answer a Heartbeat to a consumer group that has members."""
    group = ws.durable.consumer_groups[request.group_id]
    code = 0
    try:
        member, _ = _classic(group, request.member_id, request.group_instance_id)
        current = group.current(request.member_id)
        _check_generation(current, request.generation_id)
        consumer_timers.arm_session(ws, group.group_id, request.member_id, member, now_ms)
        if _has_a_step_to_take(ws, group, request.member_id, current):
            consumer_timers.arm_join_if_needed(
                ws, group.group_id, request.member_id, member, now_ms
            )
            code = int(ErrorCode.REBALANCE_IN_PROGRESS)
    except BrokerError as error:
        code = error.code
    out.replies.append(Reply(context.token, HeartbeatResponse(error_code=code)))


def _has_a_step_to_take(
    ws: Workspace, group: ConsumerGroup, member_id: str, current: Current
) -> bool:
    """Whether joining again would move the member on."""
    if current.epoch < group.epoch or current.state is MemberState.UNREVOKED:
        return True
    if current.state is not MemberState.UNRELEASED:
        return False
    return not any(
        group.owner(topic_id, number) not in (None, member_id)
        for topic_id, numbers in group.target(member_id).items()
        for number in numbers
    )


def leave(
    ws: Workspace,
    group: ConsumerGroup,
    leaving: list[MemberIdentity],
    now_ms: int,
    out: Effects,
) -> list[ErrorCode]:
    """Take members out by LeaveGroup; the code for each.

    By its instance id alone an administrator removes a static member of either protocol.
    """
    codes: list[ErrorCode] = []
    gone: dict[str, str] = {}
    for who in leaving:
        try:
            if not who.member_id and who.group_instance_id is not None:
                member_id = static_member(group, who.group_instance_id, "")
            else:
                member_id = who.member_id
                _classic(group, member_id, who.group_instance_id)
            if member_id in gone:
                raise unknown_member(member_id)
        except BrokerError as error:
            codes.append(ErrorCode(error.code))
            continue
        gone[member_id] = (who.reason or "")[:REASON_CHARS_MAX]
        codes.append(ErrorCode.NONE)
    if gone:
        fence(ws, group, gone, Trigger.LEFT, now_ms, out)
    return codes
