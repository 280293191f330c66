"""GetTelemetrySubscriptions (71), v0. KIP-714: which metrics a client is to push.

None: the broker collects no metrics of clients. A client without an id is given one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kohort.broker.base.request import Call
from kohort.wire import ZERO_UUID
from kohort.wire.messages.get_telemetry_subscriptions_request import (
    GetTelemetrySubscriptionsRequest,
)
from kohort.wire.messages.get_telemetry_subscriptions_response import (
    GetTelemetrySubscriptionsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

SUBSCRIPTION_ID: Final = 1
"""Of the one subscription, which asks for nothing."""
_INTERVAL_MS: Final = 300_000
_CODECS: Final = (4, 3, 2, 1)
TELEMETRY_MAX_BYTES: Final = 1 << 20


def handle(node: NodeServices, request: GetTelemetrySubscriptionsRequest, call: Call) -> None:
    """Ask for nothing, again in five minutes."""
    known = bytes(request.client_instance_id)
    call.answer(
        GetTelemetrySubscriptionsResponse(
            client_instance_id=node.env.new_uuid() if known == ZERO_UUID else known,
            subscription_id=SUBSCRIPTION_ID,
            accepted_compression_types=list(_CODECS),
            push_interval_ms=_INTERVAL_MS,
            telemetry_max_bytes=TELEMETRY_MAX_BYTES,
            delta_temporality=True,
        )
    )
