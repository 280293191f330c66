"""A transactional producer as the broker sees it, before KIP-890 and with it, over a `Harness`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kohort.records import Chunk
from kohort.wire.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from kohort.wire.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kohort.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse
from kohort.wire.messages.describe_producers_request import DescribeProducersRequest, TopicRequest
from kohort.wire.messages.describe_producers_response import (
    DescribeProducersResponse,
    ProducerState,
)
from kohort.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from kohort.wire.messages.describe_transactions_response import (
    DescribeTransactionsResponse,
    TransactionState,
)
from kohort.wire.messages.end_txn_request import EndTxnRequest
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.fetch_response import FetchResponse, PartitionData
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.produce_response import ProduceResponse
from kohort.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kohort.wire.messages.txn_offset_commit_response import TxnOffsetCommitResponse
from kohort.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.harness import Answer, Harness, batch_of, fetch_request, produce_request

BEFORE, KIP_890 = "before KIP-890", "KIP-890"
# Versions of AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn, Produce.
_VERSIONS = {BEFORE: (3, 3, 3, 3, 9), KIP_890: (3, 3, 5, 5, 12)}


class Tx:
    """One producer with a transactional id. Its methods give the error code."""

    def __init__(self, harness: Harness, name: str = "tx", kind: str = KIP_890) -> None:
        self.harness, self.name, self.kind = harness, name, kind
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}
        self._v_add, self._v_add_offsets, self._v_offsets, self._v_end, self._v_produce = _VERSIONS[
            kind
        ]

    def init(self, *, timeout_ms: int = 60_000, again: bool = False, version: int = 5) -> int:
        request = init_request(self.name, timeout_ms)
        if again:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        answer = self.harness.ask(request, InitProducerIdResponse, version)
        if not answer.error_code:
            self._becomes(answer.producer_id, answer.producer_epoch)
        return answer.error_code

    def _becomes(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def add(self, *partitions: tuple[str, int], version: int | None = None) -> int:
        """AddPartitionsToTxn; the highest code of all partitions."""
        used = self._v_add if version is None else version
        request = add_request(used, self.name, self.producer_id, self.epoch, partitions)
        answer = self.harness.ask(request, AddPartitionsToTxnResponse, used)
        topics = answer.results_by_topic_v3_and_below
        if used >= 4:
            topics = answer.results_by_transaction[0].topic_results
        return max(p.partition_error_code for t in topics for p in t.results_by_partition)

    def start(self, topic: str, values: list[bytes], partition: int = 0, **changes: Any) -> Answer:
        """A Produce request without waiting for its answer."""
        batch = self.batch(*values, topic=topic, partition=partition, **changes)
        request = produce_request(topic, batch, partition)
        request.transactional_id = self.name
        return self.harness.send(request, self._v_produce)

    def batch(self, *values: bytes, topic: str = "t", partition: int = 0, **changes: Any) -> bytes:
        """The next batch to a partition."""
        first = self.sequences.get((topic, partition), 0)
        stamp = {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "base_sequence": first,
            "transactional": True,
        }
        self.sequences[topic, partition] = first + len(values)
        keys: list[bytes | None] = list(values)
        return batch_of(list(values), keys=keys, **{**stamp, **changes})

    def send(self, topic: str, *values: bytes, partition: int = 0, **changes: Any) -> int:
        """Add the partition where the client does that, and produce."""
        if self.kind == BEFORE:
            code = self.add((topic, partition))
            if code:
                return code
        return self.produce(topic, *values, partition=partition, **changes)

    def produce(self, topic: str, *values: bytes, partition: int = 0, **changes: Any) -> int:
        answer = self.start(topic, list(values), partition, **changes)
        response = self.harness.read(answer, ProduceResponse, self._v_produce)
        code = response.responses[0].partition_responses[0].error_code
        if code:
            self.sequences[topic, partition] -= len(values)
        return code

    def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int], **who: Any) -> int:
        """The highest code of all partitions."""
        if self.kind == BEFORE:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            code = self.harness.ask(add, AddOffsetsToTxnResponse, self._v_add_offsets).error_code
            if code:
                return code
        return self.store_offsets(group, offsets, **who)

    def store_offsets(self, group: str, offsets: Mapping[tuple[str, int], int], **who: Any) -> int:
        request = offsets_request(self.name, self.producer_id, self.epoch, group, offsets, **who)
        answer = self.harness.ask(request, TxnOffsetCommitResponse, self._v_offsets)
        return max(p.error_code for t in answer.topics for p in t.partitions)

    def start_end(self, *, commit: bool) -> Answer:
        return self.harness.send(self.end_request(commit=commit), self._v_end)

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def end(self, *, commit: bool) -> int:
        return self.ended(self.start_end(commit=commit))

    def ended(self, answer: Answer) -> int:
        """What an EndTxn was answered."""
        response = self.harness.read(answer, EndTxnResponse, self._v_end)
        if not response.error_code and self.kind == KIP_890:
            self._becomes(response.producer_id, response.producer_epoch)
        return response.error_code

    def commit(self) -> int:
        return self.end(commit=True)

    def abort(self) -> int:
        return self.end(commit=False)

    def state(self) -> TransactionState:
        return described(self.harness, self.name)

    def twin(self) -> Tx:
        """Another process with the same transactional id."""
        return Tx(self.harness, self.name, self.kind)

    def moved_to(self, harness: Harness) -> Tx:
        """The same producer, after the broker was restarted."""
        self.harness = harness
        return self


def init_request(name: str, timeout_ms: int = 60_000) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)


def add_request(
    version: int,
    name: str,
    producer_id: int,
    epoch: int,
    partitions: tuple[tuple[str, int], ...],
    *,
    verify: bool = False,
) -> AddPartitionsToTxnRequest:
    topics = [AddPartitionsToTxnTopic(name=t, partitions=[p]) for t, p in partitions]
    if version < 4:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=topics,
        )
    one = AddPartitionsToTxnTransaction(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        verify_only=verify,
        topics=topics,
    )
    return AddPartitionsToTxnRequest(transactions=[one])


def offsets_request(
    name: str,
    producer_id: int,
    epoch: int,
    group: str,
    offsets: Mapping[tuple[str, int], int],
    **who: Any,
) -> TxnOffsetCommitRequest:
    topics = [
        TxnOffsetCommitRequestTopic(
            name=topic,
            partitions=[
                TxnOffsetCommitRequestPartition(partition_index=p, committed_offset=offset)
            ],
        )
        for (topic, p), offset in offsets.items()
    ]
    return TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=group,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=topics,
        **who,
    )


def markers_request(
    producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0
) -> WriteTxnMarkersRequest:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[topic],
        coordinator_epoch=coordinator_epoch,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def describe_request(*names: str) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=list(names))


def described(harness: Harness, name: str) -> TransactionState:
    answer = harness.ask(describe_request(name), DescribeTransactionsResponse)
    return answer.transaction_states[0]


def producers(harness: Harness, topic: str = "t", partition: int = 0) -> list[ProducerState]:
    answer = harness.ask(producers_request(topic, partition), DescribeProducersResponse)
    return answer.topics[0].partitions[0].active_producers


def producers_request(topic: str = "t", partition: int = 0) -> DescribeProducersRequest:
    return DescribeProducersRequest(
        topics=[TopicRequest(name=topic, partition_indexes=[partition])]
    )


def fetch(
    harness: Harness, offset: int = 0, topic: str = "t", partition: int = 0, *, committed: bool
) -> PartitionData:
    request = fetch_request(topic, offset, partition)
    request.isolation_level = int(committed)
    return harness.ask(request, FetchResponse, 12).responses[0].partitions[0]


def read(
    harness: Harness, topic: str = "t", partition: int = 0, *, committed: bool = True
) -> list[bytes]:
    """Every value that a consumer sees from the log's start."""
    found: list[bytes] = []
    offset = 0
    while True:
        data = fetch(harness, offset, topic, partition, committed=committed)
        assert data.error_code == 0, data
        aborted = [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()]
        chunk = Chunk(topic, partition, bytes(data.records or b""), offset, aborted=aborted)  # type: ignore[arg-type]
        while not chunk.exhausted:
            found += [r.value or b"" for r in chunk.next_records(1_000)]
        if chunk.position == offset:
            return found
        offset = chunk.position


REQUESTS: dict[str, Any] = {
    "AddPartitionsToTxn": lambda v, tid: add_request(v, "tx", 1, 0, (("t", 0), ("t", 9))),
    "AddOffsetsToTxn": lambda v, tid: AddOffsetsToTxnRequest(transactional_id="tx", group_id="g"),
    "EndTxn": lambda v, tid: EndTxnRequest(transactional_id="tx", committed=True),
    "WriteTxnMarkers": lambda v, tid: markers_request(5, 0, commit=True),
    "TxnOffsetCommit": lambda v, tid: offsets_request("tx", 1, 0, "g", {("t", 0): 1, ("t", 9): 1}),
    "DescribeProducers": lambda v, tid: producers_request(),
    "DescribeTransactions": lambda v, tid: describe_request("tx", "other"),
    "ListTransactions": lambda v, tid: ListTransactionsRequest(state_filters=["Empty", "Odd"]),
}
"""One request of each API, by version and topic id."""
