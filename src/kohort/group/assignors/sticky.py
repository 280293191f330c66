"""`sticky` and `cooperative-sticky`: balanced, and everybody keeps as much as that allows.

Rules:
- How many each member gets is computed in `balance`; here claims become counts, and counts become
  partitions again. What is free is dealt in turn, by topic and number, so that topics spread.
- Work grows with the members' topics and with what changes hands; partitions that stay where they
  are are passed on as the tuples that they came in.
- `sticky` is eager: its members own nothing when they join, so what they had travels in its user
  data (v1: partitions and generation; v0: without). `cooperative-sticky` reads the subscription's
  owned partitions; its user data holds the generation for subscriptions too old to carry it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kohort.group.assignors.balance import Bundle, balance
from kohort.group.assignors.base import (
    NO_GENERATION,
    Assignor,
    GroupView,
    MemberView,
    Partitions,
    Plan,
)
from kohort.group.assignors.claims import Claim, valid_claims
from kohort.group.assignors.protocol import ProtocolReader
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
        reader = ProtocolReader()
        for member in group.in_order():
            owned, generation = decode_previous(member.user_data, reader)
            claims.append(Claim(member.member_id, owned, generation))
        return assign_sticky(group, claims)


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
        return assign_sticky(group, claims)


def assign_sticky(group: GroupView, claims: Iterable[Claim]) -> Plan:
    """The plan for `group` whose members, in Kafka's order, made `claims` (one each, in order)."""
    members = group.in_order()
    owned = valid_claims(group, members, claims)
    sharing = _sharing(group, members)
    bundles: list[Bundle] = []
    for subscribers, topics in sharing.items():
        own: dict[int, int] = {}
        for place in subscribers:
            have = owned[place]
            if have and (total := _count(have, topics)):
                own[place] = total
        size = sum(group.topics[topic].partitions for topic in topics)
        bundles.append(Bundle(size, subscribers, own))
    balance(bundles, len(members))
    plan: dict[str, dict[str, Sequence[int]]] = {member.member_id: {} for member in members}
    for topics, bundle in zip(sharing.values(), bundles, strict=True):
        _hand_out(group, members, topics, bundle, owned, plan)
    return Plan(plan)


def _sharing(group: GroupView, members: Sequence[MemberView]) -> dict[tuple[int, ...], list[str]]:
    """Topics by who subscribes to them (places in the order of members)."""
    same: dict[frozenset[str], list[int]] = {}
    for place, member in enumerate(members):
        same.setdefault(member.topics, []).append(place)
    groups = list(same.items())
    sharing: dict[tuple[int, ...], list[str]] = {}
    readers: dict[tuple[int, ...], tuple[int, ...]] = {}
    for topic in sorted(group.topics):
        key = tuple(n for n, (topics, _) in enumerate(groups) if topic in topics)
        if not key or not group.topics[topic].partitions:
            continue
        if key not in readers:
            readers[key] = tuple(sorted(place for n in key for place in groups[n][1]))
        sharing.setdefault(readers[key], []).append(topic)
    return sharing


def _count(owned: Partitions, topics: Sequence[str]) -> int:
    if len(owned) < len(topics):
        wanted = set(topics)
        return sum(len(numbers) for topic, numbers in owned.items() if topic in wanted)
    return sum(len(owned[topic]) for topic in topics if topic in owned)


def _hand_out(
    group: GroupView,
    members: Sequence[MemberView],
    topics: Sequence[str],
    bundle: Bundle,
    owned: Sequence[Partitions],
    plan: Mapping[str, dict[str, Sequence[int]]],
) -> None:
    """Turn the counts of one bundle into partitions: everybody keeps its own, the rest is dealt."""
    kept: dict[str, list[tuple[int, ...]]] = {topic: [] for topic in topics}
    needs: list[tuple[dict[str, Sequence[int]], int]] = []
    wanted = kept.keys()
    for place in bundle.subscribers:
        have, room = bundle.own.get(place, 0), bundle.got[place]
        mine = plan[members[place].member_id]
        if have:
            left = room
            for topic, numbers in owned[place].items():
                if topic not in wanted or not left:
                    continue
                stay = numbers if len(numbers) <= left else numbers[:left]
                left -= len(stay)
                mine[topic] = stay
                kept[topic].append(stay)
        if room > have:
            needs.append((mine, room - have))
    if needs:
        _deal(_free(group, topics, kept), needs)


def _free(
    group: GroupView, topics: Sequence[str], kept: Mapping[str, Sequence[tuple[int, ...]]]
) -> tuple[list[str], list[int]]:
    """The partitions to deal, by topic and number: the topic and the number of each."""
    pool_topics: list[str] = []
    pool_numbers: list[int] = []
    for topic in topics:
        size, stays = group.topics[topic].partitions, kept[topic]
        free: Sequence[int] = range(size)
        if stays:
            if sum(map(len, stays)) == size:
                continue
            free = sorted(set(free).difference(*stays))
        pool_topics.extend([topic] * len(free))
        pool_numbers.extend(free)
    return pool_topics, pool_numbers


def _deal(
    pool: tuple[list[str], list[int]], needs: Sequence[tuple[dict[str, Sequence[int]], int]]
) -> None:
    """One each in turn, to whoever still needs some; a member's share is a stride of the pool."""
    shares: list[dict[str, list[int]]] = [{} for _ in needs]
    active: Sequence[int] = range(len(needs))
    at = level = 0
    while active:
        reach = min(needs[who][1] for who in active)
        turns, many = reach - level, len(active)
        for step, who in enumerate(active):
            share = shares[who]
            stride = slice(at + step, at + turns * many, many)
            for topic, number in zip(pool[0][stride], pool[1][stride], strict=True):
                if topic in share:
                    share[topic].append(number)
                else:
                    share[topic] = [number]
        at, level = at + turns * many, reach
        hungry: list[int] = [who for who in active if needs[who][1] > reach]
        active = hungry
    for (mine, _), share in zip(needs, shares, strict=True):
        for topic, numbers in share.items():
            mine[topic] = sorted((*mine[topic], *numbers)) if topic in mine else numbers
