"""`uniform`: the server-side assignor of KIP-848 that a broker uses by default.

Rules, so that plans are those of Kafka's own class for members and topics in the same order:
- Everybody reads the same: floor or ceiling of the partitions for each. Who owns more gives up what
  comes last by topic and number; the ceiling goes to members that own that many, then to the last.
  Free partitions, then those given up, fill the other members one after the other.
- Otherwise: every member keeps what it still reads; free partitions go, topic by topic (the most
  partitions a subscriber first), to the member with the fewest; then topics are levelled among
  their subscribers in rounds, until none changes or after 16 rounds.
- Kafka takes members and topics in the order of its hash tables; ours are Kafka's order of members
  and the names of topics, so that a plan depends on nothing else (G14).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kohort.group.assignors.base import Assignor, GroupView, MemberView, Plan
from kohort.group.assignors.claims import Claim, Ownership
from kohort.group.assignors.loops_implementation import hand_out, keep, tally

ROUNDS_MAX: Final = 16
"""Kafka's limit: subscriptions that overlap in many ways may be left slightly uneven."""


class UniformAssignor(Assignor):
    """Kafka's `uniform` (`org.apache.kafka.coordinator.group.assignor.UniformAssignor`).

    In the broker `MemberView.owned` is the member's present target. It serves a client as well.
    """

    name = "uniform"
    cooperative = True

    def assign(self, group: GroupView) -> Plan:
        """Level, and everybody keeps what that allows."""
        members = group.in_order()
        claims = [
            Claim(member.member_id, member.owned, self.generation_of(member)) for member in members
        ]
        owned = Ownership(group.topics, claims, members)
        if not members:
            return Plan({})
        if len({member.topics for member in members}) == 1:
            _same_for_all(group, members, owned)
        else:
            _Levelling(members, owned).run()
        shares: list[dict[str, Sequence[int]]] = [{} for _ in members]
        hand_out(owned.row, owned.spans, shares)
        return Plan({m.member_id: share for m, share in zip(members, shares, strict=True)})


def _same_for_all(group: GroupView, members: Sequence[MemberView], owned: Ownership) -> None:
    stretches = [owned.spans[topic] for topic in owned.spans if topic in members[0].topics]
    total = sum(stop - start for start, stop in stretches)
    each, extra = divmod(total, len(members))
    had = array("i", [0]) * len(members)
    tally(owned.row, stretches, had)
    room = array("i")
    lacking: list[tuple[int, int]] = []
    for place in range(len(members)):
        ceiling = extra > 0
        stays = min(had[place], each + ceiling)
        lacks = each + ceiling - stays
        if lacks and ceiling and len(members) - place > extra:
            # A later member may own that many already; there are enough left to take it if not.
            lacks, ceiling = lacks - 1, False
        extra -= ceiling
        room.append(stays)
        if lacks:
            lacking.append((place, lacks))
    before = owned.row[:]
    free, given_up = keep(owned.row, stretches, room)
    free.extend(sorted(given_up, key=lambda at: before[at]))
    at = 0
    for place, lacks in lacking:
        for position in free[at : at + lacks]:
            owned.row[position] = place
        at += lacks


class _Levelling:
    """Subscriptions differ: kept, dealt, then levelled topic by topic."""

    def __init__(self, members: Sequence[MemberView], owned: Ownership) -> None:
        self.row, self.spans = owned.row, owned.spans
        had = array("i", [0]) * len(members)
        tally(self.row, [(0, len(self.row))], had)
        self.loads = had.tolist()
        readers: dict[str, list[int]] = {}
        for place, member in enumerate(members):
            for topic in member.topics:
                if topic in owned.spans:
                    readers.setdefault(topic, []).append(place)
        self.readers = readers
        self.topics = sorted(readers, key=self._urgency)

    def _urgency(self, topic: str) -> tuple[float, int, str]:
        many = len(self.readers[topic])
        start, stop = self.spans[topic]
        return (-((stop - start) / many), many, topic)

    def run(self) -> None:
        """Rewrite the row."""
        self._deal()
        self._level()

    def _ranked(self, topic: str) -> list[int]:
        return sorted(self.readers[topic], key=lambda place: (self.loads[place], place))

    def _deal(self) -> None:
        loads, row = self.loads, self.row
        for topic in self.topics:
            free = [at for at in range(*self.spans[topic]) if row[at] < 0]
            if not free:
                continue
            recipients = _lowest_first(self._ranked(topic), loads)
            for at, (_, recipient) in zip(free, recipients, strict=False):
                row[at] = recipient
                loads[recipient] += 1

    def _level(self) -> None:
        shared = [topic for topic in self.topics if len(self.readers[topic]) >= 2]
        last = ""
        for _ in range(ROUNDS_MAX):
            for topic in shared:
                if topic == last:
                    return  # Once around since the last change.
                if self._level_topic(topic) or not last:
                    last = topic

    def _level_topic(self, topic: str) -> bool:
        """Hand partitions from the fullest subscribers to the emptiest; whether any moved."""
        ranked, loads, row = self._ranked(topic), self.loads, self.row
        if loads[ranked[-1]] - loads[ranked[0]] <= 1:
            return False
        movable: dict[int, list[int]] = {}
        for at in range(*self.spans[topic]):
            movable.setdefault(row[at], []).append(at)
        donors, recipients = _HighestFirst(ranked, loads), _lowest_first(ranked, loads)
        moved = False
        while (donor := donors.next(movable)) is not None:
            at = movable[donor].pop()
            level, recipient = next(recipients)
            if donors.level - level <= 1:
                break
            row[at] = recipient
            loads[donor] -= 1
            loads[recipient] += 1
            moved = True
        return moved


def _lowest_first(ranked: Sequence[int], loads: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The load before, and the member that gets the next partition; without an end.

    The lowest get one each; when all of them have, those that they have caught up with join in.
    """
    joined, level = 0, loads[ranked[0]] - 1
    while True:
        level += 1
        while joined < len(ranked) and loads[ranked[joined]] == level:
            joined += 1
        for at in range(joined):
            yield level, ranked[at]


class _HighestFirst:
    """The other end: who gives the next partition. Members with nothing to give drop out."""

    def __init__(self, ranked: list[int], loads: Sequence[int]) -> None:
        self.ranked, self.loads = ranked, loads
        self.start = self.end = len(ranked)
        self.level = loads[ranked[-1]] + 1
        self.at = len(ranked) - 1

    def next(self, movable: Mapping[int, Sequence[int]]) -> int | None:
        """The fullest that has something in `movable`; None when none has."""
        ranked, loads = self.ranked, self.loads
        while True:
            if self.at < self.start:
                if self.end <= self.start and self.start > 0:
                    self.level = loads[ranked[self.start - 1]]
                else:
                    self.level -= 1
                while self.start > 0 and loads[ranked[self.start - 1]] == self.level:
                    self.start -= 1
                self.at = self.end - 1
            if self.at < 0:
                return None
            donor = ranked[self.at]
            if movable.get(donor):
                self.at -= 1
                return donor
            self.end -= 1
            ranked[self.at], ranked[self.end] = ranked[self.end], donor
            self.at -= 1
