"""A snapshot of a whole cluster, or a look at one group, through an `Admin`.

Rules: committed offsets are asked for before the ends of logs, so that a group that moves meanwhile
is never ahead of an end. What cannot be asked is left out and named; it never ends the snapshot.

Shell: the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kohort.client.common.types import TopicPartition
from kohort.errors import KohortError
from kohort.lean import quick
from kohort.observe.snapshot import ClusterSnapshot, Look, Seen, unseen_groups
from kohort.sampling.log_offsets import offsets, topics_there

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import GroupDescription, PartitionDescription, TopicDescription
    from kohort.client.common.types import OffsetAndMetadata

TOPICS_AT_ONCE: Final = 500


class _Logs:
    """Where the logs of some topics begin and end, and who leads them."""

    def __init__(
        self, admin: Admin, topics: Mapping[str, TopicDescription], running: set[int]
    ) -> None:
        described = list(topics.values())
        self._running = running
        self._partitions = {
            TopicPartition(name, p.partition): p for name, t in topics.items() for p in t.partitions
        }
        self._firsts = offsets(admin, described, "earliest")
        self._ends = offsets(admin, described, "latest")
        self._stable = offsets(admin, described, "latest", "read_committed")
        self._uncommitted: dict[TopicPartition, Seen] = {}

    def seen(self, tp: TopicPartition, at: OffsetAndMetadata | None) -> Seen:
        base = self._uncommitted.get(tp) or self._without_offset(tp)
        return base if at is None else quick(Seen, (at.offset, *base[1:7], at.metadata))

    def _without_offset(self, tp: TopicPartition) -> Seen:
        there = self._partitions.get(tp)
        self._uncommitted[tp] = seen = Seen(
            committed=None,
            first=self._firsts.get(tp),
            stable=self._stable.get(tp),
            end=self._ends.get(tp),
            leader=None if there is None or there.leader < 0 else there.leader,
            down=self._down(there),
            exists=there is not None,
        )
        return seen

    def _down(self, there: PartitionDescription | None) -> tuple[int, ...]:
        return tuple(n for n in there.replicas if n not in self._running) if there else ()


def _partitions_of(
    group: GroupDescription, committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    owned = {tp for m in group.members for tp in (*m.assignment, *(m.target or ()))}
    return sorted({*committed, *owned})


def look_at(admin: Admin, group: GroupDescription) -> Look:
    """One group as it is now.

    Args:
        admin: of its cluster.
        group: its description.

    Returns:
        Members and partitions; `at_s` is of the monotonic clock.
    """
    committed = admin.list_group_offsets(group.group_id)
    partitions = _partitions_of(group, committed)
    topics = topics_there(admin, {tp.topic for tp in partitions})
    running = {node.node_id for node in admin.describe_cluster().nodes}
    logs = _Logs(admin, topics, running)
    seen = {tp: logs.seen(tp, committed.get(tp)) for tp in partitions}
    return Look(time.monotonic(), group, seen)


def take(admin: Admin, previous: ClusterSnapshot | None = None) -> ClusterSnapshot:
    """All groups and topics as they are now; share groups and streams groups are left out.

    Args:
        admin: of the cluster.
        previous: the last snapshot; what has not changed since shares its objects.

    Returns:
        The snapshot, with what could not be asked in `troubles`.

    Raises:
        ConnectionFailedError: no broker answers at all.
    """
    cluster = admin.describe_cluster()
    survey = admin.survey_groups()
    listed = admin.list_topics(include_internal=True)
    topics, troubles = _described(admin, [t.name for t in listed])
    troubles += [
        f"broker {node} does not answer for its groups: {why}"
        for node, why in survey.unreachable.items()
    ]
    surveyed = {name: one for name, one in survey.groups.items() if one.listing.describable}
    wanted = {
        name: _partitions_of(one.description, one.offsets)
        for name, one in surveyed.items()
        if one.description is not None and not one.error
    }
    read = {tp.topic for some in wanted.values() for tp in some}
    running = {node.node_id for node in cluster.nodes}
    logs = _Logs(admin, {n: t for n, t in topics.items() if n in read}, running)
    at_s = time.monotonic()
    groups: dict[str, Look] = {}
    for name, partitions in wanted.items():
        one = surveyed[name]
        assert one.description is not None
        seen = {tp: logs.seen(tp, one.offsets.get(tp)) for tp in partitions}
        groups[name] = Look(at_s, one.description, _shared(seen, previous, name))
    errors = {
        name: one.error or "it is gone" for name, one in surveyed.items() if name not in wanted
    }
    unseen = unseen_groups(previous, groups, errors, survey.unreachable) if previous else {}
    for name, look in unseen.items():
        errors.setdefault(name, f"broker {look.group.coordinator.node_id} does not answer")
    return ClusterSnapshot(
        time.time_ns() // 1_000_000,
        at_s,
        cluster,
        topics,
        groups,
        errors,
        (*troubles, *_leaderless(topics, running)),
        tuple(survey.unreachable),
        unseen,
    )


def _shared(
    seen: dict[TopicPartition, Seen], previous: ClusterSnapshot | None, name: str
) -> dict[TopicPartition, Seen]:
    """The same, with the objects of the last snapshot where nothing has changed."""
    was = previous.groups.get(name) if previous else None
    if was is None:
        return seen
    known = was.partitions
    return {tp: known[tp] if known.get(tp) == one else one for tp, one in seen.items()}


def _described(admin: Admin, names: Sequence[str]) -> tuple[dict[str, TopicDescription], list[str]]:
    descriptions: dict[str, TopicDescription] = {}
    troubles: list[str] = []
    for start in range(0, len(names), TOPICS_AT_ONCE):
        page = names[start : start + TOPICS_AT_ONCE]
        try:
            descriptions |= admin.describe_topics(page)
        except KohortError as error:  # one of them was deleted meanwhile, or its broker is away
            troubles.append(f"topics {page[0]} to {page[-1]} could not be described: {error}")
    return descriptions, troubles


def _leaderless(topics: Mapping[str, TopicDescription], running: set[int]) -> list[str]:
    replicas = {n for t in topics.values() for p in t.partitions for n in p.replicas}
    away = sorted(replicas - running)
    troubles = [f"broker {node} is away: replicas are on it, and it does not run" for node in away]
    without = [
        f"{t.name}-{p.partition}" for t in topics.values() for p in t.partitions if p.leader < 0
    ]
    if without:
        named = ", ".join(without[:3]) + (f" and {len(without) - 3:,} more" * (len(without) > 3))
        troubles.append(f"{len(without):,} partitions have no leader: {named}")
    return troubles
