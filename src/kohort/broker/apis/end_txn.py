"""EndTxn (26), v0-5. KIP-98, KIP-588, KIP-890 (v5: the epoch rises with every transaction).

Differs from Apache Kafka: it is answered when the markers are written, at the latest after a
second, where Kafka answers once the decision is durable. So the next transaction need not wait,
and the committed records are there for READ_COMMITTED when the answer comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._fencing import as_known
from kohort.broker.base.request import Call
from kohort.wire.messages.end_txn_request import EndTxnRequest
from kohort.wire.messages.end_txn_response import EndTxnResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_FENCED_FROM = 2


def handle(node: NodeServices, request: EndTxnRequest, call: Call) -> None:
    """Commit or abort."""
    responder = as_known(call, EndTxnResponse, _FENCED_FROM)
    node.transactions.handle(request.transactional_id, request, responder)
