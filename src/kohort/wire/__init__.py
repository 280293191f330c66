"""Kafka's messages: classes, codecs, frames. Knows nothing of sockets, records or groups.

    from kohort.wire import decode_request, encode_response
    from kohort.wire.messages.heartbeat_response import HeartbeatResponse

    request = decode_request(frame)                    # frame: bytes without the size prefix
    parts = encode_response(HeartbeatResponse(), request.api_version, request.correlation_id)
    sock.sendmsg(parts)                                # parts: with the size prefix

Rules:
- One class per message, in `kohort.wire.messages.NAME`, generated from the facts in `schema/`.
  Class names are Kafka's, fields are Kafka's in snake_case, defaults are Kafka's. Error codes and
  milliseconds are ints, uuids 16 raw bytes, records a `memoryview` (decoded) or any buffer or list
  of buffers (to encode).
- Every version that Apache Kafka 4.3 knows is spoken. Codecs are made at first use and kept: a
  compiled machine that reads the facts, or generated Python, about a millisecond each.
- Nothing is allocated on a peer's word: lengths and counts are compared with the bytes left,
  elements with `Limits`. Damaged input raises `DecodeError`, nothing else.
- A value that its version has no place for raises `UnsupportedVersionError` unless Kafka calls the
  field ignorable; a value that does not fit raises `EncodeError` and names the field.
- Unknown tagged fields are kept raw in `unknown_tags` and written again (KIP-482).
"""

from __future__ import annotations

from kohort.wire._base import ZERO_UUID, Message, Struct
from kohort.wire._codec import decode, encode, encode_parts
from kohort.wire._frames import (
    Request,
    RequestHead,
    constant,
    decode_body,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    response_correlation_id,
)
from kohort.wire._limits import REQUEST_LIMITS, RESPONSE_LIMITS, Limits
from kohort.wire._prefixed import (
    decode_record_key,
    decode_versioned,
    encode_record_key,
    encode_versioned,
    record_type,
)
from kohort.wire._registry import API_NAMES, message_class, request_class, response_class
from kohort.wire._types import Buffer, Records

__all__ = [
    "API_NAMES",
    "REQUEST_LIMITS",
    "RESPONSE_LIMITS",
    "ZERO_UUID",
    "Buffer",
    "Limits",
    "Message",
    "Records",
    "Request",
    "RequestHead",
    "Struct",
    "constant",
    "decode",
    "decode_body",
    "decode_record_key",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "decode_versioned",
    "encode",
    "encode_parts",
    "encode_record_key",
    "encode_request",
    "encode_response",
    "encode_versioned",
    "message_class",
    "record_type",
    "request_class",
    "response_class",
    "response_correlation_id",
]
