"""A cluster's brokers and replicas: who leads what, what is offline or under-replicated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kohort.client.admin.types import ClusterDescription, TopicDescription


@dataclass(frozen=True)
class BrokerHealth:
    """One broker, whether it runs or not.

    Attributes:
        out_of_sync: replicas on it that are not in sync.
        trouble: why it cannot be as it should; empty when it can.
    """

    node: int
    address: str
    rack: str | None
    controller: bool
    leads: int
    replicas: int
    out_of_sync: int
    trouble: str


@dataclass(frozen=True)
class ClusterHealth:
    """The cluster at one moment; partitions by `TOPIC-PARTITION`."""

    cluster_id: str | None
    controller: int
    topics: int
    partitions: int
    offline: Sequence[str]
    under_replicated: Sequence[str]
    brokers: Sequence[BrokerHealth]

    @property
    def healthy(self) -> bool:
        """True when every partition has a leader and all of its replicas in sync."""
        return not (self.offline or self.under_replicated or any(b.trouble for b in self.brokers))


def cluster_health(
    cluster: ClusterDescription,
    topics: Iterable[TopicDescription],
    unreachable: Mapping[int, str] = MappingProxyType({}),
) -> ClusterHealth:
    """What topics and brokers tell of a cluster.

    Args:
        cluster: its brokers, as the metadata has them.
        topics: all topics, internal ones included.
        unreachable: brokers that did not answer, with the reason. A broker that has just died
            stays in the metadata until its session ends.
    """
    every = list(topics)
    leads, replicas, behind = Counter[int](), Counter[int](), Counter[int]()
    offline: list[str] = []
    short: list[str] = []
    for topic in every:
        for p in topic.partitions:
            name = f"{topic.name}-{p.partition}"
            replicas.update(p.replicas)
            behind.update(set(p.replicas) - set(p.isr))
            if p.leader < 0:
                offline.append(name)
            else:
                leads[p.leader] += 1
            if len(p.isr) < len(p.replicas):
                short.append(name)
    running = {node.node_id: node for node in cluster.nodes}
    brokers = [
        BrokerHealth(
            number,
            f"{node.host}:{node.port}" if (node := running.get(number)) else "–",
            node.rack if node else None,
            number == cluster.controller_id,
            leads[number],
            replicas[number],
            behind[number],
            _trouble(number, running.keys(), unreachable),
        )
        for number in sorted({*running, *replicas})
    ]
    partitions = sum(len(topic.partitions) for topic in every)
    return ClusterHealth(
        cluster.cluster_id,
        cluster.controller_id,
        len(every),
        partitions,
        sorted(offline),
        sorted(short),
        brokers,
    )


def _trouble(broker: int, running: Container[int], unreachable: Mapping[int, str]) -> str:
    if broker not in running:
        return "it does not run, and replicas are on it"
    return f"it does not answer: {unreachable[broker]}" if broker in unreachable else ""
