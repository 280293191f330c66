"""The segmented log: lookups by offset and time, rolling, retention, restarts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohort.broker.base.config import BrokerConfig
from kohort.broker.log.checkpoints import LeaderEpochs
from kohort.broker.log.files import MemoryFiles
from kohort.broker.log.loading import Opening, open_log
from kohort.broker.log.log import PartitionLog
from kohort.broker.log.recovery import find, headers
from kohort.broker.log.segment import IndexMemory
from kohort.broker.log.stored_index import checksum, file_name
from kohort.broker.log.topic_config import TopicConfig
from kohort.errors import CorruptRecordError
from kohort.records import BatchHeader
from tests.broker.harness import WALL_MS, batch_of
from tests.effort import examples

BROKER = BrokerConfig(durability="memory")


def opened(
    files: MemoryFiles | None = None, *, clean: bool = True, start: int = 0, **own: str
) -> PartitionLog:
    files = files or MemoryFiles()
    files.make_dir("t-0")
    config = TopicConfig.of(BROKER, {n.replace("_", "."): v for n, v in own.items()})
    opening = Opening(
        "t-0", config, durable=False, clean=clean, log_start_offset=start, now_ms=WALL_MS
    )
    return open_log(files, opening)[0]


def append(log: PartitionLog, values: int = 1, now_ms: int = WALL_MS, **stamp: Any) -> int:
    timestamps = stamp.pop("timestamps", None)
    batch = batch_of([b"x" * 30] * values, timestamps=timestamps, **stamp)  # type: ignore[arg-type]
    appended = log.append(memoryview(batch), BatchHeader(batch), now_ms)
    log.advance(appended.mark)
    return appended.base_offset


def test_segments_roll_by_size_and_are_named_by_their_first_offset() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes="500")
    for _ in range(20):
        append(log, 2)
    names = [n for n in files.list("t-0") if n.endswith(".log")]
    assert len(names) > 3
    assert names[0] == file_name(0)
    assert [s.base_offset for s in log.segments] == [int(n[:20]) for n in names]


def test_segments_roll_by_time() -> None:
    """segment.ms counts from the segment's first append."""
    log = opened(segment_ms="1000")
    append(log, now_ms=WALL_MS)
    append(log, now_ms=WALL_MS + 999)
    assert len(log.segments) == 1
    append(log, now_ms=WALL_MS + 1000)
    assert len(log.segments) == 2


@pytest.mark.parametrize("clean", [True, False])
def test_the_age_of_a_segment_outlasts_a_restart(clean: bool) -> None:
    """As in Kafka its first batch says how old it is: else one that is restarted each day never
    rolls, and nothing in it expires or is compacted.
    """
    files = MemoryFiles()
    log = opened(files, segment_ms="1000")
    append(log, timestamps=[WALL_MS - 999])
    append(log, timestamps=[WALL_MS - 2000])
    if clean:
        log.close(clean=True)
    log = opened(files, clean=clean, segment_ms="1000")
    append(log, now_ms=WALL_MS)
    assert len(log.segments) == 1
    append(log, now_ms=WALL_MS + 1)
    assert len(log.segments) == 2


@pytest.mark.parametrize("timestamp", [-1, WALL_MS + 10**6])
def test_a_segment_of_unknown_age_is_as_old_as_the_process(timestamp: int) -> None:
    """A time in the future would keep it from ever rolling."""
    files = MemoryFiles()
    append(opened(files), timestamps=[timestamp])
    log = opened(files, clean=False, segment_ms="1000")
    append(log, now_ms=WALL_MS)
    append(log, now_ms=WALL_MS + 999)
    assert len(log.segments) == 1
    append(log, now_ms=WALL_MS + 1000)
    assert len(log.segments) == 2


