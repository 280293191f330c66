"""The user data of Kafka's sticky assignors, byte for byte.

Rules:
- `sticky` v1: array of (topic, array of int32), then the int32 generation; v0 ends before it.
- `cooperative-sticky` v0: the int32 generation.
- kafka-python 3 puts an int16 version in front of its `sticky` user data, which Java does not read;
  we do, so its members keep their partitions where one of ours leads.
- Unreadable user data is no claim: its member starts afresh, and the group continues. Counts are
  compared with the remaining bytes before anything is allocated.
"""

from __future__ import annotations

import contextlib
from struct import Struct
from struct import error as struct_error

from kohort.errors import DecodeError
from kohort.group.assignors.base import NO_GENERATION, Partitions
from kohort.group.assignors.loops_implementation import PartitionReader, PartitionWriter

_INT32 = Struct(">i")
_PYTHON_HEADERS = {b"\0\0": (2,), b"\0\1": (2,)}


def encode_previous(previous: Partitions, generation: int) -> bytes:
    """`sticky` v1, as Java writes it; topics by name."""
    return PartitionWriter().write(previous) + _INT32.pack(generation)


def decode_previous(
    data: bytes | None, reader: PartitionReader | None = None
) -> tuple[Partitions, int]:
    """What a member had and in which generation, from v1 or v0; nothing if it cannot be read.

    One `reader` for many members saves work.
    """
    for start in (0, *_PYTHON_HEADERS.get(data[:2], ())) if data else ():
        with contextlib.suppress(struct_error, UnicodeDecodeError, DecodeError):
            return _read_previous(data or b"", start, reader or PartitionReader())
    return {}, NO_GENERATION


def _read_previous(data: bytes, at: int, reader: PartitionReader) -> tuple[Partitions, int]:
    partitions, at = reader.read(data, at)
    if at == len(data):
        return partitions, NO_GENERATION
    (generation,) = _INT32.unpack_from(data, at)
    if at + 4 != len(data):
        raise DecodeError(f"{len(data) - at - 4} bytes are left")
    return partitions, generation


def encode_generation(generation: int) -> bytes:
    """`cooperative-sticky` v0."""
    return _INT32.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """The generation, or -1 where there is none to read."""
    return int(_INT32.unpack_from(data, 0)[0]) if data and len(data) >= 4 else NO_GENERATION
