"""The leader's work in a rebalance: ours beside kafka-python's and aiokafka's, one core.

`assign` is the assignor alone, `leader` from the members' bytes in the join answer to everybody's
bytes in the sync (read, assign, check, hold back, write). Each is shown for a fresh group and for
the same group after one member has left; the ratios are the peers' fresh `assign` over ours. The
peers hold members x partitions objects, so they are only run where they end in a few seconds;
`--peers` runs them one size further (20 s each). `--large` adds the size of Kafka's own scale tests
(2,000 members, a million partitions) for ours. The second table has groups that no peer knows:
members that read halves of the topics each, racks, weights.
Times are CPU time, the best of three (the peers: of one).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from types import SimpleNamespace
from typing import Any

from kohort.group.assignors import (
    Assignor,
    GroupView,
    MemberView,
    Plan,
    TopicView,
    WeightedAssignor,
    make_assignors,
)
from kohort.group.assignors.base import freeze
from kohort.group.assignors.loops_implementation import LOOPS
from kohort.group.assignors.protocol import encode_subscription
from kohort.group.assignors.user_data import encode_previous
from kohort.group.member.leader_plan import encode_plan, make_plan, read_members
from kohort.wire.messages.join_group_response import JoinGroupResponseMember

SIZES = [(100, 1_000, 10), (1_000, 10_000, 50), (1_000, 100_000, 100)]
LARGE = (2_000, 1_000_000, 1_000)
PEERS_UP_TO, PEERS_SLOW = 1_000, 10_000


def timed(run: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """The best of some runs in ms, and what it gave."""
    best, result = float("inf"), None
    for _ in range(times):
        started = process_time()
        result = run()
        best = min(best, process_time() - started)
    return best * 1e3, result


def metadata(name: str, topics: list[str], owned: Any = None) -> bytes:
    """What a member joins with, after it got `owned`."""
    if name == "sticky":
        user_data = encode_previous(owned, 1) if owned else None
        return encode_subscription(topics, user_data, {}, 1, None)
    return encode_subscription(topics, None, owned or {}, 1, None)


def ours(name: str, members: int, partitions: int, topics: int) -> list[float]:
    """assign fresh, assign after one left, leader fresh, leader after one left."""
    [assignor] = make_assignors(name)
    names = [f"topic-{k:04}" for k in range(topics)]
    views = {topic: TopicView(partitions // topics) for topic in names}
    times: list[float] = []
    joined = {f"consumer-{k:05}": metadata(name, names) for k in range(members)}
    for _ in range(2):
        answer = [JoinGroupResponseMember(member_id=m, metadata=d) for m, d in joined.items()]
        group = GroupView(read_members(answer).members, views)
        alone, plan = timed(lambda g=group: assignor.assign(g))
        whole, _ = timed(lambda a=answer: leader(assignor, a, views))
        times += [alone, whole]
        gone = "consumer-00007"
        joined = {
            m: metadata(name, names, freeze(plan.assignments[m])) for m in joined if m != gone
        }
    return [times[0], times[2], times[1], times[3]]


def leader(
    assignor: Assignor, answer: list[JoinGroupResponseMember], views: dict[str, TopicView]
) -> Plan:
    reading = read_members(answer)
    plan = make_plan(assignor, GroupView(reading.members, views))
    encode_plan(plan, reading.members)
    return plan


class Cluster:
    """What the peers ask of their metadata."""

    def __init__(self, topics: dict[str, int]) -> None:
        self._topics = topics

    def topics(self) -> list[str]:
        return list(self._topics)

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self._topics[topic]))


def kafka_python(name: str, members: int, partitions: int, topics: int) -> float:
    """Fresh, ms."""
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    cls = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }[name]
    names = {f"topic-{k:04}": partitions // topics for k in range(topics)}
    group = [
        SimpleNamespace(
            member_id=f"consumer-{k:05}",
            group_instance_id=None,
            metadata=cls().metadata(list(names)),
        )
        for k in range(members)
    ]
    return timed(lambda: cls().assign(Cluster(names), group), 1)[0]


def aiokafka(name: str, members: int, partitions: int, topics: int) -> float:
    """Fresh, ms."""
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    cls: Any = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }[name]
    names = {f"topic-{k:04}": partitions // topics for k in range(topics)}
    group = {f"consumer-{k:05}": cls.metadata(list(names)) for k in range(members)}
    return timed(lambda: cls.assign(Cluster(names), group), 1)[0]


def peer(
    run: Callable[..., float], name: str, size: tuple[int, int, int], limit: int, mine: float
) -> str:
    """The peer's time and how many times ours that is."""
    if name not in ("range", "roundrobin", "sticky") or (name == "sticky" and size[1] > limit):
        return "-"
    if size[1] > 100_000:
        return "-"
    theirs = run(name, *size)
    return f"{theirs:,.1f} ({theirs / mine:,.1f}x)"


