"""A disk that fails when a test says so: a layer between the logs and where they keep their bytes.

Rules:
- A failing append writes half of its buffers before it raises, as a full disk does.
- Errors are the operating system's (EIO, ENOSPC); the broker decides how to handle them.
- `sync` is called by the flusher's thread, all else by the broker's; a turn is taken under a lock.

Shell: threads (a lock).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from kohort.broker.log.files import Buffer, Files, LogFile, Syncable
from kohort.errors import UsageError
from kohort.lean import dataclass, replace

OPERATIONS: Final = ("append", "sync", "read")
ERRORS: Final = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS}
MAX_RULES: Final = 1_000


@dataclass(slots=True)
class DiskFault:
    """The `after`+1-th call of an operation on a file whose path matches, and `times` - 1 more."""

    operation: str
    error: str = "EIO"
    path: str = "*"
    """With `*` and `?`; a log's path is `TOPIC-PARTITION/OFFSET.log`."""
    after: int = 0
    times: int | None = 1
    """None: until it is cleared."""
    hits: int = 0

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise UsageError(f"operation={self.operation!r}; it is one of {', '.join(OPERATIONS)}")
        if self.error not in ERRORS:
            raise UsageError(f"error={self.error!r}; it is one of {', '.join(ERRORS)}")
        if self.after < 0 or (self.times is not None and self.times < 1):
            raise UsageError("after is at least 0, times at least 1 (None: no end)")


class Disk:
    """The faults of a disk; one for all lives of a broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[DiskFault] = []

    def add(self, fault: DiskFault) -> DiskFault:
        """Fail from now on. Raises UsageError beyond 1,000."""
        with self._lock:
            if len(self._faults) >= MAX_RULES:
                raise UsageError(f"{MAX_RULES} faults of the disk are set; clear some first")
            self._faults.append(fault)
        return fault

    def list(self) -> Sequence[DiskFault]:
        """Copies of those that are set, used up or not."""
        with self._lock:
            return [replace(fault) for fault in self._faults]

    def clear(self) -> None:
        """Fail no longer."""
        with self._lock:
            self._faults.clear()

    def check(self, operation: str, path: str) -> None:
        """Raise OSError when this call is to fail."""
        if not self._faults:
            return
        with self._lock:
            for fault in self._faults:
                if fault.operation != operation or not fnmatchcase(path, fault.path):
                    continue
                if fault.after:
                    fault.after -= 1
                elif fault.times is None or fault.hits < fault.times:
                    fault.hits += 1
                    number = ERRORS[fault.error]
                    raise OSError(number, os.strerror(number), path)


class FaultyFile:
    """A file that asks the disk's faults first."""

    def __init__(self, inner: LogFile, disk: Disk) -> None:
        self._inner = inner
        self._check: Callable[[str, str], None] = disk.check
        self.path = inner.path
        self.size = inner.size

    @property
    def unsynced(self) -> bool:
        return self._inner.unsynced

    def append(self, buffers: Sequence[Buffer]) -> None:
        try:
            self._check("append", self.path)
        except OSError:
            whole = b"".join(buffers)
            self._inner.append([whole[: len(whole) // 2]])
            self.size = self._inner.size
            raise
        self._inner.append(buffers)
        self.size = self._inner.size

    def read(self, position: int, count: int) -> Buffer:
        self._check("read", self.path)
        return self._inner.read(position, count)

    def views(self, position: int, count: int) -> list[Buffer]:
        self._check("read", self.path)
        return self._inner.views(position, count)

    def sync(self) -> None:
        self._check("sync", self.path)
        self._inner.sync()

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)
        self.size = self._inner.size

    def close(self) -> None:
        self._inner.close()


class FaultyFiles:
    """A data directory whose files are `FaultyFile`s."""

    def __init__(self, inner: Files, disk: Disk) -> None:
        self._inner = inner
        self._disk = disk
        self.folds_case = inner.folds_case
        self.list = inner.list
        self.read_all = inner.read_all
        self.make_dir = inner.make_dir
        self.rename = inner.rename
        self.remove = inner.remove
        self.remove_tree = inner.remove_tree
        self.sync_dir = inner.sync_dir
        self.close = inner.close

    def open(self, path: str, *, create: bool = False) -> LogFile:
        return FaultyFile(self._inner.open(path, create=create), self._disk)

    def sync_all(self, files: Sequence[Syncable]) -> None:
        for file in files:
            file.sync()
