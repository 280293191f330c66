"""Snapshots made by hand, for tests of what is concluded from them."""

from __future__ import annotations

from typing import Any

from kohort import TopicPartition
from kohort.client.admin.types import ClusterDescription, GroupDescription, MemberDescription
from kohort.client.cluster.metadata import Node
from kohort.observe.snapshot import ClusterSnapshot, Look, Seen

NODE = Node(1, "broker", 9092)


def member(name: str, *partitions: tuple[str, int]) -> MemberDescription:
    assignment = tuple(TopicPartition(*p) for p in partitions)
    topics = tuple(sorted({p.topic for p in assignment}))
    return MemberDescription(f"{name}-id", None, name, "/10.0.0.1", topics, assignment)


def seen(committed: int | None, end: int | None, **more: Any) -> Seen:
    return Seen(committed, 0, end, end, **{"leader": 1, **more})


def look(
    at_s: float, name: str, partitions: dict[tuple[str, int], Seen], *members: MemberDescription
) -> Look:
    state = "Stable" if members else "Empty"
    group = GroupDescription(name, state, "consumer", "range", NODE, members, "classic")
    return Look(at_s, group, {TopicPartition(*tp): one for tp, one in partitions.items()})


def snapshot(at_s: float, *looks: Look, **more: Any) -> ClusterSnapshot:
    cluster = ClusterDescription("c", 1, (NODE,))
    groups = {one.group.group_id: one for one in looks}
    return ClusterSnapshot(round(at_s * 1000), at_s, cluster, {}, groups, **more)
