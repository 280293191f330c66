"""ListTransactions (66), v0-1. KIP-664, KIP-994 (duration).

Every shard is asked. One that is still being loaded makes the whole answer say
COORDINATOR_LOAD_IN_PROGRESS, with the transactions of the others.

Differs from Apache Kafka: v2 (a regular expression over transactional ids, KIP-1152) is not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.calls import Api, Call, Gather, Part
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.list_transactions_response import ListTransactionsResponse

if TYPE_CHECKING:
    from kohort.broker.node import Node


def handle(node: Node, request: ListTransactionsRequest, call: Call) -> None:
    """List transactions."""

    def merge(answers: list[ListTransactionsResponse]) -> None:
        states = [state for answer in answers for state in answer.transaction_states]
        states.sort(key=lambda s: s.transactional_id)
        call.answer(
            ListTransactionsResponse(
                error_code=next((a.error_code for a in answers if a.error_code), 0),
                unknown_state_filters=answers[0].unknown_state_filters if answers else [],
                transaction_states=states,
            )
        )

    hosts = node.transactions.hosts()
    gather = Gather(len(hosts), merge)
    for host in hosts:
        host.handle(request, Part(gather, call))


API = Api(ListTransactionsRequest, 0, 1, handle)