@pytest.mark.parametrize("retention_ms", [1, 10**6])
def test_a_segment_without_times_is_as_old_as_the_next(retention_ms: int) -> None:
    """An emptied batch had none in earlier releases."""
    log = opened(segment_bytes="200", retention_ms=str(retention_ms))
    for timestamp in (-1, -1, WALL_MS - 1000, WALL_MS):
        append(log, 3, timestamps=[timestamp] * 3)
    assert len(log.segments) == 4
    assert log.apply_retention(WALL_MS) == (3 if retention_ms == 1 else 0)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=60),
    interval=st.sampled_from(["0", "100", "300", "100000"]),
    segment=st.sampled_from(["200", "700", "100000"]),
    clean=st.booleans(),
)
def test_an_index_says_what_a_linear_scan_says(
    sizes: list[int], interval: str, segment: str, clean: bool
) -> None:
    """L6, for the running log and for the one that was opened again."""
    files = MemoryFiles()
    own: dict[str, Any] = {"index_interval_bytes": interval, "segment_bytes": segment}
    log = opened(files, **own)
    expected: dict[int, int] = {}
    for size in sizes:
        base = append(log, size)
        expected.update(dict.fromkeys(range(base, base + size), base))
    if clean:
        log.close(clean=True)
    again = opened(files, clean=clean, **own)
    assert again.end.offset == len(expected)
    for one in (log, again) if not clean else (again,):
        for offset, base in expected.items():
            span = one.locate(offset, 1, one.end)
            assert span is not None
            assert BatchHeader(bytes(span.segment.file.read(span.start, 61))).base_offset == base


@pytest.mark.parametrize("window", [61, 130, 8192])
def test_a_search_finds_what_a_walk_does_whatever_it_reads_at_once(window: int) -> None:
    log = opened()
    for size in (1, 3, 2, 5, 1, 1):
        append(log, size)
    read, end = log.active.file.read, log.active.size
    walked = list(headers(read, 0, end))
    for start in walked:
        for offset in range(15):
            first, found = find(read, start.position, end, offset, window)
            assert first is not None
            assert first.position == start.position
            right = [h.position for h in walked if h.last_offset >= offset]
            right = [position for position in right if position >= start.position]
            assert (found and found.position) == (right[0] if right else None)


def test_a_search_among_bytes_that_are_no_batches() -> None:
    log = opened()
    append(log)
    append(log)
    second = log.active.size // 2
    data = bytearray(log.active.file.read(0, log.active.size))
    data[second + 16] = 1

    def read(position: int, count: int) -> bytes:
        return bytes(data[position : position + count])

    assert find(read, second, len(data), 1) == (None, None)
    assert find(read, 0, len(data) - 1, 0)[1] is not None
    with pytest.raises(CorruptRecordError):
        find(read, 0, len(data), 1)
    first, found = find(log.active.file.read, 0, second + 70, 5)  # a part of a batch is none
    assert first is not None
    assert found is None


@settings(max_examples=examples(40), deadline=None)
@given(
    stamps=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=40),
    interval=st.sampled_from(["0", "150", "100000"]),
    segment=st.sampled_from(["200", "600", "100000"]),
    start=st.integers(0, 60),
    seed=st.integers(0, 1000),
)
def test_lookup_by_time_is_a_linear_scan(
    stamps: list[list[int]], interval: str, segment: str, start: int, seed: int
) -> None:
    """D1: the first offset with a timestamp not below, also past deleted heads."""
    log = opened(index_interval_bytes=interval, segment_bytes=segment)
    rows: list[int] = []
    for batch in stamps:
        append(log, len(batch), timestamps=batch)
        rows += batch
    start = min(start, len(rows))
    if random.Random(seed).random() < 0.7:
        log.delete_before(start)
    else:
        log.log_start_offset = start
    for timestamp in range(52):
        wanted = next((i for i in range(start, len(rows)) if rows[i] >= timestamp), None)
        found = log.offset_for_time(timestamp, log.high)
        assert (found.offset if found else None) == wanted
        if found and wanted is not None:
            assert found.timestamp == rows[wanted]
    largest = log.max_timestamp(log.high)
    visible = rows[start:]
    if not visible:
        assert largest is None
    else:
        assert largest is not None
        assert largest.timestamp == max(visible)
        assert largest.offset == start + visible.index(max(visible))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["gone", "flipped", "cut", "other"])
