"""Who owned what last: the members' claims, reconciled.

Rules:
- Of two members that claim one partition, the one of the highest generation owned it last; on a tie
  neither is believed (B32, B33, KIP-429).
- Done in bulk, topic by topic: single partitions are looked at only where claims overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kohort.group.assignors.base import GroupView, MemberView, Partitions


@dataclass(frozen=True, slots=True)
class Claim:
    """What one member says it owns, and in which generation it was given that."""

    member_id: str
    owned: Partitions
    generation: int


Disputes = dict[str, dict[int, str | None]]
"""By topic and number: who owned it last of the several that claim it; None on a tie."""


class Claims:
    """All claims of a group, and what is disputed among them."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.claims = claims
        self.claimed: dict[str, set[int]] = {}
        self.disputes: Disputes = {}
        by_topic: dict[str, list[tuple[int, ...]]] = {}
        for claim in claims:
            for topic, numbers in claim.owned.items():
                by_topic.setdefault(topic, []).append(numbers)
        for topic, several in by_topic.items():
            self.claimed[topic] = together = set[int]().union(*several)
            if len(together) < sum(map(len, several)):
                self.disputes[topic] = self._dispute(topic)

    def _dispute(self, topic: str) -> dict[int, str | None]:
        owner: dict[int, str | None] = {}
        since: dict[int, int] = {}
        disputed: set[int] = set()
        for claim in sorted(self.claims, key=lambda each: -each.generation):
            for number in claim.owned.get(topic, ()):
                if number not in since:
                    owner[number], since[number] = claim.member_id, claim.generation
                    continue
                disputed.add(number)
                if since[number] == claim.generation:
                    owner[number] = None
        return {number: owner[number] for number in disputed}

    def owned_last(self) -> list[Partitions]:
        """What each claim's member owned last: its claim without what others overrule."""
        if not self.disputes:
            return [claim.owned for claim in self.claims]
        return [
            {topic: self._upheld(claim, topic, numbers) for topic, numbers in claim.owned.items()}
            for claim in self.claims
        ]

    def _upheld(self, claim: Claim, topic: str, numbers: tuple[int, ...]) -> tuple[int, ...]:
        disputed, me = self.disputes.get(topic), claim.member_id
        if not disputed:
            return numbers
        return tuple(number for number in numbers if disputed.get(number, me) == me)

    def may_have(self, claim: Claim, topic: str, numbers: Sequence[int]) -> Sequence[int]:
        """Those of `numbers` that nobody else owns now: unclaimed, or undisputedly its own."""
        mine = claim.owned.get(topic, ())
        disputed, me = self.disputes.get(topic, {}), claim.member_id
        if numbers is mine and not disputed:
            return numbers
        owned, claimed = set(mine), self.claimed.get(topic, set[int]())
        return [
            number
            for number in numbers
            if (disputed.get(number, me) == me if number in owned else number not in claimed)
        ]


def valid_claims(
    group: GroupView, members: Sequence[MemberView], claims: Iterable[Claim]
) -> list[Partitions]:
    """Each member's claims on what exists and it subscribes to, overruled ones taken away."""
    sizes = {topic: view.partitions for topic, view in group.topics.items()}
    cleaned: list[Claim] = []
    for member, claim in zip(members, claims, strict=True):
        mine: dict[str, tuple[int, ...]] = {}
        for topic, numbers in claim.owned.items():
            size = sizes.get(topic, 0)
            if topic not in member.topics or not numbers:
                continue
            if numbers[0] < 0 or numbers[-1] >= size:
                numbers = tuple(number for number in numbers if 0 <= number < size)
            mine[topic] = numbers
        cleaned.append(Claim(member.member_id, mine, claim.generation))
    return Claims(cleaned).owned_last()
