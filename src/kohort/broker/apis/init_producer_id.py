"""InitProducerId (22), v0-5. KIP-98, KIP-360.

Gives an idempotent producer an id that nobody had before, at epoch 0 (also one that names the id it
had: a new id is as good as a new epoch).

Differs from Apache Kafka: transactional ids are refused (COORDINATOR_NOT_AVAILABLE) until
transactions are there. v6 (two-phase commit) is not stable in Kafka either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.calls import Call, serve
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse

if TYPE_CHECKING:
    from kohort.broker.node import Node


def handle(node: Node, request: InitProducerIdRequest, call: Call) -> None:
    """Give a producer its id."""
    if request.transactional_id is not None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if request.transactional_id == "":
            code = ErrorCode.INVALID_REQUEST
        call.answer(InitProducerIdResponse(error_code=code, producer_epoch=-1))
        return
    try:
        producer_id = node.next_producer_id()
    except BrokerError as error:
        call.answer(InitProducerIdResponse(error_code=error.code, producer_epoch=-1))
        return
    call.answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))


API = serve(InitProducerIdRequest, handle)
