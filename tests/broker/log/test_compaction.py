"""Compaction: the last record of each key stays, at its offset, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kohort.broker.log import cleaner, compacted_batch
from kohort.broker.log.cleaner import clean
from kohort.broker.log.compacted_batch import Deletion
from kohort.broker.log.files import MemoryFiles
from kohort.broker.log.loading import COMPACTED_MARKER
from kohort.broker.log.log import PartitionLog
from kohort.broker.log.os_files import OsFiles
from kohort.broker.log.txn_index import Marker, marker_batch
from kohort.broker.state import compaction_schedule
from kohort.errors import CorruptRecordError, ErrorCode
from kohort.records import BatchBuilder, BatchHeader, Chunk, Compression, crc32c, pure
from kohort.records.layout import HEADER_BYTES
from kohort.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestGroup
from kohort.wire.messages.offset_fetch_response import OffsetFetchResponse
from tests.broker.harness import WALL_MS, FakeEnv, Harness, batch_of
from tests.broker.shadow_files import Crash, ShadowFile, ShadowFiles

DAY_MS = 86_400_000
CONFIG = {"durability": "fsync", "log_index_interval_bytes": 100}


def log_of(harness: Harness, topic: str = "c") -> PartitionLog:
    partition = harness.node.topics.partition(topic, 0)
    assert partition is not None
    assert partition.log is not None
    return partition.log


def records(log: PartitionLog) -> list[tuple[int, bytes, bytes | None]]:
    found: list[tuple[int, bytes, bytes | None]] = []
    for header, batch in log.batches():
        chunk = Chunk("c", 0, bytes(batch), header.base_offset)
        while not chunk.exhausted:
            found += [(r.offset, r.key or b"", r.value) for r in chunk.next_records(100)]
    return found


def latest(rows: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    return {key: value for _, key, value in rows}


def fill(harness: Harness, rng: random.Random, batches: int, keys: int = 8) -> None:
    for _ in range(batches):
        builder = BatchBuilder(rng.choice(list(Compression)))
        for _ in range(rng.randrange(1, 5)):
            value = None if rng.random() < 0.2 else b"v" * rng.randrange(60)
            builder.append(WALL_MS, b"k%d" % rng.randrange(keys), value)
        assert harness.produce("c", builder.build()).error_code == 0


def compacted(harness: Harness) -> None:
    log = log_of(harness)
    for _ in clean(harness.files, log, harness.env.wall_ms(), durable=True):
        pass


@pytest.mark.parametrize("seed", range(15))
def test_the_last_record_of_each_key_stays_at_its_offset(seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="600")
    fill(harness, rng, 40)
    log = log_of(harness)
    before, end = records(log), log.end.offset
    after = before
    for _ in range(3):  # again and again: neighbours are put together
        compacted(harness)
        after = records(log)
        assert latest(after) == latest(before)
        assert set(after) <= set(before)
        assert after == sorted(after)
        assert log.end.offset == end
    sealed = [row for row in after if row[0] < log.active.base_offset]
    assert len({key for _, key, _ in sealed}) == len(sealed)
    for offset, _, _ in after:
        span = log.locate(offset, 1, log.high)
        assert span is not None
    for clean_stop in (False, True):
        again = harness.restarted(clean=clean_stop)
        assert records(log_of(again)) == after
        assert log_of(again).end.offset == end


def test_a_fetch_into_a_gap_finds_what_comes_next() -> None:
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="300")
    fill(harness, random.Random(1), 40, keys=2)
    compacted(harness)
    log = log_of(harness)
    offsets = [offset for offset, _, _ in records(log)]
    assert len(offsets) < log.end.offset
    for offset in range(log.end.offset):
        data = harness.fetch("c", offset)
        assert data.error_code == ErrorCode.NONE
    assert [o for o, _ in harness.read_all("c")] == offsets


def test_tombstones_go_after_their_retention() -> None:
    """Not before it has passed since the first pass that met them (KIP-534): who has read the value
    and continues after that pass must learn of the deletion, however old the tombstone is.
    """
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="300", delete_retention_ms="1000")
    for value in (b"value", None):
        builder = BatchBuilder()
        builder.append(WALL_MS - 10 * DAY_MS, b"gone", value)
        harness.produce("c", builder.build())
    fill(harness, random.Random(1), 10, keys=2)
    log = log_of(harness)
    for after_ms, is_there in ((0, True), (999, True), (1_000, False)):
        for _ in clean(harness.files, log, WALL_MS + after_ms, durable=True):
            pass
        rows = [row for row in records(log) if row[1] == b"gone"]
        assert [value for _, _, value in rows] == [None] * is_there


TIMES = [WALL_MS - 5, WALL_MS - 40 * DAY_MS, -1, WALL_MS + 600_000]


def read_every_way(batch: bytes) -> list[list[int]]:
    """The timestamps of a batch as each reader takes them."""
    found: list[list[int]] = []
    for chunks in (pure.Chunk, Chunk):
        found.append([r.timestamp for r in chunks("c", 0, batch, 0).next_records(100)])
        columns = chunks("c", 0, batch, 0).next_columns(columns={"timestamp"})
        assert columns is not None
        assert columns.timestamp is not None
        found.append(list(memoryview(columns.timestamp).cast("B").cast("q")))
    return found


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", list(Compression))
def test_records_keep_their_times_beside_a_tombstone(
    codec: Compression, timestamp_type: str
) -> None:
    """Its batch is stored with the time of its deletion (KIP-534): every reader must see through
    that."""
    harness = Harness(**CONFIG)
    config: dict[str, Any] = {"segment_bytes": "300", "message_timestamp_type": timestamp_type}
    harness.create("c", cleanup_policy="compact", delete_retention_ms="1000", **config)
    builder = BatchBuilder(codec)
    for n, timestamp in enumerate(TIMES):
        builder.append(timestamp, b"t%d" % n, None if n == 1 else b"v" * 50, [("h", b"x")])
    assert harness.produce("c", builder.build()).error_code == 0
    fill(harness, random.Random(1), 10, keys=2)
    log = log_of(harness)
    times = read_every_way(bytes(next(log.batches())[1]))
    for after_ms, count in ((0, 4), (999, 4), (1_000, 3)):
        for _ in clean(harness.files, log, WALL_MS + after_ms, durable=True):
            pass
        header, batch = next(log.batches())
        assert (header.record_count, header.delete_horizon_ms) == (count, WALL_MS + 1_000)
        kept = [[t for n, t in enumerate(row) if n != 1 or count == 4] for row in times]
        assert read_every_way(bytes(batch)) == kept
        assert header.max_timestamp == max(kept[0])
        found = log.offset_for_time(kept[0][-1], log.high)
        assert found is not None
        assert found.timestamp == kept[0][-1]
        again = harness.restarted(clean=False)
        assert records(log_of(again)) == records(log)


def test_times_that_only_add_up_within_64_bits() -> None:
    """Base and delta of a batch may be anything that comes to a time which the topic accepts."""
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="300")
    builder = BatchBuilder()
    for timestamp, key, value in ((0, b"goes", b"v"), (WALL_MS, b"a", b"v"), (WALL_MS, b"b", None)):
        builder.append(timestamp, key, value)
    batch = bytearray(builder.build())
    base = -(1 << 63)
    records_at = memoryview(batch)[61:]
    spans = compacted_batch._spans(records_at)
    shifted = [compacted_batch._shifted(records_at, span, base) for span in spans]
    made = bytearray(batch[:61]) + b"".join(bytes(record) for record in shifted)
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[27:35] = base.to_bytes(8, "big", signed=True)
    made[17:21] = crc32c(memoryview(made)[21:]).to_bytes(4, "big")
    assert harness.produce("c", bytes(made)).error_code == 0
    fill(harness, random.Random(1), 10, keys=2)
    harness.produce("c", batch_of([b"v"], keys=[b"goes"]))
    harness.produce("c", batch_of([b"v" * 200] * 2, keys=[b"other", b"other"]))
    compacted(harness)
    header, stored = next(log_of(harness).batches())
    assert (header.record_count, header.max_timestamp) == (2, WALL_MS)
    for row in read_every_way(bytes(stored)):
        assert row == [WALL_MS, WALL_MS]


def test_a_batch_is_as_late_as_what_is_left_of_it() -> None:
    """Lookups by time and retention go by its header, and by the segment's index."""
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="300")
    builder = BatchBuilder()
    builder.append(WALL_MS, b"stays", b"v")
    builder.append(WALL_MS + 500, b"goes", b"v")
    harness.produce("c", builder.build())
    for _ in range(8):
        builder.clear()
        builder.append(WALL_MS + 100, b"goes", b"v" * 100)
        harness.produce("c", builder.build())
    compacted(harness)
    log = log_of(harness)
    header, _ = next(iter(log.batches()))
    assert (header.record_count, header.max_timestamp) == (1, WALL_MS)
    assert log.segments[0].max_timestamp < WALL_MS + 500


