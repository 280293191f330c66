"""Names for topic ids in requests whose shards know topics by name only (KIP-848, OffsetCommit and
OffsetFetch v10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def name_of(node: NodeServices, topic_id: bytes) -> str | None:
    """The name of a topic, or None for an unknown id."""
    topic = node.topics.by_id(topic_id)
    return None if topic is None else topic.name
