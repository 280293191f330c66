"""Changes to an input, as a fuzzer makes them: bits, numbers, pieces of it, pieces of others."""

from __future__ import annotations

import random
from collections.abc import Sequence

NUMBERS = (
    b"\0",
    b"\1",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 6,
    b"\x7f" + b"\xff" * 7,
    b"\x80" + bytes(7),
    b"\xff" * 9 + b"\x01",
)


def changed(data: bytes, pick: random.Random, pool: Sequence[bytes]) -> bytes:
    """The input with one to eight changes."""
    out = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 4, 8))):
        at = pick.randrange(len(out) + 1)
        kind = pick.randrange(7)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << pick.randrange(8)
        elif kind == 1:
            number = pick.choice(NUMBERS)
            out[at : at + len(number)] = number
        elif kind == 2:
            out[at:at] = pick.randbytes(pick.choice((1, 2, 8, 100)))
        elif kind == 3:
            del out[at : at + pick.choice((1, 2, 8, 100))]
        elif kind == 4:
            out += out[at : at + pick.choice((8, 200))]
        elif kind == 5:
            other = pick.choice(pool) if pool else b""
            start = pick.randrange(len(other) + 1)
            out[at:] = other[start:]
        else:
            del out[at:]
    return bytes(out)
