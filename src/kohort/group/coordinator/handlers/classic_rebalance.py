"""Rebalances: how one starts, how its join phase ends, and who is dropped on the way.

Rules:
- A rebalance that has ended always has a higher generation, also when no member changed, and its
  record is in the log before any JoinGroup is answered (spec 2.6). Apache Kafka writes only at the
  sync; this is our one departure from it here.
- A member's session pauses while its JoinGroup or SyncGroup waits; it restarts with the answer
  (spec 2.3). A new member's waiting JoinGroup has five minutes instead.
- Static members outlive a join phase that they miss (KIP-345); dynamic ones do not.
- A removed member gets its waiting requests answered.
"""

from __future__ import annotations

from kohort.errors import ErrorCode, ProtocolError
from kohort.group.coordinator.state.classic_group import JOIN, SESSION, SYNC, Group, Member
from kohort.group.coordinator.state.classic_records import StoredGroup, group_record
from kohort.group.coordinator.state.classic_table import GroupEvent, GroupState
from kohort.group.coordinator.state.context import Workspace, refuse_join, refuse_sync
from kohort.group.coordinator.state.effects import Effects, Reply
from kohort.group.coordinator.state.rebalance_history import Trigger
from kohort.group.coordinator.state.timers import TimerKey
from kohort.wire import decode_versioned
from kohort.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from kohort.wire.messages.join_group_response import JoinGroupResponse, JoinGroupResponseMember

CONSUMER_PROTOCOL_TYPE = "consumer"


def join_key(group: Group) -> TimerKey:
    """The key of the end of the group's join phase."""
    return (JOIN, group.group_id, "")


def sync_key(group: Group) -> TimerKey:
    """The key of the time until which every member of the generation must have synced."""
    return (SYNC, group.group_id, "")


def start_rebalance(ws: Workspace, group: Group, now_ms: int, out: Effects) -> None:
    """Ask everybody to join again (prepareRebalance in Kafka)."""
    ws.history.began(group.group_id, ws.wall_ms(now_ms))
    if group.state is GroupState.COMPLETING:
        refuse_parked_syncs(ws, group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, out)
    group.pending_sync.clear()
    ws.timers.cancel(sync_key(group))
    out.heartbeat_hints += [
        (m.client_id, m.client_host) for m in group.members.values() if m.parked_join is None
    ]
    group.move(GroupEvent.REBALANCE_STARTED)
    if group.previous_state is GroupState.EMPTY:
        delay_ms = ws.config.group_initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        ws.timers.arm(join_key(group), now_ms + delay_ms)
    elif group.all_joined():
        end_join_phase(ws, group, now_ms, out)
    else:
        ws.timers.arm(join_key(group), now_ms + group.rebalance_timeout_ms())


def start_or_continue(ws: Workspace, group: Group, now_ms: int, out: Effects) -> None:
    """After a JoinGroup: start a rebalance, or end the join phase that it may have completed."""
    if group.state is GroupState.PREPARING:
        end_join_phase_if_all_joined(ws, group, now_ms, out)
    else:
        start_rebalance(ws, group, now_ms, out)


def end_join_phase_if_all_joined(ws: Workspace, group: Group, now_ms: int, out: Effects) -> None:
    """End the join phase when nobody is missing; the initial delay is never cut short by it."""
    if (
        group.state is GroupState.PREPARING
        and group.previous_state is not GroupState.EMPTY
        and group.all_joined()
    ):
        end_join_phase(ws, group, now_ms, out)


def end_join_phase(ws: Workspace, group: Group, now_ms: int, out: Effects) -> None:
    """Start the next generation with those who have joined (completeJoin in Kafka)."""
    ws.timers.cancel(join_key(group))
    for member in list(group.members.values()):
        if member.parked_join is None and member.instance_id is None:
            ws.caused(group, Trigger.JOIN_OVER, now_ms, member.member_id)
            ws.timers.cancel(member.timer_key)
            group.remove(member.member_id)
    if group.members and not group.elect_joined_leader():
        # Only static members that have not joined are left: wait for them or their sessions' end.
        ws.timers.arm(join_key(group), now_ms + group.rebalance_timeout_ms())
        return
    group.pending_sync.clear()
    group.move(GroupEvent.GENERATION_STARTED if group.members else GroupEvent.DESERTED)
    protocol = group.vote() if group.members else None
    stored = ws.snapshot(group, ws.generation(group) + 1, protocol, {}, ws.wall_ms(now_ms))
    out.records.append(group_record(group.group_id, stored))
    at_ms, last = ws.wall_ms(now_ms), group.last_joined
    ws.history.joined(group.group_id, ws.stored(group), stored, last, at_ms)
    group.subscribed_topics = topics_of(stored)
    for member in group.members.values():
        parked = group.unpark_join(member)
        if parked is not None:
            response = join_response(group, stored, member)
            out.replies.append(Reply(parked.token, response))
        member.is_new = False
        ws.arm_session(member, now_ms)
        group.pending_sync[member.member_id] = None
    if group.members:
        ws.timers.arm(sync_key(group), now_ms + group.rebalance_timeout_ms())


