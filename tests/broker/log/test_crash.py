"""Crash safety of the log on a disk that forgets (L1, L2, L7)."""

from __future__ import annotations

import errno
import logging
import random
from typing import Any

import pytest

from kohort.broker.log.log import EPOCHS_FILE
from kohort.errors import ErrorCode, StorageError
from tests.broker.harness import FakeEnv, Harness, batch_of
from tests.broker.shadow_files import Crash, ShadowFiles

CONFIG = {"durability": "fsync", "log_segment_bytes": 2_000, "log_index_interval_bytes": 200}


class World:
    """A history of one topic: what was sent, what was acknowledged."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sent: list[bytes] = []
        self.acked = 0
        self.disk = ShadowFiles(self.rng)
        self.harness: Harness | None = None

    def boot(self) -> Harness:
        self.harness = Harness(self.disk, FakeEnv(), **CONFIG)
        return self.harness

    def produce(self, count: int) -> None:
        assert self.harness is not None
        env = self.harness.env
        for _ in range(count):
            value = b"%d:" % len(self.sent) + b"x" * self.rng.randrange(700)
            env.hold_flushes = self.rng.random() < 0.4
            self.sent.append(value)
            answer = self.harness.produce_async("t", batch_of([value]))
            if not env.hold_flushes:
                env.run_flushes()
                env.settle()
            if answer.done:
                self.acked = len(self.sent)

    def crash(self) -> None:
        self.disk = self.disk.after_crash()

    def check(self) -> None:
        """L1, L2: everything acknowledged, then a prefix of what was sent, and nothing else."""
        assert self.harness is not None
        found = self.harness.read_all("t")
        values = [value for _, value in found]
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert values == self.sent[: len(values)]
        assert len(values) >= self.acked
        del self.sent[len(values) :]
        self.acked = len(values)  # recovered is durable: it may not go any more


@pytest.mark.rows(2)
@pytest.mark.parametrize("block", range(8))
def test_a_power_cut_loses_nothing_acknowledged(block: int) -> None:
    """L1, L2, L7: cut at random, and again while recovering, then go on."""
    for seed in range(block * 25, block * 25 + 25):
        world = World(seed)
        world.boot().create("t")
        for _ in range(world.rng.randrange(1, 4)):
            world.disk.fail_at = world.disk.calls + world.rng.randrange(1, 60)
            try:
                world.produce(world.rng.randrange(1, 25))
                if world.rng.random() < 0.2:
                    world.harness.state.write_checkpoint()  # type: ignore[union-attr]
                if world.rng.random() < 0.2:
                    world.harness.state.close()  # type: ignore[union-attr]
            except Crash:
                pass
            world.crash()
            for _ in range(world.rng.randrange(3)):  # crashes inside the recovery (L7)
                world.disk.fail_at = world.rng.randrange(1, 12)
                try:
                    world.boot()
                except Crash:
                    world.crash()
                else:
                    break
            world.disk.fail_at = None
            world.boot()
            world.check()


def test_skipping_a_flush_would_be_found() -> None:
    """The test above has teeth: a flusher that lies is caught."""

    class Liar(FakeEnv):
        def run_flushes(self) -> None:
            waiting, self.flushes = self.flushes, []
            for _, done in waiting:
                done(None)

    caught = 0
    for seed in range(20):
        world = World(seed)
        world.harness = Harness(world.disk, Liar(), **CONFIG)
        world.harness.create("t")
        world.produce(10)
        world.crash()
        world.boot()
        try:
            world.check()
        except AssertionError:
            caught += 1
    assert caught > 5


def filled(count: int = 5, **config: Any) -> tuple[ShadowFiles, Harness]:
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **{**CONFIG, **config})  # type: ignore[arg-type]
    harness.create("t")
    for i in range(count):
        assert harness.produce("t", batch_of([b"value %d" % i])).error_code == 0
    return disk, harness


def test_every_flipped_byte_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    """L2: a damaged batch and what follows it go, and one line says so; bad bytes never come."""
    disk, harness = filled(4)
    size = len(disk.read_all("t-0/00000000000000000000.log") or b"")
    whole = [value for _, value in harness.read_all("t")]
    for at in range(size):
        disk, _ = filled(4)
        inode = disk._live["t-0/00000000000000000000.log"]
        inode.data[at] ^= 0x40
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            again = Harness(disk, FakeEnv(), **CONFIG)
        found = [value for _, value in again.read_all("t")]
        assert found == whole[: len(found)]
        if len(found) < 4:
            assert "bytes dropped" in caplog.text
        else:  # base offset and leader epoch stand outside the CRC: the epoch may be another
            assert 12 <= at % (size // 4) < 16


def test_a_torn_tail_is_cut_and_said(caplog: pytest.LogCaptureFixture) -> None:
    disk, _ = filled(3)
    inode = disk._live["t-0/00000000000000000000.log"]
    before = len(inode.data)
    inode.data += b"\0" * 1_000
    with caplog.at_level(logging.WARNING):
        again = Harness(disk, FakeEnv(), **CONFIG)
    assert len(again.read_all("t")) == 3
    assert len(inode.data) == before
    assert "00000000000000000000.log: cut at byte" in caplog.text
    assert "after offset 2" in caplog.text
    assert "1000 bytes dropped" in caplog.text


def test_recovery_twice_comes_to_the_same() -> None:
    """L7."""
    disk, _ = filled(20)
    disk._live["t-0/00000000000000000000.log"].data += b"garbage" * 10
    first = Harness(disk, FakeEnv(), **CONFIG)
    second = Harness(disk, FakeEnv(), **CONFIG)
    assert first.read_all("t") == second.read_all("t")


def test_a_damaged_middle_segment_ends_the_log() -> None:
    """Later segments go: offsets stay an exact prefix (L2)."""
    disk, _ = filled(60)
    names = [n for n in disk.list("t-0") if n.endswith(".log")]
    assert len(names) > 2
    disk._live[f"t-0/{names[1]}"].data[100] ^= 1
    again = Harness(disk, FakeEnv(), **CONFIG)
    found = again.read_all("t")
    assert int(names[1][:20]) <= len(found) < 60
    assert [o for o, _ in found] == list(range(len(found)))
    assert again.produce("t", batch_of([b"next"])).base_offset == len(found)


def test_unknown_and_half_written_files_are_not_read() -> None:
    """L10."""
    disk, _ = filled(3)
    for name in ("00000000000000000000.index.tmp", "00000000000000000001.log.cleaned", "notes"):
        disk.open(f"t-0/{name}", create=True).append([b"\x01\x02"])
    again = Harness(disk, FakeEnv(), **CONFIG)
    assert len(again.read_all("t")) == 3
    assert "notes" in disk.list("t-0")
    assert "00000000000000000001.log.cleaned" not in disk.list("t-0")


def test_a_damaged_epoch_file_is_read_again_from_the_log() -> None:
    """KAFKA-16541: batches carry their epoch too."""
    disk, _ = filled(3)
    second = Harness(disk, FakeEnv(), **CONFIG)  # a crash: epoch 1
    assert second.produce("t", batch_of([b"more"])).error_code == 0
    disk._live[f"t-0/{EPOCHS_FILE}"].data[:] = b"\0\0\0"
    third = Harness(disk, FakeEnv(), **CONFIG)
    partition = third.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.leader_epoch == 2
    assert partition.epoch_end(0) == (0, 3)
    assert partition.epoch_end(1) == (1, 4)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_of_one_epoch_has_no_file_of_epochs(segments: int, clean: bool) -> None:
    """KIP-101: what its first batch says is known again, however it ended, and kept from the second
    epoch on; also where that batch stands in a segment that is not read."""
    disk, harness = filled(1)
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    for n in range(1, segments):
        partition.log.roll()
        assert harness.produce("t", batch_of([b"%d" % n])).base_offset == n
    assert EPOCHS_FILE not in disk.list("t-0")
    harness.state.write_checkpoint()
    if clean:
        harness.state.close()
    again = Harness(disk, FakeEnv(), **CONFIG)
    partition = again.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    assert partition.log.epochs.entries == [(0, 0)]
    assert partition.epoch_end(0) == (0, segments)
    assert again.produce("t", batch_of([b"more"])).base_offset == segments
    later = [] if clean else [(1, segments)]  # a crash begins an epoch
    assert partition.log.epochs.entries == [(0, 0), *later]
    assert (EPOCHS_FILE in disk.list("t-0")) == bool(later)


def test_a_full_disk_refuses_and_recovers() -> None:
    """L9: what was half written is cut off; the partition goes on when there is room again."""
    disk, harness = filled(2)
    disk.error_at = disk.calls + 1
    assert harness.produce("t", batch_of([b"no"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", batch_of([b"yes"])).base_offset == 2
    assert len(harness.read_all("t")) == 3


@pytest.mark.parametrize("call", range(1, 18))
def test_an_error_in_any_call_of_a_start_is_raised(call: int) -> None:
    """A start that cannot read its directory says so; the next one works."""
    disk, _ = filled(20)
    disk.calls = 0
    disk.error_at, disk.error = call, OSError(errno.EIO, "Input/output error")
    raised = ""
    try:
        Harness(disk, FakeEnv(), **CONFIG)
    except StorageError as error:
        raised = str(error)
    assert "Input/output error" in raised or disk.calls < call
    disk.error_at = None
    assert len(Harness(disk, FakeEnv(), **CONFIG).read_all("t")) == 20


@pytest.mark.parametrize("call", range(1, 10))
def test_a_cut_while_a_topic_is_made_or_deleted(call: int) -> None:
    """A new topic of an old name is empty, whenever the power went."""
    from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
    from kohort.wire.messages.delete_topics_response import DeleteTopicsResponse

    disk, harness = filled(3)
    disk.fail_at = disk.calls + call
    gone = False
    try:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        harness.ask(request, DeleteTopicsResponse)
        gone = True
    except Crash:
        pass
    disk = disk.after_crash()
    again = Harness(disk, FakeEnv(), **CONFIG)
    there = again.node.topics.get("t") is not None
    assert not (gone and there)
    if there:
        assert len(again.read_all("t")) == 3
    else:
        again.create("t")
        assert again.read_all("t") == []


def test_the_clean_marker_goes_before_anything_is_loaded() -> None:
    """KAFKA-10471: a crash while loading after a clean shutdown is a crash."""
    disk, harness = filled(3)
    harness.state.close()
    assert ".kafka_cleanshutdown" in disk.list("")
    disk.calls = 0
    disk.fail_at = 3  # the start removes the marker, durably; what comes then is no clean end
    with pytest.raises(Crash):
        Harness(disk, FakeEnv(), **CONFIG).produce("t", batch_of([b"x"]))
    after = disk.after_crash()
    assert not Harness(after, FakeEnv(), **CONFIG).state.directory.clean


def test_os_durability_flushes_what_is_sealed() -> None:
    """The recovery point moves, and sealed files need not stay open."""
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **{**CONFIG, "durability": "os"})
    harness.create("t")
    for i in range(60):
        assert harness.produce("t", batch_of([b"value %d" % i])).error_code == 0
    harness.state.write_checkpoint()
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    assert partition.log.flushed_offset == partition.log.active.base_offset > 0
    sealed = [f"t-0/{s.base_offset:020d}.log" for s in partition.log.segments[:-1]]
    assert all(disk._safe[name].synced for name in sealed)


@pytest.mark.parametrize("clean", [True, False])
def test_the_recovery_point_of_durability_os_never_falls(clean: bool) -> None:
    """What was flushed before a start need not be read again after the next crash (L7)."""
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **{**CONFIG, "durability": "os"})
    harness.create("t")
    for i in range(60):
        assert harness.produce("t", batch_of([b"value %d" % i])).error_code == 0
    harness.state.write_checkpoint()
    for _ in range(2):
        before = harness.state._flushed()["t", 0]
        harness = harness.restarted(clean=clean)
        harness.state.write_checkpoint()
        assert harness.state._flushed()["t", 0] >= before > 0
    assert len(harness.read_all("t")) == 60
    disk._live["t-0/00000000000000000000.log"].data[-1] ^= 1  # not read, hence not cut
    harness = harness.restarted(clean=False)
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.end_offset == 60


def test_a_defect_of_one_waiter_is_not_that_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Everybody who waits for a flush is told, in order, whatever one of them does."""
    from kohort.broker.log.files import MemoryFile
    from kohort.broker.log.flusher import Flusher

    posted: list[tuple] = []
    calls: list[int] = []
    flusher = Flusher(lambda *call: posted.append(call))
    file = MemoryFile("f")

    def bad(_: object) -> None:
        raise ValueError("a defect")

    flusher.submit(
        [(file, lambda _: calls.append(1)), (file, bad), (file, lambda _: calls.append(2))]
    )
    flusher.stop()
    with caplog.at_level(logging.ERROR):
        for fn, *args in posted:
            fn(*args)
    assert calls == [1, 2]
    assert "a defect" in caplog.text
    assert flusher.flushes == 1


