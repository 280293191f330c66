"""One login over one connection: SaslHandshake, then SaslAuthenticate until both sides believe.

Rules:
- A pure machine: answers in, requests out; the peer sends them. Also of a later login over the same
  connection, when the broker has set the session an end (KIP-368).
- Every failure is an `AuthenticationError` with mechanism, user, broker, reason and what to do.
"""

from __future__ import annotations

from typing import Final

from kohort.client.cluster.version_negotiation import Ranges
from kohort.errors import AuthenticationError, ErrorCode, UnsupportedVersionError
from kohort.sasl.mechanism import ClientExchange
from kohort.wire import Message
from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from kohort.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse
from kohort.wire.messages.sasl_handshake_request import SaslHandshakeRequest
from kohort.wire.messages.sasl_handshake_response import SaslHandshakeResponse

_HANDSHAKE_VERSION: Final = 1
_MAX_STEPS: Final = 16


class Login:
    """The next request of the login. `ranges` are the broker's versions."""

    def __init__(self, exchange: ClientExchange, ranges: Ranges, broker: str) -> None:
        self._exchange = exchange
        self._ranges = ranges
        self._broker = broker
        self._steps = 0
        self._shaken = False
        self.lifetime_ms = 0
        """How long the session may last; 0: as long as the connection."""

    def first(self) -> tuple[Message, int]:
        """The first request and its version. Raises KohortError."""
        for api, version in (
            (SaslHandshakeRequest, _HANDSHAKE_VERSION),
            (SaslAuthenticateRequest, 0),
        ):
            low, high = self._ranges.get(api.API_KEY, (1, 0))
            if not low <= version <= high and not low <= version + 1 <= high:
                raise UnsupportedVersionError(
                    f"{self._broker} does not serve {api.NAME} in a version that is spoken here "
                    "(Kafka 1.0 and later do)"
                )
        return SaslHandshakeRequest(mechanism=self._exchange.mechanism), _HANDSHAKE_VERSION

    def answered(self, answer: Message) -> tuple[Message, int] | None:
        """The next request; None when this client is logged in. Raises AuthenticationError."""
        try:
            if not self._shaken:
                assert isinstance(answer, SaslHandshakeResponse)
                return self._begin(answer)
            assert isinstance(answer, SaslAuthenticateResponse)
            return self._go_on(answer)
        except AuthenticationError as error:
            raise error.at(self._broker, self._exchange.user) from error.__cause__

    def _begin(self, answer: SaslHandshakeResponse) -> tuple[Message, int]:
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationError(
                f"the broker has {', '.join(answer.mechanisms) or 'no mechanism'} only",
                mechanism=self._exchange.mechanism,
                advice="choose another sasl_mechanism",
            )
        if answer.error_code:
            raise AuthenticationError(
                f"the broker answers {ErrorCode.name_of(answer.error_code)}",
                mechanism=self._exchange.mechanism,
                advice="does its listener ask for SASL? check security_protocol on both sides",
            )
        self._shaken = True
        return self._say(self._exchange.first())

    def _go_on(self, answer: SaslAuthenticateResponse) -> tuple[Message, int] | None:
        if answer.error_code:
            reason = answer.error_message or ErrorCode.name_of(answer.error_code)
            raise AuthenticationError(
                f"the broker says: {reason}", mechanism=self._exchange.mechanism
            )
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise AuthenticationError(
                "the broker sends challenges without end", mechanism=self._exchange.mechanism
            )
        reply = self._exchange.answer(answer.auth_bytes)
        if reply is not None:
            return self._say(reply)
        self.lifetime_ms = max(0, answer.session_lifetime_ms)
        return None

    def _say(self, data: bytes) -> tuple[Message, int]:
        _, high = self._ranges[SaslAuthenticateRequest.API_KEY]
        version = min(high, SaslAuthenticateRequest.STABLE_VERSION)
        return SaslAuthenticateRequest(auth_bytes=data), version


def reauthenticate_after_ms(lifetime_ms: int, chance: float) -> int:
    """When to log in again: after 85 to 95 % of a session's life, as Java does (KIP-368)."""
    return int(lifetime_ms * (0.85 + 0.1 * chance))
