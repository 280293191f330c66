"""Where logs begin and end, for commands that must not end with the first that cannot be asked.

Rules: a partition of a deleted topic, without a leader, or whose leader does not answer or fails is
left out of what is found. All leaders are asked at once: those that hang cost `LEADER_S` together,
not the time of a whole call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from kohort.errors import KohortError
from kohort.lean import dataclass

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


@dataclass(frozen=True)
class Spans:
    """Where logs begin and end, as far as their leaders tell.

    Attributes:
        firsts: by partition; `ends` has the same partitions.
        silent: the partitions without a leader that answers.
    """

    firsts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    silent: Sequence[TopicPartition] = ()

    @property
    def total(self) -> int:
        """How many offsets the logs hold."""
        return sum(end - self.firsts[tp] for tp, end in self.ends.items())


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
    spec: Literal["earliest", "latest"] | int,
    isolation: Isolation = "read_uncommitted",
) -> dict[TopicPartition, int]:
    """Where the logs of topics begin or end, as far as their leaders tell.

    A time instead, in milliseconds since 1970, asks for the first record at or after it: -1 where
    there is none.
    """
    led, _ = _partitions(topics)
    return partition_offsets(admin, led, spec, isolation)


def spans(
    admin: Admin, topics: Iterable[TopicDescription], isolation: Isolation = "read_uncommitted"
) -> Spans:
    """Where the logs of topics begin and end; a leader that hangs is asked once."""
    led, leaderless = _partitions(topics)
    ends = partition_offsets(admin, led, "latest", isolation)
    firsts = partition_offsets(admin, ends, "earliest", isolation)
    silent = sorted([*leaderless, *(tp for tp in led if tp not in firsts)])
    return Spans(firsts, {tp: ends[tp] for tp in firsts}, silent)


def span_of(admin: Admin, tp: TopicPartition, isolation: Isolation) -> tuple[int, int]:
    """Where one log begins and ends. Raises KohortError where its leader does not answer."""
    ends = partition_offsets(admin, [tp], "latest", isolation)
    firsts = partition_offsets(admin, ends, "earliest", isolation)
    if not firsts:
        raise KohortError(
            f"{tp} cannot be read now: it has no leader, its leader does not answer, or there is "
            "no such partition; /cluster shows the brokers"
        )
    return firsts[tp], ends[tp]


def _partitions(
    topics: Iterable[TopicDescription],
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions of topics that have a leader, and those that have none."""
    from kohort.client.common.types import TopicPartition

    led: list[TopicPartition] = []
    leaderless: list[TopicPartition] = []
    for topic in topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition)
            (led if partition.leader >= 0 else leaderless).append(tp)
    return led, leaderless
