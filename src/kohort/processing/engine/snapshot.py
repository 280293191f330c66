"""What is done beyond a committed offset, as text for the commit's metadata (W1).

    "ko1." + base64url(flags:1 | span | [crashes | suspect] | body | crc32:4)

Rules:
- The offset of a commit is the lowest that is not done. The text says which of the `span` offsets
  from there on are done all the same, so that a restart does not do them again.
- The CRC covers the committed offset too: a snapshot beside another offset is detected and ignored.
  A snapshot that does not decode means "nothing more is done", never the opposite.
- `crashes` and `suspect` are the crash-loop guard's: how often this offset was started from, and
  which offset was being worked on alone when the process died.
- Of the encodings the smallest wins. Numbers are LEB128 varints; runs alternate, not done first.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kohort.errors import KohortError

PREFIX: Final = "ko1."
MAX_CHARS: Final = 4096
"""Kafka's default for `offset.metadata.max.bytes`, which counts characters."""
MAX_SPAN: Final = 1 << 24
_NOTHING, _RUNS, _BITMAP, _ZIPPED_BITMAP, _ZIPPED_RUNS = range(5)
_ENCODING_MASK: Final = 0x07
_GUARDED: Final = 0x80
_CRC_BYTES: Final = 4
_FIXED_BYTES: Final = 1 + 4 + _CRC_BYTES + 8
"""The most that flags, span, CRC and the guard's two numbers take."""
_WORTH_ZIPPING_BYTES: Final = 96
_BYTES_PER_RUN: Final = 3
NO_SUSPECT: Final = -1

Range = tuple[int, int]
"""Offsets [start, end)."""


class SnapshotError(KohortError):
    """Commit metadata that is not a snapshot for its offset. It is not believed in any part."""


class Snapshot(NamedTuple):
    """The snapshot beside a committed offset.

    Attributes:
        done: ranges of offsets beyond the committed one that are done; ascending, apart.
        crashes: how often a process began at this offset and died before it got further.
        suspect: the offset that was being worked on alone, -1 for none.
    """

    done: tuple[Range, ...] = ()
    crashes: int = 0
    suspect: int = NO_SUSPECT


class Capacity(NamedTuple):
    """How much unfinished work a text of limited length can always tell."""

    offsets: int
    """A window of this many offsets fits, with any subset of it done."""
    runs: int
    """So many unfinished offsets fit in a window of up to 2^21 offsets."""


