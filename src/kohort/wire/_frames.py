"""Requests and responses as frames: size prefix, header, body.

Rules:
- A request header is v2 (with tagged fields) when the body is flexible, else v1. Its client id
  keeps its two-byte length in both, so that a server can read the header of any ApiVersions.
- A response header is v1 (tagged fields) when the body is flexible, else v0; ApiVersions always
  has v0, because its sender does not know yet what the other side understands (KIP-511).
- Encoders return lists of buffers with the four-byte size in front, ready for `sendmsg`. Decoders
  take a frame without that size.
"""

from __future__ import annotations

from struct import Struct as Packer
from struct import error as struct_error
from typing import Any, Final, NamedTuple, TypeVar, cast

from kohort.errors import DecodeError, EncodeError, UnsupportedVersionError
from kohort.wire._base import Message
from kohort.wire._codec import decode_partial, encode_into, guarded_join
from kohort.wire._limits import Limits
from kohort.wire._registry import APIS, request_class
from kohort.wire._runtime import unknown_tags
from kohort.wire._types import Buffer
from kohort.wire.implementation import machine

API_VERSIONS: Final = 18

_SIZE: Final = Packer(">i").pack
_REQUEST: Final = Packer(">hhih")
_RESPONSE: Final = Packer(">i")
_TAGS_MAX: Final = 64
_new: Final = cast("Any", tuple).__new__

M = TypeVar("M", bound=Message)


class RequestHead(NamedTuple):
    """The header of a request, and where in the frame its body begins."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


class Request(NamedTuple):
    """A whole request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    message: Message


def constant(message: M) -> M:
    """Says of a message that it will never change: as a response it is encoded once a version."""
    if machine is not None:
        machine.CONSTANTS[id(message)] = message
    return message


def encode_request(
    message: Message, version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """A request frame: size, header, body; large record buffers uncopied."""
    if client_id is None:
        name, size = b"", -1
    else:
        name = client_id.encode("utf-8", "backslashreplace")
        size = len(name)
    try:
        head = _REQUEST.pack(message.API_KEY, version, correlation_id, size)
    except struct_error as error:
        raise EncodeError(
            f"{message.NAME} v{version}: header does not fit (correlation id {correlation_id}, "
            f"client id of {size} bytes): {error}"
        ) from None
    out: list[Buffer] = [head, name]
    if version >= message.FLEXIBLE_FROM:
        out.append(b"\0")
    return _framed(message, version, out)


def encode_response(message: Message, version: int, correlation_id: int) -> list[Buffer]:
    """A response frame: size, header, body; large record buffers uncopied."""
    if machine is not None:
        encoder: Any = message.ENCODERS.get(version)
        if isinstance(encoder, machine.Encoder):
            quick = encoder.response(message, correlation_id)
            if quick is not None:
                return quick
    try:
        head = _RESPONSE.pack(correlation_id)
    except struct_error:
        raise EncodeError(
            f"{message.NAME} v{version}: correlation id {correlation_id} does not fit int32"
        ) from None
    if version >= message.FLEXIBLE_FROM and message.API_KEY != API_VERSIONS:
        head += b"\0"
    return _framed(message, version, [head])


def _framed(message: Message, version: int, out: list[Buffer]) -> list[Buffer]:
    """Adds the body and the size."""
    large: list[int] = []
    encode_into(message, version, out, large)
    parts = guarded_join(message, version, out, large)
    size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
    if size > 0x7FFFFFFF:
        raise EncodeError(f"{message.NAME} v{version}: frame of {size} bytes does not fit int32")
    parts[0] = _SIZE(size) + parts[0]
    return parts


def decode_request_header(frame: Buffer) -> RequestHead:
    """The header of a request frame.

    Works for every version of every known API, also for versions that we do not speak (their
    header follows the same rule). Raises `UnsupportedVersionError` for an unknown API key,
    `DecodeError` for a damaged header.
    """
    if machine is not None:
        quick = machine.request_head(frame, RequestHead)
        if quick is not None:
            return quick
    try:
        api_key, version, correlation_id, size = _REQUEST.unpack_from(frame, 0)
    except struct_error:
        raise DecodeError(f"request header is cut short: {len(frame)} bytes") from None
    p = 10
    api = APIS.get(api_key)
    if api is None:
        raise UnsupportedVersionError(f"API key {api_key} (version {version}) is not known here")
    if size < -1 or size > len(frame) - p:
        raise DecodeError(f"client id of {size} bytes in a frame of {len(frame)}")
    client_id = None
    if size >= 0:
        try:
            client_id = str(frame[p : p + size], "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"client id is not UTF-8 ({error.reason})") from None
        p += size
    if version >= api[4]:
        p = p + 1 if p < len(frame) and frame[p] == 0 else _skip_tags(frame, p)
    # Its own __new__ is a Python function, and this is done for every request.
    head: RequestHead = _new(RequestHead, (api_key, version, correlation_id, client_id, p))
    return head


def decode_body(frame: Buffer, head: RequestHead, *, limits: Limits | None = None) -> Message:
    """The body of a request frame whose header was read.

    Bytes behind it are let be, as Apache Kafka does: librdkafka's MetadataRequest v9+ for all
    topics has three of them (it writes the null array's length over four bytes).
    """
    if machine is not None and limits is None and type(frame) is bytes:
        quick = machine.request_body(frame, head)
        if quick is not None:
            return quick
    api_key, version, _, _, offset = head
    return decode_partial(request_class(api_key), version, frame, offset, limits=limits)


def decode_request(frame: Buffer, *, limits: Limits | None = None) -> Request:
    """Header and body of a request frame."""
    head = decode_request_header(frame)
    message = decode_body(frame, head, limits=limits)
    return Request(head.api_key, head.api_version, head.correlation_id, head.client_id, message)


def response_correlation_id(frame: Buffer) -> int:
    """The correlation id of a response frame: all that is needed to know whose it is."""
    try:
        return cast("int", _RESPONSE.unpack_from(frame, 0)[0])
    except struct_error:
        raise DecodeError(f"response header is cut short: {len(frame)} bytes") from None


def response_body_offset(cls: type[Message], version: int, frame: Buffer) -> int:
    """Where in a response frame the body begins."""
    if version >= cls.FLEXIBLE_FROM and cls.API_KEY != API_VERSIONS:
        return _skip_tags(frame, 4)
    return 4


def decode_response(
    cls: type[M], version: int, frame: Buffer, *, limits: Limits | None = None
) -> tuple[int, M]:
    """Correlation id and body of a response frame.

    Bytes behind the body are ignored, as Kafka's own clients do: librdkafka's mock broker sends one
    too many with every Metadata answer.
    """
    correlation_id = response_correlation_id(frame)
    offset = response_body_offset(cls, version, frame)
    return correlation_id, decode_partial(cls, version, frame, offset, limits=limits)


def _skip_tags(frame: Buffer, p: int) -> int:
    """The end of a header's tagged fields; no header field is tagged yet."""
    try:
        count = frame[p]
        if count == 0:
            return p + 1
        _, p = unknown_tags(frame, p + 1, count, _TAGS_MAX)
    except IndexError:
        raise DecodeError(f"header is cut short: {len(frame)} bytes") from None
    return p
