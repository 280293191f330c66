"""Bulk reading: rows of the usual shape and batch after batch at once, the same in both kernels.

The compiled kernel has a quick loop for records without headers and crosses from one plain batch to
the next without coming up; whatever is not plain must come out as the twin reads it.
"""

from __future__ import annotations

import mmap
import random
import resource
import sys
from typing import Any

import pytest

from kohort.records import ALL_COLUMNS, DEFAULT_COLUMNS
from kohort.records.implementation import KERNEL, allocate
from tests.records.conftest import (
    IMPLEMENTATIONS,
    batch_of,
    crc_mended,
    marker,
    raw_batch,
    raw_record,
)
from tests.records.test_damage import outcome

SIZES = [0, 1, 15, 16, 17, 62, 63, 64, 100, 127, 128, 8191, 8192, 8193, 20_000]


def columns_of(chunk: Any, names: Any, rows: int, size: int) -> list[Any]:
    """All rows of the next piece, column by column, as plain values."""
    piece = chunk.next_columns(rows, names, max_bytes=size)
    if piece is None:
        return []
    out: list[Any] = [piece.rows, piece.first_offset, piece.last_offset]
    for column in (piece.offset, piece.timestamp, piece.timestamp_type):
        out.append(None if column is None else bytes(column))
    for column in (piece.key, piece.value):
        out.append(None if column is None else strings(column, piece.rows))
    if piece.headers is not None:
        ends = memoryview(piece.headers.offsets).cast("B").cast("i").tolist()
        total = ends[piece.rows]
        keys, values = piece.headers.keys, piece.headers.values
        out.append((ends[: piece.rows + 1], strings(keys, total), strings(values, total)))
    return [tuple(out)]


def strings(column: Any, rows: int) -> list[bytes | None]:
    ends = memoryview(column.offsets).cast("B").cast("i")
    valid, data = column.validity, memoryview(column.data)
    found: list[bytes | None] = [bytes(data[ends[n] : ends[n + 1]]) for n in range(rows)]
    nulls = [n for n in range(rows) if valid is not None and not valid[n >> 3] >> (n & 7) & 1]
    assert len(nulls) == column.nulls
    for n in nulls:
        assert found[n] == b""
        found[n] = None
    return found


def same(data: bytes, names: Any, rows: int, size: int, **options: Any) -> None:
    def give(chunk: Any) -> list[Any]:
        return columns_of(chunk, names, rows, size)

    outcomes = [outcome(impl, data, give, steps=500, **options) for impl in IMPLEMENTATIONS]
    assert all(other == outcomes[0] for other in outcomes)


def random_batch(chance: random.Random, base: int) -> tuple[bytes, int]:
    """A batch of mostly usual records with others among them; and the offset behind it."""
    records, delta, count = b"", -1, chance.randint(1, 40)
    for _ in range(count):
        delta += chance.choice([1, 1, 1, 2, 70, 9000])
        key = chance.choice([None, b"", b"%08d" % delta, bytes(chance.choice(SIZES))])
        value = bytes([delta & 255]) * chance.choice(SIZES)
        tail = b"\0" if chance.random() < 0.9 else b"\x02\x02a\x02b"
        records += raw_record(delta, key, None if chance.random() < 0.05 else value, tail)
    append_time = chance.choice([0, 0, 8])
    batch = raw_batch(records, count, base_offset=base, last_delta=delta, attributes=append_time)
    return batch, base + delta + 1


