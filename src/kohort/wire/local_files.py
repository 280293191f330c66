"""What broker and consumer say to each other about reading stored records from the disk. Pure.

Rules (ADR 0015):
- Everything is in tagged fields (KIP-482) with numbers of our own, so that every other client and
  broker ignores it.
- The answer to ApiVersions names a directory; a Fetch says that its sender has opened that; the
  answer to such a Fetch may name, for a partition, a place in a file of that directory instead of
  carrying its records.
- The directory's name begins with `kernel_id`: over a tunnel to another machine the same path may
  be there, too (a clone, a network file system), and must not be taken for the broker's.

Shell: the name of the running kernel.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from kohort.errors import DecodeError

TAG: Final = 19_276
"""The tagged field ("KL") of all three messages."""
Tags = Sequence[tuple[int, bytes]]

_PLACE: Final = Struct(">QQIq")


class Place(NamedTuple):
    """Whole batches in a file of the announced directory."""

    file: int
    """The file's name: a number that is given once and to one file only."""
    position: int
    size: int
    end_offset: int
    """Where reading continues behind them."""

    def encode(self) -> bytes:
        """As the value of the tagged field."""
        return _PLACE.pack(*self)

    @classmethod
    def decode(cls, value: bytes) -> Place:
        """Raises DecodeError."""
        try:
            return cls(*_PLACE.unpack(value))
        except StructError as error:
            raise DecodeError(f"a place in a file has {_PLACE.size} bytes: {error}") from error


def kernel_id() -> str:
    """Which start of which kernel this is; empty where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:  # not Linux
        return ""


def encode_directory(path: str) -> bytes:
    """The announced directory, an absolute path, as the value of the tagged field."""
    return os.fsencode(path)


def decode_directory(value: bytes) -> str | None:
    """The announced directory; None when it is no absolute path."""
    path = os.fsdecode(value)
    return path if path.startswith("/") and "\0" not in path else None


def found(tags: Tags | None) -> bytes | None:
    """The value of the tagged field, or None when it was not sent."""
    for tag, value in tags or ():
        if tag == TAG:
            return value
    return None
