"""FindCoordinator (10), v0-6. KIP-98 (key types), KIP-699 (batches).

Makes `__consumer_offsets` or `__transaction_state` when it is not there yet. The coordinator of a
group, or of a transactional id, is the leader of its partition there; while that one has no leader:
COORDINATOR_NOT_AVAILABLE.

Differs from Apache Kafka: share groups (type 2) have no coordinator here:
COORDINATOR_NOT_AVAILABLE, and INVALID_REQUEST for other types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.broker.state.leadership import NO_NODE
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.find_coordinator_request import FindCoordinatorRequest
from kohort.wire.messages.find_coordinator_response import Coordinator, FindCoordinatorResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_BATCHED_FROM = 4


def handle(node: NodeServices, request: FindCoordinatorRequest, call: Call) -> None:
    """Say who coordinates."""
    if call.api_version >= _BATCHED_FROM:
        coordinators = [_find(node, key, request.key_type) for key in request.coordinator_keys]
        call.answer(FindCoordinatorResponse(coordinators=coordinators))
        return
    one = _find(node, request.key, request.key_type)
    call.answer(
        FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message or "NONE",
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    )


def _find(node: NodeServices, key: str, key_type: int) -> Coordinator:
    try:
        if key_type == _SHARE:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "share groups have no coordinator here"
            )
        if key_type == _GROUP:
            leader = node.groups.partition_of(key).leader
        elif key_type == _TRANSACTION:
            leader = node.transactions.partition_of(key).leader
        else:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"coordinator type {key_type}")
        if leader == NO_NODE:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no node leads its partition")
    except BrokerError as error:
        storage = error.code == ErrorCode.KAFKA_STORAGE_ERROR
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if storage else error.code
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message=error.detail
        )
    node_id, host, port, _ = node.nodes.address(leader)
    return Coordinator(key=key, node_id=node_id, host=host, port=port)
