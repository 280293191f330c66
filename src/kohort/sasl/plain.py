"""PLAIN (RFC 4616): the name and the password as they are. For use inside TLS, or on one machine.

Rules:
- The broker's side never compares passwords itself: `verify` does, in constant time.
"""

from __future__ import annotations

from collections.abc import Callable

from kohort.errors import AuthenticationError
from kohort.sasl import PLAIN
from kohort.sasl.mechanism import MAX_MESSAGE_BYTES, Accepted, Challenge


class PlainClient:
    """The client's side."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self._password = password

    def first(self) -> bytes:
        """Everything there is to say."""
        if "\0" in self.user or "\0" in self._password:
            raise AuthenticationError(
                "a name or password with a NUL cannot be sent", mechanism=PLAIN
            )
        return b"\0".join((b"", self.user.encode(), self._password.encode()))

    def answer(self, challenge: bytes) -> bytes | None:
        """The broker has nothing to say but yes."""
        return None


class PlainServer:
    """The broker's side; `verify(user, password)` says whether they belong together."""

    mechanism = PLAIN

    def __init__(self, verify: Callable[[str, str], bool]) -> None:
        self._verify = verify
        self._over = False

    def evaluate(self, message: bytes) -> Challenge | Accepted:
        """The client's only message."""
        if self._over:
            raise AuthenticationError("a message after the end of the exchange", mechanism=PLAIN)
        self._over = True
        parts = message.split(b"\0") if len(message) <= MAX_MESSAGE_BYTES else []
        try:
            authorization, user, password = (part.decode() for part in parts)
        except ValueError:  # not three, or not UTF-8
            raise AuthenticationError(
                "the message is not [authzid] NUL user NUL password", mechanism=PLAIN
            ) from None
        if not user or not password:
            raise AuthenticationError("the name or the password is empty", mechanism=PLAIN)
        if authorization not in ("", user):
            raise AuthenticationError("it asks to act as somebody else", mechanism=PLAIN, user=user)
        if not self._verify(user, password):
            raise AuthenticationError("wrong name or password", mechanism=PLAIN, user=user)
        return Accepted(b"", user)
