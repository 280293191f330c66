"""What a plan is worth, in numbers: how level, how near, and what it moves.

Rules: nothing here judges; a plan of any assignor, or what a live group has, is measured alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt

from kohort.group.assignors.base import GroupView, Partitions
from kohort.lean import dataclass

Parts = Mapping[str, Mapping[str, Sequence[int]]]
"""Partitions by topic, by member."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How some counts differ: the least, the most, their mean and standard deviation."""

    least: int
    most: int
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that changes hands. `source` None: it had no owner; `target` None: it gets none.

    `needed`: the previous owner is gone or no longer subscribes to it.
    """

    topic: str
    partition: int
    source: str | None
    target: str | None
    needed: bool


@dataclass(frozen=True, slots=True)
class Nearness:
    """Of the partitions whose members say a rack: how many have a replica there, and a leader."""

    partitions: int
    replica: int
    leader: int


def spread(counts: Iterable[int]) -> Spread:
    """The spread of some counts; all 0 for none."""
    sizes = list(counts)
    if not sizes:
        return Spread(0, 0, 0.0, 0.0)
    mean = sum(sizes) / len(sizes)
    deviation = sqrt(sum((count - mean) ** 2 for count in sizes) / len(sizes))
    return Spread(min(sizes), max(sizes), mean, deviation)


def per_topic(group: GroupView, plan: Parts) -> dict[str, Spread]:
    """How each topic is spread over its subscribers."""
    return {
        topic: spread(len(plan.get(m.member_id, {}).get(topic, ())) for m in members)
        for topic, members in group.subscribers().items()
    }


def moves(group: GroupView, before: Mapping[str, Partitions], after: Parts) -> list[Move]:
    """What changes hands from `before` to `after`, by topic and number."""
    had = _owners(before)
    gets = _owners(after)
    moved: list[Move] = []
    for topic, number in sorted({*had, *gets}):
        source, target = had.get((topic, number)), gets.get((topic, number))
        if source == target:
            continue
        member = group.members.get(source) if source is not None else None
        needed = source is not None and (member is None or topic not in member.topics)
        moved.append(Move(topic, number, source, target, needed))
    return moved


def nearness(group: GroupView, plan: Parts) -> Nearness:
    """How many partitions are where their members are."""
    partitions = replica = leader = 0
    for member_id, parts in plan.items():
        rack = group.members[member_id].rack
        if not rack:
            continue
        for topic, numbers in parts.items():
            view = group.topics[topic]
            partitions += len(numbers)
            replica += sum(n < len(view.racks) and rack in view.racks[n] for n in numbers)
            leaders = view.leader_racks
            leader += sum(n < len(leaders) and leaders[n] == rack for n in numbers)
    return Nearness(partitions, replica, leader)


def _owners(plan: Parts) -> dict[tuple[str, int], str]:
    return {
        (topic, number): member_id
        for member_id, parts in plan.items()
        for topic, numbers in parts.items()
        for number in numbers
    }
