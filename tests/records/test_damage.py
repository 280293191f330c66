"""Damaged record sets: a typed error or nothing wrong at all, the same in both (F6).

Mutations are seeded. With the CRC left as it was, damage must be seen; with the CRC made right
again, parsing itself is attacked. The bar is one family of errors, no hang, and one meaning.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import CorruptRecordError
from kohort.records import ALL_COLUMNS, Compression
from kohort.records.arrow import to_record_batch
from kohort.records.layout import MAX_OFFSET
from tests.records.conftest import IMPLEMENTATIONS, batch_of, crc_mended, fields, marker

HEADERS = [("name", b"value"), ("other", None)]
# Bytes that no CRC covers: base offset, and partition leader epoch.
UNPROTECTED = {*range(8), *range(12, 16)}


def small(codec: int, offset: int = 0) -> bytes:
    builder = IMPLEMENTATIONS[0].BatchBuilder(codec)
    builder.append(1000, b"key", b"value", HEADERS)
    builder.append(900, None, b"", [])
    builder.append(1 << 40, b"", None, HEADERS[:1])
    return builder.build(base_offset=offset, leader_epoch=1)


Give = Callable[[Any], list[Any]]


def as_records(chunk: Any) -> list[Any]:
    return [fields(record) for record in chunk.next_records(2)]


def as_columns(chunk: Any) -> list[Any]:
    columns = chunk.next_columns(2, ALL_COLUMNS)
    if columns is None:
        return []
    table = to_record_batch(columns, ALL_COLUMNS)
    table.validate(full=True)
    return list(
        zip(
            *(
                table[name].cast("int64").to_pylist()
                if name == "timestamp"
                else table[name].to_pylist()
                for name in table.schema.names
            ),
            strict=True,
        )
    )


def outcome(impl: Any, data: bytes, give: Give, *, steps: int = 60, **options: Any) -> list[Any]:
    """All that a chunk gives, errors with their coordinates among it, until it is exhausted."""
    chunk = impl.Chunk("t", 0, data, 0, max_decompressed=100_000, **options)
    got: list[Any] = []
    for _ in range(steps):
        if chunk.exhausted:
            return [*got, chunk.position]
        before = chunk.position
        try:
            got += give(chunk)
        except CorruptRecordError as caught:
            error = caught
        else:
            assert chunk.position >= before
            continue
        assert error.offset == chunk.position
        assert error.next_offset is not None
        assert error.next_offset > chunk.position
        got.append((str(error), error.next_offset))
        chunk.skip_batch()
        assert chunk.position >= error.next_offset
        assert chunk.position >= before
    raise AssertionError("the chunk does not end")


# Columns differ from records only behind decompression, so one codec is enough for them.
WAYS = [*((codec, as_records) for codec in Compression), (Compression.NONE, as_columns)]


def same_in_all(data: bytes, give: Give, **options: Any) -> list[Any]:
    outcomes = [outcome(impl, data, give, **options) for impl in IMPLEMENTATIONS]
    assert all(other == outcomes[0] for other in outcomes)
    return outcomes[0]


@pytest.mark.parametrize("codec", Compression)
def test_every_truncation(codec: int) -> None:
    data = small(codec) + small(codec, 3)
    whole = same_in_all(data, as_records)
    half = len(data) // 2
    for cut in range(1, len(data)):
        got = same_in_all(data[:cut], as_records)
        if cut >= half:
            assert got == [*whole[:3], 3]
        else:
            assert isinstance(got[0][0], str)
            assert "cannot be read" in got[0][0]


@pytest.mark.rows(2)
@pytest.mark.parametrize("codec", Compression)
def test_every_flipped_bit(codec: int) -> None:
    """A bit of what the CRC covers is always seen; others change only what they say."""
    data = small(codec) + small(codec, 3)
    whole = same_in_all(data, as_records)
    half = len(data) // 2
    for bit in range(8 * half):
        mutant = bytearray(data)
        mutant[bit // 8] ^= 1 << bit % 8
        got = same_in_all(bytes(mutant), as_records)
        if bit // 8 in UNPROTECTED:
            known = [fact[5:8] for fact in whole[:-1]]
            assert all(fact[5:8] in known for fact in got[:-1] if len(fact) > 2)
        else:
            assert any(len(fact) == 2 for fact in got[:-1]), bit


@pytest.mark.rows(2)
@pytest.mark.parametrize(("codec", "give"), WAYS)
def test_flipped_bits_behind_a_right_crc(codec: int, give: Give) -> None:
    data = small(codec)
    for bit in range(8 * 16, 8 * len(data)):
        mutant = bytearray(data)
        mutant[bit // 8] ^= 1 << bit % 8
        same_in_all(crc_mended(IMPLEMENTATIONS[0], mutant) + small(codec, 3), give)


def mutated(chance: random.Random, data: bytes) -> bytes:
    """One to four changes: bytes set, ranges dropped, doubled, or filled."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(16, len(out))
        kind = chance.randrange(5)
        if kind == 0:
            out[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 1:
            del out[max(at, 61) : at + chance.randint(1, 9)]
        elif kind == 2:
            out[at:at] = out[at : at + chance.randint(1, 20)]
        elif kind == 3:
            size = min(chance.randint(1, 11), len(out) - at)
            out[at : at + size] = bytes([chance.choice([0, 0xFF, 0x80, 0x7F])]) * size
        else:
            out[at : at + 4] = chance.choice([b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x80\0\0\0"])
        if len(out) < 80:
            break
    out[8:12] = (len(out) - 12).to_bytes(4, "big")
    return bytes(out)


@pytest.mark.rows(2)
@pytest.mark.parametrize(("codec", "give"), WAYS)
def test_mutants_with_a_right_crc(codec: int, give: Give) -> None:
    data = small(codec)
    for seed in range(400):
        chance = random.Random(seed)
        mutant = crc_mended(IMPLEMENTATIONS[0], mutated(chance, data))
        options: dict[str, Any] = {"aborted": [(7, 0)], "end_offset": 5} if seed % 3 else {}
        same_in_all(mutant + marker(3, 7, abort=True) + small(codec, 4), give, **options)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("codec", Compression)
def test_many_mutants(codec: int) -> None:
    chance = random.Random(codec)
    corpus = [small(codec), batch_of(IMPLEMENTATIONS[0], 0, [b"x" * 300] * 40, codec)]
    for _ in range(200_000):
        mutant = crc_mended(IMPLEMENTATIONS[0], mutated(chance, chance.choice(corpus)))
        outcome(IMPLEMENTATIONS[0], mutant, as_records)
        outcome(IMPLEMENTATIONS[0], mutant, as_columns)


def test_noise(impl: Any) -> None:
    for seed in range(500):
        data = random.Random(seed).randbytes(seed + 1)
        with pytest.raises(CorruptRecordError):
            impl.Chunk("t", 0, data, 0).next_records(5)


FIELDS = (
    (0, ">q"),
    (8, ">i"),
    (12, ">i"),
    (16, ">b"),
    (21, ">h"),
    (23, ">i"),
    (57, ">i"),
    (70, ">b"),
)
"""Fields of a batch's header, and a byte of its records, by their place."""


def odd_set(chance: random.Random) -> tuple[bytes, int, dict[str, Any]]:
    """A set whose headers say odd things, often at the end of all offsets; how it is read."""
    base = MAX_OFFSET - chance.randrange(12) if chance.random() < 0.3 else 0
    parts: list[bytes] = []
    after = base
    for _ in range(chance.randint(1, 4)):
        offset = min(after, MAX_OFFSET)
        control = chance.random() < 0.15
        batch = bytearray(
            marker(offset, 7, abort=chance.random() < 0.5)
            if control
            else small(chance.choice((0, 0, 3)), offset)
        )
        if chance.random() < 0.3:
            batch[22] |= 0x10
            struct.pack_into(">q", batch, 43, 7)
        for at, kind in chance.sample(FIELDS, chance.choice((0, 0, 1, 2))):
            most = 2 ** (struct.calcsize(kind) * 8 - 1) - 1
            odd = (0, 1, -1, -2, 2, 3, chance.randrange(-5, 60), most, -most - 1)
            struct.pack_into(kind, batch, at, chance.choice(odd))
        if chance.random() < 0.8:
            crc = IMPLEMENTATIONS[0].crc32c(batch[21:])
            struct.pack_into(">I", batch, 17, crc)
        parts.append(bytes(batch))
        after += 3 + chance.choice((0, 0, 2))
    data = b"".join(parts)
    if chance.random() < 0.2:
        data = data[: chance.randrange(len(data))]
    options: dict[str, Any] = {"aborted": [(7, base)]} if chance.random() < 0.4 else {}
    if chance.random() < 0.4:
        options["end_offset"] = min(base + chance.randrange(12), MAX_OFFSET)
    return data, min(base + chance.choice((0, 0, 1, 4)), MAX_OFFSET), options


def transcript(impl: Any, data: bytes, start: int, give: Give, options: Any) -> list[Any]:
    """All that a chunk says of itself after each call."""
    chunk = impl.Chunk("t", 0, data, start, max_decompressed=100_000, **options)
    seen: list[Any] = []
    while not chunk.exhausted and len(seen) < 40:
        try:
            what: Any = give(chunk)
        except CorruptRecordError as error:
            what = (str(error), error.offset, error.next_offset)
            chunk.skip_batch()
        seen.append((what, chunk.exhausted, chunk.position, chunk.leader_epoch))
    return seen


@pytest.mark.parametrize("give", [as_records, as_columns])
def test_both_say_the_same_after_each_call(give: Give) -> None:
    """Whether it is exhausted, where it stands, where to skip to; up to the last offset of all."""
    for seed in range(1_500):
        data, start, options = odd_set(random.Random(seed))
        one, *others = (transcript(impl, data, start, give, options) for impl in IMPLEMENTATIONS)
        assert all(other == one for other in others), seed
        assert all(-1 <= position <= MAX_OFFSET for _, _, position, _ in one), seed
