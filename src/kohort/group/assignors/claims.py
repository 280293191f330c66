"""Who owned what last: the members' claims, reconciled, as one row over all partitions.

Rules:
- Of two members that claim one partition, the one of the highest generation owned it last; on a tie
  neither is believed (B32, B33, KIP-429).
- Claims are written into the row as they come. Only where they overlap is the row written again, in
  the order of generations.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from kohort.group.assignors.base import MemberView, Partitions, TopicView
from kohort.group.assignors.loops import DISPUTED, FREE, TWICE
from kohort.group.assignors.loops_implementation import held, note
from kohort.lean import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """What one member says it owns, and in which generation it was given that."""

    member_id: str
    owned: Partitions
    generation: int


class Ownership:
    """All partitions of some topics in a row, and the index of the last owner of each.

    `row` has the place of a claim in the order of `claims`, or FREE, or DISPUTED. With `members`,
    one for each claim, only what they still subscribe to counts. Claims to what does not exist
    count for nothing.
    """

    def __init__(
        self,
        topics: Mapping[str, TopicView],
        claims: Sequence[Claim],
        members: Sequence[MemberView] | None = None,
    ) -> None:
        self.spans: dict[str, tuple[int, int]] = {}
        end = 0
        for topic in sorted(topics):
            start, end = end, end + topics[topic].partitions
            self.spans[topic] = start, end
        self.row = array("i", [FREE]) * end
        self._claims = claims
        self._members = members
        count = 0
        for who, claim in enumerate(claims):
            if claim.owned:
                count |= note(self.row, self.spans, who, claim.owned, self._topics(who))
        if count & TWICE:
            self._settle()

    def _topics(self, who: int) -> frozenset[str] | None:
        return None if self._members is None else self._members[who].topics

    def _settle(self) -> None:
        """Write the row again, the highest generation first."""
        row = self.row = array("i", [FREE]) * len(self.row)
        since = [0] * len(row)
        for who in sorted(range(len(self._claims)), key=lambda n: -self._claims[n].generation):
            claim, topics = self._claims[who], self._topics(who)
            for topic, numbers in claim.owned.items():
                if topic not in self.spans or (topics is not None and topic not in topics):
                    continue
                start, stop = self.spans[topic]
                for at in (start + number for number in numbers):
                    if not start <= at < stop:
                        continue
                    if row[at] == FREE:
                        row[at], since[at] = who, claim.generation
                    elif row[at] != who and since[at] == claim.generation:
                        row[at] = DISPUTED

    def may_have(
        self, who: int, assigned: Mapping[str, Sequence[int]]
    ) -> Mapping[str, Sequence[int]]:
        """Those of `assigned` that no other member owns now: unclaimed, or undisputedly its own."""
        return held(self.row, self.spans, who, assigned)