def test_keys_of_one_pass_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits on everything that grows: what is behind waits, and the next pass goes on there."""
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="600")
    fill(harness, random.Random(1), 60, keys=40)
    log = log_of(harness)
    before = records(log)
    monkeypatch.setattr(cleaner, "KEY_BYTES_MAX", 1_500)
    kept = cleaner.Kept({}, [])
    ended = cleaner._Ended(log, log.end.offset, Deletion(0, 0))
    for _ in cleaner._map_keys(log.segments[:-1], kept, ended):
        pass
    assert 0 < len(kept.segments) < len(log.segments) - 1
    compacted(harness)
    assert latest(records(log)) == latest(before)
    assert len(records(log)) < len(before)


@pytest.mark.parametrize("segment_bytes", ["300", "2000"])
def test_more_keys_than_one_pass_knows_are_compacted(
    monkeypatch: pytest.MonkeyPatch, segment_bytes: str
) -> None:
    """A pass begins where the one before has ended; what it finds goes from the whole log."""
    monkeypatch.setattr(cleaner, "KEY_BYTES_MAX", 40 * 130)
    passes: list[int] = []
    made = compaction_schedule.clean

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(1)
        return made(*args, **options)

    monkeypatch.setattr(compaction_schedule, "clean", counted)
    harness = Harness(**{**CONFIG, "durability": "memory"})
    harness.create("c", cleanup_policy="compact", segment_bytes=segment_bytes)
    log, sizes, written = None, list[int](), dict[bytes, bytes | None]()
    for turn in range(30):
        for first in range(0, 100, 5):
            builder = BatchBuilder()
            for n in range(first, first + 5):
                key, value = b"k%d" % n, None if (turn + n) % 7 == 0 else b"%d" % turn
                builder.append(WALL_MS, key, value)
                written[key] = value
            assert harness.produce("c", builder.build()).error_code == 0
        harness.env.advance(15_000)
        log = log_of(harness)
        assert latest(records(log)) == written
        sizes.append(log.size)
    assert max(sizes) < 8_000
    assert log is not None
    del passes[:]
    harness.env.advance(20 * 15_000)
    assert not passes
    again = harness.restarted(clean=False)
    assert latest(records(log_of(again))) == written


@pytest.mark.rows(1)
@pytest.mark.parametrize("block", range(4))
def test_a_power_cut_while_compacting_loses_nothing(block: int) -> None:
    """L10: before the swap the old ones stand, after it the new."""
    for seed in range(block * 15, block * 15 + 15):
        rng = random.Random(seed)
        disk = ShadowFiles(rng)
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("c", cleanup_policy="compact", segment_bytes="500")
        fill(harness, rng, 25, keys=4)
        before, end = latest(records(log_of(harness))), log_of(harness).end.offset
        for _ in range(3):
            disk.fail_at = disk.calls + rng.randrange(1, 40)
            with contextlib.suppress(Crash):
                compacted(harness)
            disk = disk.after_crash()
            harness = Harness(disk, FakeEnv(), **CONFIG)
            assert latest(records(log_of(harness))) == before
            assert log_of(harness).end.offset == end


@pytest.mark.rows(1)
@pytest.mark.parametrize("block", range(4))
def test_a_power_cut_after_compacting_loses_nothing_that_was_flushed(block: int) -> None:
    """With `os`, too: what takes the place of flushed segments is flushed before."""
    for seed in range(block * 15, block * 15 + 15):
        rng = random.Random(seed)
        disk = ShadowFiles(rng)
        harness = Harness(disk, FakeEnv(), **{**CONFIG, "durability": "os"})
        harness.create("c", cleanup_policy="compact", segment_bytes="500")
        fill(harness, rng, 25, keys=4)
        log = log_of(harness)
        before = latest([row for row in records(log) if row[0] < log.active.base_offset])
        harness.state.write_checkpoint()
        for directory in ("c-0", ""):
            disk.sync_dir(directory)
        harness.env.advance(15_000)
        assert COMPACTED_MARKER in disk.list("c-0")
        disk = disk.after_crash()
        harness = Harness(disk, FakeEnv(), **{**CONFIG, "durability": "os"})
        assert before.keys() <= latest(records(log_of(harness))).keys()


def test_what_compaction_emptied_still_expires() -> None:
    """With `compact,delete`: a segment that lost its records does not keep those behind it."""
    harness = Harness(durability="memory", log_index_interval_bytes=100)
    config: dict[str, Any] = {"cleanup_policy": "compact,delete", "segment_bytes": "1000"}
    harness.create("c", retention_ms=str(DAY_MS), **config)
    keys = [b"hot"] * 8 + [b"k%d" % n for n in range(8)] + [b"hot"] * 2
    for key in keys:
        builder = BatchBuilder()
        builder.append(harness.env.wall_ms(), key, b"v" * 150)
        assert harness.produce("c", builder.build()).error_code == 0
    harness.env.advance(15_000)
    log = log_of(harness)
    assert len(records(log)) < len(keys)
    harness.env.advance(20 * DAY_MS)
    assert log.log_start_offset == log.end.offset


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("by", ["request", "retention"])
def test_what_is_deleted_meanwhile_ends_a_pass(tmp_path: Path, by: str, on_disk: bool) -> None:
    """Segments that it has chosen are gone: it begins again, and the partition stays online."""
    files = OsFiles(tmp_path) if on_disk else MemoryFiles()
    harness = Harness(files, **{**CONFIG, "durability": "fsync" if on_disk else "memory"})
    harness.create("c", cleanup_policy="compact,delete", segment_bytes="600", retention_ms="-1")
    fill(harness, random.Random(1), 40, keys=400)
    partition, log = harness.node.topics.partition("c", 0), log_of(harness)
    assert partition is not None
    harness.state._cleaning.look()  # a step of the pass: the rest comes when the node has served
    if by == "request":
        log.delete_before(log.segments[6].base_offset)
    else:
        log.config = replace(log.config, retention_bytes=1_000)
        assert log.apply_retention(WALL_MS) > 3
    kept = records(log)
    harness.env.settle()
    assert partition.offline is None
    assert latest(records(log)) == latest(kept)
    assert not [name for name in files.list("c-0") if name.endswith(".cleaned")]
    fill(harness, random.Random(2), 40, keys=4)
    before = records(log)
    harness.env.advance(15_000)
    assert len(records(log)) < len(before)
    assert latest(records(log)) == latest(before)


def test_a_defect_in_one_pass_does_not_end_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="600")
    fill(harness, random.Random(1), 40, keys=4)

    def broken(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    harness.state._cleaning.look()
    with monkeypatch.context() as patched:
        patched.setattr(cleaner, "filtered", broken)
        with pytest.raises(ValueError, match="a defect"):
            harness.env.settle()
    before = records(log_of(harness))
    harness.env.advance(15_000)
    assert len(records(log_of(harness))) < len(before)


def damaged() -> tuple[ShadowFiles, Harness]:
    """A topic `c` of sealed segments whose first record says a wrong length, and a topic `d`."""
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **CONFIG)
    for name in ("c", "d"):
        harness.create(name, cleanup_policy="compact", segment_bytes="600")
        for _ in range(40):
            batch = batch_of([b"v" * 50], keys=[b"k"])
            assert harness.produce(name, batch).error_code == 0
    segments = log_of(harness).segments
    assert len(segments) > 3
    disk._live[segments[0].file.path].data[HEADER_BYTES] ^= 1
    return disk, harness


@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_flipped_bit_is_not_taken_for_what_was_written(where: str, alone: bool) -> None:
    """It became the key of another record, which went, or got a right checksum."""
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="600")
    keys: list[bytes | None] = [b"j"] if alone else [b"j", b"k"]
    assert harness.produce("c", batch_of([b"once"] * len(keys), keys=keys)).error_code == 0
    for _ in range(40):
        assert harness.produce("c", batch_of([b"v" * 50], keys=[b"k"])).error_code == 0
    data = disk._live[log_of(harness).segments[0].file.path].data
    data[data.index(b"j" if where == "key" else b"once", HEADER_BYTES)] ^= 1
    before = bytes(data)
    harness.env.advance(60_000)
    assert log_of(harness).offline is None
    assert disk._live[log_of(harness).segments[0].file.path].data == before


def test_a_damaged_marker_gets_no_right_checksum() -> None:
    batch = bytearray(marker_batch(7, 0, Marker(True, 3), WALL_MS))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        compacted_batch.marker_with_horizon(BatchHeader(batch, 0), batch, WALL_MS)


def leftovers(harness: Harness) -> list[str]:
    return [name for name in harness.files.list("c-0") if name.endswith((".cleaned", ".swap"))]


def test_a_damaged_batch_ends_the_compaction_of_its_partition_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in Kafka (uncleanable partitions): the partition was offline until a restart."""
    _, harness = damaged()
    before, other = log_of(harness).size, log_of(harness, "d").size
    for _ in range(3):
        harness.env.advance(15_000)
        assert harness.produce("c", batch_of([b"v"], keys=[b"k"])).error_code == 0
    assert log_of(harness).offline is None
    assert harness.fetch("c", log_of(harness).end.offset - 1).error_code == 0
    assert log_of(harness).size > before
    assert log_of(harness, "d").size < other / 2
    assert caplog.text.count("compaction of c-0 ends") == 1
    assert "kohort broker repair DATA_DIR" in caplog.text


