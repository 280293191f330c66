"""ConsumerGroupDescribe (69), v0-1. KIP-848, KIP-1099 (which protocol a member speaks).

Each group is described by its own shard; the answer keeps the order asked for. Authorised
operations are all there are, where no access control is on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._groups import ask_each
from kohort.broker.apis._operations import GROUP_OPERATIONS
from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_describe_response import ConsumerGroupDescribeResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: ConsumerGroupDescribeRequest, call: Call) -> None:
    """Describe consumer groups."""

    def one(group_id: str) -> ConsumerGroupDescribeRequest:
        return ConsumerGroupDescribeRequest(group_ids=[group_id])

    def merge(answers: list[ConsumerGroupDescribeResponse]) -> ConsumerGroupDescribeResponse:
        order = {group_id: at for at, group_id in enumerate(dict.fromkeys(request.group_ids))}
        groups = [group for answer in answers for group in answer.groups]
        for group in groups:
            if not group.group_id:
                group.error_code = ErrorCode.INVALID_GROUP_ID
        if request.include_authorized_operations:
            for group in groups:
                group.authorized_operations = GROUP_OPERATIONS
        groups.sort(key=lambda g: order[g.group_id])
        return ConsumerGroupDescribeResponse(groups=groups)

    ask_each(node, call, request.group_ids, one, merge)
