"""Writing the markers that end a transaction in a partition (KIP-98)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import Marker, marker_batch
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchHeader

if TYPE_CHECKING:
    from kohort.broker.coordinator.services import HostServices, TopicPartition


def write_marker(
    node: HostServices,
    where: TopicPartition,
    producer_id: int,
    epoch: int,
    marker: Marker,
    done: Callable[[Appended | BrokerError], None],
) -> None:
    """Append the end of a transaction to one partition; `done` hears when it is durable.

    Raises BrokerError at once.
    """
    partition = node.topics.partition(*where)
    if partition is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    nodes = node.nodes
    if partition.topic.internal and not nodes.coordinators.takes_markers(partition):
        raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    batch = marker_batch(producer_id, epoch, marker, node.env.wall_ms())
    partition.append(batch, BatchHeader(batch, 0), done, marker)
    if partition.topic.internal:
        nodes.coordinators.marker_written(partition, producer_id, marker.committed)


def require_leader(node: HostServices, topic: str, index: int) -> None:
    """Raises BrokerError where a marker for this partition is not this node's to write."""
    partition = node.topics.partition(topic, index)
    if partition is not None and not node.leads(partition):
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
