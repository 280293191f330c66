"""ListPartitionReassignments (46), v0. KIP-455.

Nothing is ever under way: replicas share one log, so that a change of them is done at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from kohort.wire.messages.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: ListPartitionReassignmentsRequest, call: Call) -> None:
    """There is none."""
    call.answer(ListPartitionReassignmentsResponse(error_message=None))