def capacity(max_chars: int = MAX_CHARS) -> Capacity:
    """The bound within which `encode` never has to give up (the never-drop window)."""
    free = max(0, (max_chars - len(PREFIX)) * 3 // 4 - _FIXED_BYTES)
    return Capacity(free * 8, max(0, (free // _BYTES_PER_RUN - 1) // 2))


WIDE_SPAN: Final = 1 << 21
"""The widest window whose runs take three bytes each at most."""


def encode(base: int, snapshot: Snapshot, max_chars: int = MAX_CHARS) -> str:
    """The text beside the committed offset `base`; "" when there is nothing to say.

    Raises SnapshotError when it would be longer than `max_chars`.
    """
    done, guarded = snapshot.done, bool(snapshot.crashes) or snapshot.suspect >= 0
    if not done and not guarded:
        return ""
    span = done[-1][1] - base if done else 0
    encoding, body = _smallest(base, done, span)
    head = bytearray([encoding | (_GUARDED if guarded else 0)])
    _put(head, span)
    if guarded:
        _put(head, snapshot.crashes)
        _put(head, 0 if snapshot.suspect < 0 else snapshot.suspect - base + 1)
    raw = bytes(head) + body
    text = PREFIX + base64.urlsafe_b64encode(raw + _crc(base, raw)).decode().rstrip("=")
    if len(text) > max_chars:
        raise SnapshotError(
            f"the snapshot at offset {base} takes {len(text)} characters of {max_chars}: "
            f"{len(done)} finished ranges over {span} offsets"
        )
    return text


def decode(base: int, text: str) -> Snapshot:
    """What `text` says beside the committed offset `base`. Raises SnapshotError."""
    if not text:
        return Snapshot()
    if not text.startswith(PREFIX):
        raise SnapshotError(f"the commit metadata at offset {base} is not ours: {text[:24]!r}")
    body = text[len(PREFIX) :]
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise SnapshotError(f"the snapshot at offset {base} is not base 64: {error}") from None
    if len(raw) < 2 + _CRC_BYTES or raw[-_CRC_BYTES:] != _crc(base, raw[:-_CRC_BYTES]):
        raise SnapshotError(f"the snapshot at offset {base} is damaged, or of another offset")
    return _decoded(base, raw[:-_CRC_BYTES])


def _decoded(base: int, raw: bytes) -> Snapshot:
    flags, at = raw[0], 1
    span, at = _take(raw, at)
    if span > MAX_SPAN:
        raise SnapshotError(f"the snapshot at offset {base} spans {span} offsets")
    crashes, suspect = 0, NO_SUSPECT
    if flags & _GUARDED:
        crashes, at = _take(raw, at)
        ahead, at = _take(raw, at)
        suspect = base + ahead - 1 if ahead else NO_SUSPECT
    return Snapshot(tuple(_read(base, span, flags & _ENCODING_MASK, raw[at:])), crashes, suspect)


def _smallest(base: int, done: Sequence[Range], span: int) -> tuple[int, bytes]:
    if not done:
        return _NOTHING, b""
    encodings = [(_RUNS, _runs(base, done)), (_BITMAP, _bitmap(base, done, span))]
    if min(len(body) for _, body in encodings) > _WORTH_ZIPPING_BYTES:
        encodings.append((_ZIPPED_BITMAP, zlib.compress(encodings[1][1], 6)))
        encodings.append((_ZIPPED_RUNS, zlib.compress(encodings[0][1], 6)))
    return min(encodings, key=lambda each: len(each[1]))


def _runs(base: int, done: Sequence[Range]) -> bytes:
    body = bytearray()
    at = base
    for start, end in done:
        _put(body, start - at)
        _put(body, end - start)
        at = end
    return bytes(body)


def _bitmap(base: int, done: Sequence[Range], span: int) -> bytes:
    bits = 0
    for start, end in done:
        bits |= ((1 << (end - start)) - 1) << (start - base)
    return bits.to_bytes((span + 7) // 8, "little")


def _read(base: int, span: int, encoding: int, body: bytes) -> Iterable[Range]:
    if encoding in (_ZIPPED_BITMAP, _ZIPPED_RUNS):
        unzip = zlib.decompressobj()
        try:
            body = unzip.decompress(body, MAX_SPAN)
        except zlib.error as error:
            raise SnapshotError(f"the snapshot at offset {base} is damaged: {error}") from None
    if encoding == _NOTHING:
        return []
    if encoding in (_BITMAP, _ZIPPED_BITMAP):
        return _from_bitmap(base, span, body)
    if encoding in (_RUNS, _ZIPPED_RUNS):
        return _from_runs(base, span, body)
    raise SnapshotError(f"the snapshot at offset {base} has an unknown encoding {encoding}")


def _from_runs(base: int, span: int, body: bytes) -> list[Range]:
    ranges: list[Range] = []
    at, place = 0, base
    while at < len(body):
        not_done, at = _take(body, at)
        length, at = _take(body, at)
        start = place + not_done
        place = start + length
        if place - base > span:
            raise SnapshotError(f"the snapshot at offset {base} runs past its span of {span}")
        if length:
            ranges.append((start, place))
    return ranges


def _from_bitmap(base: int, span: int, body: bytes) -> list[Range]:
    bits = int.from_bytes(body, "little")
    if bits.bit_length() > span:
        raise SnapshotError(f"the snapshot at offset {base} runs past its span of {span}")
    ranges: list[Range] = []
    text = bin(bits)[:1:-1]  # the lowest offset first
    start = text.find("1")
    while start >= 0:
        end = text.find("0", start)
        end = len(text) if end < 0 else end
        ranges.append((base + start, base + end))
        start = text.find("1", end)
    return ranges


def _crc(base: int, raw: bytes) -> bytes:
    return zlib.crc32(raw, zlib.crc32(base.to_bytes(8, "big"))).to_bytes(_CRC_BYTES, "big")


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(raw) or shift > 28:
            raise SnapshotError("a snapshot ends inside a number")
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
