"""DescribeTransactions and ListTransactions (KIP-664, KIP-994): reading only."""

from __future__ import annotations

from collections.abc import Mapping

from kohort.errors import ErrorCode
from kohort.transactions.records import Transaction
from kohort.transactions.states import TransactionState
from kohort.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from kohort.wire.messages.describe_transactions_response import (
    DescribeTransactionsResponse,
    TopicData,
)
from kohort.wire.messages.describe_transactions_response import (
    TransactionState as DescribedTransaction,
)
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.list_transactions_response import ListTransactionsResponse
from kohort.wire.messages.list_transactions_response import (
    TransactionState as ListedTransaction,
)

Transactions = Mapping[str, Transaction]
_NAMES = {state.value for state in TransactionState}


def describe(
    transactions: Transactions, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """What is known of some transactional ids."""
    states = [_described(i, transactions.get(i)) for i in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=states)


def _described(transactional_id: str, known: Transaction | None) -> DescribedTransaction:
    if known is None:
        code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if transactional_id else None
        return DescribedTransaction(
            error_code=code or ErrorCode.INVALID_REQUEST, transactional_id=transactional_id
        )
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(known.partitions):
        topics.setdefault(topic, []).append(partition)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=known.state.value,
        transaction_timeout_ms=known.timeout_ms,
        transaction_start_time_ms=known.started_ms,
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        topics=[TopicData(topic=name, partitions=ids) for name, ids in topics.items()],
    )


def list_transactions(
    transactions: Transactions, request: ListTransactionsRequest, wall_ms: int
) -> ListTransactionsResponse:
    """The transactional ids that pass every filter; an empty filter lets all pass."""
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    answer = ListTransactionsResponse(unknown_state_filters=sorted(states - _NAMES))
    for transactional_id, known in transactions.items():
        if states and known.state.value not in states:
            continue
        if producers and known.producer_id not in producers:
            continue
        if request.duration_filter >= 0 and not _runs_longer(
            known, wall_ms, request.duration_filter
        ):
            continue
        answer.transaction_states.append(
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=known.producer_id,
                transaction_state=known.state.value,
            )
        )
    return answer


def _runs_longer(known: Transaction, wall_ms: int, duration_ms: int) -> bool:
    return known.started_ms >= 0 and wall_ms - known.started_ms > duration_ms
