"""`roundrobin`: all partitions of all topics are dealt to the members in turn.

Rules:
- Topics by name, partitions by number, members in Kafka's order; a member that does not subscribe
  to the topic is skipped, and the turn continues after the member with the last partition.
- Dealing a topic is a stride for each subscriber, so the work is members x topics, not partitions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from kohort.group.assignors.base import Assignor, GroupView, Plan


class RoundRobinAssignor(Assignor):
    """Kafka's `roundrobin` (`org.apache.kafka.clients.consumer.RoundRobinAssignor`)."""

    name = "roundrobin"

    def assign(self, group: GroupView) -> Plan:
        """Deal every partition."""
        plan: dict[str, dict[str, Sequence[int]]] = {member_id: {} for member_id in group.members}
        order = {member.member_id: place for place, member in enumerate(group.in_order())}
        turn = 0
        for topic, members in group.subscribers().items():
            size, many = group.topics[topic].partitions, len(members)
            places = [order[member.member_id] for member in members]
            first = bisect_left(places, turn) % many
            for step in range(min(size, many)):
                member = members[(first + step) % many]
                plan[member.member_id][topic] = range(step, size, many)
            if size:
                turn = (places[(first + size - 1) % many] + 1) % len(order)
        return Plan(plan)
