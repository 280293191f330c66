"""DeleteGroups (42), v0-2. KIP-229.

Each group is deleted by its own shard; the answer keeps the order asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.calls import Call, Gather, Part, serve
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.delete_groups_response import DeleteGroupsResponse

if TYPE_CHECKING:
    from kohort.broker.node import Node


def handle(node: Node, request: DeleteGroupsRequest, call: Call) -> None:
    """Delete groups that have no members."""
    order = {group_id: at for at, group_id in enumerate(request.groups_names)}

    def merge(answers: list[DeleteGroupsResponse]) -> None:
        results = [result for answer in answers for result in answer.results]
        results.sort(key=lambda r: order[r.group_id])
        call.answer(DeleteGroupsResponse(results=results))

    gather = Gather(len(order), merge)
    for group_id in order:
        one = DeleteGroupsRequest(groups_names=[group_id])
        node.groups.handle(group_id, one, Part(gather, call))


API = serve(DeleteGroupsRequest, handle)