def random_set(chance: random.Random) -> bytes:
    """Batches of every sort behind each other, sometimes one of them damaged or cut off."""
    parts: list[bytes] = []
    base = chance.choice([0, 5])
    for _ in range(chance.randint(1, 6)):
        kind = chance.randrange(12)
        if kind == 0:
            part, base = marker(base, 7, abort=chance.random() < 0.5), base + 1
        elif kind == 1:
            values = [b"zipped"] * 5
            part, base = batch_of(IMPLEMENTATIONS[0], base, values, codec=3), base + 5
        elif kind == 2:
            part, base = raw_batch(b"", 0, base_offset=base, last_delta=3), base + 4
        else:
            part, base = random_batch(chance, base)
        if kind == 3:
            at = chance.randrange(16, len(part))
            damaged = bytearray(part)
            damaged[at] ^= 1 << chance.randrange(8)
            part = bytes(damaged)
            if chance.random() < 0.7:
                part = crc_mended(IMPLEMENTATIONS[0], part) if at > 21 else part
        parts.append(part)
    data = b"".join(parts)
    return data[: chance.randrange(1, len(data))] if chance.random() < 0.15 else data


@pytest.mark.rows(30)
@pytest.mark.parametrize("seed", range(150))
def test_bulk_reading_is_the_same_in_both(seed: int) -> None:
    chance = random.Random(seed)
    data = random_set(chance)
    names = chance.choice([ALL_COLUMNS, DEFAULT_COLUMNS, {"value"}, {"key", "offset"}])
    rows = chance.choice([1, 7, 65_536, 65_536])
    size = chance.choice([1, 500, 50_000, 1 << 20, 1 << 20])
    options = {
        "check_crc": chance.random() < 0.8,
        "end_offset": chance.choice([None, None, 3, 60, 9_000]),
        "aborted": chance.choice([None, None, [(-1, 0)], [(7, 2)]]),
    }
    same(data, names, rows, size, **options)


def test_usual_rows_at_every_place_of_a_batch() -> None:
    """A fetch that begins inside a batch, and one that ends inside it."""
    records = b"".join(raw_record(n, b"key", b"v" * 40) for n in range(50))
    data = raw_batch(records, 50) + raw_batch(records, 50, base_offset=50)
    for first in (0, 1, 49, 50, 51, 99):
        for end in (None, 1, 50, 51, 99):
            got = [
                columns_of(
                    impl.Chunk("t", 0, data, first, end_offset=end), ALL_COLUMNS, 100, 1 << 20
                )
                for impl in IMPLEMENTATIONS
            ]
            assert all(other == got[0] for other in got)


def faults_of_filling(buffer: memoryview) -> int:
    """How many pages this thread has to ask the system for when it writes a buffer full."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for at in range(0, len(buffer), mmap.PAGESIZE):
        buffer[at] = 7
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def provides_pages() -> bool:
    """Whether the system provides the pages of a range of memory when it is asked to."""
    if not sys.platform.startswith("linux"):
        return False
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            memory.madvise(23)
        except OSError:
            return False
    return True


def test_a_buffer_that_is_filled_soon_is_like_any_other() -> None:
    for size in (0, 1, 40_000, 100_003, 1 << 20, 1 << 20):
        buffer = allocate(size, filled_soon=True)
        assert len(buffer) == size
        assert not buffer.readonly
        buffer[:] = b"\x07" * size
        assert buffer == b"\x07" * size


@pytest.mark.skipif(not provides_pages(), reason="not before Linux 5.14")
@pytest.mark.skipif(KERNEL == "python", reason="no kernel")
def test_the_pages_of_a_buffer_that_is_filled_soon_are_there_at_once() -> None:
    """A page fault costs more than what is written to the page."""
    size = 26 << 20  # too large for the pool: its memory is new
    pages = size // mmap.PAGESIZE
    assert faults_of_filling(allocate(size, filled_soon=True)) < pages // 100


def test_a_buffer_of_the_pool_is_not_given_out_while_referenced() -> None:
    """C13: recycling starts when the last view of a buffer is gone, and not before."""
    size = 1 << 20
    first = allocate(size)
    first[:] = b"\x01" * size
    kept = first[100:200]
    del first
    others = [allocate(size) for _ in range(4)]
    for other in others:
        other[:] = b"\x02" * size
    assert kept == b"\x01" * 100
