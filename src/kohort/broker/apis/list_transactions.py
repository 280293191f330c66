"""ListTransactions (66), v0-2. KIP-664, KIP-994 (duration), KIP-1152 (patterns).

Every shard is asked. One that is still being loaded makes the whole answer say
COORDINATOR_LOAD_IN_PROGRESS, with the transactions of the others.

A pattern is matched in linear time, as those of subscriptions are; characters that are not ASCII's
printable ones match nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call, FanIn, SubRequest
from kohort.errors import ErrorCode
from kohort.group.coordinator.handlers.re2 import RegexError, compiled
from kohort.wire.messages.list_transactions_request import ListTransactionsRequest
from kohort.wire.messages.list_transactions_response import ListTransactionsResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: ListTransactionsRequest, call: Call) -> None:
    """List transactions."""
    pattern = request.transactional_id_pattern
    try:
        id_pattern = compiled(pattern) if pattern else None
    except RegexError:
        code = ErrorCode.INVALID_REGULAR_EXPRESSION
        call.answer(ListTransactionsResponse(error_code=code))
        return

    def merge(answers: list[ListTransactionsResponse]) -> None:
        states = [state for answer in answers for state in answer.transaction_states]
        if id_pattern is not None:
            states = [s for s in states if id_pattern.matches(s.transactional_id)]
        states.sort(key=lambda s: s.transactional_id)
        call.answer(
            ListTransactionsResponse(
                error_code=next((a.error_code for a in answers if a.error_code), 0),
                unknown_state_filters=answers[0].unknown_state_filters if answers else [],
                transaction_states=states,
            )
        )

    hosts = node.transactions.hosts()
    fan_in = FanIn(len(hosts), merge)
    for host in hosts:
        host.handle(request, SubRequest(fan_in, call))
