"""Produce (0), v3-13. KIP-98, KIP-110 (zstd), KIP-467, KIP-516 (topic ids), KIP-890, KIP-951.

One batch of format 2 a partition. It is checked to its last record (`_batches.py`), stamped and
stored. It is answered when it is safe at the broker's level of durability, whether acks is 1 or -1;
the answer with acks=0 does not leave (`Call.silent`).

The first transactional batch that a partition gets in a transaction waits until the coordinator has
been asked: from v12 on the partition is added to the transaction then, before that it must have
been added (KIP-890). The answer comes in the order of the requests, so batches keep theirs.

Differs from Apache Kafka: a producer's state survives with its last five batches, not one; records
whose offsets do not count up from 0 are refused, not renumbered; a batch that does not decompress
is an INVALID_RECORD, one that expands past 64 MiB (or max.message.bytes) a MESSAGE_TOO_LARGE.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kohort.broker.apis._batches import checked
from kohort.broker.apis._leaders import Leaders
from kohort.broker.base.request import Call
from kohort.broker.coordinator.txn_verification import PartitionVerification
from kohort.broker.log.log import Appended
from kohort.broker.log.producers import AppendedBatch
from kohort.broker.state.partition import Partition
from kohort.broker.state.produce_refusal import hold_back, hold_back_without_room, refuse
from kohort.errors import BrokerError, ErrorCode
from kohort.records import BatchHeader
from kohort.wire.messages.produce_request import PartitionProduceData, ProduceRequest
from kohort.wire.messages.produce_response import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices
    from kohort.broker.state.topics import Topic

_HINTS_FROM, _TOPIC_IDS_FROM = 10, 13
_ABORTABLE_FROM, _ADDS_FROM = 11, 12
_E = ErrorCode
_WAIT = {_E.COORDINATOR_LOAD_IN_PROGRESS, _E.COORDINATOR_NOT_AVAILABLE, _E.NOT_COORDINATOR}
_LATER = {*_WAIT, _E.CONCURRENT_TRANSACTIONS}
_REFUSED = "the transaction coordinator did not let the batch in"


def handle(node: NodeServices, request: ProduceRequest, call: Call) -> None:
    """Append to every partition that is named; answer when all of them are done."""
    pending = _Pending(node, call, request)
    for data in request.topic_data:
        by_id = call.api_version >= _TOPIC_IDS_FROM
        topic = node.topics.by_id(data.topic_id) if by_id else node.topics.get(data.name)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answer = TopicProduceResponse(
            name=data.name, topic_id=data.topic_id, partition_responses=[]
        )
        pending.response.responses.append(answer)
        for part in data.partition_data:
            response = PartitionProduceResponse(index=part.index, base_offset=-1)
            answer.partition_responses.append(response)
            try:
                if request.acks not in (-1, 0, 1):
                    raise BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}")
                partition = _partition(topic, part, unknown)
                if not node.leads(partition):
                    raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                batch, header = checked(
                    part.records,
                    call.api_version,
                    partition.topic.config,
                    node.env.wall_ms(),
                    response,
                )
                pending.take(_Arrival(partition, batch, header, response))
            except BrokerError as error:
                refuse(response, error)
                if error.code == _E.NOT_LEADER_OR_FOLLOWER and topic is not None:
                    pending.hint(topic.partitions[part.index], response)
    pending.admit()
    pending.all_begun()


class _Arrival(NamedTuple):
    """One batch that has been checked, and the place for its answer."""

    partition: Partition
    batch: memoryview
    header: BatchHeader
    response: PartitionProduceResponse

    def is_admitted(self) -> bool:
        """Whether its transaction is open in the partition, or it is there already; not while a
        batch before it waits.
        """
        opened, header = self.partition.log, self.header
        if opened is None or header.producer_id in self.partition.awaited:
            return False
        if opened.producers.is_open(header.producer_id, header.producer_epoch):
            return True
        return isinstance(opened.producers.check(header), AppendedBatch)

    def arrived(self) -> None:
        """It waits no longer."""
        awaited, producer_id = self.partition.awaited, self.header.producer_id
        awaited[producer_id] -= 1
        if not awaited[producer_id]:
            del awaited[producer_id]


def _shown(code: ErrorCode, version: int) -> ErrorCode:
    """A coordinator's code in the words of Produce."""
    if code in _WAIT or (code == _E.CONCURRENT_TRANSACTIONS and version < _ADDS_FROM):
        return _E.NOT_ENOUGH_REPLICAS  # every client tries that again
    if code == _E.PRODUCER_FENCED:
        return _E.INVALID_PRODUCER_EPOCH
    if code == _E.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return _E.INVALID_TXN_STATE
    return code


