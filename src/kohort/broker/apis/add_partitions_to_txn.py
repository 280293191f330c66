"""AddPartitionsToTxn (24), v0-5. KIP-98, KIP-588, KIP-890 (v4: batches, and verification).

Clients send up to v3, of one transaction; later versions are between brokers, of many, each of
which goes to its own shard. When a partition does not exist, or is one of the broker's own, none of
its transaction is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._fencing import code_known
from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.errors import ErrorCode
from kohort.transactions.refusals import add_result
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from kohort.wire.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_FENCED_FROM, _BATCHED_FROM = 2, 4


def handle(node: NodeServices, request: AddPartitionsToTxnRequest, call: Call) -> None:
    """Add, or look up, partitions of transactions."""
    batched = call.api_version >= _BATCHED_FROM
    requested = request.transactions
    if not batched:
        one = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        requested = [one]
    refused = [_refused(node, one, by_client=not batched) for one in requested]
    results = [result for result in refused if result is not None]
    valid = [one for one, result in zip(requested, refused, strict=True) if result is None]

    def merge(answers: list[AddPartitionsToTxnResponse]) -> None:
        for answer in answers:
            results.extend(answer.results_by_transaction)
        for result in results:
            _put_codes(result, call.api_version)
        if batched:
            call.answer(AddPartitionsToTxnResponse(results_by_transaction=results))
        else:
            topics = results[0].topic_results
            call.answer(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics))

    fan_in = FanIn(len(valid), merge)
    for one in valid:
        to_shard = AddPartitionsToTxnRequest(transactions=[one])
        node.transactions.handle(one.transactional_id, to_shard, SubRequest(fan_in, call))


def _refused(
    node: NodeServices, one: AddPartitionsToTxnTransaction, *, by_client: bool
) -> AddPartitionsToTxnResult | None:
    """The answer when there are partitions that do not exist, or are not for clients."""
    named = {(t.name, p) for t in one.topics for p in t.partitions}
    wrong: dict[tuple[str, int], ErrorCode] = {}
    for where in named:
        partition = node.topics.partition(*where)
        if partition is None:
            wrong[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif by_client and partition.topic.internal:
            wrong[where] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not wrong and one.transactional_id and named:
        return None
    rest = ErrorCode.OPERATION_NOT_ATTEMPTED if one.transactional_id else ErrorCode.INVALID_REQUEST
    return add_result(one, lambda where: wrong.get(where, rest))


def _put_codes(result: AddPartitionsToTxnResult, version: int) -> None:
    for topic in result.topic_results:
        for partition in topic.results_by_partition:
            code = partition.partition_error_code
            partition.partition_error_code = code_known(code, version, _FENCED_FROM)
