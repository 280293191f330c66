"""The shell of the transaction coordinator: shards over the partitions of `__transaction_state`.

Rules:
- A live group shard learns of the markers in its partition; one that is being loaded takes none
  until it is ready, because it might replay them twice or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.config import TRANSACTIONS_TOPIC
from kohort.broker.coordinator.shard_host import CoordinatorShards
from kohort.broker.state.partition import Partition
from kohort.broker.state.topics import Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.wire import Message

if TYPE_CHECKING:
    from kohort.broker.base.request import Responder
    from kohort.broker.coordinator.services import Coordinator
    from kohort.broker.coordinator.transaction_shard_host import TransactionHost
    from kohort.broker.coordinator.txn_verification import PartitionVerification


class Transactions(CoordinatorShards["TransactionHost"]):
    """The coordinator of the transactional ids whose partitions a node leads."""

    topic = TRANSACTIONS_TOPIC

    def new_host(self, partition: Partition) -> TransactionHost:
        """A host for the shard of a partition."""
        from kohort.broker.coordinator.transaction_shard_host import TransactionHost

        return TransactionHost(self._node, partition)

    def make_topic(self) -> Topic:
        """The internal topic, made if it is not there. Raises BrokerError."""
        return self._node.transactions_topic()

    def refuse(self, request: Message, responder: Responder, code: ErrorCode) -> None:
        """Answer that says an error code and nothing else."""
        from kohort.transactions.refusals import refusal_of

        responder.answer(refusal_of(request, code))

    def admit(self, verification: PartitionVerification) -> None:
        """Ask whether a producer may write to partitions in its transaction (KIP-890).

        The coordinator is asked on whichever node it is.
        """
        transactional_id = verification.transactional_id
        request = verification.request()
        self._coordinator(transactional_id).handle(transactional_id, request, verification)

    def _coordinator(self, transactional_id: str) -> Coordinator:
        try:
            leader = self.partition_of(transactional_id).leader
        except BrokerError:
            return self  # which says so
        node = self._node.nodes.get(leader)
        return self if node is None else node.transactions
