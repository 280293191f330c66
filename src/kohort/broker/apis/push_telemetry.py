"""PushTelemetry (72), v0. KIP-714: metrics of a client, which are dropped unread.

No client is asked for any (GetTelemetrySubscriptions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis.get_telemetry_subscriptions import SUBSCRIPTION_ID, TELEMETRY_MAX_BYTES
from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire import ZERO_UUID
from kohort.wire.messages.push_telemetry_request import PushTelemetryRequest
from kohort.wire.messages.push_telemetry_response import PushTelemetryResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: PushTelemetryRequest, call: Call) -> None:
    """Take them and forget them."""
    code = ErrorCode.NONE
    if bytes(request.client_instance_id) == ZERO_UUID:
        code = ErrorCode.INVALID_REQUEST
    elif request.subscription_id != SUBSCRIPTION_ID:
        code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    elif len(request.metrics) > TELEMETRY_MAX_BYTES:
        code = ErrorCode.TELEMETRY_TOO_LARGE
    call.answer(PushTelemetryResponse(error_code=code))
