"""A leader epoch that a crash began is not given again, whatever a power cut takes (KIP-320, L11).

With durability `os`: else nobody has seen what a power cut takes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kohort.broker.log.directory import DataDirectory
from kohort.errors import ErrorCode
from kohort.wire.messages.fetch_response import FetchResponse
from tests.broker.harness import FakeEnv, Harness, batch_of, fetch_request
from tests.broker.shadow_files import ShadowFiles

CONFIG: dict[str, Any] = {"durability": "os", "log_segment_bytes": 2_000}


class Forgetful(random.Random):
    """Keeps nothing that was not synced: the first of each choice, and 0 of any number."""

    def random(self) -> float:
        return 0.0

    def getrandbits(self, k: int, /) -> int:
        return 0


def started(disk: ShadowFiles) -> Harness:
    return Harness(disk, FakeEnv(), **CONFIG)


def filled(count: int, partitions: int = 1) -> tuple[ShadowFiles, Harness]:
    disk = ShadowFiles(Forgetful())
    harness = started(disk)
    harness.create("t", partitions)
    for n in range(count):
        assert harness.produce("t", batch_of([b"%d" % n])).error_code == 0
    return disk, harness


def flush(disk: ShadowFiles, harness: Harness) -> None:
    """What the kernel does in a while."""
    for partition in harness.state.opened():
        assert partition.log is not None
        for segment in partition.log.segments:
            segment.file.sync()
        disk.sync_dir(partition.log.directory)
    disk.sync_dir("")


def epoch_of(harness: Harness, partition: int = 0) -> int:
    found = harness.state.topics.partition("t", partition)
    assert found is not None
    assert found.leader_epoch == harness.state.leadership.at("t", partition).epoch
    return found.leader_epoch


def test_a_power_cut_does_not_bring_back_the_epoch_before_a_crash() -> None:
    """Else a reader of what was lost skips what is written in its place."""
    disk, harness = filled(3)
    flush(disk, harness)
    second = started(disk)  # a crash
    assert epoch_of(second) == 1
    assert second.produce("t", batch_of([b"lost"])).base_offset == 3
    third = started(disk.after_crash())
    assert epoch_of(third) == 2
    assert third.read_all("t") == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert third.produce("t", batch_of([b"new", b"newer"])).base_offset == 3
    answer = third.ask(fetch_request("t", 4, epoch=1), FetchResponse, 12)
    fenced = answer.responses[0].partitions[0]
    assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("names", [True, False])
def test_nor_the_first_one_of_a_log_that_is_lost_whole(names: bool) -> None:
    """With its directory, or all that was in it."""
    disk, _ = filled(3)
    if names:
        disk.sync_dir("")
    again = started(disk.after_crash())
    assert again.read_all("t") == []
    assert epoch_of(again) == 1


def test_nor_the_last_one_of_an_orderly_stop() -> None:
    """KAFKA-10471: its marker is not back when the power is."""
    disk, harness = filled(3)
    harness.state.close()
    second = started(disk)
    assert second.state.directory.clean
    assert second.produce("t", batch_of([b"lost"])).base_offset == 3
    third = started(disk.after_crash())
    assert not third.state.directory.clean
    assert epoch_of(third) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_the_epochs_of_all_topics_are_kept_at_once(
    clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start with thousands of logs writes them once, and not at all after an orderly stop."""
    disk, harness = filled(1, partitions=3)
    harness.create("u", 2)
    for partition in range(2):
        assert harness.produce("u", batch_of([b"x"]), partition).error_code == 0
    if clean:
        harness.state.close()
    saves: list[DataDirectory] = []
    save = DataDirectory.save

    def counted(self: DataDirectory, **how: bool) -> None:
        saves.append(self)
        save(self, **how)

    monkeypatch.setattr(DataDirectory, "save", counted)
    again = started(disk)
    assert len(saves) == (0 if clean else 1)
    assert [epoch_of(again, n) for n in range(3)] == ([0] * 3 if clean else [1] * 3)
