"""What a log goes through in a long life: orderly ends and starts, deletions, errors in between."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
from typing import Any

import pytest

from kohort.broker.fast_path.fast_path import FAST_PATH
from kohort.broker.log.log import PartitionLog
from kohort.errors import BrokerError
from kohort.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kohort.wire.messages.delete_records_response import DeleteRecordsResponse
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse
from tests.broker.harness import WALL_MS, FakeEnv, Harness, batch_of, produce_request
from tests.broker.shadow_files import ShadowFiles

CONFIG: dict[str, Any] = {"durability": "fsync", "log_index_interval_bytes": 200}


def log_of(harness: Harness, topic: str = "t", index: int = 0) -> PartitionLog:
    partition = harness.node.topics.partition(topic, index)
    assert partition is not None
    assert partition.log is not None
    return partition.log


@pytest.mark.skipif(FAST_PATH != "cython", reason="there is no fast path")
def test_what_goes_by_the_lane_after_an_orderly_start_is_in_the_next_index() -> None:
    """L6: the index of the first end is not that of the second."""
    from tests.broker.fast_path.test_fast_path import Served, frame_of

    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **CONFIG)
    harness.create("t")
    for n in range(20):
        harness.produce("t", batch_of([b"x" * 100], WALL_MS + n))
    harness = harness.restarted(clean=True)
    frame = frame_of(produce_request("t", batch_of([b"late"], WALL_MS + 5_000)), 11)
    Served(harness, 1).turn([(0, frame)])
    harness.env.settle()
    harness = harness.restarted(clean=True)
    log = log_of(harness)
    assert log.end.offset == 21
    assert log.active.index.on_disk, "it was believed"
    assert log.active.max_timestamp == WALL_MS + 5_000
    found = log.offset_for_time(WALL_MS + 1_000, log.high)
    assert found is not None
    assert found.offset == 20


def delete(harness: Harness, topic: str) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)])
    return harness.ask(request, DeleteTopicsResponse).responses[0].error_code


@pytest.mark.parametrize("crash", [False, True], ids=["goes-on", "crash"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_deletion_that_stops_half_way_takes_nothing_of_a_new_topic(
    error: int, crash: bool
) -> None:
    """Whichever call fails: a new topic of that name is empty, and what is acknowledged in it
    outlives the end of the deletion, and a start."""
    call = 0
    for call in itertools.count(1):
        disk = ShadowFiles(random.Random(call))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("other")
        harness.create("t")
        harness.produce("t", batch_of([b"old"]))
        disk.error_at, disk.error = disk.calls + call, OSError(error, os.strerror(error))
        delete(harness, "t")
        reached, disk.error_at = disk.calls >= disk.error_at, None
        if harness.node.topics.get("t") is None:
            harness.create("t")
            assert harness.read_all("t") == []
        assert harness.produce("t", batch_of([b"new"])).error_code == 0
        before = harness.read_all("t")
        if not crash:
            assert delete(harness, "other") == 0
            assert harness.read_all("t") == before
        assert harness.restarted(clean=False).read_all("t") == before
        if not reached:
            break
    assert call > 5


@pytest.mark.rows(1)
@pytest.mark.parametrize("by", ["retention", "delete-records"])
def test_an_error_in_any_call_of_a_deletion_of_old_segments_loses_nothing_else(by: str) -> None:
    """L2, L8: a segment that could not be removed leaves no gap at which recovery would cut."""
    own: dict[str, Any] = {
        "segment_bytes": "300",
        "retention_ms": "-1",
        "retention_bytes": "700",
    }
    call = 0
    for call in itertools.count(1):
        disk = ShadowFiles(random.Random(call))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("t", **own)
        for n in range(20):
            harness.produce("t", batch_of([b"%02d" % n * 30]))
        log = log_of(harness)
        disk.error_at = disk.calls + call
        for _ in range(2):  # the second one has no error to fear
            if by == "retention":
                harness.env.advance(300_000)
            else:
                with contextlib.suppress(BrokerError):
                    log.delete_before(15)
        reached, disk.error_at = disk.calls >= disk.error_at, None
        assert log.offline is None
        start = log.log_start_offset
        assert start > 5
        before = harness.read_all("t", start=start)
        assert [offset for offset, _ in before] == list(range(start, 20))
        harness = harness.restarted(clean=False)
        assert harness.read_all("t", start=start) == before
        assert len(log_of(harness).segments) == len(log.segments), "all that was to go is gone"
        if not reached:
            break
    assert call > 10


@pytest.mark.rows(1)
@pytest.mark.parametrize("end", ["orderly", "checkpoint", "crash"])
def test_an_error_in_any_call_of_a_roll_loses_nothing_acknowledged(end: str) -> None:
    """L1, L2, L8: a batch may still fit into the old segment when the new one could not be had."""
    call = 0
    for call in itertools.count(1):
        disk = ShadowFiles(random.Random(call))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("t", segment_bytes="1000")
        harness.produce("t", batch_of([b"first" * 100]))
        acked = [b"first" * 100]
        disk.error_at = disk.calls + call
        for n in range(12):
            value = (b"%02d" % n) * (200 if n % 3 == 0 else 20)
            if harness.produce("t", batch_of([value])).error_code == 0:
                acked.append(value)
        reached, disk.error_at = disk.calls >= disk.error_at, None
        if log_of(harness).offline is not None:
            continue
        for n in range(3):
            assert [value for _, value in harness.read_all("t")] == acked
            if end == "checkpoint":
                harness.state.write_checkpoint()
            harness = harness.restarted(clean=end == "orderly")
            assert [value for _, value in harness.read_all("t")] == acked
            assert harness.produce("t", batch_of([b"%d" % n])).base_offset == len(acked)
            acked.append(b"%d" % n)
        if not reached:
            break
    assert call > 20


@pytest.mark.parametrize("durability", ["fsync", "os", "memory"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_an_error_in_any_call_of_first_appends_loses_nothing_acknowledged(
    durability: str, error: int
) -> None:
    """L1, L8, L9: the directory, the file, the record, the flush of each and of their names."""
    call = refused = 0
    for call in itertools.count(1):
        disk = ShadowFiles(random.Random(call))
        config = {**CONFIG, "durability": durability}
        harness = Harness(disk, FakeEnv(), **config)
        harness.create("t", 2)
        disk.error_at, disk.error = disk.calls + call, OSError(error, os.strerror(error))
        acked: list[list[bytes]] = [[], []]
        for n in range(3):
            for index in (0, 1):
                value = b"%d:%d" % (index, n)
                if harness.produce("t", batch_of([value]), index).error_code:
                    refused += 1
                else:
                    acked[index].append(value)
        reached, disk.error_at = disk.calls >= disk.error_at, None
        harness = Harness(disk.after_crash() if durability == "fsync" else disk, **config)
        for index in (0, 1):
            values = [value for _, value in harness.read_all("t", index)]
            assert [value for value in values if value in acked[index]] == acked[index]
            assert len(set(values)) == len(values)
        if not reached:
            break
    assert call > 4
    assert refused > 2


def test_what_recovery_dropped_does_not_come_back() -> None:
    """L2, L7: segments behind a cut are gone before the place of their records is written to."""
    for seed in range(12):
        disk = ShadowFiles(random.Random(seed))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("t", segment_bytes="400")
        for n in range(8):
            harness.produce("t", batch_of([b"old %d" % n]))
        first, second = log_of(harness).segments[:2]
        disk._live[first.file.path].data[-1] ^= 1
        harness = Harness(disk, FakeEnv(), **CONFIG)
        cut = second.base_offset - 1
        assert log_of(harness).end.offset == cut
        assert harness.produce("t", batch_of([b"new"])).base_offset == cut
        harness = Harness(disk.after_crash(), FakeEnv(), **CONFIG)
        assert [value for _, value in harness.read_all("t")][cut:] == [b"new"]


def test_a_directory_that_a_crash_left_empty_is_written_to() -> None:
    """L1: the name of a file that a start makes is on the disk before a record is acknowledged."""
    for seed in range(12):
        disk = ShadowFiles(random.Random(seed))
        Harness(disk, FakeEnv(), **CONFIG).create("t")
        disk.make_dir("t-0")
        disk.sync_dir("")
        harness = Harness(disk, FakeEnv(), **CONFIG)
        assert harness.produce("t", batch_of([b"x"])).error_code == 0
        harness = Harness(disk.after_crash(), FakeEnv(), **CONFIG)
        assert harness.read_all("t") == [(0, b"x")]


def test_records_that_were_deleted_stay_deleted_after_a_power_cut() -> None:
    """KIP-107: the answer says that nobody sees them again."""
    part = DeleteRecordsPartition(partition_index=0, offset=3)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[part])])
    for seed in range(12):
        disk = ShadowFiles(random.Random(seed))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("t")
        for n in range(5):
            harness.produce("t", batch_of([b"%d" % n]))
        answer = harness.ask(request, DeleteRecordsResponse).topics[0].partitions[0]
        assert answer.low_watermark == 3
        harness = Harness(disk.after_crash(), FakeEnv(), **CONFIG)
        assert log_of(harness).log_start_offset == 3


def delete_records(harness: Harness, topic: str, offset: int) -> int:
    """The error code of the answer."""
    part = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[part])])
    return harness.ask(request, DeleteRecordsResponse).topics[0].partitions[0].error_code


def test_a_second_deletion_of_records_is_as_durable_as_the_first() -> None:
    """KIP-107: whichever call of the first failed, the second is answered when it is kept."""
    call = refused = 0
    for call in itertools.count(1):
        disk = ShadowFiles(random.Random(call))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("t")
        for n in range(5):
            harness.produce("t", batch_of([b"%d" % n]))
        disk.error_at, disk.error = disk.calls + call, OSError(errno.EIO, os.strerror(errno.EIO))
        refused += delete_records(harness, "t", 3) != 0
        reached, disk.error_at = disk.calls >= disk.error_at, None
        assert delete_records(harness, "t", 3) == 0
        harness = Harness(disk.after_crash(), FakeEnv(), **CONFIG)
        assert log_of(harness).log_start_offset == 3
        if not reached:
            break
    assert refused > 2


def test_records_that_retention_has_deleted_are_deleted_for_good_when_asked() -> None:
    """KIP-107: what retention has deleted may come back, but not once that was answered."""
    for seed in range(12):
        disk = ShadowFiles(random.Random(seed))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("t", segment_bytes="300", retention_ms="-1", retention_bytes="700")
        for n in range(20):
            harness.produce("t", batch_of([b"%02d" % n * 30]))
        log_of(harness).apply_retention(WALL_MS)
        start = log_of(harness).log_start_offset
        assert start > 5
        assert delete_records(harness, "t", 5) == 0
        harness = Harness(disk.after_crash(), FakeEnv(), **CONFIG)
        assert 5 <= log_of(harness).log_start_offset <= start


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_new_topic_begins_at_zero_though_one_of_its_name_was_deleted(durability: str) -> None:
    """L1: the checkpoints of the deleted one say nothing about the new one."""
    disk = ShadowFiles(random.Random(1))
    config = {**CONFIG, "durability": durability}
    harness = Harness(disk, FakeEnv(), **config)
    harness.create("t")
    for n in range(5):
        harness.produce("t", batch_of([b"%d" % n]))
    assert delete_records(harness, "t", 4) == 0
    harness.state.write_checkpoint()
    assert delete(harness, "t") == 0
    harness.create("t")
    harness.produce("t", batch_of([b"new"]))
    harness = harness.restarted(clean=False)
    assert log_of(harness).log_start_offset == 0
    assert harness.read_all("t") == [(0, b"new")]
    assert log_of(harness).end.offset == 1


def test_what_comes_after_a_power_cut_is_seen_though_what_was_deleted_is_gone() -> None:
    """L1: with `os` a log may end before its start, which the disk had; new records were unseen."""
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **{**CONFIG, "durability": "os"})
    harness.create("t")
    for n in range(3):
        harness.produce("t", batch_of([b"%d" % n]))
    harness = harness.restarted(clean=False)
    harness.state.directory.save_log_starts({("t", 0): 5})
    harness = harness.restarted(clean=False)
    assert harness.produce("t", batch_of([b"new"])).base_offset == 5
    for _ in range(3):
        assert harness.read_all("t", start=5) == [(5, b"new")]
        harness = harness.restarted(clean=False)


def test_names_that_a_killed_broker_made_outlive_a_power_cut() -> None:
    """L1: it was killed before it flushed them; what is acknowledged after that rests on them."""
    for seed in range(12):
        disk = ShadowFiles(random.Random(seed))
        harness = Harness(disk, FakeEnv(), **CONFIG)
        harness.create("t")
        harness.env.hold_flushes = True
        harness.produce_async("t", batch_of([b"unknown"]))
        harness.env.settle()
        harness = Harness(disk, FakeEnv(), **CONFIG)
        assert harness.produce("t", batch_of([b"new"])).error_code == 0
        harness = Harness(disk.after_crash(), FakeEnv(), **CONFIG)
        assert b"new" in [value for _, value in harness.read_all("t")]
