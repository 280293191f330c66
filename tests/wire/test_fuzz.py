"""Damaged input: only our typed errors, bounded memory (issue A, wire; reliability F6).

Seeded, so a failure names the message, version and seed that replay it.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest

from kohort.errors import DecodeError, UnsupportedVersionError
from kohort.wire import Message, decode, decode_request, encode, encode_request, message_class
from tests.wire.values import ALL_NAMES, Maker, every_version

MUTATIONS = 100
LENGTHS = (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80" * 6, b"\xff")


def mutated(data: bytes, pick: random.Random) -> bytes:
    """One or more random wounds: flipped, cut, grown, or with a hostile length written in."""
    out = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 5))):
        kind = pick.randrange(5)
        at = pick.randrange(len(out) + 1)
        if kind == 0 and at < len(out):
            out[at] = pick.randrange(256)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            out[at:at] = pick.randbytes(pick.randint(1, 4))
        elif kind == 3:
            del out[at : at + pick.randint(1, 4)]
        else:
            hostile = pick.choice(LENGTHS)
            out[at : at + len(hostile)] = hostile
    return bytes(out)


def try_one(cls: type[Message], version: int, data: bytes) -> bool:
    """Whether `data` decodes; what decodes can be encoded and comes back the same."""
    try:
        message = decode(cls, version, data)
    except DecodeError:
        return False
    assert decode(cls, version, encode(message, version)) == message or has_nan(message)
    return True


def has_nan(message: Message) -> bool:
    """NaN is not equal to itself; only client quotas hold floats."""
    return "nan" in repr(message)


@pytest.mark.rows(48)
@pytest.mark.parametrize("name", ALL_NAMES)
def test_mutations_raise_decode_errors_and_nothing_else(name: str) -> None:
    cls = message_class(name)
    for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
        data = encode(Maker(version, unknown=True).message(cls, version), version)
        pick = random.Random(f"{name} {version}")
        for _ in range(MUTATIONS):
            wounded = mutated(data, pick)
            try_one(cls, version, wounded)
            if cls.HAS_RECORDS:
                with contextlib.suppress(DecodeError):
                    decode(cls, version, memoryview(wounded))


@pytest.mark.rows(48)
@pytest.mark.parametrize("name", ALL_NAMES)
def test_every_cut_is_noticed(name: str) -> None:
    cls = message_class(name)
    version = cls.MAX_VERSION
    data = encode(Maker(3).message(cls, version), version)
    step = max(1, len(data) // 150)
    for size in range(0, len(data), step):
        with pytest.raises(DecodeError):
            decode(cls, version, data[:size])
    with pytest.raises(DecodeError, match="ends at byte"):
        decode(cls, version, data + b"\0")


def test_whole_requests_survive_mutation() -> None:
    pick = random.Random(7)
    for cls, version in every_version():
        if not cls.NAME.endswith("Request"):
            continue
        message = Maker(1).message(cls, version)
        frame = b"".join(encode_request(message, version, 5, "fuzz"))[4:]
        for _ in range(5):
            with contextlib.suppress(DecodeError, UnsupportedVersionError):
                decode_request(mutated(frame, pick))


@pytest.mark.rows(24)
@pytest.mark.parametrize("name", [n for n in ALL_NAMES if n.endswith("Request")])
def test_a_hostile_length_anywhere_costs_no_memory(name: str) -> None:
    cls = message_class(name)
    version = cls.MAX_VERSION
    data = encode(Maker(2).message(cls, version), version)[:400]
    try_one(cls, version, data)  # the codec itself is made outside the measurement

    def peak() -> int:
        tracemalloc.start()
        try:
            for at in range(0, len(data), 3):
                for hostile in LENGTHS[:3]:
                    try_one(cls, version, data[:at] + hostile + data[at + len(hostile) :])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Another thread's memory counts, too; what a message costs is there every time.
    assert any(peak() < 2_000_000 for _ in range(5))
