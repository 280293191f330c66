"""The leader's work in a rebalance: ours beside kafka-python's and aiokafka's, one core.

`assign` is the assignor alone, `leader` from the members' bytes in the join answer to everybody's
bytes in the sync (read, assign, check, hold back, write). Each is shown for a fresh group and for
the same group after one member has left. The peers hold members x partitions objects, so they are
only run where they end in a few seconds; `--peers` runs them one size further (20 s each).
`--large` adds the size of Kafka's own scale tests (2,000 members, a million partitions) for ours.
Times are CPU time, the best of three (the peers: of one).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import process_time
from types import SimpleNamespace
from typing import Any

from kohort.group.assignors import Assignor, GroupView, Plan, TopicView, make_assignors
from kohort.group.assignors.base import freeze
from kohort.group.assignors.protocol import encode_subscription
from kohort.group.assignors.user_data import encode_previous
from kohort.group.member_plan import encode_plan, make_plan, read_members
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


def peer(run: Callable[..., float], name: str, size: tuple[int, int, int], limit: int) -> str:
    if name == "cooperative-sticky" or (name == "sticky" and size[1] > limit):
        return "-"
    if size[1] > 100_000:
        return "-"
    return f"{run(name, *size):.1f}"


def main() -> None:
    limit = PEERS_SLOW if "--peers" in sys.argv else PEERS_UP_TO
    print("CPU ms, uniform subscriptions; fresh / one member left; peers: fresh")
    head = f"{'assignor':20}{'members x partitions':>22}{'assign':>18}{'leader':>18}"
    print(f"{head}{'kafka-python':>14}{'aiokafka':>12}")
    for name in ("range", "roundrobin", "sticky", "cooperative-sticky"):
        for size in [*SIZES, LARGE] if "--large" in sys.argv else SIZES:
            fresh, left, whole, whole_left = ours(name, *size)
            print(
                f"{name:20}{f'{size[0]} x {size[1]}':>22}{f'{fresh:.1f} / {left:.1f}':>18}"
                f"{f'{whole:.1f} / {whole_left:.1f}':>18}"
                f"{peer(kafka_python, name, size, limit):>14}"
                f"{peer(aiokafka, name, size, limit):>12}"
            )


if __name__ == "__main__":
    main()
