"""Topics of a cluster as an assignor sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.group.assignors import TopicView


def topic_views(admin: Admin, names: Iterable[str]) -> dict[str, TopicView]:
    """Topics as an assignor sees them: partitions, leaders, racks; those that are gone left out."""
    from kohort.group.assignors import TopicView

    there = sorted({t.name for t in admin.list_topics(include_internal=True)}.intersection(names))
    if not there:
        return {}
    rack_of = {node.node_id: node.rack for node in admin.describe_cluster().nodes}
    views: dict[str, TopicView] = {}
    for name, described in admin.describe_topics(there).items():
        parts = sorted(described.partitions, key=lambda p: p.partition)
        racks = [frozenset(r for n in p.replicas if (r := rack_of.get(n))) for p in parts]
        leaders = tuple(p.leader for p in parts)
        leading = tuple(rack_of.get(leader) for leader in leaders)
        views[name] = TopicView(
            len(parts),
            tuple(racks) if any(racks) else (),
            leaders,
            leader_racks=leading if any(leading) else (),
        )
    return views
