"""A consumer group becomes a classic one: no member of the newer protocol is left.

Rules:
- The members keep their ids; the generation is the group's epoch. Its record follows the
  tombstones of the consumer group in the same batch.
- After a member has left, its partitions need an owner: the members are asked to join again.
  The generation is then stored without a leader, so that a coordinator that takes over here asks
  them as well (spec 2.12); Apache Kafka would not. The stored assignment is the set that each
  member still holds, for the case that the group is converted back meanwhile (G1).
- Where a static member that speaks the classic protocol took its own place again in a group that
  had settled, nothing has moved: the assignment is the target, and no member is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kohort.group.assignors.protocol import VERSION, encode_assignment
from kohort.group.coordinator.handlers.classic_rebalance import (
    CONSUMER_PROTOCOL_TYPE,
    start_rebalance,
    topics_of,
)
from kohort.group.coordinator.state import consumer_timers
from kohort.group.coordinator.state.classic_group import Group, Member
from kohort.group.coordinator.state.classic_records import group_record
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import Current, MemberMetadata, Partitions
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects
from kohort.group.coordinator.state.rebalance_history import Trigger
from kohort.group.coordinator.state.topics_image import TopicsImage, by_name
from kohort.lean import replace


def may_downgrade(
    ws: Workspace, group: ConsumerGroup, gone: Collection[str], *, joins: int = 0
) -> bool:
    """Whether the group is to become a classic one once `gone` have left and `joins` have come."""
    left = len(group.members) - sum(member_id in group.members for member_id in gone) + joins
    return (
        left > 0
        and group.all_classic_without(gone)
        and ws.config.downgrade_enabled
        and left <= ws.config.group_max_size
    )


def downgrade(
    ws: Workspace, group: ConsumerGroup, gone: Collection[str], now_ms: int, out: Effects
) -> None:
    """Convert the group, without `gone`, and ask the others to join again."""
    consumer_timers.dissolve(ws, group, out)
    left = {m: member for m, member in group.members.items() if m not in gone}
    held = {m: held_by(group.current(m)) for m in left}
    classic = convert(ws, group.group_id, group.epoch, left, held, now_ms, out, settled=False)
    ws.caused(classic, Trigger.DOWNGRADED, now_ms)
    start_rebalance(ws, classic, now_ms, out)


def held_by(current: Current) -> Partitions:
    """Everything that a member has, or has not given up yet."""
    return {
        topic_id: tuple(
            sorted({*current.assigned.get(topic_id, ()), *current.pending.get(topic_id, ())})
        )
        for topic_id in current.assigned.keys() | current.pending.keys()
    }


def convert(
    ws: Workspace,
    group_id: str,
    generation: int,
    members: Mapping[str, MemberMetadata],
    assigned: Mapping[str, Partitions],
    now_ms: int,
    out: Effects,
    *,
    settled: bool,
) -> Group:
    """The classic group of these members, Stable, with its record. One that is not settled has no
    leader there, and its members are to be asked to join again."""
    group = ws.groups[group_id] = Group(group_id)
    group.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member_id, member in members.items():
        group.add(classic_member(group_id, member_id, member))
    group.state = GroupState.STABLE
    assignments = {
        member.member_id: assignment_bytes(ws.topics, assigned[member.member_id], member)
        for member in group.members.values()
    }
    stored = ws.snapshot(group, generation, group.vote(), assignments, ws.wall_ms(now_ms))
    if not settled:
        stored = replace(stored, leader=None)
    out.records.append(group_record(group_id, stored))
    group.subscribed_topics = topics_of(stored)
    for member in group.members.values():
        ws.arm_session(member, now_ms)
    return group


def classic_member(group_id: str, member_id: str, member: MemberMetadata) -> Member:
    """A member as a classic group has it."""
    assert member.classic is not None
    return Member(
        group_id=group_id,
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        protocols=member.classic.protocols,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
    )


def assignment_bytes(topics: TopicsImage, partitions: Partitions, member: Member) -> bytes:
    """An assignment in the version of the member's own subscription."""
    return encode_assignment(
        by_name(topics, partitions), version=protocol_version(member.protocols[0][1])
    )


def protocol_version(metadata: bytes) -> int:
    """The version of consumer-protocol bytes that we write too: theirs, or our newest."""
    return min(max(int.from_bytes(metadata[:2], "big", signed=True), 0), VERSION)
