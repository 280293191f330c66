"""A disk that is quite full: what frees space works all the same, and refusals say what it is."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest

from kohort.broker.log.directory import RESERVE, TOPICS_FILE, DataDirectory
from kohort.broker.log.files import Buffer, LogFile, MemoryFile, MemoryFiles
from kohort.broker.log.loading import COMPACTED_MARKER
from kohort.broker.log.log import EPOCHS_FILE
from kohort.broker.state.leadership import Led
from kohort.broker.state.topics import Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.delete_records_request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kohort.wire.messages.delete_records_response import DeleteRecordsResponse
from tests.broker.harness import FakeEnv, Harness, batch_of

DISK_BYTES = 400_000


class SmallFile(MemoryFile):
    """A file on a `SmallDisk`."""

    def __init__(self, path: str, disk: SmallDisk) -> None:
        super().__init__(path)
        self._disk = disk

    def append(self, buffers: Sequence[Buffer]) -> None:
        """As on a disk: what there is room for is written before the error."""
        data = b"".join(buffers)
        room = max(0, self._disk.room)
        super().append([data[:room]])
        if len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SmallDisk(MemoryFiles):
    """A data directory with room for `DISK_BYTES`."""

    @property
    def room(self) -> int:
        return DISK_BYTES - sum(file.size for file in self._files.values())

    def open(self, path: str, *, create: bool = False) -> LogFile:
        if path not in self._files and create:
            self._files[path] = SmallFile(path, self)
        return super().open(path)

    def fill(self) -> None:
        """By somebody else."""
        self.open("stuff", create=True).append([bytes(self.room)])


def full(**config: Any) -> tuple[Harness, SmallDisk]:
    """A broker with a topic of three segments, and no room left."""
    disk = SmallDisk()
    harness = Harness(disk, FakeEnv(), **{"durability": "os", "log_segment_bytes": 2_000, **config})
    harness.create("t")
    for _ in range(3):
        assert harness.produce("t", batch_of([b"v" * 1_500])).error_code == 0
    disk.fill()
    assert harness.produce("t", batch_of([b"v"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    return harness, disk


def topic_of(harness: Harness) -> Topic:
    found = harness.state.topics.get("t")
    assert found is not None
    return found


def test_nothing_passes_a_batch_that_found_no_room() -> None:
    """P1: it is sent again, and the one behind it, which was on its way, waits for it."""
    harness, disk = full()
    first, second = (
        batch_of([b"v"], producer_id=7, producer_epoch=0, base_sequence=n) for n in (0, 1)
    )
    assert harness.produce("t", first).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.remove("stuff")
    late = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert harness.produce("t", second).error_code == late
    assert [harness.produce("t", batch).error_code for batch in (first, second)] == [0, 0]


def test_a_topic_can_be_deleted() -> None:
    """Whoever is on call does just that; refused, nothing would be left but `rm`."""
    harness, disk = full()
    harness.state.topics.delete(topic_of(harness))
    assert not any(name.startswith("t-") for name in disk.list(""))
    assert disk.room > 4_000
    again = DataDirectory.open(disk, "c", durable=True)
    assert not again.registry.topics
    assert not again.registry.deleting
    harness.create("next")
    assert harness.produce("next", batch_of([b"v"])).error_code == 0


def test_retention_can_be_made_shorter() -> None:
    harness, _ = full()
    topic = topic_of(harness)
    harness.state.topics.configure(topic, {"retention.ms": "1"})
    harness.env.advance(10 * 60_000)
    assert harness.produce("t", batch_of([b"v"])).error_code == 0


def test_retention_frees_space_before_it_needs_some() -> None:
    """To delete what is in the active segment, it is sealed first, for which there was no room."""
    harness, _ = full(log_retention_ms=60_000)
    harness.env.advance(10 * 60_000)
    assert topic_of(harness).partitions[0].start_offset == 3
    assert harness.produce("t", batch_of([b"v"])).error_code == 0


def test_records_can_be_deleted() -> None:
    harness, disk = full()
    parts = [DeleteRecordsPartition(partition_index=0, offset=2)]
    asked = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=parts)], timeout_ms=1_000
    )
    answer = harness.ask(asked, DeleteRecordsResponse, 2)
    assert answer.topics[0].partitions[0].error_code == 0
    assert disk.read_all("log-start-offset-checkpoint")


def test_what_takes_space_is_refused_in_words_and_leaves_the_reserve(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness, disk = full()
    kept, before = disk.read_all(RESERVE), disk.read_all(TOPICS_FILE)
    refused = "cannot write to its disk: No space left on device; free some space"
    for _ in range(2):
        with pytest.raises(BrokerError, match=refused) as error:
            harness.state.topics.create("more", 1, {})
        assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "Errno" not in str(error.value)
    assert caplog.text.count("cannot write topics.json: [Errno 28] No space left") == 1
    assert (disk.read_all(RESERVE), disk.read_all(TOPICS_FILE)) == (kept, before)


def test_the_reserve_is_taken_again_when_there_is_room() -> None:
    harness, disk = full()
    topic = topic_of(harness)
    harness.state.topics.configure(topic, {"retention.ms": "123456789"})
    disk.fill()  # what was left of the reserve is somebody else's now
    disk.remove("stuff")
    harness.state.write_checkpoint()
    assert len(disk.read_all(RESERVE) or b"") >= 64 << 10


def test_a_broker_in_memory_reserves_nothing() -> None:
    disk = SmallDisk()
    Harness(disk, FakeEnv(), durability="memory")
    assert RESERVE not in disk.list("")


def test_a_leader_that_begins_meanwhile_writes_once_there_is_room() -> None:
    """Its partition stayed offline until the broker was restarted (seed 60001080)."""
    harness, disk = full()
    partition = topic_of(harness).partitions[0]
    partition.follow(Led(partition.leader, 3, (partition.leader,)))
    assert partition.offline is None
    assert partition.epoch_end(3) == (3, 3)
    for _ in range(2):
        refused = harness.produce("t", batch_of([b"v"]))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not disk.read_all(f"t-0/{EPOCHS_FILE}")
    disk.remove("stuff")
    assert harness.produce("t", batch_of([b"v"])).error_code == 0
    assert (disk.read_all(f"t-0/{EPOCHS_FILE}") or b"").split(b"\n")[2:] == [b"0 0", b"3 3", b""]


def test_compaction_waits_for_room(caplog: pytest.LogCaptureFixture) -> None:
    """Its partition stayed offline until the broker was restarted (seed 60002450)."""
    disk = SmallDisk()
    harness = Harness(disk, FakeEnv(), durability="os")
    harness.create("t", cleanup_policy="compact", segment_bytes="20000")
    for _ in range(8):
        assert harness.produce("t", batch_of([b"v" * 9_000], keys=[b"k"])).error_code == 0
    before = disk.list("t-0")
    disk.fill()
    for _ in range(3):
        harness.env.advance(15_000)
    assert topic_of(harness).partitions[0].offline is None
    assert set(disk.list("t-0")) - set(before) <= {COMPACTED_MARKER}
    assert caplog.text.count("compaction of t-0 waits for room on the disk") == 1
    disk.remove("stuff")
    used = DISK_BYTES - disk.room
    harness.env.advance(15_000)
    assert DISK_BYTES - disk.room < used - 30_000
    assert harness.fetch("t", 0).error_code == 0


def test_the_epoch_of_a_leader_that_wrote_nothing_is_not_used_again() -> None:
    """An orderly stop keeps it: a coordinator that begins in an older epoch than its markers have
    is fenced, and its transactions stay open (seed 60002275)."""
    harness, disk = full()
    partition = topic_of(harness).partitions[0]
    partition.follow(Led(partition.leader, 3, (partition.leader,)))
    disk.remove("stuff")
    harness.state.close()
    again = Harness(disk, FakeEnv(), durability="os")
    assert topic_of(again).partitions[0].leader_epoch == 3


@pytest.mark.parametrize("reserve", [True, False])
def test_a_broker_that_crashed_starts(reserve: bool) -> None:
    """Who is to free space needs it; the epoch that began is kept as soon as it can be."""
    _, disk = full()
    if not reserve:
        disk.remove(RESERVE)
        disk.open("more", create=True).append([bytes(disk.room)])
    again = Harness(disk, FakeEnv(), durability="os")
    assert topic_of(again).partitions[0].leader_epoch == 1
    assert (b'"leaders"' in (disk.read_all(TOPICS_FILE) or b"")) == reserve
    disk.remove("stuff")
    again.state.write_checkpoint()
    assert b'"leaders"' in (disk.read_all(TOPICS_FILE) or b"")


def test_a_broker_starts_whose_indexes_a_power_cut_took() -> None:
    """They are built again, and found no room: "the data directory cannot be read"."""
    _, disk = full(log_segment_bytes=200)
    for name in disk.list("t-0"):
        if "index" in name:
            disk.remove(f"t-0/{name}")
    disk.fill()
    again = Harness(disk, FakeEnv(), durability="os")
    opened = topic_of(again).partitions[0].log
    assert opened is not None
    assert opened.unindexed
    disk.fill()
    again.state.write_checkpoint()
    assert opened.unindexed
    disk.remove("stuff")
    again.state.write_checkpoint()
    assert not opened.unindexed
    assert any(name.endswith(".indexcrc") for name in disk.list("t-0"))


def test_nor_one_whose_log_could_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SmallDisk()
    harness = Harness(disk, FakeEnv(), durability="os")
    harness.create("t")
    stamp: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    first, second = (batch_of([b"v"], base_sequence=n, **stamp) for n in (0, 1))
    with monkeypatch.context() as full_disk:
        full_disk.setattr(disk, "open", _no_room)
        assert harness.produce("t", first).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", second).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert harness.produce("t", first).error_code == 0
    assert harness.produce("t", second).error_code == 0


def test_what_a_deleted_topic_has_refused_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SmallDisk()
    harness = Harness(disk, FakeEnv(), durability="os")
    harness.create("t")
    batch = batch_of([b"v"], base_sequence=0, producer_id=7, producer_epoch=0)
    with monkeypatch.context() as full_disk:
        full_disk.setattr(disk, "open", _no_room)
        assert harness.produce("t", batch).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(harness.state.refused) == 1
    harness.state.topics.delete(topic_of(harness))
    assert not harness.state.refused


def _no_room(path: str, *, create: bool = False) -> LogFile:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_batch_does_not_pass_one_that_found_no_room() -> None:
    """Nothing is known of its producer yet: the first one there would begin, and what is sent again
    behind it could not follow (it was stored twice, by a client that began again)."""
    harness, disk = full()
    stamp: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    first, second = (batch_of([b"v"], base_sequence=n, **stamp) for n in (0, 1))
    assert harness.produce("t", first).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    disk.remove("stuff")
    assert harness.produce("t", second).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert harness.produce("t", first).error_code == 0
    assert harness.produce("t", second).error_code == 0
