"""SyncGroup (14), v0-5. KIP-345, KIP-559.

The assignment is durable before anybody is answered (spec 2.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.wire.messages.sync_group_request import SyncGroupRequest

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: SyncGroupRequest, call: Call) -> None:
    """Give or take the assignment."""
    node.groups.handle(request.group_id, request, call)
