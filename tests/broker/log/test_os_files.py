"""The data directory on a real disk: few descriptors, no lost error, syncs at once (L3, L9)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort.broker.log import os_files
from kohort.broker.log.files import LogFile
from kohort.broker.log.os_files import OsFiles

OPEN_MAX = 8
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="looks at its own descriptors in /proc"
)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[OsFiles]:
    made = OsFiles(tmp_path, max_open=OPEN_MAX)
    yield made
    made.close()


class Disk:
    """`fdatasync`, seen and sometimes refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: set[str] = set()
        self.bad = ""
        monkeypatch.setattr(os_files, "_fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]
        if name == self.bad:
            raise OSError(5, "Input/output error")
        self.synced.add(name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def opened(directory: Path) -> set[str]:
    """The files of a directory that this process holds open."""
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that lists them
            continue
        if target.startswith(f"{directory}/") and not target.endswith(".lock"):
            found.add(target.rpartition("/")[2])
    return found


def filled(files: OsFiles, count: int) -> list[LogFile]:
    made = [files.open(f"f{n}", create=True) for n in range(count)]
    for n, file in enumerate(made):
        file.append([b"%d" % n])
    return made


def test_descriptors_are_bounded_when_nobody_syncs(
    files: OsFiles, disk: Disk, tmp_path: Path
) -> None:
    """At durability `os` every file has unsynced bytes; thousands of partitions must not hold a
    descriptor each. What is closed was synced before."""
    made = filled(files, 10 * OPEN_MAX)
    held = opened(tmp_path)
    assert len(held) <= OPEN_MAX
    assert {file.path for file in made} - held <= disk.synced
    assert [bytes(file.read(0, 9)) for file in made] == [b"%d" % n for n in range(len(made))]
    for file in made:  # written again, by another descriptor
        file.append([b"!"])
    assert all(bytes(file.read(0, 9)).endswith(b"!") for file in made)


def test_clean_files_make_room_first_and_the_last_used_ones_stay(
    files: OsFiles, disk: Disk, tmp_path: Path
) -> None:
    made = filled(files, OPEN_MAX)
    for file in made[1:]:
        file.sync()
    made[1].read(0, 1)
    disk.synced.clear()
    filled_later = files.open("later", create=True)
    filled_later.append([b"x"])
    held = opened(tmp_path)
    assert {"f0", "f1", "later"} <= held, "the dirty one and the one used last stay"
    assert "f2" not in held
    assert not disk.synced


def test_an_error_is_told_to_who_writes_the_file_not_to_who_needs_room(
    files: OsFiles, disk: Disk
) -> None:
    """An error of a sync is final: neither a write nor a second sync goes on as if nothing was."""
    disk.bad = "f0"
    made = filled(files, 3 * OPEN_MAX)
    disk.bad = ""
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            made[0].append([b"more"])
        with pytest.raises(OSError, match="Input/output"):
            made[0].sync()
    assert made[0].unsynced, "it is not closed to make room"
    made[1].append([b"more"])
    with pytest.raises(OSError, match="Input/output"):
        files.sync_all(made)


def test_all_are_synced_at_once_also_those_that_are_closed(files: OsFiles, disk: Disk) -> None:
    made = filled(files, 3 * OPEN_MAX)
    disk.synced.clear()
    files.sync_all(made)
    assert disk.synced == {file.path for file in made}
    assert not any(file.unsynced for file in made)


def test_a_write_during_a_sync_leaves_the_file_unsynced(
    files: OsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flusher must not call bytes safe that came while it waited for the disk."""
    file = files.open("f", create=True)
    file.append([b"a"])

    def sync(fd: int) -> None:
        file.append([b"b"])

    monkeypatch.setattr(os_files, "_fdatasync", sync)
    file.sync()
    assert file.unsynced
    monkeypatch.setattr(os_files, "_fdatasync", lambda fd: None)
    file.sync()
    assert not file.unsynced


def test_a_file_that_is_closed_during_its_sync_keeps_its_descriptor_till_the_end(
    files: OsFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A number is never used again under a running `fdatasync`."""
    file = files.open("f", create=True)
    file.append([b"a"])

    def sync(fd: int) -> None:
        file.close()
        os.fstat(fd)
        assert opened(tmp_path) == {"f"}

    monkeypatch.setattr(os_files, "_fdatasync", sync)
    file.sync()
    assert opened(tmp_path) == set()


@pytest.mark.parametrize("count", [1, 3])
def test_an_append_ends_when_the_system_has_every_byte(
    files: OsFiles, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """L5: a system that takes a few bytes at once is asked again, before the buffers are free."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    monkeypatch.setattr(os, "writev", lambda fd, buffers: write(fd, b"".join(buffers)[:5]))
    buffers = [bytearray(b"some bytes"), bytearray(b" of a "), bytearray(b"batch")][:count]
    whole = b"".join(buffers)
    file = files.open("f", create=True)
    file.append(buffers)
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))  # as a pool does with what nobody refers to
    assert (file.size, bytes(file.read(0, 100))) == (len(whole), whole)
