"""The timers of a consumer group's members: keys, and when each is armed (KIP-848).

Rules:
- Session: from one heartbeat to the next; a member that uses the classic protocol has its own.
- Rebalance: from the request to give partitions up until the member has done so.
- Join and sync: of members that use the classic protocol: from the request to join
  again until it does, and from its JoinGroup until its SyncGroup.
- Any of them that expires fences the member. They are soft state: a new coordinator restarts them.
"""

from __future__ import annotations

from typing import Final

from kohort.group.coordinator.state.consumer_draft import group_tombstones
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import MemberMetadata
from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects

SESSION: Final = "consumer session"
REBALANCE: Final = "consumer rebalance"
JOIN: Final = "consumer join"
SYNC: Final = "consumer sync"
KINDS: Final = (SESSION, REBALANCE, JOIN, SYNC)


def arm_session(
    ws: Workspace, group_id: str, member_id: str, member: MemberMetadata, now_ms: int
) -> None:
    """The member has been heard of."""
    session_ms = (
        ws.timeouts_of(group_id).session_timeout_ms
        if member.classic is None
        else member.classic.session_timeout_ms
    )
    ws.timers.arm((SESSION, group_id, member_id), now_ms + session_ms)


def arm(
    ws: Workspace, kind: str, group_id: str, member_id: str, member: MemberMetadata, now_ms: int
) -> None:
    """Give the member its rebalance timeout for what `kind` waits for."""
    ws.timers.arm((kind, group_id, member_id), now_ms + max(member.rebalance_timeout_ms, 0))


def arm_join_if_needed(
    ws: Workspace, group_id: str, member_id: str, member: MemberMetadata, now_ms: int
) -> None:
    """The member was asked to join again; asking once more gives it no more time."""
    if ws.timers.deadline((JOIN, group_id, member_id)) is None:
        arm(ws, JOIN, group_id, member_id, member, now_ms)


def cancel(ws: Workspace, group_id: str, member_id: str, *kinds: str) -> None:
    """Forget timers of a member; without `kinds` all, and that it waits for partitions."""
    if not kinds:
        ws.waits.over(group_id, member_id)
    for kind in kinds or KINDS:
        ws.timers.cancel((kind, group_id, member_id))


def dissolve(ws: Workspace, group: ConsumerGroup, out: Effects) -> None:
    """The group ends here, or continues as a classic one: its records and timers go."""
    group_tombstones(group, out)
    ws.checked_topics.pop(group.group_id, None)
    ws.checked_regexes.pop(group.group_id, None)
    for member_id in group.members:
        cancel(ws, group.group_id, member_id)


def revive(ws: Workspace, group: ConsumerGroup, now_ms: int) -> None:
    """After a load: sessions of everybody, rebalance timers of who is giving partitions up."""
    for member_id, member in group.members.items():
        arm_session(ws, group.group_id, member_id, member, now_ms)
        if member.classic is None and group.current(member_id).state is MemberState.UNREVOKED:
            arm(ws, REBALANCE, group.group_id, member_id, member, now_ms)
