"""`range`: for each topic, the subscribers in order get equal stretches of partitions.

Rules:
- Topics are divided one by one, so that equal partitions of topics with equal counts and equal
  subscribers meet in one member (they can be joined there).
- The first `partitions mod members` members get one more.
- KIP-881: where members say their rack and some replicas are in it, and not every partition is in
  every rack, partitions go first to members in one of their racks, within the same counts. Topics
  with equal subscribers and counts move together, or what was joined would come apart: all of them,
  as in Java, once any topic of the group needs racks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from kohort.group.assignors.base import Assignor, GroupView, MemberView, Plan, TopicView


class RangeAssignor(Assignor):
    """Kafka's `range` (`org.apache.kafka.clients.consumer.RangeAssignor`)."""

    name = "range"

    def assign(self, group: GroupView) -> Plan:
        """Divide each topic among its subscribers."""
        by_racks = _by_racks(group)
        apart = {topic.name for same in by_racks for topic in same}
        plan = _stretches(group, group.topics.keys() - apart)
        for same in by_racks:
            if len(same) > 1:
                _match_together(same)
            else:
                same[0].fill(match=True)
            for topic in same:
                topic.fill(match=False)
                for member_id, numbers in topic.assigned.items():
                    if numbers:
                        plan[member_id][topic.name] = sorted(numbers)
        return Plan(plan)


def _by_racks(group: GroupView) -> list[list[_Topic]]:
    """What is divided by racks: topics that move together, and single ones that need racks."""
    subscribers = group.subscribers()
    needing = {
        topic
        for topic, members in subscribers.items()
        if _racks_matter(group.topics[topic], members)
    }
    if not needing:
        return []
    together: dict[tuple[int, int], list[str]] = defaultdict(list)
    for topic, members in subscribers.items():  # topics with the same members share one list
        if any(member.rack is not None for member in members):
            together[id(members), group.topics[topic].partitions].append(topic)
    return [
        [_Topic(topic, group.topics[topic], subscribers[topic]) for topic in same]
        for same in together.values()
        if len(same) > 1 or same[0] in needing
    ]


def _stretches(group: GroupView, topics: AbstractSet[str]) -> dict[str, dict[str, Sequence[int]]]:
    """The `topics` topics in equal stretches to their subscribers in order."""
    plan: dict[str, dict[str, Sequence[int]]] = {member_id: {} for member_id in group.members}
    for topic, members in group.subscribers().items():
        if topic not in topics:
            continue
        each, extra = divmod(group.topics[topic].partitions, len(members))
        start = 0
        for number, member in enumerate(members):
            stop = start + each + (number < extra)
            if stop > start:
                plan[member.member_id][topic] = range(start, stop)
            start = stop
    return plan


class ServerRangeAssignor(Assignor):
    """The `range` of KIP-848 (`org.apache.kafka.coordinator.group.assignor.RangeAssignor`).

    It divides as the client's does, but knows nothing of racks.
    """

    name = "range"

    def assign(self, group: GroupView) -> Plan:
        """Divide each topic among its subscribers."""
        return Plan(_stretches(group, group.topics.keys()))


class _Topic:
    """One topic being divided with racks in mind."""

    def __init__(self, name: str, view: TopicView, members: Sequence[MemberView]) -> None:
        self.name = name
        self.replicas = view.racks
        self.racks = {member.member_id: member.rack for member in members}
        self.free = dict.fromkeys(range(view.partitions))
        self.assigned: dict[str, list[int]] = {member.member_id: [] for member in members}
        self.each, self.extra = divmod(view.partitions, len(members))

    def room(self, member_id: str) -> int:
        """How many more this member may get."""
        return max(0, self.each + (self.extra > 0) - len(self.assigned[member_id]))

    def matches(self, member_id: str, number: int) -> bool:
        """Whether a replica is in the member's rack; a member without a rack is in every one."""
        rack = self.racks[member_id]
        return rack is None or (number < len(self.replicas) and rack in self.replicas[number])

    def give(self, member_id: str, numbers: Sequence[int]) -> None:
        """Hand `numbers` to the member and count it among those that got one more."""
        assigned = self.assigned[member_id]
        assigned.extend(numbers)
        if len(assigned) > self.each:
            self.extra -= 1
        for number in numbers:
            del self.free[number]

    def fill(self, *, match: bool) -> None:
        """Each member in order takes its share of the free partitions (and in its rack)."""
        for member_id in self.racks:
            room = self.room(member_id)
            if not room or not self.free:
                continue
            able = (n for n in self.free if not match or self.matches(member_id, n))
            taken = [number for number, _ in zip(able, range(room), strict=False)]
            if taken:
                self.give(member_id, taken)


def _match_together(topics: list[_Topic]) -> None:
    """The same partition of every topic to the first member whose rack has them all."""
    waiting = list(topics[0].racks)
    for number in range(len(topics[0].free)):
        for member_id in waiting:
            if all(t.room(member_id) and t.matches(member_id, number) for t in topics):
                for topic in topics:
                    topic.give(member_id, [number])
                if not any(topic.room(member_id) for topic in topics):
                    waiting.remove(member_id)
                break


def _racks_matter(view: TopicView, members: Sequence[MemberView]) -> bool:
    """KIP-881: some member is where some replica is, and the partitions are not all everywhere."""
    mine = {member.rack for member in members if member.rack is not None}
    if not mine or not view.racks:
        return False
    everywhere = frozenset[str]().union(*view.racks)
    return not mine.isdisjoint(everywhere) and any(racks != everywhere for racks in view.racks)
