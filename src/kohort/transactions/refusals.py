"""Answers with one error code, in the form that each request's answer has.

Rules:
- `refusal_of` answers a request that the shard does not look into: it is loading, or gone.
- `refused` turns answers round whose records could not be written.
- AddPartitionsToTxn comes in the form of its v4: a list of transactions.
"""

from __future__ import annotations

from collections.abc import Callable

from kohort.group.coordinator.state.effects import Reply
from kohort.transactions.records import NO_EPOCH
from kohort.wire import Message
from kohort.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from kohort.wire.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
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


def refusal_of(request: Message, code: int) -> Message:
    """The answer to `request` that says `code` and nothing else.

    Raises TypeError for a request that is no transaction coordinator's.
    """
    match request:
        case InitProducerIdRequest():
            return InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
        case AddPartitionsToTxnRequest():
            results = [add_result(t, lambda _: code) for t in request.transactions]
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        case EndTxnRequest():
            return EndTxnResponse(error_code=code)
        case DescribeTransactionsRequest():
            states = [
                TransactionState(error_code=code, transactional_id=i)
                for i in request.transactional_ids
            ]
            return DescribeTransactionsResponse(transaction_states=states)
        case ListTransactionsRequest():
            return ListTransactionsResponse(error_code=code)
        case _:
            name = type(request).__name__
            raise TypeError(f"{name} is not a transaction coordinator's request")


def refused(reply: Reply, code: int) -> Reply:
    """The same answer, saying that its records could not be written."""
    response = reply.response
    match response:
        case InitProducerIdResponse():
            failed: Message = InitProducerIdResponse(error_code=code, producer_epoch=NO_EPOCH)
        case AddPartitionsToTxnResponse():
            for result in response.results_by_transaction:
                for topic in result.topic_results:
                    for partition in topic.results_by_partition:
                        partition.partition_error_code = partition.partition_error_code or code
            failed = response
        case EndTxnResponse():
            failed = EndTxnResponse(error_code=code)
        case DescribeTransactionsResponse():
            states = [
                TransactionState(error_code=code, transactional_id=s.transactional_id)
                for s in response.transaction_states
            ]
            failed = DescribeTransactionsResponse(transaction_states=states)
        case ListTransactionsResponse():
            failed = ListTransactionsResponse(error_code=code)
        case _:
            failed = response
    return Reply(reply.token, failed)


def add_result(
    transaction: AddPartitionsToTxnTransaction, code_of: Callable[[tuple[str, int]], int]
) -> AddPartitionsToTxnResult:
    """One transaction's part of the answer to AddPartitionsToTxn, a code for each partition."""
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=p, partition_error_code=int(code_of((topic.name, p)))
                    )
                    for p in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )
