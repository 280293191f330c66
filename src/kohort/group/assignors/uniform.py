"""`uniform`: the server-side assignor of KIP-848 that a broker takes unless told otherwise.

Rules, so that plans are those of Kafka's own class for members and topics in the same order:
- Everybody reads the same: floor or ceiling of the partitions for each. Who owns more gives up what
  comes last by topic and number; the ceiling goes to who owns that much and to the last in order.
  What is free, then what was given up, fills the others one after the other.
- Otherwise: everybody keeps what it still reads; what is free goes, topic by topic (the most
  partitions a subscriber first), to whoever has the fewest; then topics are levelled among their
  subscribers, over and over, until none changes or after 16 rounds.
- Kafka takes members and topics in the order of its hash tables; ours are Kafka's order of members
  and the names of topics, so that a plan depends on nothing else (G14).
- Stretches of partitions are handed over whole where everybody reads the same: the work grows with
  members, topics and what changes hands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kohort.group.assignors.base import (
    Assignor,
    GroupView,
    MemberView,
    Partitions,
    Plan,
)
from kohort.group.assignors.claims import Claim, valid_claims

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
        owned = valid_claims(group, members, claims)
        if len({member.topics for member in members}) <= 1:
            return _same_for_all(group, members, owned)
        return _Levelling(group, members, owned).plan()


def _same_for_all(
    group: GroupView, members: Sequence[MemberView], owned: Sequence[Partitions]
) -> Plan:
    plan: dict[str, dict[str, Sequence[int]]] = {}
    topics = sorted(group.topics.keys() & members[0].topics) if members else []
    total = sum(group.topics[topic].partitions for topic in topics)
    each, extra = divmod(total, max(len(members), 1))
    free = _unclaimed(group, topics, owned)
    lacking: list[tuple[dict[str, Sequence[int]], int]] = []
    for place, member in enumerate(members):
        mine: dict[str, Sequence[int]] = {}
        plan[member.member_id] = mine
        ceiling = extra > 0
        room = each + ceiling
        for topic, numbers in owned[place].items():
            mine[topic] = numbers[:room]
            if len(numbers) > room:
                free.append((topic, numbers[room:]))
            room -= len(mine[topic])
            if not mine[topic]:
                del mine[topic]
        if room and ceiling and len(members) - place > extra:
            # Somebody behind may own that much already; there are enough left to take it if not.
            room, ceiling = room - 1, False
        extra -= ceiling
        if room:
            lacking.append((mine, room))
    _fill_one_by_one(free, lacking)
    return Plan(plan)


def _unclaimed(
    group: GroupView, topics: Sequence[str], owned: Sequence[Partitions]
) -> list[tuple[str, Sequence[int]]]:
    """What nobody owns, as stretches by topic."""
    claimed: dict[str, list[tuple[int, ...]]] = {topic: [] for topic in topics}
    for parts in owned:
        for topic, numbers in parts.items():
            claimed[topic].append(numbers)
    free: list[tuple[str, Sequence[int]]] = []
    for topic in topics:
        size, taken = group.topics[topic].partitions, claimed[topic]
        if not taken:
            free.append((topic, range(size)))
        elif sum(map(len, taken)) < size:
            free.append((topic, sorted(set(range(size)).difference(*taken))))
    return free


def _fill_one_by_one(
    free: Sequence[tuple[str, Sequence[int]]],
    lacking: Sequence[tuple[dict[str, Sequence[int]], int]],
) -> None:
    """The stretches in order to the members in order, cut where a member is full."""
    stretches = iter(free)
    topic, numbers = "", ()
    for mine, room in lacking:
        while room:
            if not numbers:
                topic, numbers = next(stretches, ("", None))
                if numbers is None:
                    return
            part, numbers = numbers[:room], numbers[room:]
            room -= len(part)
            if part:
                mine[topic] = sorted((*mine[topic], *part)) if topic in mine else part


class _Levelling:
    """Subscriptions differ: kept, dealt, then levelled topic by topic."""

    def __init__(
        self, group: GroupView, members: Sequence[MemberView], owned: Sequence[Partitions]
    ) -> None:
        self.members = members
        self.loads = [sum(map(len, parts.values())) for parts in owned]
        readers: dict[str, list[int]] = {}
        for place, member in enumerate(members):
            for topic in member.topics:
                if topic in group.topics:
                    readers.setdefault(topic, []).append(place)
        self.readers = readers
        self.owners = {topic: [-1] * group.topics[topic].partitions for topic in readers}
        for place, parts in enumerate(owned):
            for topic, numbers in parts.items():
                of_topic = self.owners[topic]
                for number in numbers:
                    of_topic[number] = place
        self.topics = sorted(readers, key=self._urgency)

    def _urgency(self, topic: str) -> tuple[float, int, str]:
        many = len(self.readers[topic])
        return (-(len(self.owners[topic]) / many), many, topic)

    def plan(self) -> Plan:
        """Who gets what in the end."""
        self._deal()
        self._level()
        plan: list[dict[str, list[int]]] = [{} for _ in self.members]
        for topic in sorted(self.owners):
            for place in self.readers[topic]:
                plan[place][topic] = []
            for number, place in enumerate(self.owners[topic]):
                plan[place][topic].append(number)
        return Plan(
            {
                member.member_id: {topic: numbers for topic, numbers in mine.items() if numbers}
                for member, mine in zip(self.members, plan, strict=True)
            }
        )

    def _ranked(self, topic: str) -> list[int]:
        return sorted(self.readers[topic], key=lambda place: (self.loads[place], place))

    def _deal(self) -> None:
        loads = self.loads
        for topic in self.topics:
            owners = self.owners[topic]
            if -1 not in owners:
                continue
            takers = _lowest_first(self._ranked(topic), loads)
            for number, owner in enumerate(owners):
                if owner < 0:
                    taker = next(takers)[1]
                    owners[number] = taker
                    loads[taker] += 1

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
        ranked, loads, owners = self._ranked(topic), self.loads, self.owners[topic]
        if loads[ranked[-1]] - loads[ranked[0]] <= 1:
            return False
        movable: dict[int, list[int]] = {}
        for number, owner in enumerate(owners):
            movable.setdefault(owner, []).append(number)
        givers, takers = _HighestFirst(ranked, loads), _lowest_first(ranked, loads)
        moved = False
        while (giver := givers.next(movable)) is not None:
            number = movable[giver].pop()
            level, taker = next(takers)
            if givers.level - level <= 1:
                break
            owners[number] = taker
            loads[giver] -= 1
            loads[taker] += 1
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
        """The fullest that has something in `movable`; None when nobody has."""
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
            giver = ranked[self.at]
            if movable.get(giver):
                self.at -= 1
                return giver
            self.end -= 1
            ranked[self.at], ranked[self.end] = ranked[self.end], giver
            self.at -= 1
