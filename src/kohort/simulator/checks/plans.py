"""Checks of plans, as the log has them: G2 and G14 of classic groups, G14's balance of all.

Rules: subscriptions and assignments are read with the general codec, not with the assignors' own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kohort.group.coordinator.state.classic_records import StoredGroup
from kohort.simulator.checks.violation import demand
from kohort.wire import decode_versioned
from kohort.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from kohort.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

COOPERATIVE = "cooperative-sticky"
LEVEL = frozenset({"roundrobin", "sticky", COOPERATIVE, "uniform"})
"""Assignors that level the number of partitions over members that read the same."""
LEVEL_BY_TOPIC = frozenset({"range"})
"""Those that level each topic for itself."""

Gets = Mapping[str, Mapping[str, Collection[int]]]
"""Partitions by topic, by member."""


def g2_plan_is_legal(group_id: str, stored: StoredGroup) -> None:
    """G2: no partition twice in one generation, and none for a member that did not subscribe."""
    owner: dict[tuple[str, int], str] = {}
    for member in stored.members.values():
        if not member.assignment:
            continue
        topics = decode_versioned(ConsumerProtocolSubscription, member.subscription)[1].topics
        plan = decode_versioned(ConsumerProtocolAssignment, member.assignment)[1]
        for topic, numbers in [(a.topic, a.partitions) for a in plan.assigned_partitions]:
            demand(
                topic in topics,
                "G2",
                f"group {group_id}, generation {stored.generation}: {member.client_id} is given "
                f"{topic}, which it does not subscribe to",
            )
            for number in numbers:
                other = owner.setdefault((topic, number), member.client_id)
                demand(
                    other == member.client_id,
                    "G2",
                    f"group {group_id}, generation {stored.generation}: {topic}-{number} is given "
                    f"to {other} and to {member.client_id}",
                )


def g14_plan_is_level(
    name: str, assignor: str | None, reads: Collection[Collection[str]], gets: Gets
) -> None:
    """G14: of members that read the same, none gets two partitions more than another.

    Assignors that go by topic do that for each topic.
    """
    if len({frozenset(topics) for topics in reads}) != 1:
        return
    if assignor in LEVEL:
        counts = [sum(map(len, parts.values())) for parts in gets.values()]
        _g14_level(name, "partitions", counts)
    elif assignor in LEVEL_BY_TOPIC:
        for topic in sorted({topic for parts in gets.values() for topic in parts}):
            _g14_level(name, topic, [len(parts.get(topic, ())) for parts in gets.values()])


def _g14_level(name: str, what: str, counts: list[int]) -> None:
    demand(
        max(counts) - min(counts) <= 1,
        "G14",
        f"{name}: members that read the same get {sorted(counts)} of {what}",
    )


def g14_classic_plan_is_level(group_id: str, stored: StoredGroup) -> None:
    """G14 on a classic generation; not while a cooperative plan holds partitions back (KIP-429)."""
    if not stored.members or stored.lacks_assignment():
        return
    reads: list[list[str]] = []
    gets: dict[str, dict[str, list[int]]] = {}
    held: set[tuple[str, int]] = set()
    for member in stored.members.values():
        subscription = decode_versioned(ConsumerProtocolSubscription, member.subscription)[1]
        reads.append(subscription.topics)
        if stored.protocol == COOPERATIVE:
            held.update((o.topic, n) for o in subscription.owned_partitions for n in o.partitions)
        gets[member.member_id] = {}
        if member.assignment:
            plan = decode_versioned(ConsumerProtocolAssignment, member.assignment)[1]
            gets[member.member_id] = {a.topic: a.partitions for a in plan.assigned_partitions}
    assigned = {(t, n) for parts in gets.values() for t, numbers in parts.items() for n in numbers}
    if held <= assigned:
        name = f"group {group_id}, generation {stored.generation}"
        g14_plan_is_level(name, stored.protocol, reads, gets)


def g14_owner_gives_up_first(group_id: str, stored: StoredGroup) -> None:
    """G14, G1: a cooperative plan gives nobody what another member still owns (KIP-429).

    Of several who say that they own a partition the one of the highest generation does; when two
    say so for one generation nobody is believed, and nobody is given it yet (B32, B33).
    """
    if stored.protocol != COOPERATIVE or stored.lacks_assignment():
        return
    claims: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for member in stored.members.values():
        subscription = decode_versioned(ConsumerProtocolSubscription, member.subscription)[1]
        for owned in subscription.owned_partitions:
            for number in owned.partitions:
                claimants = claims.setdefault((owned.topic, number), [])
                claimants.append((subscription.generation_id, member.member_id))
    for member in stored.members.values():
        if not member.assignment:
            continue
        plan = decode_versioned(ConsumerProtocolAssignment, member.assignment)[1]
        for part in plan.assigned_partitions:
            for number in part.partitions:
                claimants = sorted(claims.get((part.topic, number), ()), reverse=True)
                if not claimants:
                    continue
                tie = len(claimants) > 1 and claimants[0][0] == claimants[1][0]
                demand(
                    not tie,
                    "G14",
                    f"group {group_id}, generation {stored.generation}: {part.topic}-{number} is "
                    f"given to {member.client_id}, and two members own it since {claimants[0][0]}",
                )
                demand(
                    claimants[0][1] == member.member_id,
                    "G14",
                    f"group {group_id}, generation {stored.generation}: {part.topic}-{number} is "
                    f"given to {member.client_id} while {claimants[0][1]} owns it since generation "
                    f"{claimants[0][0]}",
                )
