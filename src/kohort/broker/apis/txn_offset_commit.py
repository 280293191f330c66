"""TxnOffsetCommit (28), v0-5. KIP-98, KIP-447 (group metadata), KIP-890 (v5: adds itself).

The group's partition of `__consumer_offsets` must belong to the transaction (up to v4), or is added
to it (v5). Offsets of topics or partitions that do not exist are refused one by one; the rest goes
to the group's shard in the same step in which the transaction was found open (KAFKA-15784).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.broker.coordinator.group_shard_host import GroupHost
from kohort.broker.coordinator.shard_host import coordinator_code
from kohort.broker.coordinator.txn_verification import PartitionVerification
from kohort.errors import BrokerError, ErrorCode
from kohort.group.coordinator.handlers.error_responses import refusal_of
from kohort.group.coordinator.state.effects import RequestContext
from kohort.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
)
from kohort.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_ABORTABLE_FROM, _ADDS_FROM = 4, 5
_E = ErrorCode
_WAIT = {
    _E.CONCURRENT_TRANSACTIONS,
    _E.COORDINATOR_LOAD_IN_PROGRESS,
    _E.COORDINATOR_NOT_AVAILABLE,
    _E.NOT_COORDINATOR,
}


def handle(node: NodeServices, request: TxnOffsetCommitRequest, call: Call) -> None:
    """Commit offsets in a transaction."""
    if not request.group_id:
        _refuse(request, call, _E.INVALID_GROUP_ID)
        return
    try:
        host = node.groups.host_of(request.group_id)
    except BrokerError as error:
        _refuse(request, call, coordinator_code(error))
        return
    producer = request.producer_id, request.producer_epoch
    opened = host.partition.log
    if opened is not None and opened.producers.is_open(*producer):
        _commit(node, request, call, host)
        return

    def reply(codes: dict[tuple[str, int], ErrorCode]) -> None:
        code = next(iter(codes.values()))
        if code:
            _refuse(request, call, _shown(code, call.api_version))
        else:
            _commit(node, request, call, host)

    adds = call.api_version >= _ADDS_FROM
    where = [(OFFSETS_TOPIC, host.partition.index)]
    node.transactions.admit(
        PartitionVerification(
            request.transactional_id, producer, where, reply, adds=adds, kip_890=adds
        )
    )


def _shown(code: ErrorCode, version: int) -> ErrorCode:
    if code in _WAIT:
        return _E.COORDINATOR_LOAD_IN_PROGRESS
    if code == _E.PRODUCER_FENCED:
        return _E.INVALID_PRODUCER_EPOCH
    if code == _E.TRANSACTION_ABORTABLE and version < _ABORTABLE_FROM:
        return _E.INVALID_TXN_STATE
    return code


def _refuse(request: TxnOffsetCommitRequest, call: Call, code: ErrorCode) -> None:
    context = RequestContext(call, call.api_version, call.client_id, call.client_host)
    call.answer(refusal_of(request, context, code))


def _commit(
    node: NodeServices, request: TxnOffsetCommitRequest, call: Call, host: GroupHost
) -> None:
    refused = [_unknown(node, topic) for topic in request.topics]
    for topic in request.topics:
        topic.partitions = [
            p for p in topic.partitions if node.topics.partition(topic.name, p.partition_index)
        ]
    request.topics = [topic for topic in request.topics if topic.partitions]

    def merge(answers: list[TxnOffsetCommitResponse]) -> None:
        answers[0].topics += [topic for topic in refused if topic.partitions]
        call.answer(answers[0])

    host.handle(request, SubRequest(FanIn(1, merge), call))


def _unknown(
    node: NodeServices, topic: TxnOffsetCommitRequestTopic
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(
                partition_index=p.partition_index, error_code=_E.UNKNOWN_TOPIC_OR_PARTITION
            )
            for p in topic.partitions
            if node.topics.partition(topic.name, p.partition_index) is None
        ],
    )
