"""New logs: their names are durable before anything in them is acknowledged, and are flushed
together (L1, L4).
"""

from __future__ import annotations

import errno
import random
import threading
from collections import Counter
from typing import Any

import pytest

from kohort.broker.log.files import MemoryFile, Names, Syncable
from kohort.broker.log.flusher import Flusher
from kohort.errors import ErrorCode
from kohort.wire.messages.produce_response import ProduceResponse
from tests.broker.harness import FakeEnv, Harness, batch_of
from tests.broker.shadow_files import Crash, ShadowFiles
from tests.patience import PATIENCE_S

FSYNC: dict[str, Any] = {"durability": "fsync"}


def syncs(env: FakeEnv) -> Counter[str]:
    """What waits for the flusher, each thing once as that does it: by its path."""
    return Counter(file.path for file in {id(file): file for file, _ in env.flushes}.values())


def test_the_names_of_the_logs_of_a_turn_are_flushed_together() -> None:
    harness = Harness(ShadowFiles(random.Random(1)), FakeEnv(), **FSYNC)
    harness.create("t", 3)
    harness.env.hold_flushes = True
    for again in range(2):
        answers = [harness.produce_async("t", batch_of([b"v"]), p) for p in range(3)]
        logs = [f"t-{p}/{'0' * 20}.log" for p in range(3)]
        names = ["", "t-0", "t-1", "t-2"] if not again else []
        assert syncs(harness.env) == Counter([*logs, *names])
        assert not any(answer.done for answer in answers)
        harness.env.run_flushes()
        assert all(answer.done for answer in answers)


def test_without_durability_no_name_is_flushed() -> None:
    harness = Harness(ShadowFiles(random.Random(1)), FakeEnv(), durability="os")
    harness.create("t")
    harness.env.hold_flushes = True
    harness.produce("t", batch_of([b"v"]))
    assert not harness.env.flushes


def history(seed: int, env: FakeEnv) -> tuple[int, int]:
    """Cut the power under the first records of some partitions; the acknowledged, and those that
    are there.
    """
    rng = random.Random(seed)
    disk = ShadowFiles(rng)
    harness = Harness(disk, env, **FSYNC)
    harness.create("t", 6)
    disk.fail_at = disk.calls + rng.randrange(1, 60)
    answers = {}
    try:
        for partition in range(6):
            harness.env.hold_flushes = rng.random() < 0.6
            answers[partition] = harness.produce_async("t", batch_of([b"v"]), partition)
            if rng.random() < 0.3:
                harness.env.run_flushes()
                harness.env.settle()
    except Crash:
        pass
    again = Harness(disk.after_crash(), FakeEnv(), **FSYNC)
    acked = [p for p, answer in answers.items() if answer.done]
    return len(acked), sum(again.read_all("t", p) == [(0, b"v")] for p in acked)


def test_a_power_cut_loses_no_first_record() -> None:
    found = [history(seed, FakeEnv()) for seed in range(200)]
    assert all(acked == there for acked, there in found)
    assert sum(acked for acked, _ in found) > 200


def test_that_test_finds_names_that_nobody_waits_for() -> None:
    """The planted defect: only what stands in the files is flushed."""

    class Forgetful(FakeEnv):
        def flush(self, file: Syncable, done: Any) -> None:
            if not isinstance(file, Names):
                super().flush(file, done)

    assert any(acked > there for acked, there in (history(n, Forgetful()) for n in range(200)))


def test_where_names_cannot_be_flushed_nothing_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L9: a failed flush is final for its partition, whatever it was of."""
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **FSYNC)
    harness.create("t", 2)
    sync_dir = disk.sync_dir

    def failing(path: str) -> None:
        if path == "t-0":
            raise OSError(errno.EIO, "no")
        sync_dir(path)

    monkeypatch.setattr(disk, "sync_dir", failing)
    for _ in range(2):
        assert harness.produce("t", batch_of([b"v"])).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", batch_of([b"v"]), 1).error_code == 0


def test_a_topic_that_goes_before_its_names_are_flushed_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = ShadowFiles(random.Random(1))
    harness = Harness(disk, FakeEnv(), **FSYNC)
    harness.create("t")
    harness.env.hold_flushes = True
    answer = harness.produce_async("t", batch_of([b"v"]))
    topic = harness.state.topics.get("t")
    assert topic is not None
    harness.state.topics.delete(topic)
    disk.sync_dir = lambda path: _gone()  # type: ignore[method-assign]
    harness.env.run_flushes()
    code = harness.read(answer, ProduceResponse, 11).responses[0].partition_responses[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "offline" not in caplog.text


def _gone() -> None:
    raise FileNotFoundError(errno.ENOENT, "no such directory")


def test_many_files_are_flushed_at_once_and_each_waiter_hears_of_its_own() -> None:
    """L1, L9: in the order in which they came; a file system commits once for all who wait."""
    meeting, posted, outcomes = threading.Barrier(6), [], []

    class File(MemoryFile):
        def sync(self) -> None:
            meeting.wait(PATIENCE_S)
            if self.path == "3":
                raise OSError(errno.EIO, "no")

    files = [File(str(n)) for n in range(6)]
    flusher = Flusher(lambda *call: posted.append(call))
    order = [0, 3, 3, 1, 5, 2, 4, 0]
    flusher.submit(
        [(files[n], lambda error, n=n: outcomes.append((n, error is None))) for n in order]
    )
    flusher.stop()
    [(tell, *args)] = posted
    tell(*args)
    assert outcomes == [(n, n != 3) for n in order]
    assert flusher.flushes == 6
