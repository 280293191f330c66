"""The cursor over a fetched record set: what it gives, what it passes over, where it stands."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import Any

import pytest

from kohort.errors import ConcurrentUseError, CorruptRecordError, UsageError
from kohort.records import ALL_COLUMNS, TimestampType
from tests.records.conftest import (
    IMPLEMENTATIONS,
    batch_of,
    crc_mended,
    drained,
    fields,
    marker,
    raw_batch,
    raw_record,
)

VALUES = [b"a", b"b", b"c"]


def test_an_empty_set_is_exhausted_at_once(impl: Any) -> None:
    chunk = impl.Chunk("t", 0, b"", 42)
    assert (chunk.exhausted, chunk.position, chunk.bytes) == (True, 42, 0)
    assert chunk.next_records(10) == []
    assert chunk.next_columns() is None


def test_control_batches_are_passed_over_and_move_the_position(impl: Any) -> None:
    """CL3: progress over what is not shown; also when nothing else is in the set."""
    markers = marker(10, 1, abort=False) + marker(11, 2, abort=True)
    chunk = impl.Chunk("t", 0, markers, 10)
    assert (chunk.exhausted, chunk.position) == (True, 12)
    chunk = impl.Chunk("t", 0, batch_of(impl, 7, VALUES) + markers, 7)
    assert (chunk.exhausted, chunk.position) == (False, 7)
    assert len(chunk.next_records(3)) == 3
    assert (chunk.exhausted, chunk.position) == (True, 12)


def test_leader_epoch_is_that_of_what_was_given(impl: Any) -> None:
    """KIP-320: a position is checked against a new leader by the epoch of what was read last."""
    data = bytearray(batch_of(impl, 0, VALUES)) + bytearray(batch_of(impl, 3, VALUES))
    size = len(batch_of(impl, 0, VALUES))
    data[12:16], data[size + 12 : size + 16] = b"\0\0\0\4", b"\0\0\0\5"
    chunk = impl.Chunk("t", 0, bytes(data), 0)
    assert chunk.leader_epoch == -1
    assert [record.leader_epoch for record in chunk.next_records(1)] == [4]
    assert chunk.leader_epoch == 4
    assert chunk.next_columns(2).rows == 2
    assert chunk.leader_epoch == 4
    assert chunk.next_columns(9).rows == 3
    assert chunk.leader_epoch == 5


def test_compacted_batches_move_the_position_to_their_end(impl: Any) -> None:
    records = raw_record(2, None, b"two") + raw_record(5, None, b"five")
    compacted = raw_batch(records, 2, base_offset=100, last_delta=9)
    emptied = raw_batch(b"", 0, base_offset=110, last_delta=4)
    chunk = impl.Chunk("t", 0, compacted + emptied, 100)
    assert [(r.offset, r.value) for r in chunk.next_records(1)] == [(102, b"two")]
    assert chunk.position == 103
    assert drained(chunk) == [(105, b"five")]
    assert (chunk.exhausted, chunk.position) == (True, 115)


def test_end_offset_bounds_records_and_columns(impl: Any) -> None:
    data = batch_of(impl, 0, VALUES) + batch_of(impl, 3, VALUES)
    for end, count in ((0, 0), (2, 2), (3, 3), (5, 5), (6, 6), (99, 6)):
        chunk = impl.Chunk("t", 0, data, 0, end_offset=end)
        assert len(drained(chunk)) == count
        assert chunk.exhausted
        assert chunk.position == min(end, 6)
        columns = impl.Chunk("t", 0, data, 0, end_offset=end).next_columns()
        assert (columns.rows if columns else 0) == count


def test_an_end_inside_a_gap_ends_the_chunk_there(impl: Any) -> None:
    """Spark asks for [0, 8): offsets 2..9 were compacted away."""
    records = raw_record(0, None, b"0") + raw_record(1, None, b"1") + raw_record(10, None, b"10")
    chunk = impl.Chunk("t", 0, raw_batch(records, 3, last_delta=10), 0, end_offset=8)
    assert drained(chunk) == [(0, b"0"), (1, b"1")]
    assert (chunk.exhausted, chunk.position) == (True, 8)


def test_a_marker_that_compaction_has_emptied_is_passed_over(impl: Any) -> None:
    """F2: Kafka keeps a producer's last batch as a header without records. It stopped the
    partition as damaged where it lay in an aborted transaction of another producer."""
    aborted = batch_of(
        impl,
        0,
        [b"aborted by 1"],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    emptied = raw_batch(b"", 0, base_offset=1, last_delta=0, attributes=0x30, producer_id=2)
    data = aborted + emptied + marker(2, 1, abort=True) + batch_of(impl, 3, [b"plain"])
    chunk = impl.Chunk("t", 0, data, 0, aborted=[(1, 0)])
    assert drained(chunk) == [(3, b"plain")]


def test_aborted_transactions_are_dropped(impl: Any) -> None:
    """F2: producers 1 (aborted, then committed) and 2 (aborted), the list given unsorted."""

    def txn(offset: int, producer: int, value: bytes) -> bytes:
        return batch_of(
            impl,
            offset,
            [value],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    data = b"".join(
        [
            txn(0, 1, b"aborted by 1"),
            txn(1, 2, b"aborted by 2"),
            batch_of(impl, 2, [b"plain"]),
            marker(3, 1, abort=True),
            txn(4, 1, b"committed by 1"),
            txn(5, 2, b"aborted by 2 too"),
            marker(6, 1, abort=False),
            marker(7, 2, abort=True),
            txn(8, 2, b"committed by 2"),
            marker(9, 2, abort=False),
        ]
    )
    kept = [(2, b"plain"), (4, b"committed by 1"), (8, b"committed by 2")]
    for size in (1, 2, 100):
        chunk = impl.Chunk("t", 0, data, 0, aborted=[(2, 1), (1, 0)])
        assert drained(chunk, size) == kept
        assert (chunk.exhausted, chunk.position) == (True, 10)
    columns = impl.Chunk("t", 0, data, 0, aborted=[(2, 1), (1, 0)]).next_columns()
    assert columns.rows == 3
    assert len(drained(impl.Chunk("t", 0, data, 0))) == 6  # read_uncommitted


def test_log_append_time_is_every_records_time(impl: Any) -> None:
    builder = impl.BatchBuilder()
    builder.append(1, None, b"x")
    builder.append(2, None, b"y")
    chunk = impl.Chunk("t", 0, builder.build(append_time_ms=777), 0)
    records = chunk.next_records(5)
    assert [r.timestamp for r in records] == [777, 777]
    assert {r.timestamp_type for r in records} == {TimestampType.LOG_APPEND_TIME}


def test_a_later_batch_cut_off_is_left_for_the_next_fetch(impl: Any) -> None:
    one, two = batch_of(impl, 0, VALUES), batch_of(impl, 3, VALUES)
    for cut in range(len(two)):
        chunk = impl.Chunk("t", 0, one + two[:cut], 0)
        assert len(drained(chunk)) == 3
        assert (chunk.exhausted, chunk.position) == (True, 3)


def test_a_first_batch_cut_off_is_damage(impl: Any) -> None:
    """Fetch v3 and later never send one (KIP-74): taken for progress, it would loop for ever."""
    batch = batch_of(impl, 5, VALUES)
    for cut in range(1, len(batch)):
        chunk = impl.Chunk("t", 0, batch[:cut], 5)
        assert not chunk.exhausted
        with pytest.raises(CorruptRecordError) as caught:
            chunk.next_records(1)
        assert caught.value.batch == batch[:cut]
        chunk.skip_batch()
        assert chunk.exhausted
        assert chunk.position in (6, 8)


def test_damage_waits_for_its_turn_stays_and_can_be_skipped(impl: Any) -> None:
    """F6: one typed error with topic, partition, offset and next offset; nothing before it lost."""
    bad = bytearray(batch_of(impl, 3, VALUES))
    bad[-1] ^= 1
    data = batch_of(impl, 0, VALUES) + bytes(bad) + batch_of(impl, 6, VALUES)
    chunk = impl.Chunk("topic", 4, data, 0)
    assert len(chunk.next_records(100)) == 3
    for _ in range(2):
        with pytest.raises(
            CorruptRecordError, match="topic-4 cannot be read at offset 3"
        ) as caught:
            chunk.next_records(100)
        with pytest.raises(CorruptRecordError, match="CRC"):
            chunk.next_columns()
        error = caught.value
        assert (error.topic, error.partition, error.offset) == ("topic", 4, 3)
        assert (error.next_offset, error.batch) == (6, bytes(bad))
        assert (chunk.position, chunk.exhausted) == (3, False)
    chunk.skip_batch()
    assert [offset for offset, _ in drained(chunk)] == [6, 7, 8]


def test_damage_inside_a_batch_gives_what_stands_before_it(impl: Any) -> None:
    good = raw_record(0, None, b"0") + raw_record(1, None, b"1")
    data = raw_batch(good + raw_record(1, None, b"again"), 3) + batch_of(impl, 3, VALUES)
    chunk = impl.Chunk("t", 0, data, 0)
    assert len(chunk.next_records(100)) == 2
    with pytest.raises(CorruptRecordError, match="offset deltas") as caught:
        chunk.next_records(100)
    assert (caught.value.offset, caught.value.next_offset) == (2, 3)
    columns = impl.Chunk("t", 0, data, 0)
    assert columns.next_columns().rows == 2
    with pytest.raises(CorruptRecordError, match="offset deltas"):
        columns.next_columns()
    chunk.skip_batch()
    assert len(drained(chunk)) == 3


def test_skipping_a_sound_batch_that_was_not_opened(impl: Any) -> None:
    chunk = impl.Chunk("t", 0, batch_of(impl, 0, VALUES) + batch_of(impl, 3, VALUES), 0)
    chunk.skip_batch()
    assert chunk.position == 3
    assert len(drained(chunk)) == 3
    chunk.skip_batch()
    assert chunk.exhausted


def test_old_message_formats_are_named(impl: Any) -> None:
    old = bytearray(batch_of(impl, 0, VALUES))
    old[16] = 1
    with pytest.raises(CorruptRecordError, match="message format 1"):
        impl.Chunk("t", 0, bytes(old), 0).next_records(1)


@pytest.mark.parametrize(
    ("records", "count", "what"),
    [
        (raw_record(0, None, b"x") + b"\0", 1, "left over"),
        (raw_record(0, None, b"x" * 9), 2, "length"),
        (raw_record(0, None, b"x" * 50), 9, "cannot stand"),
        (raw_record(1, None, b"x"), 1, "offset deltas"),
        (raw_record(0, None, b"x", b"\x02"), 1, "headers"),
        (raw_record(0, None, b"x", b"\x02\x01\x01"), 1, "headers"),
        (raw_record(0, None, b"x", b"\x01"), 1, "headers"),
        (raw_record(0, None, b"x", b"\0\0"), 1, "shorter than"),
        (b"\x10\0\0\0\x01\x7f\0\0\0", 1, "value"),
        (b"\x10\0\0\0\x7f\x01\0\0\0", 1, "key"),
        (b"\x10\0\xff\xff\xff\xff\xff\xff\xff", 1, "delta"),
        (b"\x10\0" + b"\xff" * 10, 1, "length|delta"),
        (b"\xff" * 12, 1, "length"),
        (b"\x0f" + bytes(10), 1, "length"),
    ],
)
def test_every_kind_of_bad_record(impl: Any, records: bytes, count: int, what: str) -> None:
    data = raw_batch(records, count)
    with pytest.raises(CorruptRecordError, match=what):
        drained(impl.Chunk("t", 0, data, 0), 1)
    columns = impl.Chunk("t", 0, data, 0)
    with pytest.raises(CorruptRecordError, match=what):
        list(iter(lambda: columns.next_columns(1), None))


@pytest.mark.parametrize(
    ("start", "content", "what"),
    [
        (21, b"\0\5", "codec 5"),
        (23, b"\xff\xff\xff\xff", "last offset delta is -1"),
        (57, b"\xff\xff\xff\xff", "record count is -1"),
        (57, b"\0\0\0\4", "record count is 4"),
    ],
)
def test_impossible_headers(impl: Any, start: int, content: bytes, what: str) -> None:
    batch = bytearray(batch_of(impl, 0, VALUES))
    batch[start : start + len(content)] = content
    with pytest.raises(CorruptRecordError, match=what):
        impl.Chunk("t", 0, crc_mended(impl, batch), 0).next_records(1)


def test_overlapping_batches_never_move_the_position_back(impl: Any) -> None:
    """A broker that sends offsets twice is not believed twice."""
    data = batch_of(impl, 0, VALUES) + batch_of(impl, 1, VALUES) + batch_of(impl, 0, VALUES)
    chunk = impl.Chunk("t", 0, data, 0)
    assert [offset for offset, _ in drained(chunk, 1)] == [0, 1, 2, 3]
    assert chunk.position == 4


def test_offsets_at_the_edge_of_64_bits(impl: Any) -> None:
    last = (1 << 63) - 2
    chunk = impl.Chunk("t", 0, batch_of(impl, last, [b"x"]), last)
    assert drained(chunk) == [(last, b"x")]
    assert chunk.position == last + 1
    beyond = raw_batch(raw_record(0, None, b"x"), 1, base_offset=last + 1, last_delta=5)
    with pytest.raises(CorruptRecordError, match="last offset delta"):
        impl.Chunk("t", 0, beyond, 0).next_records(1)


def test_decompression_is_bounded(impl: Any) -> None:
    """F5: within the limit it is read, beyond it the batch is damaged."""
    data = batch_of(impl, 0, [bytes(100_000)], codec=4)
    assert len(impl.Chunk("t", 0, data, 0, max_decompressed=101_000).next_records(1)) == 1
    with pytest.raises(CorruptRecordError, match="limit of 50000 bytes"):
        impl.Chunk("t", 0, data, 0, max_decompressed=50_000).next_records(1)


def test_kept_records_hold_their_buffer_and_detached_ones_do_not(impl: Any) -> None:
    """C13, B64: a buffer in use cannot be changed in size, let alone recycled."""
    buffer = bytearray(batch_of(impl, 0, VALUES))
    chunk = impl.Chunk("t", 0, buffer, 0)
    kept = chunk.next_records(2)
    want = [fields(record) for record in kept]
    loose = [record.detach() for record in kept]
    del chunk
    if impl.__name__.endswith("_kernel"):
        with pytest.raises(BufferError):
            buffer.clear()
    assert [fields(record) for record in kept] == want
    del kept
    gc.collect()
    buffer.clear()
    assert [fields(record) for record in loose] == want


def test_pieces_stay_as_they_are_while_others_are_read(impl: Any) -> None:
    """C13: memory goes back to the pool with its last reference, never before."""

    def piece(fill: bytes) -> Any:
        data = batch_of(impl, 0, [fill * 1000] * 300, codec=3)
        return impl.Chunk("t", 0, data, 0).next_columns()

    kept = piece(b"k")
    view = memoryview(kept.value.data)
    before = bytes(view)
    del kept
    for fill in (b"x", b"y", b"z"):
        assert set(bytes(piece(fill).value.data)) == set(fill)
    assert view == before == b"k" * 300_000
    with pytest.raises(TypeError):
        view[0] = 1


def test_records_can_be_copied_and_pickled(impl: Any) -> None:
    record = impl.Record(
        "t",
        3,
        17,
        timestamp=5,
        key=b"k",
        value=None,
        headers=[("h", b"x"), ("n", None)],
        timestamp_type=1,
        leader_epoch=9,
    )
    want = ("t", 3, 17, 5, TimestampType.LOG_APPEND_TIME, b"k", None, (("h", b"x"), ("n", None)), 9)
    for same in (record, copy.copy(record), pickle.loads(pickle.dumps(record)), record.detach()):
        assert fields(same) == want
    assert repr(record) == "<Record t-3 offset 17, key b'k', 0 bytes>"


def test_header_names_that_are_no_utf8(impl: Any) -> None:
    """As Kafka's Java client reads them; the partition is not stuck on somebody's bad name."""
    tail = b"\x02\x04\xff\xfe\x02v"
    data = raw_batch(raw_record(0, None, b"x", tail), 1)
    (record,) = impl.Chunk("t", 0, data, 0).next_records(1)
    assert record.headers == (("\ufffd\ufffd", b"v"),)
    columns = impl.Chunk("t", 0, data, 0).next_columns(10, ALL_COLUMNS)
    assert bytes(columns.headers.keys.data).decode() == "\ufffd\ufffd"


def test_unknown_columns_are_refused(impl: Any) -> None:
    with pytest.raises(UsageError, match="no column 'nope'"):
        impl.Chunk("t", 0, batch_of(impl, 0, VALUES), 0).next_columns(columns={"nope"})


@pytest.mark.parametrize("limits", [(0, 100), (-1, 100), (10, 0)])
def test_impossible_limits_are_refused(impl: Any, limits: tuple[int, int]) -> None:
    """None means the end, so a piece of no rows cannot be asked for."""
    chunk = impl.Chunk("t", 0, batch_of(impl, 0, VALUES), 0)
    with pytest.raises(UsageError, match="at least one of each"):
        chunk.next_columns(limits[0], max_bytes=limits[1])
    assert chunk.next_records(0) == []
    assert (
        impl.Chunk("t", 0, batch_of(impl, 0, VALUES), 0).next_columns(max_bytes=1 << 40).rows == 3
    )
    assert len(drained(chunk)) == 3


def test_only_the_columns_asked_for_are_made(impl: Any) -> None:
    data = batch_of(impl, 0, VALUES)
    for names in ({"value"}, {"offset"}, {"key", "timestamp"}, {"headers"}, set[str]()):
        columns = impl.Chunk("t", 0, data, 0).next_columns(columns=names)
        assert columns.rows == len(columns) == 3
        assert (columns.first_offset, columns.last_offset) == (0, 2)
        for name in ALL_COLUMNS - {"topic", "partition"}:
            assert (getattr(columns, name) is not None) == (name in names)
        assert columns.bytes >= 0


def test_a_second_thread_is_refused(impl: Any) -> None:
    """4.9 in small: two threads race; each either reads or is told so, and nothing is torn."""
    errors: list[Exception] = []
    data = IMPLEMENTATIONS[0].BatchBuilder()
    data.extend(1, None, [bytes(100)] * 2000)
    batch = data.build()
    many = [impl.Chunk("t", 0, batch, 0, check_crc=False) for _ in range(10)]

    def read(start: threading.Barrier, one: Any) -> None:
        start.wait()
        try:
            while one.next_columns(max_rows=500):
                pass
        except ConcurrentUseError as error:
            errors.append(error)

    for one in many:
        start = threading.Barrier(2)
        threads = [threading.Thread(target=read, args=(start, one)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert one.exhausted
    assert all("one thread at a time" in str(error) for error in errors)
