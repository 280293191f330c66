"""ListGroups (16), v0-5. KIP-518 (states), KIP-848 (types).

Every shard is asked. One that is still being loaded makes the whole answer say
COORDINATOR_LOAD_IN_PROGRESS, with the groups of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListGroupsResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: ListGroupsRequest, call: Call) -> None:
    """List groups."""

    def merge(answers: list[ListGroupsResponse]) -> None:
        groups = [group for answer in answers for group in answer.groups]
        groups.sort(key=lambda g: g.group_id)
        error_code = next((a.error_code for a in answers if a.error_code), 0)
        call.answer(ListGroupsResponse(error_code=error_code, groups=groups))

    hosts = node.groups.hosts()
    fan_in = FanIn(len(hosts), merge)
    for host in hosts:
        host.handle(request, SubRequest(fan_in, call))
