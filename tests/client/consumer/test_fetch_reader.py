"""The caller's end of the fetch buffer: damage, pauses, pieces (F6, C9, C10, CL3)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kohort.client.common.offset_reset import ResetPolicy
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.fetch_reader import ENOUGH_COLUMN_BYTES, FetchReader
from kohort.client.consumer.plan.fetch_planner import Fetched
from kohort.client.consumer.plan.positions import Phase, Position, Positions
from kohort.errors import CorruptRecordError
from kohort.records import BatchBuilder, stamp

TP = TopicPartition("t", 3)


def batch(first: int, count: int, epoch: int = 0) -> bytearray:
    builder = BatchBuilder()
    for n in range(first, first + count):
        builder.append(n, None, b"%d" % n)
    data = bytearray(builder.build())
    stamp(data, 0, first, epoch)
    return data


def reading(
    *batches: bytes | bytearray, offset: int = 0
) -> tuple[FetchReader, Positions, Position]:
    positions = Positions(ResetPolicy.parse("earliest"))
    (position,) = positions.add([TP], 0)
    positions.committed_found(TP, position.stamp, offset, -1, 0)
    reader = FetchReader(positions, threading.Lock(), check_crcs=True)
    data = b"".join(batches)
    positions.store_buffer(position, Fetched(data, offset, position.stamp), len(data))
    reader.queue(position)
    return reader, positions, position


def offsets(reader: FetchReader, most: int = 100) -> list[int]:
    return [record.offset for record in reader.take(most)]


def again(
    reader: FetchReader, positions: Positions, position: Position, data: bytes | bytearray
) -> None:
    """The records have been fetched once more."""
    fetched = Fetched(bytes(data), position.offset, position.stamp)
    positions.store_buffer(position, fetched, len(data))
    reader.queue(position)


def test_damage_comes_after_what_is_sound_and_is_fetched_once_more() -> None:
    """F6: damage on the way heals; damage in the log stops the partition with its place."""
    bad = batch(5, 5)
    bad[-1] ^= 0xFF
    reader, positions, position = reading(batch(0, 5), bad)
    assert offsets(reader) == [0, 1, 2, 3, 4]
    assert offsets(reader) == []
    assert (position.phase, position.offset, positions.buffered_bytes) == (Phase.FETCHING, 5, 0)
    assert reader.wants_more
    again(reader, positions, position, batch(5, 5))
    assert offsets(reader) == [5, 6, 7, 8, 9]


def test_damage_that_comes_twice_stops_the_partition() -> None:
    """F6: its error names the place; a seek past it goes on."""
    bad = batch(5, 5)
    bad[-1] ^= 0xFF
    reader, positions, position = reading(batch(0, 5), bad)
    assert offsets(reader) + offsets(reader) == [0, 1, 2, 3, 4]
    again(reader, positions, position, bad)
    assert offsets(reader) == []
    assert position.phase is Phase.FAILED
    assert isinstance(position.error, CorruptRecordError)
    assert "t-3" in str(position.error)
    assert positions.buffered_bytes == 0
    positions.seek(TP, 10, -1, 1)
    assert (position.phase, position.offset) == (Phase.FETCHING, 10)


@pytest.mark.parametrize(
    "take",
    [lambda r: r.take_columns(10, 10, {"offset"}, 1_000), lambda r: r.take_piece(10)],
    ids=["columns", "piece"],
)
def test_damage_by_the_other_ways(take: Callable[[FetchReader], object]) -> None:
    bad = batch(0, 5)
    bad[-1] ^= 0xFF
    reader, positions, position = reading(bad)
    assert not take(reader)
    assert position.phase is Phase.FETCHING
    again(reader, positions, position, bad)
    assert not take(reader)
    assert position.phase is Phase.FAILED


def and_a_large_one(reader: FetchReader, positions: Positions) -> None:
    """Partition 4 has two large records, behind what is there."""
    (other,) = positions.add([TopicPartition("t", 4)], 0)
    positions.committed_found(other.tp, other.stamp, 0, -1, 0)
    data = large(0)
    positions.store_buffer(other, Fetched(data, 0, other.stamp), len(data))
    reader.queue(other)


def test_columns_of_large_values_are_not_gathered_only_to_be_copied_together() -> None:
    """Rows enough for one call are few where values are large; the next call has the rest."""
    reader, positions, _ = reading(large(0))
    and_a_large_one(reader, positions)
    taken = [reader.take_columns(100, 100, {"value"}, 1 << 20) for _ in range(3)]
    assert [[(piece.partition, piece.rows) for piece in pieces] for pieces in taken] == [
        [(3, 2)],
        [(4, 2)],
        [],
    ]


def test_columns_of_a_large_set_are_not_copied_to_go_with_a_small_one() -> None:
    """The small one is handed out alone."""
    reader, positions, _ = reading(batch(0, 2))
    and_a_large_one(reader, positions)
    taken = [reader.take_columns(100, 100, {"value"}, 1 << 20) for _ in range(2)]
    assert [[piece.partition for piece in pieces] for pieces in taken] == [[3], [4]]


class Apart:
    """Batches that are brought one by one."""

    end_offset = 6

    def __init__(self, *batches: bytes) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def read(self, *, whole: bool = False) -> tuple[bytes, Apart | None]:
        if whole:
            return b"".join(self.batches), None
        behind = self.batches[1:]
        return self.batches[0], Apart(*behind) if behind else None


@pytest.mark.parametrize("end", [None, 5])
def test_a_set_that_comes_in_pieces(end: int | None) -> None:
    """Spec 4.4: all of it counts until it has been read; a bound ends it in its midst (4.10)."""
    parts = [bytes(batch(first, 2)) for first in (0, 2, 4)]
    reader, positions, position = reading(b"")
    position.end = end
    positions.forget_buffer(position)
    apart = Apart(*parts)
    positions.store_buffer(position, Fetched(apart, 0, position.stamp), len(apart))
    reader.queue(position)
    whole = len(apart)
    assert offsets(reader, 1) == [0]
    assert positions.buffered_bytes == whole
    assert offsets(reader, 1) == [1]
    assert positions.buffered_bytes == whole - len(parts[0])
    piece = reader.take_piece(1)
    assert piece is not None
    reader.end_piece(piece, dealt_with=False)
    assert offsets(reader) == [2, 3, 4, 5][: None if end is None else -1]
    assert (positions.buffered_bytes, position.buffer) == (0, None)
    if end is not None:
        position.end = 2
        positions.seek(TP, 0, -1, 1)
        positions.store_buffer(position, Fetched(Apart(*parts), 0, position.stamp), whole)
        reader.queue(position)
        assert offsets(reader) == [0, 1]
        assert (positions.buffered_bytes, position.buffer) == (0, None)


def large(first: int) -> bytes:
    builder = BatchBuilder()
    for n in (first, first + 1):
        builder.append(n, None, bytes(ENOUGH_COLUMN_BYTES // 2))
    return builder.build(base_offset=first)


def test_epoch_of_what_was_read_goes_with_the_position() -> None:
    """KIP-320: by records, by columns, and one by one."""
    reader, positions, position = reading(batch(0, 2, epoch=4), batch(2, 2, epoch=6))
    assert offsets(reader, 1) == [0]
    assert position.offset_epoch == 4
    assert reader.take_columns(1, 1, {"offset"}, 1_000)[0].rows == 1
    assert position.offset_epoch == 4
    reader.acknowledge(0)
    assert (position.acked, position.acked_epoch) == (2, 4)
    piece = reader.take_piece(5)
    assert piece is not None
    piece.position.offset = piece.records[0].offset + 1
    reader.end_piece(piece, dealt_with=False)
    assert (position.offset, position.offset_epoch) == (3, 6)
    assert position.acked == 2, "the caller has not come back from record 2"
    assert offsets(reader) == [3]
    assert positions.buffered_bytes == 0
    assert reader.wants_more


def marker(offset: int, epoch: int) -> bytes:
    builder = BatchBuilder()
    builder.append(0, b"\0\0\0\1", b"\0\0\0\0\0\0")
    return builder.build(
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=1,
        producer_epoch=0,
        control=True,
        transactional=True,
    )


def by_piece(reader: FetchReader) -> None:
    piece = reader.take_piece(10)
    assert piece is not None
    piece.position.offset = piece.records[-1].offset + 1
    reader.end_piece(piece, dealt_with=True)


@pytest.mark.parametrize(
    "take",
    [lambda r: r.take(10), lambda r: r.take_columns(10, 10, {"offset"}, 1_000), by_piece],
    ids=["records", "columns", "piece"],
)
def test_epoch_of_what_was_passed_over_goes_with_the_position(
    take: Callable[[FetchReader], object],
) -> None:
    """KIP-320, C8: behind a marker of a later epoch the position has that epoch. With the last
    record's, the next validation would find that epoch's end before the position, and take it for a
    truncated log.
    """
    reader, _, position = reading(batch(0, 2, epoch=4), marker(2, epoch=5))
    take(reader)
    assert (position.offset, position.offset_epoch) == (3, 5)


def test_pausing_in_the_middle_keeps_the_rest() -> None:
    """C10, B51."""
    reader, positions, position = reading(batch(0, 6))
    assert offsets(reader, 2) == [0, 1]
    positions.pause([TP])
    assert offsets(reader) == []
    for resumed in positions.resume([TP]):
        reader.queue(resumed)
    assert offsets(reader) == [2, 3, 4, 5]
    assert position.buffer is None


def test_awaiting_validation_holds_data_back_until_it_is_confirmed() -> None:
    """Spec 4.7: nothing of a log that may have been truncated is handed out."""
    reader, positions, position = reading(batch(0, 4, epoch=1))
    assert offsets(reader, 1) == [0]
    positions.leader_moved(TP, 2, can_validate=True, now_ms=5)
    assert offsets(reader) == []
    positions.validated(TP, position.stamp, 6)
    reader.queue(position)
    assert offsets(reader) == [1, 2, 3]


def test_what_was_fetched_before_a_seek_is_not_handed_out() -> None:
    reader, positions, _ = reading(batch(0, 4))
    assert offsets(reader, 1) == [0]
    positions.seek(TP, 9, -1, 1)
    assert offsets(reader) == []


def test_more_is_asked_for_when_a_third_of_much_has_been_read_or_all() -> None:
    """Spec 4.2: one order for several partitions, early enough to come while the rest is read."""
    positions = Positions(ResetPolicy.parse("earliest"))
    reader = FetchReader(positions, threading.Lock(), check_crcs=True)
    builder = BatchBuilder(max_bytes=1 << 20)
    builder.append(0, None, bytes(200_000))
    data = builder.build()
    for position in positions.add([TopicPartition("t", n) for n in range(6)], 0):
        positions.committed_found(position.tp, position.stamp, 0, -1, 0)
        positions.store_buffer(position, Fetched(data, 0, position.stamp), len(data))
        reader.queue(position)
    asked: list[bool] = []
    for _ in range(6):
        assert len(reader.take(1)) == 1
        asked.append(reader.wants_more)
        if asked[-1]:
            reader.room_announced()
    assert asked == [False, True, False, True, False, True]
