"""LeaveGroup (13), v0-5. KIP-345 (batches), KIP-800.

As Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.calls import Call
from kohort.wire.messages.leave_group_request import LeaveGroupRequest

if TYPE_CHECKING:
    from kohort.broker.node import Node


def handle(node: Node, request: LeaveGroupRequest, call: Call) -> None:
    """Take members out of their group."""
    node.groups.handle(request.group_id, request, call)
