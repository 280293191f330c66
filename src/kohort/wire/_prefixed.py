"""Messages behind a two-byte version: consumer protocol blobs and records of internal topics.

Rules:
- User data of group members (`ConsumerProtocolSubscription`, `ConsumerProtocolAssignment`) and
  values of `__consumer_offsets` and `__transaction_state` begin with the int16 version.
- Keys of those topics begin with the int16 record type instead and are always version 0.
- Kafka reads a newer consumer protocol version as the newest that it knows, ignoring what follows;
  `newer=True` does that.
"""

from __future__ import annotations

from struct import Struct as Packer
from struct import error as struct_error
from typing import Final, TypeVar

from kohort.errors import DecodeError
from kohort.wire._base import Message
from kohort.wire._codec import decode, decode_partial, encode
from kohort.wire._limits import Limits
from kohort.wire._types import Buffer

_INT16: Final = Packer(">h")

M = TypeVar("M", bound=Message)


def encode_versioned(message: Message, version: int) -> bytes:
    """The int16 version and the body."""
    body = encode(message, version)
    return _INT16.pack(version) + body


def decode_versioned(
    cls: type[M], data: Buffer, *, newer: bool = False, limits: Limits | None = None
) -> tuple[int, M]:
    """Version and message of `data`.

    With `newer`, a version above `cls.MAX_VERSION` is read as that one and trailing bytes are
    ignored; the version returned is the one written in `data`.
    """
    version = _prefix(cls.NAME, data)
    if newer and version > cls.MAX_VERSION:
        return version, decode_partial(cls, cls.MAX_VERSION, data, 2, limits=limits)
    return version, decode(cls, version, data, limits=limits, offset=2)


def encode_record_key(message: Message) -> bytes:
    """The key of a record of an internal topic: its int16 type and the body."""
    return _INT16.pack(message.API_KEY) + encode(message, 0)


def record_type(data: Buffer) -> int:
    """The record type that the key of an internal topic's record begins with."""
    return _prefix("record key", data)


def decode_record_key(cls: type[M], data: Buffer) -> M:
    """The key of a record of an internal topic, whose type must be that of `cls`."""
    prefix = _prefix(cls.NAME, data)
    if prefix != cls.API_KEY:
        raise DecodeError(f"record type {prefix} is not {cls.NAME} (type {cls.API_KEY})")
    return decode(cls, 0, data, offset=2)


def _prefix(name: str, data: Buffer) -> int:
    try:
        return int(_INT16.unpack_from(data, 0)[0])
    except struct_error:
        raise DecodeError(f"{name} is cut short: {len(data)} bytes") from None
