"""How far a partition is from a member: the measure of the assignors that know racks.

Rules:
- A member that does not say its rack is near to everything (KIP-881).
- Racks count only if they can change anything: some member and some replica are in one rack, and
  the partitions are not all in the same racks, as in Java's client.
- Distances are by kind: what of a partition's racks can matter to anybody here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Protocol

from kohort.group.assignors.base import GroupView, TopicView

Kind = Hashable
"""Partitions of one kind are equally far from each member. Never None."""


class Racks(Protocol):
    """What `sticky_plan` asks."""

    @property
    def matter(self) -> bool:
        """Whether racks can change the plan at all."""
        ...

    def kinds(self, topic: TopicView) -> Iterable[Kind]:
        """The kind of each partition, in order."""
        ...

    def far(self, kind: Kind, readers: Sequence[int]) -> Mapping[int, int]:
        """What a partition of this kind costs at each reader (a place); 0 where it is not in."""
        ...


class ReplicaRacks:
    """KIP-881: any replica in the member's rack makes a partition near.

    `of_members` are the racks by place; `step` is more than all moves together.
    """

    def __init__(self, group: GroupView) -> None:
        members = group.in_order()
        self.of_members = [member.rack or None for member in members]
        self._used = frozenset(rack for rack in self.of_members if rack is not None)
        subscribed = frozenset[str]().union(*{member.topics for member in members})
        views = [view for topic, view in group.topics.items() if topic in subscribed]
        self.step = 1 + sum(view.partitions for view in views)
        rack_sets = {racks for view in views for racks in view.racks}
        rack_sets.update(frozenset[str]() for view in views if len(view.racks) < view.partitions)
        everywhere = frozenset[str]().union(*rack_sets)
        self._same: dict[frozenset[str], frozenset[str]] = {}
        self.matter = not self._used.isdisjoint(everywhere) and rack_sets != {everywhere}

    def kinds(self, topic: TopicView) -> Iterable[Kind]:
        """The racks of its replicas that some member is in."""
        missing = topic.partitions - len(topic.racks)
        for racks in (*topic.racks[: topic.partitions], *[frozenset[str]()] * missing):
            kind = self._same.get(racks)
            if kind is None:
                kind = self._same[racks] = racks & self._used
            yield kind

    def far(self, kind: Kind, readers: Sequence[int]) -> Mapping[int, int]:
        """One step, for members of another rack."""
        assert isinstance(kind, frozenset)
        racks, step = self.of_members, self.step
        return {m: step for m in readers if racks[m] is not None and racks[m] not in kind}