def test_a_damaged_index_changes_no_answer(suffix: str, damage: str) -> None:
    """An index only speeds things up; a wrong one is built again (L6, L10)."""
    files = MemoryFiles()
    own: dict[str, Any] = {"index_interval_bytes": "0", "segment_bytes": "2000"}
    log = opened(files, **own)
    for i in range(60):
        append(log, 2, timestamps=[i * 10, i * 10 + 5])
    log.close(clean=True)
    for name in [n for n in files.list("t-0") if n.endswith(suffix)]:
        data = bytearray(files.read_all(f"t-0/{name}") or b"")
        files.remove(f"t-0/{name}")
        if damage == "gone":
            continue
        if damage == "flipped" and data:
            data[len(data) // 2] ^= 0x01
        elif damage == "cut":
            data = data[:-3]
        elif damage == "other":
            data = data[: len(data) // 2]
        files.open(f"t-0/{name}", create=True).append([data])
    again = opened(files, **own)
    assert again.end.offset == 120
    for offset in range(120):
        span = again.locate(offset, 1, again.end)
        assert span is not None
        header = BatchHeader(bytes(span.segment.file.read(span.start, 61)))
        assert header.base_offset == offset - offset % 2
        found = again.offset_for_time(offset * 5, again.end)
        assert found is not None
        assert found.offset == offset


def test_retention_by_time_deletes_whole_old_segments() -> None:
    log = opened(segment_bytes="300", retention_ms="1000")
    for i in range(10):
        append(log, 2, timestamps=[WALL_MS + i * 100] * 2, now_ms=WALL_MS + i * 100)
    log.apply_retention(WALL_MS + 1_500)
    assert log.log_start_offset == log.segments[0].base_offset > 0
    assert all(s.max_timestamp >= WALL_MS + 500 for s in log.segments[:-1])
    log.apply_retention(WALL_MS + 100_000)  # the active segment too, by rolling it
    assert log.log_start_offset == log.end.offset == 20


def test_retention_by_size_keeps_at_least_that_much() -> None:
    log = opened(segment_bytes="300", retention_bytes="600", retention_ms="-1")
    for _ in range(20):
        append(log, 2)
    before = log.size
    log.apply_retention(WALL_MS)
    assert before > log.size >= 600
    assert log.size - log.segments[0].size < 600


def test_deleted_records_are_gone_after_a_restart() -> None:
    files = MemoryFiles()
    log = opened(files, segment_bytes="300")
    for _ in range(10):
        append(log, 2)
    log.delete_before(9)
    assert log.log_start_offset == 9
    assert log.segments[0].base_offset <= 9
    again = opened(files, clean=False, start=9, segment_bytes="300")
    assert (again.log_start_offset, again.end.offset) == (9, 20)


def test_a_clean_start_reads_only_the_end() -> None:
    """The start does not depend on how much there is."""
    files = MemoryFiles()
    log = opened(files, index_interval_bytes="100")
    for _ in range(500):
        append(log, 2)
    log.close(clean=True)
    again = opened(files, index_interval_bytes="100")
    read: list[int] = []
    file = files.open(f"t-0/{file_name(0)}")
    original = file.read

    def counting(position: int, count: int):  # type: ignore[no-untyped-def]
        read.append(count)
        return original(position, count)

    file.read = counting  # type: ignore[method-assign]
    again = opened(files, index_interval_bytes="100")
    assert again.end.offset == 1000
    assert sum(read) < 2_000


def test_the_indexes_of_sealed_segments_are_bounded() -> None:
    """Limits on everything that grows: the last used ones stay, the others are read again."""
    log = opened(segment_bytes="300", index_interval_bytes="0")
    memory = IndexMemory(3)
    log.share_index_memory(memory)
    for i in range(60):
        append(log, 2, timestamps=[i * 10, i * 10 + 5])
    assert len(log.segments) > 10
    for offset in range(120):
        span = log.locate(offset, 1, log.end)
        assert span is not None
        assert BatchHeader(bytes(span.segment.file.read(span.start, 61))).last_offset >= offset
        found = log.offset_for_time(offset * 5, log.end)
        assert found is not None
        assert found.offset == offset
        assert sum(s.index.in_memory is not None for s in log.segments[:-1]) <= 3


@pytest.mark.parametrize("by", ["time", "size"])
def test_retention_leaves_a_compacted_log_alone(by: str) -> None:
    """What is to keep the last record of each key for ever keeps it (`cleanup.policy`)."""
    own: dict[str, Any] = {"retention_ms": "1000"} if by == "time" else {"retention_bytes": "300"}
    for policy, goes in (("compact", False), ("compact,delete", True)):
        log = opened(segment_bytes="300", cleanup_policy=policy, **own)
        for _ in range(10):
            append(log, 2)
        assert (log.apply_retention(WALL_MS + 100_000) > 0) == goes
        assert (log.log_start_offset > 0) == goes


def test_retention_leaves_a_log_alone_that_is_read_in_pieces() -> None:
    log = opened(segment_bytes="300", retention_ms="1000")
    for _ in range(10):
        append(log, 2)
    log.pins = 1
    assert log.apply_retention(WALL_MS + 100_000) == 0
    log.pins = 0
    assert log.apply_retention(WALL_MS + 100_000) > 0


@pytest.mark.parametrize("batches", range(5, 11))
def test_the_latest_time_of_a_sealed_segment_is_in_its_index(batches: int) -> None:
    """L6: also where it came after the last entry."""
    log = opened(index_interval_bytes="300")
    for i in range(batches):
        append(log, timestamps=[WALL_MS + i])
    log.roll()
    append(log, timestamps=[WALL_MS - 5])
    log.segments[0].index.forget()
    log.segments[0].index.latest_ms = None
    found = log.offset_for_time(WALL_MS + batches - 1, log.high)
    assert found is not None
    assert found.offset == batches - 1


@pytest.mark.parametrize("sealed", [False, True])
def test_an_index_of_other_batches_is_built_again(sealed: bool) -> None:
    """L6: whole files, which point to other places than they say."""
    files = MemoryFiles()
    own: dict[str, Any] = {"index_interval_bytes": "200"}
    log = opened(files, **own)
    for _ in range(30):
        append(log)
    if sealed:
        log.roll()
        append(log)
    log.close(clean=True)
    name = f"t-0/{file_name(0)}"[:-4]
    offsets = bytearray(files.read_all(f"{name}.index") or b"")
    times = files.read_all(f"{name}.timeindex") or b""
    for at in range(3, len(offsets), 8):
        offsets[at] -= 1
    for suffix, data in (
        (".index", bytes(offsets)),
        (".indexcrc", checksum(bytes(offsets), times, b"")),
    ):
        files.remove(name + suffix)
        files.open(name + suffix, create=True).append([data])
    again = opened(files, **own)
    assert again.end.offset == 30 + sealed
    for offset in range(30):
        span = again.locate(offset, 1, again.end)
        assert span is not None
        assert BatchHeader(bytes(span.segment.file.read(span.start, 61))).base_offset == offset


def test_a_torn_checkpoint_of_epochs_says_nothing() -> None:
    """L2: a power cut left "1 1" of "1 189", and readers went back to offset 1 (seed 3100106)."""
    whole = LeaderEpochs()
    whole.begin(0, 0)
    whole.begin(1, 189)
    data = whole.encode()
    for size in range(len(data)):
        torn = LeaderEpochs()
        torn.restore(data[:size])
        assert not torn.entries, data[:size]
    again = LeaderEpochs()
    again.restore(data)
    assert again.entries == whole.entries


def test_an_epoch_without_records_is_none() -> None:
    """KIP-101: what begins where another began takes its place; what is cut off is forgotten."""
    epochs = LeaderEpochs()
    assert epochs.begin(0, 0)
    assert epochs.begin(1, 5)
    assert epochs.begin(2, 5)
    assert epochs.entries == [(0, 0), (2, 5)]
    assert epochs.end_of(1, 9) == (0, 5)
    assert epochs.begin(3, 9)
    epochs.truncate_to(8)
    assert epochs.entries == [(0, 0), (2, 5)]
    assert epochs.latest == 2
    first_unknown = LeaderEpochs()
    assert first_unknown.end_of(0, 0) == (-1, -1)
    assert first_unknown.begin(2, 0)
    assert [first_unknown.end_of(epoch, 9) for epoch in (-1, 0, 1, 2)] == [
        (-1, -1),
        (0, 0),
        (1, 0),
        (2, 9),
    ]
