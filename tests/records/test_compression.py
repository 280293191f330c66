"""Codecs: what others write is read, bombs and damage end in one typed error (F5, F6)."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import ConfigError, CorruptRecordError, UsageError
from kohort.records import KERNEL, Compression, compress, decompress
from kohort.records.compression import compress_bound, compress_into
from kohort.records.lz4_blocks import lz4_blocks, pack_by_library

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
SOUND = random.Random(3)
SAMPLES = {
    "empty": b"",
    "one": b"x",
    "text": b"some text, and again some text; " * 3000,
    "noise": SOUND.randbytes(150_000),
    "zeros": bytes(1_000_000),
    "mixed": b"".join(SOUND.choice([bytes(5000), SOUND.randbytes(5000)]) for _ in range(60)),
}


class Allocator:
    """Counts what the codecs ask for."""

    def __init__(self) -> None:
        self.largest = 0

    def __call__(self, size: int) -> bytearray:
        self.largest = max(self.largest, size)
        return bytearray(size)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip_also_at_the_very_limit(codec: Compression, name: str) -> None:
    data = SAMPLES[name]
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed)) == data
    assert bytes(decompress(codec, packed, len(data))) == data
    if data:
        with pytest.raises(CorruptRecordError, match=r"limit of \d+ bytes"):
            decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_within_its_limit(codec: Compression) -> None:
    """50 MB of zeros against a limit of 1 MB: an error, never more than the limit allocated."""
    bomb = compress(codec, bytes(50_000_000))
    allocator = Allocator()
    with pytest.raises(CorruptRecordError, match="limit of 1000000 bytes"):
        decompress(codec, bomb, 1_000_000, allocator)
    assert allocator.largest <= 1_000_000


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_a_typed_error(codec: Compression) -> None:
    packed = bytes(compress(codec, b"abcdefgh" * 40 + bytes(range(200))))
    # snappy's framing has no end mark: a cut between blocks is seen by the record count
    no_end_mark = {16} if codec is Compression.SNAPPY else set[int]()
    for cut in set(range(len(packed))) - no_end_mark:
        with pytest.raises(CorruptRecordError):
            decompress(codec, packed[:cut])


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_an_error_or_harmless(codec: Compression) -> None:
    """Only `CorruptRecordError` leaves the module, whatever bit is flipped."""
    packed = bytes(compress(codec, b"abcdefgh" * 20 + bytes(range(100))))
    for bit in range(8 * len(packed)):
        mutant = bytearray(packed)
        mutant[bit // 8] ^= 1 << bit % 8
        allocator = Allocator()
        try:
            size = len(decompress(codec, mutant, 50_000, allocator))
        except CorruptRecordError:
            size = 0
        assert max(size, allocator.largest) <= 50_000


@pytest.mark.parametrize("codec", CODECS)
def test_noise_is_an_error(codec: Compression) -> None:
    for seed in range(300):
        noise = random.Random(seed).randbytes(seed)
        prefix = bytes(compress(codec, b"x"))[: seed % 16]
        with pytest.raises(CorruptRecordError):
            decompress(codec, prefix + b"\xff" + noise, 100_000)


def test_snappy_without_framing_as_librdkafka_writes_it() -> None:
    data = SAMPLES["text"]
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert bytes(decompress(Compression.SNAPPY, raw)) == data


def test_snappy_that_lies_about_its_size() -> None:
    allocator = Allocator()
    with pytest.raises(CorruptRecordError, match="cannot expand"):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\x7f" + bytes(8), 1 << 30, allocator)
    assert allocator.largest == 0


def test_gzip_of_several_members_and_padding() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two") + bytes(20)
    assert decompress(Compression.GZIP, packed) == b"one two"


XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
LZ4 = bytes(compress(Compression.LZ4, b"x"))[:7]
ZSTD = b"\x28\xb5\x2f\xfd\0\x58"
TINY = {
    "snappy blocks of no bytes": (Compression.SNAPPY, XERIAL + bytes(1 << 20), 1),
    "snappy blocks that hold nothing": (
        Compression.SNAPPY,
        XERIAL + b"\0\0\0\1\0" * 200_000,
        4_097,
    ),
    "snappy blocks of one": (Compression.SNAPPY, XERIAL + b"\0\0\0\3\1\0x" * 140_000, 4_097),
    "gzip members": (Compression.GZIP, gzip.compress(b"", mtime=0) * 50_000, 64),
    "lz4 blocks": (Compression.LZ4, LZ4 + struct.pack("<I", 1 << 31) * 250_000 + bytes(4), 4_097),
    "zstd blocks": (Compression.ZSTD, ZSTD + bytes(3 * 300_000) + b"\1\0\0", 4_097),
}
"""A megabyte of parts that hold next to nothing, and how many of them are looked at."""


@pytest.mark.parametrize("what", TINY)
def test_countless_tiny_parts_are_refused_after_the_first(what: str) -> None:
    """F.1: each costs time whatever it holds, and brokers look into every produced batch."""
    codec, data, looked_at = TINY[what]
    with pytest.raises(CorruptRecordError) as raised:
        decompress(codec, data)
    lines = {"cut off", f"{looked_at} blocks hold only", f"more than {looked_at} members"}
    assert any(line in str(raised.value) for line in lines)


@pytest.mark.parametrize("codec", CODECS)
def test_a_writer_that_ends_a_part_behind_each_record_is_read(codec: Compression) -> None:
    """20,000 blocks of a small record each; members of gzip are never that many."""
    record, count = b"a record of 24 bytes....", 20_000
    if codec is Compression.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(record))
        data = XERIAL + (struct.pack(">i", len(block)) + block) * count
    elif codec is Compression.LZ4:
        stored = struct.pack("<I", 1 << 31 | len(record)) + record
        data = LZ4 + stored * count + bytes(4)
    elif codec is Compression.ZSTD:
        data = ZSTD + (struct.pack("<I", len(record) << 3)[:3] + record) * count + b"\1\0\0"
    else:
        packer = zlib.compressobj(wbits=31)
        parts = [packer.compress(record) + packer.flush(zlib.Z_SYNC_FLUSH) for _ in range(count)]
        data = b"".join(parts) + packer.flush()
    assert bytes(decompress(codec, data)) == record * count


def test_zlib_without_gzip_header_is_damage() -> None:
    with pytest.raises(CorruptRecordError):
        decompress(Compression.GZIP, zlib.compress(b"data"))


@pytest.mark.parametrize("level", [1, 3, 9, 22])
@pytest.mark.parametrize("name", SAMPLES)
def test_zstd_frames_of_any_level(name: str, level: int) -> None:
    data = SAMPLES[name][:200_000]
    assert bytes(decompress(Compression.ZSTD, compress(Compression.ZSTD, data, level))) == data


@pytest.mark.parametrize("options", [{}, {"block_size": 4, "block_checksum": True}])
@pytest.mark.parametrize("name", SAMPLES)
def test_lz4_frames_of_any_shape(name: str, options: dict[str, Any]) -> None:
    frame = pytest.importorskip("lz4.frame")
    data = SAMPLES[name]
    for linked in (True, False):
        for content in (True, False):
            packed = frame.compress(
                data, block_linked=linked, content_checksum=content, store_size=content, **options
            )
            assert bytes(decompress(Compression.LZ4, packed)) == data


def test_lz4_blocks_never_depend_on_each_other() -> None:
    """Kafka's Java client refuses a frame without the independence flag."""
    for level in (None, 1, 9):
        packed = compress(Compression.LZ4, SAMPLES["text"], level)
        assert packed[4] & 0x20


