"""What a producer asks of its transaction's coordinator before it may write (KIP-890)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kohort.broker.coordinator.services import TopicPartition
from kohort.errors import ErrorCode
from kohort.wire import Message
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kohort.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse

_BY_CLIENTS, _BATCHED = 3, 5


class PartitionVerification:
    """A producer's request to write to partitions in its transaction: added, or only verified.

    `kip_890`: the producer's epoch rises with every transaction. `done` hears a code for each
    partition, in the terms of the transaction coordinator. When it is called with NONE for one, no
    marker of the transaction has been begun there.
    """

    client_id = client_host = ""
    hides: Callable[[str], bool] | None = None

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

    def request(self) -> AddPartitionsToTxnRequest:
        """What the coordinator is asked."""
        topics: dict[str, list[int]] = {}
        for topic, partition in self.partitions:
            topics.setdefault(topic, []).append(partition)
        return AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=self.transactional_id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    verify_only=not self.adds,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in topics.items()
                    ],
                )
            ]
        )

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
