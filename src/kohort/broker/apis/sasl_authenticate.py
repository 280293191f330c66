"""SaslAuthenticate (36), v0-2. KIP-152, KIP-368.

A refusal waits (KIP-306), and then ends the connection.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import AuthenticationError, ErrorCode
from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from kohort.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

log = logging.getLogger("kohort.broker")


def handle(node: NodeServices, request: SaslAuthenticateRequest, call: Call) -> None:
    """Take a message of a login."""
    session = call.session
    if session is None or not node.config.uses_sasl:
        call.answer(
            SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        )
        return
    try:
        step = session.authenticate(bytes(request.auth_bytes), node.env.wall_ms())
    except AuthenticationError as error:
        log.warning("%s: %s", call.client_host, error)
        due_ms = node.env.now_ms() + node.config.connection_failed_authentication_delay_ms
        node.env.call_at(due_ms, call.answer, refusal(error.mechanism))
    else:
        call.answer(
            SaslAuthenticateResponse(auth_bytes=step.data, session_lifetime_ms=step.lifetime_ms)
        )


def refusal(mechanism: str) -> SaslAuthenticateResponse:
    """The message to a client whose login failed, the same for every reason."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
        error_message="Authentication failed during authentication due to invalid credentials"
        + (f" with SASL mechanism {mechanism}" if mechanism else ""),
    )
