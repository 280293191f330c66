"""What a SASL mechanism is: a machine of one exchange, bytes in and bytes out.

Rules:
- A machine has no clock, no randomness and no I/O: nonces, credentials and times are arguments.
- A refusal is an `AuthenticationError` with the reason. No error and no `repr` contains a secret.
- A machine is used for one exchange and knows when that is over; a message after it is refused.
"""

from __future__ import annotations

from typing import Protocol

from kohort.lean import dataclass

MAX_MESSAGE_BYTES = 32_768
"""The longest message of an exchange that is looked at (tokens are the longest there are)."""


class ClientExchange(Protocol):
    """The client's side."""

    mechanism: str
    """The mechanism's registered name."""
    user: str
    """Who logs in, as far as it is known; for messages."""

    def first(self) -> bytes:
        """The message that begins."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to a challenge; None when the broker is believed and nothing is left to say.

        Raises AuthenticationError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange continues: the client has to answer this."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The client is who it says: `data` is the last message to it."""

    data: bytes
    user: str
    expires_ms: int | None = None
    """When its credential ends, in milliseconds since 1970; None: never."""


class ServerExchange(Protocol):
    """The broker's side."""

    mechanism: str

    def evaluate(self, message: bytes) -> Challenge | Accepted:
        """Take a message of the client. Raises AuthenticationError."""
        ...
