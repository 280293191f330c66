"""The shell of the transaction coordinator: shards over the partitions of `__transaction_state`.

Rules:
- A live group shard is told of the markers in its partition; one that is being loaded takes none
  until it is ready, because it might replay them twice or never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kohort.broker.config import TRANSACTIONS_TOPIC
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import Marker, marker_batch
from kohort.broker.partition import Partition
from kohort.broker.shards import Shards
from kohort.broker.topics import Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchHeader
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.admission import Admission
    from kohort.broker.calls import Asker
    from kohort.broker.node import Node
    from kohort.broker.transaction_host import TransactionHost

TopicPartition = tuple[str, int]


def write_marker(
    node: Node,
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
    nodes = node.commons.nodes
    if partition.topic.internal and not nodes.takes_markers(partition):
        raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    batch = marker_batch(producer_id, epoch, marker, node.env.wall_ms())
    partition.append(batch, BatchHeader(batch, 0), done, marker)
    if partition.topic.internal:
        nodes.marker_written(partition, producer_id, marker.committed)


def require_leader(node: Node, topic: str, index: int) -> None:
    """Raises BrokerError where a marker for this partition is not this node's to write."""
    partition = node.topics.partition(topic, index)
    if partition is not None and not node.leads(partition):
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Transactions(Shards["TransactionHost"]):
    """The coordinator of the transactional ids whose partitions a node leads."""

    topic = TRANSACTIONS_TOPIC

    def new_host(self, partition: Partition) -> TransactionHost:
        """A host for the shard of a partition."""
        from kohort.broker.transaction_host import TransactionHost

        return TransactionHost(self._node, partition)

    def make_topic(self) -> Topic:
        """The internal topic, made if it is not there. Raises BrokerError."""
        return self._node.transactions_topic()

    def refuse(self, request: Message, asker: Asker, code: ErrorCode) -> None:
        """Answer that says an error code and nothing else."""
        from kohort.transactions.refusals import refusal_of

        asker.answer(refusal_of(request, code))

    def admit(self, wish: Admission) -> None:
        """Ask whether a producer may write to partitions in its transaction (KIP-890).

        The coordinator is asked on whichever node it is.
        """
        self._coordinator(wish.transactional_id).handle(wish.transactional_id, wish.request(), wish)

    def _coordinator(self, transactional_id: str) -> Transactions:
        try:
            leader = self.partition_of(transactional_id).leader
        except BrokerError:
            return self  # which says so
        node = self._node.commons.nodes.get(leader)
        return self if node is None else node.transactions