@pytest.mark.parametrize("what", ["append", "sync", "rename"])
def test_so_does_a_disk_that_refuses_the_copy(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it takes the place of what is there, the log is as it was."""
    disk, harness = damaged()
    disk._live[log_of(harness).segments[0].file.path].data[HEADER_BYTES] ^= 1  # it is well again

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rows = records(log_of(harness))
    with monkeypatch.context() as patched:
        if what == "rename":
            patched.setattr(disk, "rename", broken)
        else:
            patched.setattr(ShadowFile, what, broken)
        harness.env.advance(15_000)
    harness.env.advance(30_000)
    assert log_of(harness).offline is None
    assert records(log_of(harness)) == rows
    assert not leftovers(harness)
    assert caplog.text.count("compaction of c-0 ends") == 1
    again = harness.restarted(clean=True)
    again.env.advance(15_000)
    assert len(records(log_of(again))) < len(rows)


def test_a_swap_that_fails_takes_the_partition_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its segments are gone by then; the next start finishes the swap."""
    disk, harness = damaged()
    disk._live[log_of(harness).segments[0].file.path].data[HEADER_BYTES] ^= 1
    before = latest(records(log_of(harness)))

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(disk, "remove", broken)
        harness.env.advance(15_000)
    assert "compaction failed" in (log_of(harness).offline or "")
    again = harness.restarted(clean=False)
    assert log_of(again).offline is None
    assert latest(records(log_of(again))) == before


@pytest.mark.parametrize("by", ["deletion", "a reader"])
def test_a_pass_that_ends_early_leaves_nothing_behind(by: str) -> None:
    harness = Harness(**CONFIG)
    harness.create("c", cleanup_policy="compact", segment_bytes="15000")
    fill(harness, random.Random(1), 400, keys=400)
    log = log_of(harness)
    steps = clean(harness.files, log, WALL_MS, durable=True)

    def unfinished() -> list[str]:
        return [name for name in harness.files.list("c-0") if name.endswith(".cleaned")]

    while not unfinished():
        next(steps)
    before = log.segments[1:]
    if by == "deletion":
        log.delete_before(log.segments[1].base_offset)
    else:
        log.pins = 1
    assert next(steps, None) is None
    assert log.segments[-len(before) :] == before
    assert not unfinished()


def commit(harness: Harness, group: str, offset: int) -> None:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="m"
    )
    request = OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[part])]
    )
    answer = harness.ask(request, OffsetCommitResponse, 9)
    assert answer.topics[0].partitions[0].error_code == 0


def committed(harness: Harness, group: str) -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    answer = harness.ask(request, OffsetFetchResponse, 9)
    return answer.groups[0].topics[0].partitions[0].committed_offset


def test_consumer_offsets_do_not_grow_without_bound() -> None:
    """The node compacts `__consumer_offsets` by itself, and a restart finds every commit (G9)."""
    harness = Harness(offsets_topic_num_partitions=1, offsets_topic_segment_bytes=4_000, **CONFIG)
    harness.create("t")
    sizes: list[int] = []
    for turn in range(12):
        for i in range(60):
            commit(harness, f"g{i % 5}", turn * 1000 + i)
        harness.env.advance(15_000)
        sizes.append(log_of(harness, "__consumer_offsets").size)
    assert max(sizes) < 16_000
    for _ in range(2):
        harness = harness.restarted(clean=False)
        assert [committed(harness, f"g{i}") for i in range(5)] == [11055 + i for i in range(5)]
