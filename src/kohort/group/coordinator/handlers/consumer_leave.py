"""How members leave a consumer group: permanently, for a while, or because they are fenced
(KIP-848).

Rules:
- Epoch -1 leaves permanently: the member's records are deleted and the group's epoch rises. Epoch
  -2 is a static member that will return: it keeps its assignment, its session continues, and other
  members see no change.
- A member whose time-out expires (session, rebalance, join, sync) is fenced: it goes as if it had
  left.
- When those who are left all speak the classic protocol, the group becomes a classic one instead
  (downgrade), if the configuration has it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.handlers.consumer_target_assignment import remember, subscription_hash
from kohort.group.coordinator.handlers.downgrade import downgrade, may_downgrade
from kohort.group.coordinator.state import consumer_timers
from kohort.group.coordinator.state.consumer_draft import Draft
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import LEFT_FOR_A_WHILE
from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects
from kohort.group.coordinator.state.rebalance_history import Trigger, cause_of
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest

_OVER: Final = {
    consumer_timers.SESSION: Trigger.SESSION_OVER,
    consumer_timers.REBALANCE: Trigger.REVOKE_OVER,
    consumer_timers.JOIN: Trigger.JOIN_OVER,
    consumer_timers.SYNC: Trigger.SYNC_OVER,
}


def leave(
    ws: Workspace,
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    now_ms: int,
    out: Effects,
) -> str:
    """A heartbeat with epoch -1 or -2; the id of who left. Raises BrokerError."""
    member_id = request.member_id
    if request.instance_id is not None:
        member_id = static_member(group, request.instance_id, member_id)
    elif member_id not in group.members:
        raise unknown_member(member_id)
    if request.member_epoch != LEFT_FOR_A_WHILE:
        fence(ws, group, {member_id: ""}, Trigger.LEFT, now_ms, out)
        return member_id
    current = group.current(member_id)
    left = current._replace(epoch=LEFT_FOR_A_WHILE, previous_epoch=current.epoch, pending={})
    if left != current and current.epoch != LEFT_FOR_A_WHILE:
        Draft(group, out).set_current(member_id, left)
    consumer_timers.cancel(ws, group.group_id, member_id, consumer_timers.REBALANCE)
    return member_id


def unknown_member(member_id: str) -> BrokerError:
    """The error for somebody who is not in the group."""
    return BrokerError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of the group."
    )


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> str:
    """The member that holds an instance id, if it is `member_id`. Raises BrokerError."""
    holder = group.static_members.get(instance_id)
    if holder is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is not in the group."
        )
    if member_id and holder != member_id:
        raise BrokerError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{holder}.",
        )
    return holder


def fence(
    ws: Workspace,
    group: ConsumerGroup,
    gone: Mapping[str, str],
    trigger: Trigger,
    now_ms: int,
    out: Effects,
) -> None:
    """Take members out of the group, with what they say about it."""
    member_ids = gone.keys()
    for member_id in member_ids:
        consumer_timers.cancel(ws, group.group_id, member_id)
    if may_downgrade(ws, group, member_ids):
        downgrade(ws, group, member_ids, now_ms, out)
        return
    draft = Draft(group, out)
    regexes = {group.members[member_id].regex for member_id in member_ids} - {""}
    for member_id in member_ids:
        draft.remove(member_id)
    for regex in regexes:  # those who stay may see more than they who go
        ws.checked_regexes.get(group.group_id, {}).pop(regex, None)
    if regexes:
        regexes -= {member.regex for _, member in draft.members()}
    for regex in sorted(regexes):
        if draft.resolved(regex) is not None:
            draft.set_regex(regex, None)
    draft.set_epoch(group.epoch + 1, subscription_hash(ws.topics, draft))
    draft.causes += [
        cause_of(trigger, group.members[member_id], member_id, ws.wall_ms(now_ms), reason)
        for member_id, reason in gone.items()
    ]
    remember(ws, draft, now_ms)


def time_over(
    ws: Workspace, group: ConsumerGroup, kind: str, member_id: str, now_ms: int, out: Effects
) -> None:
    """One of a member's timers has ended."""
    if member_id not in group.members:
        return
    unrevoked = group.current(member_id).state is MemberState.UNREVOKED
    if kind == consumer_timers.REBALANCE and not unrevoked:
        return
    fence(ws, group, {member_id: ""}, _OVER[kind], now_ms, out)
