"""Heartbeat (12), v0-4. KIP-345.

Answered without an error while the group is being loaded, as Apache Kafka does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.wire.messages.heartbeat_request import HeartbeatRequest

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: HeartbeatRequest, call: Call) -> None:
    """Keep a membership alive."""
    node.groups.handle(request.group_id, request, call)
