"""What a broker does with produced batches: check them, refuse them, stamp them (design 7)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import CorruptRecordError, DecompressionLimitError
from kohort.records import (
    BatchHeader,
    Chunk,
    Compression,
    RecordCheck,
    TimestampType,
    check_produced,
    compress,
    crc_matches,
    iter_batches,
    layout,
    read_batch_header,
    stamp,
)
from tests.records.conftest import (
    IMPLEMENTATIONS,
    RECORDS,
    batch_of,
    crc_mended,
    marker,
    raw_batch,
    raw_record,
)

VALUES = [b"a", b"b", b"c"]


def changed(impl: Any, batch: bytes, start: int, content: bytes) -> bytes:
    """The batch with other bytes at `start`, and a right CRC."""
    other = bytearray(batch)
    other[start : start + len(content)] = content
    return crc_mended(impl, other)


def checked(data: bytes, **options: Any) -> RecordCheck:
    return check_produced(data, BatchHeader(data), **options)


@pytest.mark.parametrize("codec", Compression)
def test_a_sound_batch_says_when_its_records_are_of(impl: Any, codec: int) -> None:
    builder = impl.BatchBuilder(codec)
    for time_ms, key in ((-1, b"k"), (7_000, None), (5_000, b"k"), (6_000, None), (-9, b"k")):
        builder.append(time_ms, key, b"value", [("name", b"v"), ("null", None)])
    data = builder.build()
    assert checked(data) == (5_000, 7_000, 2)
    assert checked(batch_of(impl, 0, VALUES, codec)) == (1_000, 1_000, 3)
    untimed = impl.BatchBuilder(codec)
    untimed.append(-1, None, None)
    assert checked(untimed.build()) == (-1, -1, 1)


@pytest.mark.parametrize("codec", range(3))
def test_refused_with_words(impl: Any, codec: int) -> None:
    batch = batch_of(impl, 0, VALUES, codec=codec)
    with_producer = batch_of(
        impl, 0, VALUES, producer_id=5, producer_epoch=1, base_sequence=9, transactional=True
    )
    cases = {
        "base offset is 7": batch_of(impl, 7, VALUES),
        "codec 6": changed(impl, batch, 22, b"\6"),
        "last offset delta": changed(impl, batch, 23, b"\0\0\0\7"),
        "record": changed(impl, batch, 57, b"\0\0\0\0"),
        "-2147483648 records": changed(impl, batch, 57, b"\x80\0\0\0"),
        "control": marker(0, 1, abort=True),
        "producer id -2": changed(impl, with_producer, 43, b"\xff" * 7 + b"\xfe"),
        "epoch -1": changed(impl, with_producer, 51, b"\xff\xff"),
        "sequence -1": changed(impl, with_producer, 53, b"\xff" * 4),
        "without a producer id": changed(impl, with_producer, 43, b"\xff" * 8),
    }
    for words, data in cases.items():
        with pytest.raises(CorruptRecordError, match=words):
            checked(data)


FAULTS = {
    "left over": (RECORDS, 1),
    "3 records cannot stand in": (RECORDS[:20], 3),
    "length": (RECORDS + b"\0" * 7, 3),
    "length runs past": (b"\xff" * 40, 2),
    "timestamp or offset delta": (b"\x0c\0" + b"\x80" * 20, 1),
    "key": (b"\x0c\0\0\0\x7e" + b"\0" * 20, 1),
    "value": (b"\x0c\0\0\0\0\x7e" + b"\0" * 20, 1),
    "headers": (raw_record(0, b"k", b"x", b"\x7e"), 1),
    "shorter than its length": (raw_record(0, b"k", b"x", b"\0\0"), 1),
    "do not rise": (raw_record(0, None, b"x") + raw_record(0, None, b"y"), 2),
    "or pass the batch's last one": (raw_record(0, None, b"x") + raw_record(2, None, b"y"), 2),
}


@pytest.mark.parametrize("words", FAULTS)
@pytest.mark.parametrize("codec", Compression)
def test_every_record_is_walked(impl: Any, words: str, codec: int) -> None:
    records, count = FAULTS[words]
    packed = compress(codec, records)
    assert impl.check_records(compress(codec, RECORDS), codec, 2, 1000, 1000) == (1000, 1000, 1)
    with pytest.raises(CorruptRecordError, match=words):
        impl.check_records(packed, codec, count, 1000, 1000)


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_what_does_not_decompress_is_refused(impl: Any, codec: int) -> None:
    with pytest.raises(CorruptRecordError, match=Compression(codec).name.lower()):
        impl.check_records(b"\xff" * 40, codec, 3, 1000, 1000)


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_a_bomb_is_refused_before_it_goes_off(impl: Any, codec: int) -> None:
    """A claim of 2^31 - 1 records costs nothing to refuse; an expansion ends at the limit."""
    packed = compress(codec, bytes(300_000))
    with pytest.raises(CorruptRecordError, match="2147483647 records cannot stand in 100000"):
        impl.check_records(packed, codec, 0x7FFFFFFF, 0, 100_000)
    with pytest.raises(DecompressionLimitError, match="limit of 100000 bytes"):
        impl.check_records(packed, codec, 3, 0, 100_000)
    with pytest.raises(DecompressionLimitError, match="at byte 0"):
        checked(batch_of(impl, 0, [bytes(300_000)], codec=codec), max_decompressed=100_000)


def test_times_beyond_64_bits_wrap_alike(impl: Any) -> None:
    records = raw_record(0, b"k", b"x", timestamp=5) + raw_record(1, b"k", b"y", timestamp=-5)
    most = (1 << 63) - 1
    assert impl.check_records(records, 0, 2, most, 1000) == (most - 5, most - 5, 0)
    assert impl.check_records(records, 0, 2, -most - 1, 1000) == (most - 4, most - 4, 0)


@pytest.mark.parametrize("codec", Compression)
def test_any_damage_is_judged_alike(codec: int) -> None:
    """Damaged records with a right header: both say the same, and read what they let pass."""
    judged = 0
    for seed in range(300):
        chance = random.Random(seed)
        raw = bytearray(raw_record(0, b"key", bytes(20)) + raw_record(1, None, b"y" * 9))
        raw[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 4))
        packed = bytearray(compress(codec, raw))
        if codec and chance.random() < 0.3:
            packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
        verdicts = []
        for impl in IMPLEMENTATIONS:
            try:
                verdicts.append(str(impl.check_records(bytes(packed), codec, 2, 9, 10_000)))
            except CorruptRecordError as error:
                verdicts.append(str(error))
        assert len(set(verdicts)) == 1, seed
        if verdicts[0].startswith("RecordCheck"):
            batch = raw_batch(bytes(packed), 2, attributes=codec)
            assert len(Chunk("t", 0, batch, 0).next_records(3)) == 2
            judged += 1
    assert 50 < judged < 290


def test_the_end_of_a_set_is_found_by_its_headers(impl: Any) -> None:
    """The same in both: whole batches count, and nothing odd is guessed at."""
    end = impl_end(impl)
    first, second = (bytearray(batch_of(impl, 0, VALUES)) for _ in range(2))
    stamp(second, 0, 10, 0)  # compacted: 3 to 9 are gone
    both = bytes(first + second)
    assert end(b"") == -1
    assert end(both) == 13
    for cut in range(1, len(second) + 1):
        assert end(both[:-cut]) == 3
    assert end(both + b"\0" * 16) == 13
    assert end(both + b"\0" * 17) == -1, "what follows is no batch"
    odd = {8: b"\0\0\0\x30", 16: b"\1", 23: b"\xff", 0: b"\xff"}
    for at, change in odd.items():
        broken = bytearray(both)
        broken[len(first) + at : len(first) + at + len(change)] = change
        assert end(bytes(broken)) == -1, at
    assert end(bytes(second + first)) == -1, "offsets fall"
    far = bytearray(second)
    stamp(far, 0, (1 << 63) - 3, 0)
    assert end(bytes(far)) == -1


def test_whole_batches_by_headers_alone(impl: Any) -> None:
    """What a cut leaves whole; what is no batch ends them."""
    whole = getattr(impl, "whole_batches", layout.whole_batches)
    first, second = batch_of(impl, 0, VALUES), batch_of(impl, 3, VALUES * 3)
    both = first + second
    assert whole(b"") == 0
    assert whole(both) == len(both)
    for cut in range(1, len(second) + 1):
        assert whole(both[:-cut]) == len(first)
    assert whole(first[:-1]) == 0
    for at, change in {8: b"\0\0\0\x30", 16: b"\1", 0: b"\xff"}.items():
        broken = bytearray(both)
        broken[len(first) + at : len(first) + at + len(change)] = change
        assert whole(memoryview(broken)) == len(first), at


def impl_end(impl: Any) -> Callable[[bytes], int]:
    """The twin's stands in `layout`, where the headers are."""
    return getattr(impl, "end_of_set", layout.end_of_set)


