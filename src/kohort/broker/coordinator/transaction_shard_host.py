"""One shard of the transaction coordinator in its host. Imported with the first transaction.

Rules:
- Markers are written when the decision is durable, to all partitions at once; what cannot take its
  marker just now is tried again. A partition that is gone, or that has moved on to a later epoch,
  needs none.
- The shard hears of the markers when all of them are durable. If the node dies before, they are
  written again after the next load: a second one ends nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kohort.broker.coordinator.partition_marker import write_marker
from kohort.broker.coordinator.services import TopicPartition
from kohort.broker.coordinator.shard_host import ShardHost
from kohort.broker.log.log import Appended
from kohort.broker.log.txn_index import Marker
from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.state.effects import Effects
from kohort.transactions.effects import Markers, TransactionEffects
from kohort.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from kohort.broker.coordinator.services import HostServices

log = logging.getLogger("kohort.broker")

_RETRY_MS, _RETRY_MAX_MS = 50, 1_000
_NEEDS_NONE = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH}
"""Not TRANSACTION_COORDINATOR_FENCED: a later coordinator has written there, perhaps for an earlier
transaction. Who is fenced is about to be closed, and completes nothing."""


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

    def __init__(self, node: HostServices, host: TransactionHost, markers: Markers) -> None:
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
                self._node,
                partition,
                m.producer_id,
                m.epoch,
                self._marker,
                lambda result: self._appended(partition, result),
            )
        except BrokerError as error:
            self._appended(partition, error)

    def _appended(self, partition: TopicPartition, result: Appended | BrokerError) -> None:
        if isinstance(result, BrokerError) and result.code not in _NEEDS_NONE:
            if result.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                self._warn_of_fence(partition)
            env = self._node.env
            env.call_at(env.now_ms() + self._retry_ms, self._write, partition)
            self._retry_ms = min(self._retry_ms * 2, _RETRY_MAX_MS)
            return
        self._missing.discard(partition)
        if not self._missing:
            self._node.env.call_soon(self._all_written)

    def _warn_of_fence(self, partition: TopicPartition) -> None:
        if self._retry_ms > _RETRY_MS:
            return  # it was logged at the first try
        log.warning(
            "transactional_id %r: %s-%d refuses its marker of coordinator epoch %d, because it has "
            "one of a later coordinator; trying again until the leader of %s-%d has a later epoch "
            "(each move of that leader raises it)",
            self._markers.transactional_id,
            *partition,
            self._marker.coordinator_epoch,
            *self._host.partition.key,
        )

    def _all_written(self) -> None:
        if self._host.is_running(self._shard):
            self._host.markers_written(self._markers)