def test_unknown_codec_and_bad_level() -> None:
    with pytest.raises(CorruptRecordError, match="codec 7"):
        decompress(7, b"x")
    with pytest.raises(ConfigError, match="between 1 and 12"):
        compress(Compression.LZ4, b"x", 13)
    with pytest.raises(ConfigError, match="no levels"):
        compress(Compression.SNAPPY, b"x", 1)
    with pytest.raises(ConfigError, match="gzip, snappy, lz4, zstd"):
        Compression.parse("brotli")
    assert Compression.parse("lz4") is Compression.LZ4


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fill", ["noise", "zeros"])
def test_the_bound_is_enough_around_every_edge(codec: Compression, fill: str) -> None:
    """Whatever the data, `compress_into` needs no more than `compress_bound`."""
    noise = SOUND.randbytes(200_000) if fill == "noise" else bytes(200_000)
    edges = (32_768, 65_536, 131_072)
    for size in {0, 1, 15, 255, 4_096, *(e + d for e in edges for d in (-16, -1, 0, 1, 16))}:
        data = noise[:size]
        out = memoryview(bytearray(compress_bound(codec, size)))
        taken = compress_into(codec, data, out)
        assert bytes(decompress(codec, out[:taken])) == data


def test_lz4_is_a_frame_that_others_read() -> None:
    frame = pytest.importorskip("lz4.frame")
    for data in SAMPLES.values():
        assert frame.decompress(bytes(compress(Compression.LZ4, data))) == data
        assert bytes(cramjam.lz4.decompress(bytes(compress(Compression.LZ4, data)))) == data


LZ4_FRAME = bytes.fromhex("04224d18604082")
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([bytes(range(14)), b"a", b"word ", bytes(300), b"ab" * 40]),
        st.integers(0, 70_000).map(bytes),
        st.integers(0, 70_000).map(random.Random(5).randbytes),
    ),
    max_size=60,
)


@given(PIECES, st.randoms(use_true_random=False))
def test_lz4_blocks_are_read_by_the_library_and_stay_in_their_room(
    pieces: list[bytes], rng: random.Random
) -> None:
    """Whatever the data: the kernel's blocks and the library's say the same to every reader."""
    data = b"".join(pieces + rng.choices(pieces, k=30) if pieces else pieces)
    room = compress_bound(Compression.LZ4, len(data)) - len(LZ4_FRAME)
    for pack in (lz4_blocks, pack_by_library):
        out = bytearray(b"\x55" * (room + 64))
        taken = pack(data, memoryview(out)[:room])
        assert out[room:] == b"\x55" * 64
        frame = LZ4_FRAME + out[:taken]
        assert bytes(decompress(Compression.LZ4, frame)) == data
        assert bytes(cramjam.lz4.decompress(frame)) == data


def test_lz4_of_the_kernel_packs_as_well_as_the_library() -> None:
    words = [SOUND.randbytes(6).hex().encode() for _ in range(400)]
    samples = [b" ".join(SOUND.choices(words, k=20_000)), SAMPLES["text"], SAMPLES["mixed"]]
    for data in samples:
        out = memoryview(bytearray(compress_bound(Compression.LZ4, len(data))))
        assert lz4_blocks(data, out) <= 1.02 * pack_by_library(data, out) + 64


@pytest.mark.skipif(KERNEL == "python", reason="the library has errors of its own")
def test_lz4_refuses_a_room_that_may_be_too_small() -> None:
    with pytest.raises(UsageError, match="lz4 needs"):
        lz4_blocks(bytes(100), memoryview(bytearray(110)))
    with pytest.raises(BufferError):
        lz4_blocks(bytes(100), memoryview(bytes(1_000)))
