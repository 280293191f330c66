"""`weighted`: loads in proportion to what members say they can carry. One of our own, not Kafka's.

    Consumer(..., partition_assignment_strategy=WeightedAssignor(weight=4))    # or "weighted:4"

Rules:
- A member's user data holds its weight: one byte of format (0), then an int32. Who sends nothing
  that can be read has weight 1, so a group may be moved to it member by member.
- The sum of load²/weight is minimal, so that no move of one partition leaves its new owner better
  off than the old one; weights are whole numbers from 1 to 1,000 and only their quotients matter.
- Then by rack (KIP-881), then sticky; cooperative.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from kohort.errors import ConfigError
from kohort.group.assignors.base import Assignor, GroupView, MemberView, Plan
from kohort.group.assignors.claims import Claim
from kohort.group.assignors.racks import ReplicaRacks
from kohort.group.assignors.sticky_plan import assign_level

WEIGHT_MAX: Final = 1_000
_USER_DATA = Struct(">bi")


class WeightedAssignor(Assignor):
    """A member of weight 4 gets four times what a member of weight 1 gets.

    `weight` is what this member can carry, 1 to 1,000 (default 1). Raises ConfigError beyond.
    """

    name = "weighted"
    cooperative = True

    def __init__(self, weight: int = 1) -> None:
        if not 1 <= weight <= WEIGHT_MAX:
            raise ConfigError(f"a member's weight is from 1 to {WEIGHT_MAX:,}, not {weight}")
        self.weight = weight

    @classmethod
    def from_text(cls, text: str) -> WeightedAssignor:
        """From what follows the colon of `weighted:4`."""
        if not text.isdecimal():
            raise ConfigError(f"a weight is a whole number, as in 'weighted:4', not {text!r}")
        return cls(int(text))

    def subscription(self, topics: frozenset[str]) -> bytes | None:
        """The weight."""
        return _USER_DATA.pack(0, self.weight)

    def assign(self, group: GroupView) -> Plan:
        """Balanced by weight first, then near, then with as few moves as possible."""
        members = group.in_order()
        claims = [
            Claim(member.member_id, member.owned, self.generation_of(member)) for member in members
        ]
        weights = [weight_of(member) for member in members]
        level = min(weights, default=1) == max(weights, default=1)
        racks = ReplicaRacks(group)
        return assign_level(group, claims, racks=racks, weights=None if level else weights)


def weight_of(member: MemberView) -> int:
    """What a member's user data says; 1 where it says nothing that can be read."""
    data = member.user_data
    if data is None or len(data) != _USER_DATA.size:
        return 1
    form, weight = _USER_DATA.unpack(data)
    return int(weight) if form == 0 and 1 <= weight <= WEIGHT_MAX else 1
