"""What generated codecs call off their fast path: long varints, odd lengths, unknown tags.

Rules:
- A position only ever grows and the caller compares it with the end of the input at the end of the
  message. So a slice that reaches past the end can never yield a message: Python cuts it short
  without allocating, and the decoder fails there.
- Nothing here trusts a length or count: it is compared with the bytes left and with the limits.
- Only `DecodeError` and `EncodeError` leave on purpose; `IndexError` and `struct.error` from
  reading past the end are turned into `DecodeError` by `kohort.wire`.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import Any, Final, NoReturn, cast

from kohort.errors import DecodeError, EncodeError
from kohort.wire._types import Buffer

STRING_BYTES_MAX: Final = 0x7FFF
"""Kafka's limit of a string, also where its length is a varint."""

ENCODED_TAGS_MAX: Final = 100
"""Most tagged fields of one struct that we write: their count stays one byte."""

BYTE: Final = tuple(bytes((n,)) for n in range(256))
"""Every single byte; the first 128 are also the one-byte varints."""

SMALL_ARRAYS: Final = 17
"""Arrays of numbers with fewer elements than this have ready-made `Struct`s."""

LARGE_BYTES: Final = 1024
"""Record buffers above this size go out as they are, without being copied into a frame."""

ZERO_BYTE: Final = BYTE[0]


class NoPlace(Exception):
    """Raised by generated code when a value has no place; `_explain` says which. Never leaves."""


def uvarint(buf: Buffer, p: int, n: int) -> tuple[int, int]:
    """Finishes an unsigned varint whose first byte `n` (>= 128) was read; at most 5 bytes."""
    byte = buf[p]
    if byte < 128:
        return n & 127 | byte << 7, p + 1
    n = n & 127 | (byte & 127) << 7
    shift = 14
    while True:
        p += 1
        byte = buf[p]
        n |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 28:
            raise DecodeError(f"varint of more than 5 bytes at byte {p - 4}")
    if n > 0xFFFFFFFF:
        raise DecodeError(f"varint above 32 bits at byte {p - 4}")
    return n, p + 1


def uvarint_bytes(n: int) -> bytes:
    """`n` as an unsigned varint."""
    if n < 128:
        return BYTE[n]
    if n < 1 << 14:
        return bytes((n & 127 | 128, n >> 7))
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def string_size(buf: Buffer, p: int, n: int) -> tuple[int, int]:
    """A compact string's size + 1 off the fast path: null (refused) or 127 bytes and more."""
    if n == 0:
        raise DecodeError(f"null string at byte {p - 1}, where the schema allows none")
    n, p = uvarint(buf, p, n)
    if n > STRING_BYTES_MAX + 1 or n - 1 > len(buf) - p:
        raise DecodeError(f"string of {n - 1} bytes at byte {p}, {len(buf) - p} left")
    return n, p


def size(buf: Buffer, p: int, n: int) -> tuple[int, int]:
    """A compact length + 1 off the fast path, where null is refused."""
    if n == 0:
        raise DecodeError(f"null at byte {p - 1}, where the schema allows none")
    n, p = uvarint(buf, p, n)
    if n - 1 > len(buf) - p:
        raise DecodeError(f"length {n - 1} at byte {p}, {len(buf) - p} bytes left")
    return n, p


def bad_size(n: int, p: int, end: int) -> NoReturn:
    """A length that is negative where it may not be, or longer than the input."""
    raise DecodeError(f"bad length {n} before byte {p}, {end - p} bytes left")


def bad_count(n: int, p: int, end: int, left: int) -> NoReturn:
    """An array count that cannot be true, or that passes the limit on elements."""
    if n < 0:
        raise DecodeError(f"bad element count {n} before byte {p}")
    if left < 0:
        raise DecodeError(f"{n} elements before byte {p}: limit on elements passed by {-left}")
    raise DecodeError(f"{n} elements before byte {p} cannot fit the {end - p} bytes left")


