"""Damage in segments: what is found, what a repair keeps (issue 14, item 5)."""

from __future__ import annotations

import logging
import random

import pytest

from kohort.broker.log.repair import damage_of, repair
from tests.broker.harness import FakeEnv, Harness, batch_of
from tests.broker.log.test_crash import CONFIG, filled
from tests.broker.shadow_files import Crash, ShadowFiles

COUNT = 60


def closed(count: int = COUNT) -> tuple[ShadowFiles, list[str]]:
    """A directory that a broker has left in order, and the segments in it."""
    disk, harness = filled(count)
    harness.state.close()
    return disk, [f"t-0/{n}" for n in disk.list("t-0") if n.endswith(".log")]


def restarted(disk: ShadowFiles) -> list[tuple[int, bytes]]:
    return Harness(disk, FakeEnv(), **CONFIG).read_all("t")


WHOLE = [(n, b"value %d" % n) for n in range(COUNT)]


def spoil(data: bytearray, how: str, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    if how == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif how == "zeros":
        data[at : at + 200] = bytes(len(data[at : at + 200]))
    elif how == "insert":
        data[at:at] = rng.randbytes(150)
    elif how == "cut":
        del data[at : at + 90]
    else:
        data += b"\x00" * 16 + b"\x02" * 200


@pytest.mark.parametrize("how", ["flip", "zeros", "insert", "cut", "garbage behind"])
def test_every_sound_record_stays_at_its_offset(how: str) -> None:
    """What comes after a repair is what was there, less the offsets that the repair named."""
    for seed in range(12):
        rng = random.Random(seed)
        disk, segments = closed()
        spoil(disk._live[rng.choice(segments)].data, how, rng)
        damage = damage_of(disk, "t-0")
        lost: set[int] = set()
        for each in damage:
            end = COUNT if each.next_offset < 0 else each.next_offset
            lost |= set(range(each.first_offset, end))
        repair(disk, "t-0", damage)
        assert damage_of(disk, "t-0") == []
        assert restarted(disk) == [each for each in WHOLE if each[0] not in lost]
        assert len(lost) <= 6
        if how == "garbage behind":
            assert not lost


def test_a_batch_inside_a_damaged_one_does_not_come_up() -> None:
    """A record may hold the bytes of a batch; behind a damaged batch the next one is taken."""
    inner = bytearray(batch_of([b"inner"]))
    inner[0:8] = (1).to_bytes(8, "big")
    disk, harness = filled(1)
    harness.produce("t", batch_of([bytes(inner)]))
    harness.produce("t", batch_of([b"last"]))
    harness.state.close()
    (segment,) = (f"t-0/{n}" for n in disk.list("t-0") if n.endswith(".log"))
    data = disk._live[segment].data
    second = int.from_bytes(data[8:12], "big") + 12
    data[second + 40] ^= 1
    (damage,) = damage_of(disk, "t-0")
    assert (damage.first_offset, damage.next_offset) == (1, 2)


def test_a_crash_in_a_repair_leaves_something_to_repair() -> None:
    calls = 1
    while True:
        disk, segments = closed()
        disk._live[segments[0]].data[150] ^= 1
        disk.calls, disk.fail_at = 0, calls
        try:
            repair(disk, "t-0", damage_of(disk, "t-0"))
        except Crash:
            disk = disk.after_crash()
        else:
            break
        repair(disk, "t-0", damage_of(disk, "t-0"))
        found = restarted(disk)
        assert found == [each for each in WHOLE if each in found]
        assert len(found) >= COUNT - 1
        calls += 1
    assert calls > 5


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_segment_that_is_missing_after_a_clean_shutdown_is_told(
    which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With its offsets, and once: the next clean shutdown leaves what is there."""
    disk, segments = closed()
    bases = [int(path[4:24]) for path in segments] + [COUNT]
    disk.remove(segments[which])
    with caplog.at_level(logging.WARNING):
        harness = Harness(disk, FakeEnv(), **CONFIG)
    at = which % len(segments)
    assert f"{segments[which]} is missing" in caplog.text
    assert f"offsets {bases[at]} to {bases[at + 1] - 1} are lost" in caplog.text
    harness.state.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Harness(disk, FakeEnv(), **CONFIG)
    assert "missing" not in caplog.text


def test_an_unreadable_log_says_how_to_repair_it(caplog: pytest.LogCaptureFixture) -> None:
    disk, _ = closed()
    harness = Harness(disk, FakeEnv(), **CONFIG)
    partition = harness.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log is not None
    first = partition.log.segments[0]
    first.index.forget()
    first.index.latest_ms = None
    first.index.remove()
    disk._live[first.file.path].data += b"\x07" * 100
    harness.env.advance(300_000)
    assert "kohort broker repair DATA_DIR" in (partition.offline or "")
    assert "kohort broker repair DATA_DIR" in caplog.text
