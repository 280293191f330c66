"""Offset retention, and offsets of deleted topics (spec 2.11; KIP-186, 211).

Rules:
- An offset expires by its own expiry time where it has one; else `offsets.retention.minutes` after
  the group became Empty (and after the commit, if that was later); for a group that never had
  members, after the commit. In a Stable group only topics that it no longer subscribes to expire.
  While a group rebalances nothing does (KAFKA-13636), and never what an open transaction holds.
- In a consumer group (KIP-848) what counts is the commit, and that nobody reads the topic.
- A group without members is deleted with its last offset, not before its time is over: until then
  its generation must keep rising.
- The sweep runs in steps of bounded size; the rest is due at once, after other events.
"""

from __future__ import annotations

from collections.abc import Callable

from kohort.group.coordinator.handlers.delete_groups import delete_consumer_group, delete_group
from kohort.group.coordinator.state.classic_group import SWEEP, Group
from kohort.group.coordinator.state.classic_records import (
    NO_EXPIRY,
    StoredOffset,
    TopicPartition,
    offset_tombstone,
)
from kohort.group.coordinator.state.classic_table import GroupState
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.context import Workspace
from kohort.group.coordinator.state.effects import Effects
from kohort.group.coordinator.state.timers import TimerKey

SWEEP_KEY: TimerKey = (SWEEP, "", "")
GROUPS_IN_A_STEP = 1_000


class Sweep:
    """The expiry sweep of one shard and how far it has come."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: list[str] = []

    def arm(self, ws: Workspace, now_ms: int) -> None:
        """Set the time of the next sweep."""
        ws.timers.arm(SWEEP_KEY, now_ms + ws.config.offsets_retention_check_interval_ms)

    def step(self, ws: Workspace, now_ms: int, out: Effects) -> None:
        """Sweep some groups; arm the timer for the rest, or for the next sweep."""
        if not self._left:
            self._left = [*reversed(ws.durable.consumer_groups), *reversed(ws.groups)]
        for _ in range(min(GROUPS_IN_A_STEP, len(self._left))):
            room = ws.config.offsets_sweep_max_records - len(out.records)
            if room <= 0:
                break
            group_id = self._left[-1]
            consumer, group = ws.durable.consumer_groups.get(group_id), ws.groups.get(group_id)
            if consumer is not None:
                done = _sweep_consumer_group(ws, consumer, now_ms, room, out)
            else:
                done = group is None or _sweep_group(ws, group, now_ms, room, out)
            if done:
                self._left.pop()
        if self._left:
            ws.timers.arm(SWEEP_KEY, now_ms)
        else:
            self.arm(ws, now_ms)


def _sweep_group(ws: Workspace, group: Group, now_ms: int, room: int, out: Effects) -> bool:
    """Write what has expired of one group, `room` records at most; True when that was all."""
    wall_ms = ws.wall_ms(now_ms)
    offsets = ws.durable.offsets.get(group.group_id, {})
    expired = [
        partition
        for partition, offset in offsets.items()
        if _has_expired(ws, group, partition, offset, wall_ms)
    ]
    if len(expired) > room:
        expired, done = expired[:room], False
    else:
        done = True
    if done and len(expired) == len(offsets) and _may_go(ws, group, wall_ms):
        delete_group(ws, group, out)
        return True
    out.records.extend(offset_tombstone(group.group_id, partition) for partition in expired)
    return done


def _sweep_consumer_group(
    ws: Workspace, group: ConsumerGroup, now_ms: int, room: int, out: Effects
) -> bool:
    """Write what has expired of a consumer group: offsets of topics that nobody reads."""
    wall_ms, group_id = ws.wall_ms(now_ms), group.group_id
    subscribed = group.subscribed_topics()
    offsets = ws.durable.offsets.get(group_id, {})
    expired = [
        partition
        for partition, offset in offsets.items()
        if partition[0] not in subscribed
        and not ws.durable.is_pending(group_id, partition)
        and _is_old(ws, offset, offset.commit_timestamp_ms, wall_ms)
    ]
    if len(expired) > room:
        out.records.extend(offset_tombstone(group_id, partition) for partition in expired[:room])
        return False
    may_go = not group.members and group_id not in ws.durable.open_producers
    if may_go and len(expired) == len(offsets):
        delete_consumer_group(ws, group, out)
    else:
        out.records.extend(offset_tombstone(group_id, partition) for partition in expired)
    return True


def _has_expired(
    ws: Workspace, group: Group, partition: TopicPartition, offset: StoredOffset, wall_ms: int
) -> bool:
    since_ms = offset.commit_timestamp_ms
    topics = group.subscribed_topics
    if group.protocol_type is None:
        pass
    elif group.state is GroupState.EMPTY:
        since_ms = max(since_ms, ws.stored(group).state_timestamp_ms)
    elif group.state is not GroupState.STABLE or topics is None or partition[0] in topics:
        return False
    if ws.durable.is_pending(group.group_id, partition):
        return False
    return _is_old(ws, offset, since_ms, wall_ms)


def _is_old(ws: Workspace, offset: StoredOffset, since_ms: int, wall_ms: int) -> bool:
    if offset.expire_timestamp_ms != NO_EXPIRY:
        return wall_ms >= offset.expire_timestamp_ms
    return wall_ms - since_ms >= ws.config.offsets_retention_ms


def _may_go(ws: Workspace, group: Group, wall_ms: int) -> bool:
    """Whether a group whose offsets have all expired may be deleted."""
    if group.state is not GroupState.EMPTY or group.pending_join:
        return False
    if group.group_id in ws.durable.open_producers:  # KAFKA-19163
        return False
    stored = ws.stored(group)
    since_ms = wall_ms - stored.state_timestamp_ms
    return stored.generation == 0 or since_ms >= ws.config.offsets_retention_ms


def forget_topics(ws: Workspace, is_gone: Callable[[str], bool], out: Effects) -> None:
    """Tombstones for every offset of deleted topics, in all groups, pending ones too."""
    for group_id in (*ws.groups, *ws.durable.consumer_groups):
        for partition in ws.durable.partitions_of(group_id):
            if is_gone(partition[0]):
                out.records.append(offset_tombstone(group_id, partition))
