"""SaslHandshake (17), v0-1. KIP-43, KIP-152.

After v0 the messages of the login come without headers. Hardly anybody speaks it, but librdkafka of
before 2023 does not log in where it is not listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.sasl_handshake_request import SaslHandshakeRequest
from kohort.wire.messages.sasl_handshake_response import SaslHandshakeResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: SaslHandshakeRequest, call: Call) -> None:
    """Choose a mechanism."""
    if call.session is None:
        call.answer(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
        return
    code = call.session.handshake(request.mechanism, bare=call.api_version == 0)
    call.answer(SaslHandshakeResponse(error_code=code, mechanisms=call.session.mechanisms))
