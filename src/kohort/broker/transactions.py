"""The shell of the transaction coordinator: shards over the partitions of `__transaction_state`.

Rules:
- Markers are written when the decision is durable, to all partitions at once; what cannot take its
  marker just now is tried again. A partition that is gone, or that has moved on to a later epoch,
  needs none.
- The shard hears of the markers when all of them are durable. If the node dies before, they are
  written again after the next load: a second one ends nothing.
- A live group shard is told of the markers in its partition; one that is being loaded takes none
  until it is ready, because it might replay them twice or never.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kohort.broker.config import TRANSACTIONS_TOPIC
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import Marker, marker_batch
from kohort.broker.partition import Partition
from kohort.broker.shards import ShardHost, Shards
from kohort.broker.topics import Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.group.effects import Effects
from kohort.records import BatchHeader
from kohort.transactions.effects import Markers, TransactionEffects
from kohort.transactions.refusals import refusal_of
from kohort.transactions.shard import TransactionShard
from kohort.wire import Message
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kohort.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from kohort.broker.calls import Asker
    from kohort.broker.node import Node

log = logging.getLogger("kohort.broker")

TopicPartition = tuple[str, int]
_RETRY_MS, _RETRY_MAX_MS = 50, 1_000
_NEEDS_NONE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
}  # fmt: skip
_BY_CLIENTS, _BATCHED = 3, 5


class TransactionHost(ShardHost[TransactionShard]):
    """One shard of transactions."""

    def new_shard(self) -> TransactionShard:
        """A shard that has seen nothing yet."""
        node = self._node
        return TransactionShard(
            self.partition.index,
            node.config.transaction_config(),
            node.next_producer_id,
            node.env.wall_ms() - node.env.now_ms(),
        )

    def run(self, effects: Effects) -> None:
        """As any shard's effects; markers go after the replies."""
        super().run(effects)
        if isinstance(effects, TransactionEffects) and self.loaded:
            for markers in effects.markers:
                self.when_durable(_Writing(self._node, self, markers).begin)

    def is_running(self, shard: TransactionShard) -> bool:
        """Whether `shard` is still the one that decides."""
        return self.loaded and not self._closed and self.shard is shard

    def markers_written(self, markers: Markers) -> None:
        """Every partition of a transaction has its marker: who waits need not wait for more."""
        self.run(self.shard.ended(markers))
        self.run(self.shard.markers_written(markers, self._node.env.now_ms()))


class _Writing:
    """The markers of one transaction on their way to its partitions."""

    def __init__(self, node: Node, host: TransactionHost, markers: Markers) -> None:
        self._node = node
        self._host = host
        self._shard = host.shard
        self._markers = markers
        self._missing = set(markers.partitions)
        self._retry_ms = _RETRY_MS
        self._marker = Marker(markers.committed, host.partition.leader_epoch)

    def begin(self) -> None:
        """Write to every partition."""
        if not self._missing:
            self._node.env.call_soon(self._all_written)
        for partition in self._markers.partitions:
            self._write(partition)

    def _write(self, partition: TopicPartition) -> None:
        if not self._host.is_running(self._shard):
            return
        m = self._markers
        try:
            write_marker(
                self._node, partition, m.producer_id, m.epoch, self._marker,
                lambda result: self._told(partition, result),
            )  # fmt: skip
        except BrokerError as error:
            self._told(partition, error)

    def _told(self, partition: TopicPartition, result: Appended | BrokerError) -> None:
        if isinstance(result, BrokerError) and result.code not in _NEEDS_NONE:
            env = self._node.env
            env.call_at(env.now_ms() + self._retry_ms, self._write, partition)
            self._retry_ms = min(self._retry_ms * 2, _RETRY_MAX_MS)
            return
        self._missing.discard(partition)
        if not self._missing:
            self._node.env.call_soon(self._all_written)

    def _all_written(self) -> None:
        if self._host.is_running(self._shard):
            self._host.markers_written(self._markers)


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


class Transactions(Shards[TransactionHost]):
    """The coordinator of the transactional ids whose partitions a node leads."""

    topic = TRANSACTIONS_TOPIC

    def new_host(self, partition: Partition) -> TransactionHost:
        """A host for the shard of a partition."""
        return TransactionHost(self._node, partition)

    def make_topic(self) -> Topic:
        """The internal topic, made if it is not there. Raises BrokerError."""
        return self._node.transactions_topic()

    def refuse(self, request: Message, asker: Asker, code: ErrorCode) -> None:
        """Answer that says an error code and nothing else."""
        asker.answer(refusal_of(request, code))

    def admit(self, wish: Admission) -> None:
        """Ask whether a producer may write to partitions in its transaction (KIP-890).

        The coordinator is asked on whichever node it is.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in wish.partitions:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=wish.transactional_id,
                    producer_id=wish.producer_id,
                    producer_epoch=wish.epoch,
                    verify_only=not wish.adds,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in topics.items()
                    ],
                )
            ]
        )
        self._coordinator(wish.transactional_id).handle(wish.transactional_id, request, wish)

    def _coordinator(self, transactional_id: str) -> Transactions:
        try:
            leader = self.partition_of(transactional_id).leader
        except BrokerError:
            return self  # which says so
        node = self._node.commons.nodes.get(leader)
        return self if node is None else node.transactions


class Admission:
    """The wish of a producer to write to partitions: added, or only looked up.

    `kip_890`: the producer's epoch rises with every transaction. `done` hears a code for each
    partition, in the terms of the transaction coordinator. When it is called with NONE for one, no
    marker of the transaction has been begun there.
    """

    client_id = client_host = ""

    def __init__(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[TopicPartition],
        done: Callable[[dict[TopicPartition, ErrorCode]], None],
        *,
        adds: bool,
        kip_890: bool,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id, self.epoch = producer
        self.partitions = sorted(set(partitions))
        self.adds = adds
        self.api_version = _BATCHED if kip_890 else _BY_CLIENTS
        self._done = done

    def answer(self, response: Message | None) -> None:
        """The coordinator's answer."""
        assert isinstance(response, AddPartitionsToTxnResponse)
        self._done(
            {
                (topic.name, p.partition_index): ErrorCode(p.partition_error_code)
                for result in response.results_by_transaction
                for topic in result.topic_results
                for p in topic.results_by_partition
            }
        )
