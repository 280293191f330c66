"""DescribeCluster (60), v0-2. KIP-700, KIP-919.

Differs from Apache Kafka: there are no controllers to ask (endpoint type 2 is refused).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._operations import CLUSTER_OPERATIONS, NOT_ASKED
from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.describe_cluster_request import DescribeClusterRequest
from kohort.wire.messages.describe_cluster_response import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_BROKERS, _CONTROLLERS = 1, 2


def handle(node: NodeServices, request: DescribeClusterRequest, call: Call) -> None:
    """Describe the brokers that are believed to live."""
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        call.answer(DescribeClusterResponse(error_code=code, error_message="this is a broker"))
        return
    call.answer(
        DescribeClusterResponse(
            error_message=None,
            cluster_id=node.cluster_id,
            cluster_authorized_operations=CLUSTER_OPERATIONS
            if request.include_cluster_authorized_operations
            else NOT_ASKED,
            controller_id=node.nodes.controller_id(),
            brokers=[
                DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in node.nodes.believed()
            ],
        )
    )
