"""One look at a group of either protocol, for conditions and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_table import MemberState


class MemberLook(NamedTuple):
    """A member as its coordinator has it."""

    client_id: str
    instance_id: str | None
    epochs: tuple[int, int]
    """The present and the previous member epoch; twice the generation in a classic group."""


class GroupLook(NamedTuple):
    """A group as its coordinator has it."""

    consumer: bool
    """Whether it is a consumer group (KIP-848)."""
    epoch: int
    """The generation, or the group epoch."""
    state: str
    """empty, preparing, completing, assigning, reconciling, stable."""
    members: Mapping[str, MemberLook]
    late: frozenset[str]
    """Members that have something else to do in time: to sync, to give partitions up."""


def look_at(shard: GroupShard, group_id: str) -> GroupLook | None:
    """A group in a shard's memory; None when it has none of this id."""
    group = shard.durable.consumer_groups.get(group_id)
    if group is not None:
        return _consumer_group(group)
    live = shard.groups.get(group_id)
    if live is None:
        return None
    stored = shard.durable.groups.get(group_id)
    epoch = -1 if stored is None else stored.generation
    members = {
        member.member_id: MemberLook(member.client_id, member.instance_id, (epoch, epoch))
        for member in live.members.values()
    }
    late = frozenset(live.pending_sync)
    return GroupLook(False, epoch, live.state.name.lower(), members, late)


def _consumer_group(group: ConsumerGroup) -> GroupLook:
    members: dict[str, MemberLook] = {}
    late: set[str] = set()
    for member_id, member in group.members.items():
        current = group.current(member_id)
        epochs = (current.epoch, current.previous_epoch)
        members[member_id] = MemberLook(member.client_id, member.instance_id, epochs)
        if current.state is not MemberState.STABLE or member.classic is not None:
            late.add(member_id)
    return GroupLook(True, group.epoch, group.state().name.lower(), members, frozenset(late))


def group_ids(shard: GroupShard) -> list[str]:
    """Every group of a shard, of either protocol."""
    return sorted({*shard.groups, *shard.durable.consumer_groups})
