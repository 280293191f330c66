"""DescribeTransactions (65), v0. KIP-664.

Each transactional id is looked up by its own shard; the answer keeps the order asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from kohort.wire.messages.describe_transactions_response import DescribeTransactionsResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: DescribeTransactionsRequest, call: Call) -> None:
    """Describe transactional ids."""
    order = {transactional_id: at for at, transactional_id in enumerate(request.transactional_ids)}

    def merge(answers: list[DescribeTransactionsResponse]) -> None:
        states = [state for answer in answers for state in answer.transaction_states]
        states.sort(key=lambda s: order[s.transactional_id])
        call.answer(DescribeTransactionsResponse(transaction_states=states))

    fan_in = FanIn(len(order), merge)
    for transactional_id in order:
        one = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        node.transactions.handle(transactional_id, one, SubRequest(fan_in, call))
