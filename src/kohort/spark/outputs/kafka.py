"""Kafka's side of a batch: the shared transaction and the fence inside it, on the driver.

Rules (ADR 0019):
- The fence is an offset of a group that has no members: its value is the batch id, its metadata the
  checkpoint id. TxnOffsetCommit puts it into the transaction of the batch's records.
- It is at partition 0 of the first topic. All offsets of the group are read and the highest
  batch id counts, so that the topics of a query may change.
- The fence is read after InitProducerId and waits for open transactions (`require_stable`): what an
  older driver was about to commit is then decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import EncodedBatch, SharedTransaction
from kohort.client.shared.writer import SharedWriter
from kohort.spark.outputs.fence import Batch, Fence


class TopicTransaction:
    """One query's Kafka transactions; see `kohort.spark.outputs.protocol.Topics`.

    Args:
        name: transactional id of the query, and the group of its fence.
        topics: every topic that is written.
        timeout_ms: how long a batch may take.
        config: the client's configuration in Kafka's names.
    """

    def __init__(
        self, name: str, topics: Iterable[str], timeout_ms: int, config: Mapping[str, Any]
    ) -> None:
        self.name = name
        self._config = dict(config)
        self._transaction = SharedTransaction(name, timeout_ms, config)
        self._all = self._topics = sorted(topics)
        self.partitions: dict[str, int] = {}
        """Partition count of every topic of the query, as the present transaction uses it."""

    def narrow(self, topics: Iterable[str] | None) -> None:
        """Write only to these of the query's topics from the next epoch on; None: to all.

        Markers go to every partition that is named, so a batch names no topic in vain.
        """
        self._topics = self._all if topics is None else sorted(topics)

    def init(self) -> Identity:
        """A new epoch; transactions open under an older one are aborted or completed."""
        identity = self._transaction.init()
        self.partitions = self._transaction.partition_counts(self._all)
        return identity

    def fence(self) -> Fence | None:
        """The batch whose transaction was committed last."""
        found = self._transaction.offsets(self.name).values()
        last = max(found, key=lambda o: o.offset, default=None)
        return None if last is None else Fence(last.offset, last.metadata)

    def ensure_fence(self, batch: Batch) -> None:
        """Commit a fence of the batch before this one where the query has none.

        Batches without records have no transaction, so the first one may come late. A missing fence
        then means that the offsets of the group are gone.
        """
        if batch.batch_id == 0:
            return
        identity = self._transaction.init()
        if self.fence() is None:
            self.set_fence(identity, replace(batch, batch_id=batch.batch_id - 1))
            self._transaction.end(identity, commit=True)

    def add(self, identity: Identity) -> None:
        """Name every partition of the topics that this batch writes."""
        self._transaction.add(
            identity, [(t, p) for t in self._topics for p in range(self.partitions[t])]
        )

    def write(
        self,
        identity: Identity,
        batches: Iterable[EncodedBatch],
        after: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Write from the driver itself: what a lost transaction held, or dead letters behind what
        tasks have written."""
        with SharedWriter(self._config) as writer:
            writer.write(identity, batches, after)

    def set_fence(self, identity: Identity, batch: Batch) -> None:
        """Put the batch id into the transaction."""
        at = TopicPartition(self._topics[0], 0)
        value = OffsetAndMetadata(batch.batch_id, batch.checkpoint)
        self._transaction.set_offset(identity, self.name, at, value)

    def end(self, identity: Identity, *, commit: bool) -> None:
        """Commit or abort."""
        self._transaction.end(identity, commit=commit)

    def close(self) -> None:
        """Close the connections; an open transaction is left to its time-out or the next driver."""
        self._transaction.close()
