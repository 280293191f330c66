"""What may be done with transactional ids, and what transactions touch."""

from __future__ import annotations

from kohort.acl import Operation
from kohort.broker.authorization.request_check import Asking, Patch, split, with_refusals
from kohort.errors import ErrorCode
from kohort.wire import Message
from kohort.wire.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from kohort.wire.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kohort.wire.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kohort.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from kohort.wire.messages.describe_transactions_response import (
    DescribeTransactionsResponse,
    TransactionState,
)
from kohort.wire.messages.end_txn_request import EndTxnRequest
from kohort.wire.messages.end_txn_response import EndTxnResponse
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.list_transactions_response import ListTransactionsResponse
from kohort.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest
from kohort.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kohort.wire.messages.write_txn_markers_request import WriteTxnMarkersRequest
from kohort.wire.messages.write_txn_markers_response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

_O = Operation
REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_BATCHED_FROM = 4


def init_producer_id(asking: Asking, request: InitProducerIdRequest) -> Message | Patch | None:
    """WRITE the transactional id; without one, IDEMPOTENT_WRITE or WRITE some topic (KIP-679)."""
    if request.transactional_id is not None:
        if asking.transactional(_O.WRITE, request.transactional_id):
            return None
        return InitProducerIdResponse(error_code=REFUSED, producer_epoch=-1)
    if asking.cluster(_O.IDEMPOTENT_WRITE) or asking.some_topic(_O.WRITE):
        return None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)


def add_partitions_to_txn(
    asking: Asking, request: AddPartitionsToTxnRequest
) -> Message | Patch | None:
    """WRITE the transactional id and all the topics: one that may not be written stops all."""
    if asking.call.api_version >= _BATCHED_FROM:  # of brokers, for each other
        if asking.cluster(_O.CLUSTER_ACTION):
            return None
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = request.v3_and_below_topics
    whole = not asking.transactional(_O.WRITE, request.v3_and_below_transactional_id)
    refused = {t.name for t in topics if not asking.topic(_O.WRITE, t.name)}
    if not whole and not refused:
        return None

    def code(topic: AddPartitionsToTxnTopic) -> int:
        if whole:
            return REFUSED
        named = topic.name in refused
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED if named else ErrorCode.OPERATION_NOT_ATTEMPTED

    results = [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=code(topic)
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def add_offsets_to_txn(asking: Asking, request: AddOffsetsToTxnRequest) -> Message | Patch | None:
    """WRITE the transactional id, READ the group."""
    if not asking.transactional(_O.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=REFUSED)
    if not asking.group(_O.READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return None


def end_txn(asking: Asking, request: EndTxnRequest) -> Message | Patch | None:
    """WRITE the transactional id."""
    if asking.transactional(_O.WRITE, request.transactional_id):
        return None
    return EndTxnResponse(error_code=REFUSED)


def txn_offset_commit(asking: Asking, request: TxnOffsetCommitRequest) -> Message | Patch | None:
    """WRITE the transactional id, READ the group and the topics."""
    code, refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED, request.topics
    if not asking.transactional(_O.WRITE, request.transactional_id):
        code, request.topics = REFUSED, []
    elif not asking.group(_O.READ, request.group_id):
        code, request.topics = ErrorCode.GROUP_AUTHORIZATION_FAILED, []
    else:
        request.topics, refused = split(refused, lambda t: asking.topic(_O.READ, t.name))
    answers = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                for p in topic.partitions
            ],
        )
        for topic in refused
    ]
    if answers and not request.topics:
        return TxnOffsetCommitResponse(topics=answers)

    return with_refusals("topics", answers)


def write_txn_markers(asking: Asking, request: WriteTxnMarkersRequest) -> Message | Patch | None:
    """CLUSTER_ACTION, or ALTER the cluster (KIP-664)."""
    if asking.cluster(_O.CLUSTER_ACTION) or asking.cluster(_O.ALTER):
        return None
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=i, error_code=code)
                            for i in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def describe_transactions(
    asking: Asking, request: DescribeTransactionsRequest
) -> Message | Patch | None:
    """DESCRIBE the transactional ids; topics that may not be described are left out."""
    request.transactional_ids, refused = split(
        request.transactional_ids, lambda i: asking.transactional(_O.DESCRIBE, i)
    )
    answers = [TransactionState(transactional_id=i, error_code=REFUSED) for i in refused]

    def patch(response: DescribeTransactionsResponse) -> None:
        for state in response.transaction_states:
            state.topics = [t for t in state.topics if asking.topic(_O.DESCRIBE, t.topic)]
        response.transaction_states = [*response.transaction_states, *answers]

    return patch


def list_transactions(asking: Asking, request: ListTransactionsRequest) -> Message | Patch | None:
    """DESCRIBE the transactional ids: others are not shown."""

    def patch(response: ListTransactionsResponse) -> None:
        response.transaction_states = [
            state
            for state in response.transaction_states
            if asking.transactional(_O.DESCRIBE, state.transactional_id)
        ]

    return patch
