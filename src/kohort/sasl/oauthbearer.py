"""OAUTHBEARER (RFC 7628, KIP-255): a token from an issuer that both sides trust.

Rules:
- A token is a secret: no error and no `repr` contains it.
- A broker that refuses says why in JSON, hears one more byte, and then ends the exchange.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from kohort.errors import AuthenticationError
from kohort.lean import dataclass, field
from kohort.sasl import OAUTHBEARER
from kohort.sasl.mechanism import MAX_MESSAGE_BYTES, Accepted, Challenge

_SEPARATOR: Final = "\x01"
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7E \t\r\n]+")
_BEARER = re.compile(r"(?i:bearer) +([-._~+/A-Za-z0-9]+=*)")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token as a client has it."""

    value: str = field(repr=False)
    expires_ms: int | None = None
    """When it ends, in milliseconds since 1970; None: it does not say."""
    user: str = ""
    """Whose it is, for messages."""
    extensions: Mapping[str, str] = field(default_factory=dict[str, str])
    """SASL extensions (KIP-342) that are sent with it."""


class OAuthBearerClient:
    """The client's side."""

    mechanism = OAUTHBEARER

    def __init__(self, token: Token) -> None:
        self.user = token.user
        self._token = token
        self._refused = ""

    def first(self) -> bytes:
        """The token."""
        token = self._token
        if not _BEARER.fullmatch(f"Bearer {token.value}"):
            raise self._error("the token is empty or has characters that no token may have")
        pairs = {"auth": f"Bearer {token.value}"}
        for key, value in token.extensions.items():
            if key == "auth" or not (_KEY.fullmatch(key) and _VALUE.fullmatch(value)):
                raise self._error(f"the extension {key!r} cannot be sent")
            pairs[key] = value
        lines = [f"{key}={value}{_SEPARATOR}" for key, value in pairs.items()]
        return f"n,,{_SEPARATOR}{''.join(lines)}{_SEPARATOR}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        """Nothing after a yes; after a no the byte that lets the broker end the exchange."""
        if not challenge:
            return None
        if self._refused:
            raise self._error(self._refused)
        self._refused = f"the broker says {_status(challenge)!r}"
        return _SEPARATOR.encode()

    def _error(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            reason,
            mechanism=OAUTHBEARER,
            user=self.user,
            advice="check the token's issuer, audience, scope and time",
        )


class OAuthBearerServer:
    """The broker's side. `verify(token)` gives whose it is and when it ends (milliseconds since
    1970, None: never), or raises AuthenticationError."""

    mechanism = OAUTHBEARER

    def __init__(self, verify: Callable[[str], tuple[str, int | None]]) -> None:
        self._verify = verify
        self._refusal: AuthenticationError | None = None
        self._over = False

    def evaluate(self, message: bytes) -> Challenge | Accepted:
        """The client's token, or its answer to a refusal."""
        if self._refusal is not None:
            raise self._refusal
        if self._over:
            raise _refused("a message after the end of the exchange")
        self._over = True
        token, authorization = _read(message)
        try:
            user, expires_ms = self._verify(token)
            if authorization not in ("", user):
                raise _refused("it asks to act as somebody else")
        except AuthenticationError as error:
            self._refusal = error
            return Challenge(json.dumps({"status": "invalid_token"}).encode())
        return Accepted(b"", user, expires_ms)


def _read(message: bytes) -> tuple[str, str]:
    """The token, and whom the client wants to act as ("": whose it is)."""
    try:
        text = message.decode() if len(message) <= MAX_MESSAGE_BYTES else ""
    except UnicodeDecodeError:
        raise _refused("the message is not text") from None
    header, *pairs = text.split(_SEPARATOR)
    match = re.fullmatch(r"[ny],(?:a=([^,]*))?,", header)
    if match is None or pairs[-2:] != ["", ""]:
        raise _refused("the message does not have the form of RFC 7628")
    attributes: dict[str, str] = {}
    for pair in pairs[:-2]:
        key, equals, value = pair.partition("=")
        if not equals or key in attributes or not _KEY.fullmatch(key):
            raise _refused("the message does not have the form of RFC 7628")
        attributes[key] = value
    bearer = _BEARER.fullmatch(attributes.get("auth", ""))
    if bearer is None:
        raise _refused("there is no bearer token in it")
    return bearer[1], match[1] or ""


def _status(challenge: bytes) -> str:
    try:
        document = json.loads(challenge[:4_096])
    except ValueError:
        return "refused"
    if not isinstance(document, dict):
        return "refused"
    return str(cast("dict[str, Any]", document).get("status", "refused"))[:100]


def _refused(reason: str) -> AuthenticationError:
    return AuthenticationError(reason, mechanism=OAUTHBEARER)