def test_everybody_who_waits_for_a_file_hears_that_its_flush_failed() -> None:
    """L9: not only the first of them."""
    from kohort.broker.log.files import MemoryFile
    from kohort.broker.log.flusher import Flusher

    class Bad(MemoryFile):
        def sync(self) -> None:
            raise OSError(5, "no")

    posted: list[tuple] = []
    outcomes: list[tuple[str, bool]] = []
    flusher = Flusher(lambda *call: posted.append(call))
    bad, good = Bad("bad"), MemoryFile("good")
    flusher.submit(
        [
            (file, lambda e, f=file: outcomes.append((f.path, e is None)))
            for file in (bad, good, bad)
        ]
    )
    flusher.stop()
    for fn, *args in posted:
        fn(*args)
    assert outcomes == [("bad", False), ("good", True), ("bad", False)]


def test_an_end_with_a_log_offline_is_no_clean_one() -> None:
    """L9: what could not be flushed is read again at the next start."""
    disk, harness = filled(3)
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    partition.fail("as a test says")
    harness.state.close()
    assert ".kafka_cleanshutdown" not in disk.list("")
    again = Harness(disk, FakeEnv(), **CONFIG)
    assert not again.state.directory.clean
    assert len(again.read_all("t")) == 3


def test_housekeeping_goes_on_after_an_error() -> None:
    """Retention meets a damaged segment: that partition is offline, the rest goes on."""
    disk, harness = filled(60)
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    first = partition.log.segments[0]
    first.index.forget()
    first.index.latest_ms = None
    first.index.remove()
    disk._live[first.file.path].data[8] = 0xFF
    harness.env.advance(300_000)
    assert partition.offline
    harness.create("u")
    assert harness.produce("u", batch_of([b"x"])).error_code == 0
    harness.env.advance(300_000)


def test_a_topic_that_was_acknowledged_outlives_a_crash_at_durability_os() -> None:
    """Only records may be lost with `os`; `topics.json` is on the disk before the answer."""
    disk = ShadowFiles(random.Random(1))
    config = {**CONFIG, "durability": "os"}
    Harness(disk, FakeEnv(), **config).create("t")
    assert Harness(disk.after_crash(), FakeEnv(), **config).node.topics.get("t") is not None
