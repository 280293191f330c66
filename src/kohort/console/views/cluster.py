"""Screen 12, the cluster: is it the cluster?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kohort.console.views.figures import count, size
from kohort.observe.cluster import ClusterHealth

if TYPE_CHECKING:
    from kohort.client.admin.types import LogDirDescription


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker."""

    node: int
    address: str
    rack: str
    controller: bool
    leads: int
    replicas: int
    out_of_sync: int
    stored: str
    free: str
    trouble: str


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster."""

    cluster_id: str
    controller: str
    topics: str
    partitions: str
    offline: int
    under_replicated: int
    brokers: Sequence[BrokerRow]
    offline_names: Sequence[str]
    under_replicated_names: Sequence[str]


def cluster_view(
    health: ClusterHealth, dirs: Mapping[int, Sequence[LogDirDescription]]
) -> ClusterView:
    """The cluster's page.

    Args:
        health: what the snapshot tells.
        dirs: log directories by broker, of those that answered.
    """
    rows: list[BrokerRow] = []
    for one in health.brokers:
        mine = dirs.get(one.node)
        stored = (
            None if mine is None else sum(r.size_bytes for d in mine for r in d.replicas.values())
        )
        free = None if not mine else min(d.usable_bytes for d in mine)
        broken = [d.path for d in mine or () if d.error]
        trouble = one.trouble or (f"log directory {broken[0]} is offline" if broken else "")
        rows.append(
            BrokerRow(
                one.node,
                one.address,
                one.rack or "–",
                one.controller,
                one.leads,
                one.replicas,
                one.out_of_sync,
                size(stored),
                size(free),
                trouble,
            )
        )
    return ClusterView(
        health.cluster_id or "–",
        str(health.controller) if health.controller >= 0 else "–",
        count(health.topics),
        count(health.partitions),
        len(health.offline),
        len(health.under_replicated),
        rows,
        health.offline[:20],
        health.under_replicated[:20],
    )
