"""AddOffsetsToTxn (25), v0-4. KIP-98, KIP-588.

Adds the partition of `__consumer_offsets` that the group lives in to the transaction. Clients of
KIP-890 do not send it: TxnOffsetCommit v5 adds the partition itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis._fencing import code_known
from kohort.broker.base.config import OFFSETS_TOPIC
from kohort.broker.base.request import Call
from kohort.broker.coordinator.txn_verification import PartitionVerification
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from kohort.wire.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_FENCED_FROM = 2


def handle(node: NodeServices, request: AddOffsetsToTxnRequest, call: Call) -> None:
    """Add the group's partition."""

    def reply(codes: dict[tuple[str, int], ErrorCode]) -> None:
        code = next(iter(codes.values()))
        known = code_known(code, call.api_version, _FENCED_FROM)
        call.answer(AddOffsetsToTxnResponse(error_code=known))

    if not request.group_id:
        call.answer(AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        return
    try:
        index = node.groups.partition_of(request.group_id).index
    except BrokerError:
        call.answer(AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    node.transactions.admit(
        PartitionVerification(
            request.transactional_id,
            (request.producer_id, request.producer_epoch),
            [(OFFSETS_TOPIC, index)],
            reply,
            adds=True,
            kip_890=False,
        )
    )
