"""JoinGroup (11), v0-9. KIP-345 (static members), KIP-394 (member id required), KIP-800.

Differs from Apache Kafka: the new generation is in `__consumer_offsets` before anybody is answered
(spec 2.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.wire.messages.join_group_request import JoinGroupRequest

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: JoinGroupRequest, call: Call) -> None:
    """Join, or wait for the others."""
    node.groups.handle(request.group_id, request, call)
