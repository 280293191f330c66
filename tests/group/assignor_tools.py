"""Short ways to build groups for assignors, and an exact solver to measure them against."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from kohort.group.assignors import GroupView, MemberView, Plan, TopicView
from kohort.group.assignors.base import freeze


def group(members: Mapping[str, str], topics: Mapping[str, int]) -> GroupView:
    """Members with the topics they subscribe to ("a b"), topics with their partitions."""
    views = {m: MemberView(m, frozenset(names.split())) for m, names in members.items()}
    return GroupView(views, {name: TopicView(count) for name, count in topics.items()})


def owning(
    before: GroupView, plan: Plan, *, without: Sequence[str] = (), generation: int = 1
) -> GroupView:
    """The same group after everybody took its part of `plan` and some have gone."""
    members = {
        each.member_id: MemberView(
            each.member_id,
            each.topics,
            owned=freeze(plan.assignments.get(each.member_id, {})),
            generation=generation,
        )
        for each in before.members.values()
        if each.member_id not in without
    }
    return GroupView(members, before.topics)


def shown(plan: Plan) -> dict[str, str]:
    """`t0p0 t1p1` of each member, in order of topic and partition."""
    return {
        member_id: " ".join(f"{t}p{n}" for t in sorted(parts) for n in sorted(parts[t]))
        for member_id, parts in sorted(plan.assignments.items())
    }


def counts(plan: Plan) -> dict[str, int]:
    return {m: sum(map(len, parts.values())) for m, parts in plan.assignments.items()}


def squares(loads: Mapping[str, int]) -> int:
    return sum(load * load for load in loads.values())


def moves(view: GroupView, plan: Plan) -> int:
    """Partitions that some member owned and another has now."""
    now = {(t, n): m for m, parts in plan.assignments.items() for t in parts for n in parts[t]}
    return sum(
        now.get((topic, number), member.member_id) != member.member_id
        for member in view.members.values()
        for topic, numbers in member.owned.items()
        for number in numbers
        if topic in member.topics
    )


def strangers(view: GroupView, plan: Plan) -> int:
    """Partitions whose member says a rack that none of their replicas is in (KIP-881)."""
    return sum(
        rack is not None and not (view.topics[t].racks and rack in view.topics[t].racks[n])
        for m, parts in plan.assignments.items()
        for rack in [view.members[m].rack or None]
        for t in parts
        for n in parts[t]
    )


def best(view: GroupView, weights: Mapping[str, int] | None = None) -> tuple[float, int, int]:
    """By trying every assignment: the least sum of squared loads by weight, then the fewest
    strangers by rack, then the fewest moves.
    """
    members = list(view.members.values())
    slots = [
        (topic, number)
        for topic, size in sorted(view.topics.items())
        for number in range(size.partitions)
    ]
    able = [[k for k, m in enumerate(members) if topic in m.topics] for topic, _ in slots]
    kept = [(slot, who) for slot, who in zip(slots, able, strict=True) if who]
    found = (float("inf"), 0, 0)
    for choice in itertools.product(*(who for _, who in kept)):
        parts: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in members}
        for ((topic, number), _), k in zip(kept, choice, strict=True):
            parts[members[k].member_id].setdefault(topic, []).append(number)
        found = min(found, worth(view, Plan(parts), weights))
    return found


def worth(
    view: GroupView, plan: Plan, weights: Mapping[str, int] | None = None
) -> tuple[float, int, int]:
    """What `best` minimises."""
    loads = counts(plan)
    level = sum(load * load / (weights or {}).get(m, 1) for m, load in loads.items())
    return round(level, 9), strangers(view, plan), moves(view, plan)
