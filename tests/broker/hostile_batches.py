"""Batches whose CRC is right and whose contents are hostile: the broker must look at every record.

Records are sound, damaged, or no records at all; packed by any codec or by none that there is; the
header claims what it likes. About one in five is sound, so that what is stored can be told apart.
"""

from __future__ import annotations

import random
import struct

from kohort.records import Compression, compress, crc32c
from tests.records.conftest import raw_record, varint

_CLAIMS = (0, 1, -1, 1_000, 10_000_000, 2**31 - 1, -(2**31))
_BOMB = bytes(1 << 20)
_TAILS = (b"\0", b"\0", b"\2\2n\2v", b"\2\2n\1", b"\2\1\1", b"\x7e", b"\1", b"")
_FIELDS = (22, 23, 27, 35, 43, 51, 53)
"""Attributes, last offset delta, timestamps, producer id, epoch and sequence, by their place."""


def hostile_batch(pick: random.Random) -> bytes:
    """One batch of format 2 with a right CRC."""
    count = pick.choice((1, 1, 2, 3, 20))
    codec = pick.choice(list(Compression))
    sound = pick.random() < 0.2
    records = b"".join(_record(pick, number, sound=sound) for number in range(count))
    if not sound and pick.random() < 0.5:
        records = _damaged(pick, records)
    packed = bytes(compress(codec, records))
    if not sound and codec and pick.random() < 0.3:
        packed = _damaged(pick, packed)
    claimed = count if sound or pick.random() < 0.6 else pick.choice((count + 1, *_CLAIMS))
    return _batch(pick, packed, codec, claimed, sound=sound)


def _record(pick: random.Random, number: int, *, sound: bool) -> bytes:
    key = pick.choice((None, b"", b"key"))
    value = pick.choice((None, b"", b"value" * 20))
    if sound:
        return raw_record(number, key, value)
    delta = number if pick.random() < 0.9 else pick.choice((0, -1, number + 1, 2**31 - 1, 2**40))
    time = 0 if pick.random() < 0.9 else pick.choice((-1, 86_400_000, 2**62, -(2**62), 2**63 - 1))
    tail = b"\0" if pick.random() < 0.8 else pick.choice(_TAILS)
    return raw_record(delta, key, value, tail, timestamp=time)


def _damaged(pick: random.Random, data: bytes) -> bytes:
    """Other bytes than these, or some of them changed."""
    kind = pick.randrange(6)
    if kind == 0:
        return bytes([pick.choice((0, 0x80, 0xFF))]) * pick.choice((1, 30, 3_000))
    if kind == 1:
        return data[: pick.randrange(len(data) + 1)]
    if kind == 2:
        return data + pick.randbytes(pick.choice((1, 9)))
    if kind == 3:
        return pick.choice((varint(2**31 - 1), varint(-(2**31)), b"\xff" * 10)) + data
    if kind == 4:
        return data + _BOMB
    changed = bytearray(data or b"\0")
    for _ in range(pick.choice((1, 1, 4))):
        changed[pick.randrange(len(changed))] = pick.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(changed)


def _batch(pick: random.Random, packed: bytes, codec: int, claimed: int, *, sound: bool) -> bytes:
    last = max(claimed - 1, -(2**31))
    fields = struct.pack(">hiqqqhii", codec, last, 1_000, 1_000, -1, -1, -1, claimed)
    batch = bytearray(struct.pack(">qiibI", 0, len(fields) + len(packed) + 9, 0, 2, 0))
    batch += fields + packed
    if not sound and pick.random() < 0.2:
        batch[pick.choice(_FIELDS)] ^= pick.choice((1, 8, 0x10, 0x20, 0x80, 0xFF))
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return bytes(batch)
