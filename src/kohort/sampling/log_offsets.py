"""Where logs begin and end, for commands that must not end with the first that cannot be asked.

Rules: a partition of a deleted topic, without a leader, or whose leader does not answer or fails is
left out of what is found; one leader that hangs costs `LEADER_S`, not the time of a whole call.
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
"""How long a leader may take for all of its partitions."""


def topics_there(admin: Admin, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Those of the topics that there are, as the cluster describes them."""
    there = {t.name for t in admin.list_topics(include_internal=True)}
    existing = sorted(there & set(names))
    return admin.describe_topics(existing) if existing else {}


def partition_offsets(
    admin: Admin, partitions: Iterable[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, int]:
    """Offsets by time or by name in the logs of partitions, as far as their leaders tell.

    Args:
        admin: of the cluster.
        partitions: which; they need not exist any more.
        spec: as `Admin.list_offsets` takes it.

    Returns:
        Offsets; -1 where no record is as young as a time. What no leader tells is not in it.
    """
    found = admin.list_offsets(dict.fromkeys(partitions, spec), partial=True, timeout_s=LEADER_S)
    return {tp: at.offset for tp, at in found.items()}


def offsets(
    admin: Admin,
    topics: Iterable[TopicDescription],
    spec: Literal["earliest", "latest"],
    isolation: Isolation = "read_uncommitted",
) -> dict[TopicPartition, int]:
    """Where the logs of topics begin or end, as far as their leaders tell."""
    from kohort.client.common.types import TopicPartition

    led: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader >= 0:
                tp = TopicPartition(topic.name, partition.partition)
                led.setdefault(partition.leader, []).append(tp)
    return {
        tp: at.offset
        for partitions in led.values()
        for tp, at in admin.list_offsets(
            dict.fromkeys(partitions, spec),
            isolation_level=isolation,
            partial=True,
            timeout_s=LEADER_S,
        ).items()
    }