def uneven(kind: str, members: int, partitions: int, topics: int) -> tuple[str, float, float]:
    """The assignor for a kind of group; fresh, and after one member left, ms."""
    chance = random.Random(1)
    size = partitions // topics
    racks = [f"rack-{k}" for k in range(3)]
    views: dict[str, TopicView] = {}
    for k in range(topics):
        replicas = tuple(frozenset(chance.sample(racks, 2)) for _ in range(size))
        views[f"topic-{k:04}"] = TopicView(size, replicas if "racks" in kind else ())
    joined: dict[str, MemberView] = {}
    for k in range(members):
        reads = frozenset(t for t in views if "halves" not in kind or chance.random() < 0.5)
        joined[f"consumer-{k:05}"] = MemberView(
            f"consumer-{k:05}",
            reads,
            rack=racks[k % 3] if "racks" in kind else None,
            user_data=WeightedAssignor(1 + k % 8).subscription(reads),
        )
    name = "weighted" if "weights" in kind else "cooperative-sticky"
    [assignor] = make_assignors(name)
    fresh, plan = timed(lambda: assignor.assign(GroupView(joined, views)), 2)
    for member_id in list(joined):
        owned = freeze(plan.assignments[member_id])
        joined[member_id] = replace(joined[member_id], owned=owned, generation=1)
    del joined["consumer-00007"]
    left, _ = timed(lambda: assignor.assign(GroupView(joined, views)), 2)
    return name, fresh, left


def main() -> None:
    limit = PEERS_SLOW if "--peers" in sys.argv else PEERS_UP_TO
    print(f"CPU ms, uniform subscriptions; fresh / one member left; peers: fresh; loops: {LOOPS}")
    head = f"{'assignor':20}{'members x partitions':>22}{'assign':>18}{'leader':>18}"
    print(f"{head}{'kafka-python':>22}{'aiokafka':>22}")
    for name in ("range", "roundrobin", "sticky", "cooperative-sticky"):
        for size in [*SIZES, LARGE] if "--large" in sys.argv else SIZES:
            fresh, left, whole, whole_left = ours(name, *size)
            print(
                f"{name:20}{f'{size[0]} x {size[1]}':>22}{f'{fresh:.1f} / {left:.1f}':>18}"
                f"{f'{whole:.1f} / {whole_left:.1f}':>18}"
                f"{peer(kafka_python, name, size, limit, fresh):>22}"
                f"{peer(aiokafka, name, size, limit, fresh):>22}"
            )
    print(f"\n{'group':20}{'members x partitions':>22}{'assign':>18}  assignor")
    for kind in ("halves", "racks", "halves, racks", "weights", "halves, weights"):
        for size in SIZES:
            name, fresh, left = uneven(kind, *size)
            print(
                f"{kind:20}{f'{size[0]} x {size[1]}':>22}{f'{fresh:.1f} / {left:.1f}':>18}  {name}"
            )


if __name__ == "__main__":
    main()
