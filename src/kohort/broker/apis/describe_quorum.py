"""DescribeQuorum (55), v0-2. KIP-595, KIP-836 (times), KIP-853 (directories).

The nodes of one process share what a quorum would replicate: the first living one leads it, and
none is ever behind.

Differs from Apache Kafka: there is no metadata log; its end is the number of changes to topics that
are in `topics.json` now, the epoch is 1, and nodes have neither directory ids nor listeners for
controllers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.describe_quorum_request import DescribeQuorumRequest
from kohort.wire.messages.describe_quorum_response import (
    DescribeQuorumResponse,
    PartitionData,
    ReplicaState,
    TopicData,
)
from kohort.wire.messages.describe_quorum_response import Node as QuorumNode

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

METADATA_TOPIC: Final = "__cluster_metadata"
_EPOCH: Final = 1
_NODES_FROM: Final = 2


def handle(node: NodeServices, request: DescribeQuorumRequest, call: Call) -> None:
    """Describe the one quorum."""
    requested = [(t.topic_name, p.partition_index) for t in request.topics for p in t.partitions]
    if requested == [(METADATA_TOPIC, 0)]:
        topics = [TopicData(topic_name=METADATA_TOPIC, partitions=[_quorum(node)])]
        known = node.leadership.nodes if call.api_version >= _NODES_FROM else ()
        nodes = [QuorumNode(node_id=node_id) for node_id in known]
    else:
        nodes: list[QuorumNode] = []
        topics = [
            TopicData(
                topic_name=topic.topic_name,
                partitions=[_unknown(part.partition_index) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    call.answer(DescribeQuorumResponse(topics=topics, nodes=nodes))


def _quorum(node: NodeServices) -> PartitionData:
    now_ms, end = node.env.wall_ms(), len(node.topics)
    voters = [
        ReplicaState(
            replica_id=node_id,
            log_end_offset=end,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
        for node_id, *_ in node.nodes.believed()
    ]
    return PartitionData(
        leader_id=node.nodes.controller_id(),
        leader_epoch=_EPOCH,
        high_watermark=end,
        current_voters=voters,
    )


def _unknown(index: int) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=f"{METADATA_TOPIC}-0 is the one quorum there is",
    )
