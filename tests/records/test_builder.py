"""Building batches: sizes, refusals, options, and what other libraries read of it."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from kohort.errors import ConfigError, UsageError
from kohort.records import (
    BinaryColumn,
    Compression,
    HeaderColumn,
    TimestampType,
    read_batch_header,
)
from tests.known import known
from tests.records.conftest import checked_set, fields


def test_the_size_is_exact_and_the_limit_holds(impl: Any) -> None:
    builder = impl.BatchBuilder(max_bytes=1000)
    assert builder.size == 61
    while builder.append(5, b"key", b"v" * 50, [("h", b"x")]) >= 0:
        assert builder.size == len(builder.build()) <= 1000
    count, size = len(builder), builder.size
    assert size + 62 > 1000
    assert builder.append(5, b"key", b"v" * 50, [("h", b"x")]) == -1
    assert (len(builder), builder.size) == (count, size)
    assert builder.append(5, None, None) == count


def test_the_first_record_is_always_taken(impl: Any) -> None:
    builder = impl.BatchBuilder(max_bytes=100)
    assert builder.append(1, None, bytes(5000)) == 0
    assert builder.append(1, None, b"") == -1
    assert len(builder.build()) > 5000


def test_a_cleared_builder_starts_anew(impl: Any) -> None:
    builder, fresh = impl.BatchBuilder(), impl.BatchBuilder()
    builder.append(99, b"old", b"old")
    builder.clear()
    assert (len(builder), builder.size, builder.base_timestamp) == (0, 61, -1)
    for one in (builder, fresh):
        one.append(7, None, b"new")
        one.append(3, None, b"new")
    assert builder.build() == fresh.build()
    assert (builder.base_timestamp, builder.max_timestamp) == (7, 7)


def test_a_batch_may_be_built_again_with_another_sequence(impl: Any) -> None:
    """After a retriable error a producer may send the same records with a new epoch (KIP-360)."""
    builder = impl.BatchBuilder(Compression.ZSTD)
    builder.append(7, None, b"x")
    for epoch, sequence in ((0, 5), (1, 0)):
        batch = builder.build(
            producer_id=1 << 40, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        (header,) = checked_set(batch)
        assert (header.producer_id, header.producer_epoch) == (1 << 40, epoch)
        assert header.base_sequence == header.last_sequence == sequence
        assert header.is_transactional
        assert not header.is_control
        assert header.codec == Compression.ZSTD


def test_options_of_the_log(impl: Any) -> None:
    builder = impl.BatchBuilder()
    builder.append(7, b"k", b"x")
    batch = builder.build(base_offset=9, leader_epoch=4, control=True, append_time_ms=55)
    header = read_batch_header(batch)
    assert header is not None
    assert (header.base_offset, header.partition_leader_epoch) == (9, 4)
    assert (header.base_timestamp, header.max_timestamp) == (7, 55)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.is_control


def test_keys_and_values_may_be_any_bytes(impl: Any) -> None:
    builder = impl.BatchBuilder()
    builder.append(1, bytearray(b"key"), memoryview(b"a value")[2:], (("h", bytearray(b"x")),))
    (record,) = impl.Chunk("t", 0, builder.build(), 0).next_records(5)
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"x"),))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1, "text", b"x"), TypeError),
        ((1, b"k", "text"), TypeError),
        ((1, b"k", 7), TypeError),
        ((1, b"k", b"x", [("name", "text")]), TypeError),
        ((1, b"k", b"x", [(b"name", b"x")]), TypeError),
        ((1 << 63, b"k", b"x"), OverflowError),
        (("now", b"k", b"x"), TypeError),
    ],
)
def test_a_refused_record_leaves_no_trace(
    impl: Any, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    builder = impl.BatchBuilder()
    builder.append(1, b"k", b"x")
    before = builder.build()
    with pytest.raises(error):
        builder.append(*arguments)
    assert builder.build() == before


def test_nothing_is_no_batch(impl: Any) -> None:
    with pytest.raises(UsageError, match="append first"):
        impl.BatchBuilder().build()


def test_bad_codecs_and_levels(impl: Any) -> None:
    with pytest.raises(ConfigError, match="between 1 and 22"):
        impl.BatchBuilder(Compression.ZSTD, level=99)
    with pytest.raises(ValueError, match="6"):
        impl.BatchBuilder(6)
    builder = impl.BatchBuilder(Compression.GZIP, level=1)
    assert (builder.compression, builder.level) == (Compression.GZIP, 1)


def test_extend_is_append_many_times(impl: Any) -> None:
    values = [b"%d" % i * (i % 7) for i in range(500)]
    keys = [None if i % 3 else b"k%d" % i for i in range(500)]
    headers = [[("h", b"%d" % i)] if i % 5 == 0 else [] for i in range(500)]
    timestamps = [1000 - i for i in range(500)]
    one, many = impl.BatchBuilder(max_bytes=5000), impl.BatchBuilder(max_bytes=5000)
    start = 0
    while start < 500:
        for row in range(start, 500):
            if one.append(timestamps[row], keys[row], values[row], headers[row]) < 0:
                break
        taken = many.extend(timestamps, keys, values, headers, start=start)
        assert taken == len(one) > 0
        assert many.build() == one.build()
        start += taken
        one.clear()
        many.clear()
    assert many.extend(7, None, values[:3]) == 3
    records = impl.Chunk("t", 0, many.build(), 0).next_records(9)
    assert [fields(r)[3:7] for r in records] == [(7, 0, None, v) for v in values[:3]]
    assert many.extend(7, None, values, start=500) == 0
    with pytest.raises(UsageError, match="500 values, but 3 rows"):
        many.extend(7, keys[:3], values)


def ints(code: str, *values: int) -> bytes:
    return array(code, values).tobytes()


def column(*words: bytes) -> BinaryColumn:
    ends = [0]
    for word in words:
        ends.append(ends[-1] + len(word))
    return BinaryColumn(None, ints("i", *ends), b"".join(words))


@pytest.mark.parametrize(
    ("timestamps", "value", "headers", "stop", "what"),
    [
        (1, column(b"x"), None, 2, "bytes where 12 are needed"),
        (ints("q", 1), column(b"x", b"y"), None, 2, "8 bytes where 16 are needed"),
        (1, BinaryColumn(None, ints("i", 0, 5), b"abc"), None, 1, "outside"),
        (1, BinaryColumn(None, ints("i", 2, 1), b"abc"), None, 1, "outside"),
        (1, BinaryColumn(None, ints("i", -1, 1), b"abc"), None, 1, "outside"),
        (1, BinaryColumn(b"", ints("i", 0, 1), b"abc"), None, 1, "0 bytes where 1 are needed"),
        (1, BinaryColumn(None, ints("i", 0, 1), b"abc", 0, -1), None, 1, "begins before"),
        (1, None, HeaderColumn(ints("i", 0, 2), column(b"a"), column(b"b")), 1, "12 are needed"),
        (1, None, HeaderColumn(ints("i", 0, -2), column(b"a"), column(b"b")), 1, "negative"),
        (1, None, HeaderColumn(ints("i", 1, 0), column(b"a"), column(b"b")), 1, "outside"),
        (1, None, HeaderColumn(ints("i", 0), column(b"a"), column(b"b")), 1, "8 are needed"),
        (1, column(b"x"), None, -1, "no range"),
    ],
)
def test_columns_that_are_not_what_they_say(
    impl: Any, timestamps: Any, value: Any, headers: Any, stop: int, what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        impl.BatchBuilder().extend_columns(timestamps, None, value, headers, stop=stop)


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_that_is_taken_is_the_one_that_is_built(impl: Any, codec: Compression) -> None:
    """`take` gives the builder's own memory away: what comes after must not show in it."""
    builder = impl.BatchBuilder(codec, 100_000)
    identity = {"producer_id": 1 << 40, "producer_epoch": 3, "base_sequence": 17}
    taken: list[tuple[Any, bytes]] = []
    for size in (40_000, 7, 90_000, 90_000, 300_000, 1):
        builder.append(5, b"key", bytes(range(256)) * (size // 256) + bytes(size % 256))
        builder.append(4, None, b"another")
        built = builder.build(transactional=True, **identity)
        taken.append((builder.take(transactional=True, **identity), built))
        assert (len(builder), builder.size, builder.base_timestamp) == (0, 61, -1)
    for batch, built in taken:
        assert bytes(batch) == built
    with pytest.raises(UsageError):
        builder.take()


def test_chosen_rows_of_columns_are_those_rows(impl: Any) -> None:
    texts = [b"v%d" % n for n in range(50)]
    offsets = array("i", [sum(map(len, texts[:n])) for n in range(51)]).tobytes()
    column = BinaryColumn(None, offsets, b"".join(texts))
    times = array("q", range(100, 150)).tobytes()
    rows = array("i", [3, 0, 49, 3])
    builder, plain = impl.BatchBuilder(), impl.BatchBuilder()
    assert builder.extend_columns(times, column, column, start=1, stop=4, rows=rows, of=50) == 3
    for row in rows[1:]:
        plain.append(100 + row, texts[row], texts[row])
    assert builder.build() == plain.build()
    for wrong in ([50], [-1]):
        with pytest.raises(UsageError, match="outside"):
            builder.extend_columns(0, None, column, stop=1, rows=array("i", wrong), of=50)
    with pytest.raises(UsageError, match="8 are needed"):
        builder.extend_columns(0, None, column, stop=2, rows=array("i", [1]), of=50)
    with pytest.raises(UsageError, match="are needed"):
        builder.extend_columns(0, None, column, stop=1, rows=array("i", [1]), of=51)


def with_nulls(words: list[bytes | None]) -> BinaryColumn:
    """A column of these, nothing behind its last byte."""
    bits = bytearray((len(words) + 7) // 8)
    for row, word in enumerate(words):
        bits[row >> 3] |= (word is not None) << (row & 7)
    offsets, data = column(*(word or b"" for word in words))[1:3]
    return BinaryColumn(bytes(bits), offsets, data, words.count(None))


@pytest.mark.rows(2)
@pytest.mark.parametrize("seed", range(12))
def test_rows_of_columns_are_those_that_are_appended_one_by_one(impl: Any, seed: int) -> None:
    """Usual rows have a loop of their own: others between them, limits and sums are the same."""
    chance = random.Random(seed)
    sizes = [0, 1, 31, 32, 33, 63, 64, 127, 128, 255, 256, 257, 1_000, 8_191, 8_192, 300_000]

    def word() -> bytes | None:
        if chance.random() < 0.05:
            return None
        few = chance.random() < 0.97
        return chance.randbytes(chance.randrange(130) if few else chance.choice(sizes))

    count = 1_000
    values = [word() for _ in range(count)]
    keys: list[bytes | None] = [word() if seed % 3 else None for _ in range(count)]
    spread = chance.choice([0, 50, 10_000, 1 << 22, 1 << 62])
    times = [chance.randint(-spread, spread) for _ in range(count)]
    rows = chance.sample(range(count), count) if seed & 1 else list(range(count))
    builder, plain = (impl.BatchBuilder(0, 400_000) for _ in range(2))
    key_column = with_nulls(keys) if seed % 3 else None
    value_column, at = with_nulls(values), 0
    while at < count:
        added = builder.extend_columns(
            array("q", times).tobytes() if spread else 7,
            key_column,
            value_column,
            start=at,
            stop=count,
            rows=array("i", rows) if seed & 1 else None,
            of=count,
        )
        assert added
        for row in rows[at : at + added]:
            assert plain.append(times[row] if spread else 7, keys[row], values[row]) >= 0
        assert (builder.size, builder.max_timestamp) == (plain.size, plain.max_timestamp)
        at += added
        if at < count:
            row = rows[at]
            assert plain.append(times[row] if spread else 7, keys[row], values[row]) == -1
        assert bytes(builder.take()) == bytes(plain.take())


@pytest.mark.rows(1)
def test_the_crc_of_records_that_were_summed_as_they_were_written(impl: Any) -> None:
    """Sums of pieces are joined: whatever the sizes, the CRC is that of the whole (F2)."""
    for each in (1, 90, 1_000, 40_000, 200_000):
        builder = impl.BatchBuilder()
        for count in (1, 2, min(20_000, 400_000 // each)):
            for n in range(count):
                builder.append(1_000 + n, b"%d" % n, bytes([n & 255]) * each)
            built = builder.build(producer_id=7, producer_epoch=0, base_sequence=count)
            checked_set(built)
            assert known(read_batch_header(built)).producer_id == 7
        taken = builder.take(producer_id=8, producer_epoch=0, base_sequence=1)
        checked_set(bytes(taken))
        builder.append(5, None, b"next")
        checked_set(builder.build())