def join_response(group: Group, stored: StoredGroup, member: Member) -> JoinGroupResponse:
    """The JoinGroup answer of a member of the generation; the leader gets all metadata (spec
    2.5)."""
    members: list[JoinGroupResponseMember] = []
    if group.leader == member.member_id:
        members = [
            JoinGroupResponseMember(
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                metadata=m.metadata(stored.protocol),
            )
            for m in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=stored.generation,
        protocol_type=group.protocol_type,
        protocol_name=stored.protocol,
        leader=group.leader or "",
        member_id=member.member_id,
        members=members,
    )


def refuse_parked_syncs(
    ws: Workspace, group: Group, code: ErrorCode, now_ms: int, out: Effects
) -> None:
    """Answer every waiting SyncGroup with an error; the sessions run again."""
    for member in group.members.values():
        if member.parked_sync is not None:
            refuse_sync(out, member.parked_sync, code)
            member.parked_sync = None
            ws.arm_session(member, now_ms)


def drop_member(ws: Workspace, group: Group, member_id: str, out: Effects) -> None:
    """Remove a member; its waiting requests are answered UNKNOWN_MEMBER_ID."""
    member = group.members[member_id]
    parked_join = group.unpark_join(member)
    group.remove(member_id)
    ws.timers.cancel(member.timer_key)
    if parked_join is not None:
        refuse_join(out, parked_join, "", ErrorCode.UNKNOWN_MEMBER_ID)
    if member.parked_sync is not None:
        refuse_sync(out, member.parked_sync, ErrorCode.UNKNOWN_MEMBER_ID)
        member.parked_sync = None


def drop_pending(ws: Workspace, group: Group, member_id: str) -> None:
    """Forget an id that was given with MEMBER_ID_REQUIRED."""
    del group.pending_join[member_id]
    ws.pending_join_bytes -= len(member_id.encode())
    ws.timers.cancel((SESSION, group.group_id, member_id))


def session_ended(ws: Workspace, group: Group, member_id: str, now_ms: int, out: Effects) -> None:
    """A member's (or pending id's) time is over (spec 2.3, 2.9)."""
    if member_id in group.pending_join:
        drop_pending(ws, group, member_id)
    elif (member := group.members.get(member_id)) is None:
        return
    elif not member.is_new and (member.parked_join or member.parked_sync):
        return  # the member waits for us; the answer restarts its session
    else:
        ws.caused(group, Trigger.SESSION_OVER, now_ms, member_id)
        drop_member(ws, group, member_id, out)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            start_rebalance(ws, group, now_ms, out)
            return
    # Unlike a JoinGroup or LeaveGroup, this may cut the initial delay short, as in Kafka.
    if group.state is GroupState.PREPARING and group.all_joined():
        end_join_phase(ws, group, now_ms, out)


def join_time_over(ws: Workspace, group: Group, now_ms: int, out: Effects) -> None:
    """The join phase's time is over, or one step of the initial delay is."""
    if group.state is not GroupState.PREPARING:
        return
    initial = group.previous_state is GroupState.EMPTY
    if initial and group.new_member_added and group.initial_remaining_ms:
        group.new_member_added = False
        remaining_ms = group.initial_remaining_ms
        delay_ms = min(ws.config.group_initial_rebalance_delay_ms, remaining_ms)
        group.initial_remaining_ms = max(remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = delay_ms
        ws.timers.arm(join_key(group), now_ms + delay_ms)
        return
    end_join_phase(ws, group, now_ms, out)


def sync_time_over(ws: Workspace, group: Group, now_ms: int, out: Effects) -> None:
    """Members of the generation that have not synced in time are dropped (GL4)."""
    if group.state not in (GroupState.COMPLETING, GroupState.STABLE) or not group.pending_sync:
        return
    for member_id in list(group.pending_sync):
        ws.caused(group, Trigger.SYNC_OVER, now_ms, member_id)
        drop_member(ws, group, member_id, out)
    start_rebalance(ws, group, now_ms, out)


def topics_of(stored: StoredGroup) -> frozenset[str] | None:
    """The topics a group subscribes to; None when that cannot be known."""
    if stored.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for member in stored.members.values():
        subscribed = subscription_topics(member.subscription)
        if subscribed is None:
            return None
        topics |= subscribed
    return frozenset(topics)


def subscription_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member's consumer-protocol metadata; None when it is something else."""
    try:
        _, subscription = decode_versioned(ConsumerProtocolSubscription, metadata, newer=True)
    except ProtocolError:
        return None
    return frozenset(subscription.topics)