class _Pending:
    """The appends of one request."""

    def __init__(self, node: NodeServices, call: Call, request: ProduceRequest) -> None:
        self._node = node
        self._call = call
        self._leaders: Leaders | None = None
        self._transactional_id = request.transactional_id
        self._missing = 1  # the request itself, until all of its appends have begun
        self._unknown: dict[tuple[int, int], list[_Arrival]] = {}
        self.response = ProduceResponse(responses=[])

    def take(self, arrival: _Arrival) -> None:
        """Append a batch, or keep it until its transaction was asked for. Raises BrokerError."""
        header = arrival.header
        if header.is_transactional:
            if not self._transactional_id:
                raise BrokerError(
                    _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "the request names no transactional id",
                )
            if not arrival.is_admitted():
                producer = header.producer_id, header.producer_epoch
                self._unknown.setdefault(producer, []).append(arrival)
                arrival.partition.awaited[header.producer_id] += 1
                return
        self._append(arrival)

    def admit(self) -> None:
        """Ask for the batches that begin a transaction in their partition."""
        adds = self._call.api_version >= _ADDS_FROM
        for producer, arrivals in self._unknown.items():
            self._missing += 1
            self._node.transactions.admit(
                PartitionVerification(
                    self._transactional_id or "",
                    producer,
                    [arrival.partition.key for arrival in arrivals],
                    partial(self._admitted, arrivals),
                    adds=adds,
                    kip_890=adds,
                )
            )

    def _admitted(self, arrivals: list[_Arrival], codes: dict[tuple[str, int], ErrorCode]) -> None:
        for arrival in arrivals:
            partition = arrival.partition
            arrival.arrived()
            try:
                code = codes[partition.key]
                if code:
                    if code in _LATER:
                        hold_back(partition, arrival.header)
                    raise BrokerError(_shown(code, self._call.api_version), _REFUSED)
                if self._node.topics.partition(*partition.key) is not partition:
                    raise BrokerError(_E.UNKNOWN_TOPIC_OR_PARTITION)
                if not self._node.leads(partition):  # it has moved, or this node has died
                    raise BrokerError(_E.NOT_LEADER_OR_FOLLOWER)
                self._check_first(arrival)
                self._append(arrival)
            except BrokerError as error:
                refuse(arrival.response, error)
                if error.code == _E.NOT_LEADER_OR_FOLLOWER:
                    self.hint(partition, arrival.response)
        self.all_begun()

    def _check_first(self, arrival: _Arrival) -> None:
        """With KIP-890 each transaction has an epoch of its own, which begins at sequence 0: one
        that begins later has lost its first batch. Raises BrokerError.
        """
        header, opened = arrival.header, arrival.partition.log
        later = self._call.api_version >= _ADDS_FROM and header.base_sequence != 0
        producer = header.producer_id, header.producer_epoch
        if later and (opened is None or not opened.producers.is_open(*producer)):
            raise BrokerError(_E.OUT_OF_ORDER_SEQUENCE_NUMBER, "the first batch is missing")

    def _append(self, arrival: _Arrival) -> None:
        partition, response = arrival.partition, arrival.response

        def done(result: Appended | BrokerError) -> None:
            if isinstance(result, BrokerError):
                refuse(response, result)
            self.all_begun()

        self._missing += 1
        try:
            appended = partition.append(arrival.batch, arrival.header, done)
        except BrokerError as error:
            self._missing -= 1
            hold_back_without_room(partition, arrival.header, error)
            response.log_start_offset = partition.start_offset
            raise
        response.base_offset = appended.base_offset
        response.log_append_time_ms = appended.append_time_ms
        response.log_start_offset = partition.start_offset

    def hint(self, partition: Partition, response: PartitionProduceResponse) -> None:
        """Say who leads a partition that was refused here."""
        if self._call.api_version >= _HINTS_FROM:
            if self._leaders is None:
                self._leaders = Leaders(self._node)
            leader, epoch = self._leaders.of(partition)
            response.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)

    def all_begun(self) -> None:
        """One less is missing; the last one sends the answer."""
        self._missing -= 1
        if self._missing == 0:
            if self._leaders is not None and self._leaders.named:
                self.response.node_endpoints = [
                    NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
                    for node_id, host, port, rack in self._leaders.addresses()
                ]
            self._call.answer(self.response)


def _partition(topic: Topic | None, part: PartitionProduceData, unknown: ErrorCode) -> Partition:
    if topic is None:
        raise BrokerError(unknown)
    if topic.internal:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own")
    if not 0 <= part.index < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic.partitions[part.index]
