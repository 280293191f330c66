"""LeaveGroup (13), v0-5. KIP-345 (batches), KIP-800.

As Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.wire.messages.leave_group_request import LeaveGroupRequest

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: LeaveGroupRequest, call: Call) -> None:
    """Take members out of their group."""
    node.groups.handle(request.group_id, request, call)
