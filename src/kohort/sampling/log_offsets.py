"""Where logs begin and end, for commands that must not end with the first that cannot be asked.

Rules: a partition of a deleted topic, without a leader, or whose leader does not answer or fails is
left out of what is found. All leaders are asked at once: those that hang cost `LEADER_S` together,
not the time of a whole call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import OffsetSpec, TopicDescription
    from kohort.client.common.types import TopicPartition

Isolation = Literal["read_uncommitted", "read_committed"]
LEADER_S: Final = 5.0
"""How long leaders may take for all of their partitions."""


def topics_there(admin: Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Those of the topics that there are, as the cluster describes them."""
    there = {t.name for t in admin.list_topics(include_internal=True)}
    existing = sorted(there & set(names))
    return admin.describe_topics(existing) if existing else {}


def partition_offsets(
    admin: Admin,
    partitions: Iterable[TopicPartition],
    spec: OffsetSpec,
    isolation: Isolation = "read_uncommitted",
) -> dict[TopicPartition, int]:
    """Offsets by time or by name in the logs of partitions, as far as their leaders tell.

    Args:
        admin: of the cluster.
        partitions: which; they need not exist any more.
        spec: as `Admin.list_offsets` takes it.
        isolation: whose view it is.

    Returns:
        Offsets; -1 where no record is as young as a time. What no leader tells is not in it.
    """
    wanted: dict[TopicPartition, OffsetSpec] = dict.fromkeys(partitions, spec)
    if not wanted:
        return {}
    found = admin.list_offsets(wanted, isolation_level=isolation, partial=True, timeout_s=LEADER_S)
    return {tp: at.offset for tp, at in found.items()}


def offsets(
    admin: Admin,
    topics: Iterable[TopicDescription],
    spec: Literal["earliest", "latest"],
    isolation: Isolation = "read_uncommitted",
) -> dict[TopicPartition, int]:
    """Where the logs of topics begin or end, as far as their leaders tell."""
    from kohort.client.common.types import TopicPartition

    led = [
        TopicPartition(topic.name, partition.partition)
        for topic in topics
        for partition in topic.partitions
        if partition.leader >= 0
    ]
    return partition_offsets(admin, led, spec, isolation)
