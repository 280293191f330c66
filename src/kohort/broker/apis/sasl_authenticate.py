"""SaslAuthenticate (36), v0-2. KIP-152, KIP-368.

A refusal waits (KIP-306), and then ends the connection.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kohort.broker.authentication import refusal
from kohort.broker.calls import Call, serve
from kohort.errors import AuthenticationError, ErrorCode
from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from kohort.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse

if TYPE_CHECKING:
    from kohort.broker.node import Node

log = logging.getLogger("kohort.broker")


def handle(node: Node, request: SaslAuthenticateRequest, call: Call) -> None:
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
        call.answer(session.authenticate(bytes(request.auth_bytes), node.env.wall_ms()))
    except AuthenticationError as error:
        log.warning("%s: %s", call.client_host, error)
        due_ms = node.env.now_ms() + node.config.connection_failed_authentication_delay_ms
        node.env.call_at(due_ms, call.answer, refusal(error.mechanism))


API = serve(SaslAuthenticateRequest, handle, may_park=True)
