"""DescribeLogDirs (35), v1-5. KIP-113, KIP-827 (sizes of the volume), KIP-1066 (cordoned).

One directory holds everything; in memory it is called `memory`, and its volume has no size (-1).
Partitions that were never written to have the size 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.broker.state.partition import Partition
from kohort.wire.messages.describe_log_dirs_request import DescribeLogDirsRequest
from kohort.wire.messages.describe_log_dirs_response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DescribeLogDirsRequest, call: Call) -> None:
    """Describe the data directory."""
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in _described(node, request):
        name = partition.topic.name
        topics.setdefault(name, DescribeLogDirsTopic(name=name)).partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index, partition_size=_size(partition)
            )
        )
    total, usable = node.volume()
    directory = DescribeLogDirsResult(
        log_dir=node.config.data_dir or "memory",
        topics=list(topics.values()),
        total_bytes=total,
        usable_bytes=usable,
    )
    call.answer(DescribeLogDirsResponse(results=[directory]))


def _described(node: NodeServices, request: DescribeLogDirsRequest) -> list[Partition]:
    if request.topics is None:
        partitions = list(node.topics.partitions())
    else:
        requested = {(t.topic, index): None for t in request.topics for index in t.partitions}
        existing = (node.topics.partition(*tp) for tp in requested)
        partitions = [partition for partition in existing if partition is not None]
    leadership = node.leadership
    return [p for p in partitions if node.node_id in leadership.at(*p.key).replicas]


def _size(partition: Partition) -> int:
    log = partition.log
    return 0 if log is None else sum(segment.file.size for segment in log.segments)
