"""What macOS does otherwise with files, simulated: what is flushed, names, limits."""

from __future__ import annotations

import errno
import os
import resource
import sys
from pathlib import Path

import pytest

from kohort import Admin, NewTopic
from kohort.broker.base.config import BrokerConfig
from kohort.broker.log import os_files
from kohort.broker.log.files import MemoryFiles
from kohort.broker.log.os_files import OsFiles, syncing
from kohort.broker.server import server
from kohort.errors import KohortError
from tests.clusters import Embedded as Cluster

FULL = 51


class Kernel:
    """`fcntl`, which may know the full flush or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int = 0) -> None:
        self.error = error
        self.full: list[int] = []
        self.plain: list[int] = []
        monkeypatch.setattr(os_files.fcntl, "fcntl", self._fcntl)

    def _fcntl(self, fd: int, command: int) -> int:
        assert command == FULL
        self.full.append(fd)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return 0


def test_where_the_drive_has_a_cache_of_its_own_it_is_flushed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is acknowledged after a flush has to be on the disk (macOS: F_FULLFSYNC)."""
    kernel = Kernel(monkeypatch)
    syncing(FULL, kernel.plain.append)(7)
    assert (kernel.full, kernel.plain) == ([7], [])


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_it_gets_what_there_is(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    kernel = Kernel(monkeypatch, error)
    syncing(FULL, kernel.plain.append)(7)
    assert kernel.plain == [7]


def test_an_error_of_the_disk_is_no_reason_to_ask_for_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="error"):
        syncing(FULL, kernel.plain.append)(7)
    assert not kernel.plain


def test_elsewhere_nothing_stands_between() -> None:
    assert syncing(None, os.fsync) is os.fsync
    if sys.platform == "linux":
        assert os_files._fdatasync is os.fdatasync


def test_where_mapping_costs_a_flush_large_reads_are_copied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python's mmap flushes the file on macOS: not something for the loop's thread."""
    monkeypatch.setattr(os_files, "_MAP_FROM_BYTES", sys.maxsize)
    monkeypatch.setattr(os_files, "mmap", None)
    files = OsFiles(tmp_path)
    file = files.open("f", create=True)
    file.append([bytes(range(256)) * 4_096])
    assert b"".join(bytes(v) for v in file.views(256, 1 << 20)) == bytes(range(256)) * 4_095
    files.close()


def test_a_directory_says_whether_it_tells_cases_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / ".LOCK").touch()  # as a file system without cases would answer
    for name, folds in (("a", False), ("b", True)):
        files = OsFiles(tmp_path / name)
        assert files.folds_case is folds
        files.close()


def test_two_topics_never_share_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `Orders-0` is `orders-0` the second one is refused: their logs would be one."""
    monkeypatch.setattr(MemoryFiles, "folds_case", True)
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 1)])
        with pytest.raises(KohortError, match="upper and lower case alone"):
            admin.create_topics([NewTopic("Orders", 1)])
        admin.delete_topics(["orders"])
        admin.create_topics([NewTopic("Orders", 1)])


def test_topics_may_differ_in_case_where_files_may() -> None:
    with Cluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 1), NewTopic("Orders", 1)])


class Limits:
    """macOS: no hard limit on descriptors, and more than `most` refused all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, soft: int, most: int) -> None:
        self.soft, self.most = soft, most
        monkeypatch.setattr(resource, "getrlimit", lambda _: (self.soft, resource.RLIM_INFINITY))
        monkeypatch.setattr(resource, "setrlimit", self._set)

    def _set(self, _: int, limits: tuple[int, int]) -> None:
        if limits[0] > self.most:
            raise ValueError("current limit exceeds maximum limit")
        self.soft = limits[0]


@pytest.mark.parametrize(("most", "granted"), [(10_240, 10_240), (100_000, 20_564), (300, 256)])
def test_descriptors_are_asked_for_as_far_as_the_system_goes(
    monkeypatch: pytest.MonkeyPatch, most: int, granted: int
) -> None:
    limits = Limits(monkeypatch, 256, most)
    server._want_descriptors(
        BrokerConfig(durability="memory", max_open_files=500, max_connections=20_000)
    )
    assert limits.soft == granted
