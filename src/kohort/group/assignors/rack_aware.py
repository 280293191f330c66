"""`rack-aware`: balanced, then in the member's rack, then sticky. One of our own, not Kafka's.

Rules:
- A partition none of whose replicas is in its member's rack is worst, one whose leader is there is
  best: a consumer reads from the nearest replica (KIP-392) where brokers allow that, and from the
  leader where they do not, so both save the way between racks.
- What `cooperative-sticky` does with racks (KIP-881) is the same without the leaders.
- It needs no user data: owned partitions, generation and rack are in every subscription (v3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from kohort.group.assignors.base import Assignor, GroupView, Plan, TopicView
from kohort.group.assignors.claims import Claim
from kohort.group.assignors.racks import Kind, ReplicaRacks
from kohort.group.assignors.sticky_plan import assign_level


class RackAwareAssignor(Assignor):
    """Loads differ by one at most where they can; racks come before what members had."""

    name = "rack-aware"
    cooperative = True

    def assign(self, group: GroupView) -> Plan:
        """Balanced first, then near, then with as few moves as possible."""
        claims = [
            Claim(member.member_id, member.owned, self.generation_of(member))
            for member in group.in_order()
        ]
        return assign_level(group, claims, racks=LeaderRacks(group))


class LeaderRacks:
    """Near are partitions led from the member's rack; less near those with a replica in it."""

    def __init__(self, group: GroupView) -> None:
        self._replicas = ReplicaRacks(group)
        known = frozenset[str | None]().union(
            *{racks for view in group.topics.values() for racks in view.racks},
            *{view.leader_racks for view in group.topics.values()},
        )
        self.matter = any(rack in known for rack in self._replicas.of_members if rack is not None)

    def kinds(self, topic: TopicView) -> Iterable[Kind]:
        """Which of the members' racks lead it, and which have a replica."""
        leaders = (*topic.leader_racks, *[None] * (topic.partitions - len(topic.leader_racks)))
        return zip(leaders, self._replicas.kinds(topic), strict=False)

    def far(self, kind: Kind, readers: Sequence[int]) -> Mapping[int, int]:
        """A missing replica weighs more than all missing leaders, and these more than all moves."""
        leader, replicas = cast("tuple[str | None, Kind]", kind)
        racks, step = self._replicas.of_members, self._replicas.step
        costs = dict.fromkeys(self._replicas.far(replicas, readers), step * step)
        if leader is not None:
            for place in readers:
                if place in costs or racks[place] is None or racks[place] == leader:
                    continue
                costs[place] = step
        return costs
