"""Encoding and decoding of one message body, through codecs made at first use.

Rules:
- A codec is made per (message, version) from the facts at first use, and kept on the class: the
  compiled machine, which leaves to a generated one what it refuses, or a generated one alone.
- Only `DecodeError`, `EncodeError` and `UnsupportedVersionError` come out.
- Decoding consumes the whole input. `bytes` in is fastest; records come out as `memoryview`s of
  the input, so the input must not be recycled while they are in use. All else is copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import repeat
from struct import error as struct_error
from typing import Any, Final, TypeVar

from kohort.errors import DecodeError, EncodeError, ProtocolError, UnsupportedVersionError
from kohort.wire import _runtime
from kohort.wire._base import ZERO_UUID, Message
from kohort.wire._limits import Limits
from kohort.wire._types import Buffer
from kohort.wire.implementation import machine

M = TypeVar("M", bound=Message)


_DAMAGED = (IndexError, struct_error, UnicodeDecodeError, DecodeError)
_UNFIT = (
    EncodeError,
    struct_error,
    TypeError,
    AttributeError,
    ValueError,
    OverflowError,
    IndexError,
    _runtime.NoPlace,
)


def encode(message: Message, version: int) -> bytes:
    """The body of `message` at `version`, in one piece.

    Raises `UnsupportedVersionError` for a version that the message does not have, or for a value
    that has no place in it; `EncodeError` for a value that does not fit its field.
    """
    out: list[Buffer] = []
    encode_into(message, version, out, [])
    try:
        return b"".join(out)
    except TypeError as error:
        raise _explained(message, version, error) from None


def encode_parts(message: Message, version: int) -> list[Buffer]:
    """As `encode`, in pieces: record buffers above 1 KiB are passed through uncopied."""
    out: list[Buffer] = []
    large: list[int] = []
    encode_into(message, version, out, large)
    return guarded_join(message, version, out, large)


def guarded_join(
    message: Message, version: int, out: list[Buffer], large: list[int]
) -> list[Buffer]:
    """Joins all small neighbours in `out`; the buffers at the indices `large` stay as they are."""
    try:
        return _join_parts(out, large) if large else [b"".join(out)]
    except TypeError as error:
        raise _explained(message, version, error) from None


def _join_parts(out: list[Buffer], large: list[int]) -> list[Buffer]:
    parts: list[Buffer] = []
    start = 0
    for index in large:
        if index > start:
            parts.append(b"".join(out[start:index]))
        parts.append(out[index])
        start = index + 1
    if start < len(out):
        parts.append(b"".join(out[start:]))
    return parts


def encode_into(message: Message, version: int, out: list[Buffer], large: list[int]) -> None:
    """Appends the body of `message` to `out`, indices of large record buffers to `large`."""
    encoder = message.ENCODERS.get(version)
    if encoder is None:
        encoder = make_encoder(type(message), version)
    try:
        encoder(message, out, large)
    except _UNFIT as error:
        raise _explained(message, version, error) from None


def _explained(message: Message, version: int, cause: Exception) -> ProtocolError:
    """The error for a failed encoding, which names the field."""
    from kohort.wire._explain import explain

    return explain(message, version, cause)


def decode(
    cls: type[M], version: int, data: Buffer, *, limits: Limits | None = None, offset: int = 0
) -> M:
    """The message of type `cls` that `data` holds at `version`, from `offset` to its very end.

    Raises `DecodeError` for bytes that are not such a message or pass the limits (default:
    `REQUEST_LIMITS` for requests, `RESPONSE_LIMITS` for all else), `UnsupportedVersionError` for
    a version that the message does not have.
    """
    decoder = cls.DECODERS.get(version) if type(data) is bytes else None
    if decoder is None:
        decoder, data = _prepare(cls, version, data)
    if limits is None:
        limits = cls.LIMITS
    end = len(data)
    if end > limits.frame_bytes:
        raise _too_large(cls, version, end, limits)
    memory = memoryview(data) if cls.HAS_RECORDS else None
    try:
        message, p = decoder(data, memory, offset, end, limits.elements, limits.tags)
    except _DAMAGED as error:
        raise _damaged(cls, version, error, end - offset) from None
    if p != end:
        raise _wrong_end(cls, version, p - offset, end - offset)
    return message


def decode_partial(
    cls: type[M], version: int, data: Buffer, offset: int, *, limits: Limits | None = None
) -> M:
    """As `decode`, but bytes may follow the message."""
    decoder = cls.DECODERS.get(version) if type(data) is bytes else None
    if decoder is None:
        decoder, data = _prepare(cls, version, data)
    if limits is None:
        limits = cls.LIMITS
    end = len(data)
    if end > limits.frame_bytes:
        raise _too_large(cls, version, end, limits)
    memory = memoryview(data) if cls.HAS_RECORDS else None
    try:
        message, p = decoder(data, memory, offset, end, limits.elements, limits.tags)
    except _DAMAGED as error:
        raise _damaged(cls, version, error, end - offset) from None
    if p > end:
        raise _wrong_end(cls, version, p - offset, end - offset)
    return message


def _prepare(cls: type[Message], version: int, data: Buffer) -> tuple[Callable[..., Any], Buffer]:
    """The decoder for `data`, and `data` as bytes where it may be copied."""
    view = type(data) is not bytes
    if view and not cls.HAS_RECORDS:
        data = bytes(data)
        view = False
    decoder = cls.DECODERS.get(~version if view else version)
    return decoder or make_decoder(cls, version, view=view), data


def _too_large(cls: type[Message], version: int, size: int, limits: Limits) -> DecodeError:
    return DecodeError(
        f"{cls.NAME} v{version} of {size} bytes: limit is {limits.frame_bytes} bytes"
    )


def _damaged(cls: type[Message], version: int, error: Exception, size: int) -> DecodeError:
    """The error for what a decoder raised."""
    if isinstance(error, DecodeError):
        return DecodeError(f"{cls.NAME} v{version}: {error}")
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"{cls.NAME} v{version}: a string is not UTF-8 ({error.reason})")
    return DecodeError(f"{cls.NAME} v{version} is cut short: {size} bytes")


def _wrong_end(cls: type[Message], version: int, p: int, size: int) -> DecodeError:
    return DecodeError(f"{cls.NAME} v{version}: message ends at byte {p} of {size}")


def check_version(cls: type[Message], version: int) -> None:
    """Raises `UnsupportedVersionError` unless `cls` has `version`."""
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise UnsupportedVersionError(
            f"{cls.NAME} has versions {cls.MIN_VERSION} to {cls.MAX_VERSION}, not {version}"
        )


def make_encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """Makes and keeps the encoder of `cls` at `version`: the compiled one where there is one."""
    check_version(cls, version)
    make = partial(generated_encoder, cls, version)
    if machine is None:
        encoder = make()
    else:
        encoder = machine.Encoder(cls, version, _layout(cls, version), make)
    cls.ENCODERS[version] = encoder
    return encoder


def make_decoder(cls: type[Message], version: int, *, view: bool) -> Callable[..., Any]:
    """Makes and keeps the decoder of `cls` at `version`: the compiled one where there is one."""
    check_version(cls, version)
    make = partial(generated_decoder, cls, version, view=view)
    if machine is None:
        decoder = make()
    else:
        decoder = machine.Decoder(cls, _layout(cls, version), make)
        if cls.NAME.endswith("Request"):
            machine.READERS[cls.API_KEY << 16 | version] = decoder
    cls.DECODERS[~version if view else version] = decoder
    return decoder


def _layout(cls: type[Message], version: int) -> Any:
    from kohort.wire import _schema

    assert machine is not None, "asked for where there is one"
    return machine.layout_of(_schema.load(cls.NAME), sys.modules[cls.__module__], version)


def generated_encoder(cls: type[Message], version: int) -> Callable[..., Any]:
    """Generates and compiles the Python encoder of `cls` at `version`."""
    from kohort.wire import _gen_encode, _schema

    source, names = _gen_encode.encoder_source(_schema.load(cls.NAME), version)
    return _compile(cls, source, names, f"encode {cls.NAME} v{version}")["encode"]


def generated_decoder(cls: type[Message], version: int, *, view: bool) -> Callable[..., Any]:
    """Generates and compiles the Python decoder of `cls` at `version`."""
    from kohort.wire import _gen_decode, _schema

    source, names = _gen_decode.decoder_source(_schema.load(cls.NAME), version, view=view)
    return _compile(cls, source, names, f"decode {cls.NAME} v{version}")["decode"]


_RUNTIME_NAMES: Final = {
    "new": object.__new__,
    "repeat": repeat,
    "ZERO": ZERO_UUID,
    **{
        name: getattr(_runtime, name)
        for name in (
            "BYTE",
            "NoPlace",
            "ZERO_BYTE",
            "bad_count",
            "bad_size",
            "bad_tag",
            "check_uuids",
            "in_order",
            "numbers",
            "pack_numbers",
            "records_parts",
            "size",
            "string_prefix",
            "string_size",
            "tag_head",
            "unknown_tags",
            "uvarint",
            "uvarint_bytes",
            "write_tags",
        )
    },
}


def _compile(cls: type[Message], source: str, names: dict[str, Any], title: str) -> dict[str, Any]:
    """Runs generated source; `C_X` and `D_X` name class X and its shared default."""
    module = sys.modules[cls.__module__]
    space: dict[str, Any] = dict(_RUNTIME_NAMES)
    for name, value in names.items():
        if name.startswith("C_"):
            space[name] = getattr(module, value)
        elif name.startswith("D_"):
            space[name] = getattr(module, value).DEFAULT
        else:
            space[name] = value
    exec(compile(source, f"<kohort.wire {title}>", "exec"), space)
    return space
