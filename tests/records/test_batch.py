"""What a broker does with produced batches: check them, refuse them, stamp them (design 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kohort.errors import CorruptRecordError
from kohort.records import (
    BatchHeader,
    Chunk,
    TimestampType,
    crc_matches,
    iter_batches,
    layout,
    read_batch_header,
    stamp,
    validate_record_set,
)

from .conftest import batch_of, crc_mended, marker, raw_batch, raw_record

VALUES = [b"a", b"b", b"c"]


def changed(impl: Any, batch: bytes, start: int, content: bytes) -> bytes:
    """The batch with other bytes at `start`, and a right CRC."""
    other = bytearray(batch)
    other[start : start + len(content)] = content
    return crc_mended(impl, other)


def test_a_sound_set_gives_its_headers(impl: Any) -> None:
    data = batch_of(impl, 0, VALUES) + batch_of(impl, 3, VALUES, codec=2)
    one, two = validate_record_set(data, check_contents=True)
    assert (one.position, one.size + two.size) == (0, len(data))
    assert (two.base_offset, two.last_offset, two.next_offset) == (3, 5, 6)
    assert two.record_count == 3
    assert repr(two).startswith("<BatchHeader offsets 3..5, 3 records,")


@pytest.mark.parametrize("seed", range(3))
def test_refused_with_words(impl: Any, seed: int) -> None:
    batch = batch_of(impl, seed, VALUES, codec=seed)
    with_producer = batch_of(
        impl, 0, VALUES, producer_id=5, producer_epoch=1, base_sequence=9, transactional=True
    )
    cases = {
        "no batch": b"",
        "inside the batch": batch + batch[:-1],
        "length": b"\0" * 70,
        "message format": changed(impl, batch, 16, b"\1"),
        "CRC": batch[:-1] + bytes([batch[-1] ^ 1]),
        "codec 6": changed(impl, batch, 22, b"\6"),
        "last offset delta": changed(impl, batch, 23, b"\0\0\0\7"),
        "record": changed(impl, batch, 57, b"\0\0\0\0"),
        "control": marker(0, 1, abort=True),
        "producer id -2": changed(impl, with_producer, 43, b"\xff" * 7 + b"\xfe"),
        "epoch -1": changed(impl, with_producer, 51, b"\xff\xff"),
        "sequence -1": changed(impl, with_producer, 53, b"\xff" * 4),
        "without a producer id": changed(impl, with_producer, 43, b"\xff" * 8),
    }
    for words, data in cases.items():
        with pytest.raises(CorruptRecordError, match=words):
            validate_record_set(data)


def test_contents_are_walked_only_when_asked(impl: Any) -> None:
    gap = raw_batch(raw_record(0, None, b"x") + raw_record(2, None, b"y"), 2, last_delta=1)
    assert validate_record_set(gap)
    for data in (gap, raw_batch(raw_record(0, None, b"x") + b"\0\0", 1)):
        with pytest.raises(CorruptRecordError):
            validate_record_set(data, check_contents=True)
    bomb = batch_of(impl, 0, [bytes(300_000)], codec=4)
    with pytest.raises(CorruptRecordError, match="limit"):
        validate_record_set(bomb, check_contents=True, max_decompressed=100_000)


def test_check_records_is_the_same_in_both(impl: Any) -> None:
    records = raw_record(0, b"k", b"x") + raw_record(1, None, b"y")
    assert impl.check_records(records, 0, 2, 1000) == ""
    assert "left over" in impl.check_records(records, 0, 1, 1000)
    assert "length" in impl.check_records(records, 0, 3, 1000)
    assert "gzip" in impl.check_records(records, 1, 3, 1000)


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
    headers = validate_record_set(data)
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
