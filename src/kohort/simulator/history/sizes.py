"""How many bytes a message takes on the wire, frame and header with it.

Rules: a message is encoded to be measured, except heartbeats, which are all of one size: the first
of its kind is.
"""

from __future__ import annotations

from kohort.wire import Message, encode
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse

REQUEST_HEAD, RESPONSE_HEAD = 4 + 2 + 2 + 4 + 2, 4 + 4
_known: dict[type[Message], int] = {}


def body_bytes(message: Message) -> int:
    """The message itself, at its newest version."""
    kind = type(message)
    if kind is HeartbeatRequest or kind is HeartbeatResponse:
        if kind not in _known:
            _known[kind] = len(encode(message, kind.MAX_VERSION))
        return _known[kind]
    return len(encode(message, kind.MAX_VERSION))


def request_bytes(message: Message, client_id: str) -> int:
    """A whole request frame."""
    return REQUEST_HEAD + len(client_id) + _tags(message) + body_bytes(message)


def response_bytes(message: Message) -> int:
    """A whole response frame."""
    return RESPONSE_HEAD + _tags(message) + body_bytes(message)


def _tags(message: Message) -> int:
    return 1 if message.MAX_VERSION >= message.FLEXIBLE_FROM else 0
