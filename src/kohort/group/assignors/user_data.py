"""The user data of Kafka's sticky assignors, byte for byte.

Rules:
- `sticky` v1: array of (topic, array of int32), then the int32 generation; v0 ends before it.
- `cooperative-sticky` v0: the int32 generation.
- kafka-python 3 puts an int16 version in front of its `sticky` user data, which Java does not read;
  we do, so its members keep their partitions where one of ours leads.
- User data that cannot be read is no claim at all: a member that speaks nonsense starts afresh, the
  group goes on. Counts are compared with the bytes left before anything is made.
"""

from __future__ import annotations

import contextlib
import struct

from kohort.group.assignors.base import NO_GENERATION, Partitions, freeze

_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_PYTHON_HEADERS = {b"\0\0": (2,), b"\0\1": (2,)}


def encode_previous(previous: Partitions, generation: int) -> bytes:
    """`sticky` v1, as Java writes it; topics by name."""
    out = [_COUNT.pack(len(previous))]
    for topic, numbers in previous.items():
        name = topic.encode()
        out += (_LENGTH.pack(len(name)), name, _COUNT.pack(len(numbers)))
        out.append(struct.pack(f">{len(numbers)}i", *numbers))
    out.append(_COUNT.pack(generation))
    return b"".join(out)


def decode_previous(data: bytes | None) -> tuple[Partitions, int]:
    """What a member had and in which generation, from v1 or v0; nothing if it cannot be read."""
    for start in (0, *_PYTHON_HEADERS.get(bytes(data[:2]), ())) if data else ():
        with contextlib.suppress(struct.error, UnicodeDecodeError, ValueError):
            return _read_previous(data or b"", start)
    return {}, NO_GENERATION


def _read_previous(data: bytes, at: int) -> tuple[Partitions, int]:
    found: dict[str, list[int]] = {}
    (topics,) = _COUNT.unpack_from(data, at)
    at += 4
    for _ in range(topics):
        (length,) = _LENGTH.unpack_from(data, at)
        at += 2
        if length < 0:
            raise ValueError("a topic without a name")
        topic = data[at : at + length].decode()
        at += length
        (count,) = _COUNT.unpack_from(data, at)
        at += 4
        if not 0 <= count <= (len(data) - at) // 4:
            raise ValueError("more partitions than bytes")
        found.setdefault(topic, []).extend(struct.unpack_from(f">{count}i", data, at))
        at += 4 * count
    if at == len(data):
        return freeze(found), NO_GENERATION
    (generation,) = _COUNT.unpack_from(data, at)
    if at + 4 != len(data):
        raise ValueError("bytes are left")
    return freeze(found), generation


def encode_generation(generation: int) -> bytes:
    """`cooperative-sticky` v0."""
    return _COUNT.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """The generation, or -1 where there is none to read."""
    return int(_COUNT.unpack_from(data, 0)[0]) if data and len(data) >= 4 else NO_GENERATION