def test_a_stamp_moves_the_batch_and_keeps_its_crc(impl: Any) -> None:
    data = bytearray(batch_of(impl, 0, VALUES) + batch_of(impl, 0, VALUES))
    offset = 1000
    for header in list(iter_batches(data)):
        stamp(data, header.position, offset, 7)
        offset += header.record_count
    headers = list(iter_batches(data))
    assert all(crc_matches(data, header) for header in headers)
    assert [h.base_offset for h in headers] == [1000, 1003]
    assert {h.partition_leader_epoch for h in headers} == {7}
    records = Chunk("t", 0, data, 1001).next_records(10)
    assert [(r.offset, r.leader_epoch, r.timestamp) for r in records] == [
        (offset, 7, 1000) for offset in range(1001, 1006)
    ]


def test_log_append_time_needs_a_new_crc(impl: Any) -> None:
    """KIP-32: the attribute, the max timestamp, and every record's time."""
    data = bytearray(batch_of(impl, 0, VALUES, codec=3))
    stamp(data, 0, 50, 2, append_time_ms=123_456)
    header = BatchHeader(data)
    assert crc_matches(data, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 123_456
    assert header.codec == 3
    records = Chunk("t", 0, data, 50).next_records(10)
    assert {r.timestamp for r in records} == {123_456}


def test_batches_are_iterated_up_to_a_partial_one(impl: Any) -> None:
    data = batch_of(impl, 0, VALUES)
    for cut in range(len(data)):
        assert [h.base_offset for h in iter_batches(data + data[:cut])] == [0]
        if cut < 17:
            assert read_batch_header(data, len(data) - cut) is None


def test_sequences_wrap(impl: Any) -> None:
    header = BatchHeader(batch_of(impl, 0, VALUES, producer_id=1, base_sequence=0x7FFFFFFF))
    assert header.last_sequence == 1
    assert BatchHeader(batch_of(impl, 0, VALUES)).last_sequence == -1
