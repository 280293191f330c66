"""DescribeCluster (60), v0-2. KIP-700, KIP-919.

Differs from Apache Kafka: there are no controllers to ask (endpoint type 2 is refused).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.calls import Call, serve
from kohort.errors import ErrorCode
from kohort.wire.messages.describe_cluster_request import DescribeClusterRequest
from kohort.wire.messages.describe_cluster_response import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from kohort.broker.node import Node

_BROKERS = 1


def handle(node: Node, request: DescribeClusterRequest, call: Call) -> None:
    """Describe the one broker."""
    if request.endpoint_type != _BROKERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        call.answer(DescribeClusterResponse(error_code=code, error_message="this is a broker"))
        return
    call.answer(
        DescribeClusterResponse(
            cluster_id=node.cluster_id,
            controller_id=node.config.node_id,
            brokers=[
                DescribeClusterBroker(broker_id=node.config.node_id, host=node.host, port=node.port)
            ],
        )
    )


API = serve(DescribeClusterRequest, handle)
