"""Where logs begin and end, for commands that must not end with the first that cannot be asked.

Rules: a partition of a deleted topic, without a leader, or whose leader does not answer or fails is
left out of what is found; one leader that hangs costs `LEADER_S`, not the time of a whole call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from kohort.errors import KohortError
from kohort.lean import dataclass

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import TopicDescription
    from kohort.client.common.types import TopicPartition

Isolation = Literal["read_uncommitted", "read_committed"]
LEADER_S: Final = 5.0
"""How long a leader may take for all of its partitions."""


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
    return _listed(admin, _by_leader(topics), spec, isolation)


def spans(
    admin: Admin, topics: Iterable[TopicDescription], isolation: Isolation = "read_uncommitted"
) -> Spans:
    """Where the logs of topics begin and end; a leader that hangs is asked once."""
    led = _by_leader(topics)
    ends = _listed(admin, led, "latest", isolation)
    answering = {leader: [tp for tp in tps if tp in ends] for leader, tps in led.items()}
    firsts = _listed(admin, answering, "earliest", isolation)
    return Spans(
        firsts,
        {tp: ends[tp] for tp in firsts},
        sorted(tp for tps in led.values() for tp in tps if tp not in firsts),
    )


def span_of(admin: Admin, tp: TopicPartition, isolation: Isolation) -> tuple[int, int]:
    """Where one log begins and ends. Raises KohortError where its leader does not answer."""
    ends = _listed(admin, {0: [tp]}, "latest", isolation)
    firsts = _listed(admin, {0: [tp]}, "earliest", isolation) if ends else {}
    if not firsts:
        raise KohortError(
            f"{tp} cannot be read now: it has no leader, its leader does not answer, or there is "
            "no such partition; /cluster shows the brokers"
        )
    return firsts[tp], ends[tp]


def _by_leader(topics: Iterable[TopicDescription]) -> dict[int, list[TopicPartition]]:
    """The partitions of topics by their leaders, -1 for those without one."""
    from kohort.client.common.types import TopicPartition

    led: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition)
            led.setdefault(max(-1, partition.leader), []).append(tp)
    return led


def _listed(
    admin: Admin,
    led: Mapping[int, Sequence[TopicPartition]],
    spec: Literal["earliest", "latest"] | int,
    isolation: Isolation,
) -> dict[TopicPartition, int]:
    return {
        tp: at.offset
        for leader, partitions in led.items()
        if leader >= 0 and partitions
        for tp, at in admin.list_offsets(
            dict.fromkeys(partitions, spec),
            isolation_level=isolation,
            partial=True,
            timeout_s=LEADER_S,
        ).items()
    }
