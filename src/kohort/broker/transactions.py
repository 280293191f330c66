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

from kohort.broker.config import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import Marker, marker_batch
from kohort.broker.shards import ShardHost
from kohort.errors import BrokerError, ErrorCode
from kohort.group.effects import Effects
from kohort.group.routing import coordinator_partition
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
_RETRY_MS = 50
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
        """Every partition of a transaction has its marker."""
        self.run(self.shard.markers_written(markers, self._node.env.now_ms()))


class _Writing:
    """The markers of one transaction on their way to its partitions."""

    def __init__(self, node: Node, host: TransactionHost, markers: Markers) -> None:
        self._node = node
        self._host = host
        self._shard = host.shard
        self._markers = markers
        self._missing = set(markers.partitions)
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
            env.call_at(env.now_ms() + _RETRY_MS, self._write, partition)
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
    of_groups = where[0] == OFFSETS_TOPIC
    if of_groups and not node.groups.takes_markers(where[1]):
        raise BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    batch = marker_batch(producer_id, epoch, marker, node.env.wall_ms())
    partition.append(batch, BatchHeader(batch, 0), done, marker)
    if of_groups:
        node.groups.marker_written(where[1], producer_id, marker.committed)


class Transactions:
    """The coordinator of every transactional id."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._hosts: dict[int, TransactionHost] = {}
        topic = node.topics.get(TRANSACTIONS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            self._hosts[partition.index] = TransactionHost(node, partition)

    def host_of(self, transactional_id: str) -> TransactionHost:
        """The shard that a transactional id lives in. Raises BrokerError."""
        topic = self._node.transactions_topic()
        index = coordinator_partition(transactional_id, len(topic.partitions))
        host = self._hosts.get(index)
        if host is None:
            host = self._hosts[index] = TransactionHost(self._node, topic.partitions[index])
        return host

    def hosts(self) -> list[TransactionHost]:
        """Every shard that has been used."""
        return list(self._hosts.values())

    def handle(self, transactional_id: str, request: Message, asker: Asker) -> None:
        """A request about one transactional id, answered by its shard."""
        try:
            host = self.host_of(transactional_id)
        except BrokerError:
            asker.answer(refusal_of(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        host.handle(request, asker)

    def admit(self, wish: Admission) -> None:
        """Ask whether a producer may write to partitions in its transaction (KIP-890)."""
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
        self.handle(wish.transactional_id, request, wish)

    def set_wall_offset(self, offset_ms: int) -> None:
        """The wall clock may have been set since the shards were made."""
        for host in self.hosts():
            host.shard.wall_offset_ms = offset_ms

    def close(self) -> None:
        """Send everybody away."""
        for host in self.hosts():
            host.close()


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