def unknown_tags(buf: Buffer, p: int, count: int, most: int) -> tuple[list[tuple[int, bytes]], int]:
    """Reads `count` (its first byte) tagged fields of a struct that has none of its own."""
    if count > 127:
        count, p = uvarint(buf, p, count)
    if count > most:
        raise DecodeError(f"{count} tagged fields before byte {p}: limit is {most}")
    tags: list[tuple[int, bytes]] = []
    for _ in range(count):
        tag, n, p = tag_head(buf, p)
        tags.append((tag, bytes(buf[p : p + n])))
        p += n
    return in_order(tags), p


def in_order(tags: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Unknown tagged fields by tag; a tag may occur only once."""
    tags.sort(key=lambda field: field[0])
    for (tag, _), (other, _) in pairwise(tags):
        if tag == other:
            raise DecodeError(f"tagged field {tag} occurs twice in one struct")
    return tags


def tag_head(buf: Buffer, p: int) -> tuple[int, int, int]:
    """Tag and size of the next tagged field; the size is checked against what is left."""
    tag = buf[p]
    p += 1
    if tag > 127:
        tag, p = uvarint(buf, p, tag)
    n = buf[p]
    p += 1
    if n > 127:
        n, p = uvarint(buf, p, n)
    if n > len(buf) - p:
        raise DecodeError(f"tagged field {tag} of {n} bytes at byte {p}, {len(buf) - p} left")
    return tag, n, p


def bad_tag(tag: int, p: int, e: int) -> NoReturn:
    """A known tagged field whose value is shorter or longer than its size says."""
    raise DecodeError(f"tagged field {tag} ends at byte {p}, its size says {e}")


def numbers(code: str, width: int, buf: Buffer, p: int, n: int) -> list[Any]:
    """`n` numbers at `p`; the caller has checked that they fit."""
    if width == 16:
        return [bytes(buf[i : i + 16]) for i in range(p, p + 16 * n, 16)]
    return list(Struct(f">{n}{code}").unpack_from(buf, p))


def pack_numbers(code: str, values: list[Any]) -> bytes:
    """Many numbers, packed."""
    return Struct(">" + code * len(values)).pack(*values)


def string_prefix(n: int) -> bytes:
    """A compact string's size + 1, checked against Kafka's limit."""
    if n > STRING_BYTES_MAX + 1:
        raise EncodeError(f"string of {n - 1} bytes: limit is {STRING_BYTES_MAX}")
    return uvarint_bytes(n)


def write_tags(
    out: list[Buffer], known: list[tuple[int, bytes]], unknown: list[tuple[int, bytes]] | None
) -> None:
    """Appends the tagged section: known and unknown fields by tag, each tag once."""
    fields = known
    if unknown:
        fields = sorted([*known, *unknown], key=lambda field: field[0])
        tags = [tag for tag, _ in fields]
        if len(set(tags)) != len(tags):
            raise EncodeError(f"tagged fields given twice: tags {tags}")
    if len(fields) > ENCODED_TAGS_MAX:
        raise EncodeError(f"{len(fields)} tagged fields in one struct: limit is {ENCODED_TAGS_MAX}")
    out.append(BYTE[len(fields)])
    for tag, value in fields:
        out.append(uvarint_bytes(tag))
        out.append(uvarint_bytes(len(value)))
        out.append(value)


def records_parts(records: Any) -> tuple[list[Buffer], int]:
    """Record batches as byte buffers, and their size together."""
    if isinstance(records, (bytes, bytearray)):
        return [records], len(records)
    if isinstance(records, memoryview):
        flat = cast("memoryview", records)
        if flat.nbytes != len(flat):
            flat = flat.cast("B")
        return [flat], flat.nbytes
    if not isinstance(records, (list, tuple)):
        raise TypeError(f"records are a {type(records).__name__}, not a buffer or list of buffers")
    parts: list[Buffer] = []
    total = 0
    for part in cast("list[Any]", records):
        if not isinstance(part, (bytes, bytearray, memoryview)):
            raise TypeError(f"records hold a {type(part).__name__}, not a buffer")
        more, n = records_parts(part)
        parts += more
        total += n
    return parts, total


def check_uuids(values: list[Any]) -> None:
    """Refuses what is not 16 bytes long: `struct` would pad or cut it without a word."""
    for value in values:
        if len(value) != 16:
            raise ValueError(f"uuid of {len(value)} bytes")
