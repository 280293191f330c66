"""InitProducerId (22), v0-5. KIP-98, KIP-360, KIP-588 (PRODUCER_FENCED), KIP-890.

Without a transactional id: an id that was never assigned before, at epoch 0 (also for a producer
that names its old id: a new id is as good as a new epoch). With one, its coordinator answers.

v6 (two-phase commit, KIP-939) is not stable in Kafka either.

Differs from Apache Kafka: aborting the open transaction of another producer raises the epoch by two
where Kafka raises it by one, so that the fenced producer's own EndTxn cannot pass for a retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._fencing import as_known
from kohort.broker.base.request import Call
from kohort.errors import BrokerError
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_FENCED_FROM = 4


def handle(node: NodeServices, request: InitProducerIdRequest, call: Call) -> None:
    """Give a producer its id."""
    if request.transactional_id is not None:
        responder = as_known(call, InitProducerIdResponse, _FENCED_FROM)
        node.transactions.handle(request.transactional_id, request, responder)
        return
    try:
        producer_id = node.next_producer_id()
    except BrokerError as error:
        call.answer(InitProducerIdResponse(error_code=error.code, producer_epoch=-1))
        return
    call.answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))
