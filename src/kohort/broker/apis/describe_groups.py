"""DescribeGroups (15), v0-6. KIP-345, KIP-430, KIP-1043.

Each group is described by its own shard; the answer keeps the order asked for. Authorised
operations are all there are, where no access control is on. A tagged field of ours asks for the
group's last rebalances (`kohort.group.explain.timeline`).

Differs from Apache Kafka: a group that is named twice is described once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._groups import ask_each
from kohort.broker.apis._operations import GROUP_OPERATIONS
from kohort.broker.base.request import Call
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribeGroupsResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DescribeGroupsRequest, call: Call) -> None:
    """Describe groups."""

    def one(group_id: str) -> DescribeGroupsRequest:
        return DescribeGroupsRequest(groups=[group_id], unknown_tags=request.unknown_tags)

    def merge(answers: list[DescribeGroupsResponse]) -> DescribeGroupsResponse:
        groups = [group for answer in answers for group in answer.groups]
        if request.include_authorized_operations:
            for group in groups:
                group.authorized_operations = GROUP_OPERATIONS
        by_id = {group.group_id: group for group in groups}
        return DescribeGroupsResponse(
            groups=[by_id[name] for name in dict.fromkeys(request.groups)]
        )

    ask_each(node, call, request.groups, one, merge)
