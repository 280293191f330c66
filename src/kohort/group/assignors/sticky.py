"""`sticky` and `cooperative-sticky`: balanced, and everybody keeps as much as that allows.

Rules:
- Plans are made in `sticky_plan`; here is what members tell each other for them.
- `sticky` is eager: its members own nothing when they join, so what they had travels in its user
  data (v1: partitions and generation; v0: without). `cooperative-sticky` reads the subscription's
  owned partitions; its user data holds the generation for subscriptions too old to carry it.
- KIP-881: where members say their rack, and racks can tell partitions apart, partitions in the
  member's rack come before partitions that it had; balance comes before both.
"""

from __future__ import annotations

from kohort.group.assignors.base import (
    NO_GENERATION,
    Assignor,
    GroupView,
    MemberView,
    Partitions,
    Plan,
)
from kohort.group.assignors.claims import Claim
from kohort.group.assignors.loops_implementation import PartitionReader
from kohort.group.assignors.racks import ReplicaRacks
from kohort.group.assignors.sticky_plan import assign_level
from kohort.group.assignors.user_data import (
    decode_generation,
    decode_previous,
    encode_generation,
    encode_previous,
)


class StickyAssignor(Assignor):
    """Kafka's `sticky` (`org.apache.kafka.clients.consumer.StickyAssignor`)."""

    name = "sticky"

    def __init__(self) -> None:
        self._previous: Partitions | None = None
        self._generation = NO_GENERATION

    def subscription(self, topics: frozenset[str]) -> bytes | None:
        """What this member was given last, and when; None before the first time."""
        if self._previous is None:
            return None
        return encode_previous(self._previous, self._generation)

    def on_assignment(
        self, assignment: Partitions, user_data: bytes | None, generation: int
    ) -> None:
        """Remember it for the next join."""
        self._previous, self._generation = assignment, generation

    def assign(self, group: GroupView) -> Plan:
        """Balanced first, then with as few moves as possible."""
        claims: list[Claim] = []
        reader = PartitionReader()
        for member in group.in_order():
            owned, generation = decode_previous(member.user_data, reader)
            claims.append(Claim(member.member_id, owned, generation))
        return assign_level(group, claims, racks=ReplicaRacks(group))


class CooperativeStickyAssignor(Assignor):
    """Kafka's `cooperative-sticky` (KIP-429); the member applies the two phases."""

    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def subscription(self, topics: frozenset[str]) -> bytes | None:
        """The generation of what this member owns, as Java writes it."""
        return encode_generation(self._generation)

    def on_assignment(
        self, assignment: Partitions, user_data: bytes | None, generation: int
    ) -> None:
        """Remember the generation for the next join."""
        self._generation = generation

    def generation_of(self, member: MemberView) -> int:
        """From the user data where the subscription is too old to say (v1)."""
        if member.generation == NO_GENERATION:
            return decode_generation(member.user_data)
        return member.generation

    def assign(self, group: GroupView) -> Plan:
        """Balanced first, then with as few moves as possible."""
        claims = [
            Claim(member.member_id, member.owned, self.generation_of(member))
            for member in group.in_order()
        ]
        return assign_level(group, claims, racks=ReplicaRacks(group))
