"""DeleteGroups (42), v0-2. KIP-229.

Each group is deleted by its own shard; the answer keeps the order asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._groups import ask_each
from kohort.broker.base.request import Call
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.delete_groups_response import DeleteGroupsResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DeleteGroupsRequest, call: Call) -> None:
    """Delete groups that have no members."""

    def one(group_id: str) -> DeleteGroupsRequest:
        return DeleteGroupsRequest(groups_names=[group_id])

    def merge(answers: list[DeleteGroupsResponse]) -> DeleteGroupsResponse:
        order = {group_id: at for at, group_id in enumerate(dict.fromkeys(request.groups_names))}
        results = [result for answer in answers for result in answer.results]
        results.sort(key=lambda r: order[r.group_id])
        return DeleteGroupsResponse(results=results)

    ask_each(node, call, request.groups_names, one, merge)
