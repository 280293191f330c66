"""The data directory on a real disk.

Rules:
- At most `max_open` descriptors are kept, and half of what the process may have; only clean files,
  without unsynced bytes, are closed to make room, so that no write error can be lost between two
  openings. Where all are dirty, some of them are synced first: many at once, because a file system
  commits once for all who wait.
- A file is clean from before its sync to after its next write. Only the loop's thread writes and
  makes room, so it is never closed between a write and the moment in which that makes it dirty.
- A file that is closed or removed while the flusher syncs it is closed by the flusher's side: a
  descriptor number is never used again under a running `fdatasync`.
- macOS keeps what `fsync` wrote in the drive's cache; there F_FULLFSYNC is asked for, which any
  mapping costs, too: there large reads are copied.
- Large reads for sending are slices of a mapping, which halves the CPU of a fetch; the kernel
  copies them from the page cache to the socket. A mapped range is never cut off: files are only
  truncated above the high watermark.

Shell: threads (a lock between the loop and the flusher; some that sync many files).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from kohort.broker.log.files import Buffer, LogFile, Syncable
from kohort.broker.log.local_links import LocalLinks
from kohort.errors import DataDirectoryInUseError, StorageError

_IOV_MAX = 1000
_MAP_FROM_BYTES = sys.maxsize if sys.platform == "darwin" else 128 << 10
"""Below, one copy costs less than the mapping's page faults."""
SYNC_THREADS = 16
"""More gain little: 5,000 new files take 8 s one by one and 0.8 s so."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_NOT_THERE = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def syncing(full: int | None, plain: Callable[[int], None]) -> Callable[[int], None]:
    """What makes a file durable: `plain`, or the command `full` where the system has one.

    File systems that do not know the command, as those of a network, get `plain`.
    """
    if full is None:
        return plain

    def sync(fd: int) -> None:
        try:
            fcntl.fcntl(fd, full)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            plain(fd)

    return sync


_FULL: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_fdatasync = syncing(_FULL, getattr(os, "fdatasync", os.fsync))
_fsync = syncing(_FULL, os.fsync)


class OsFile:
    """A file of `OsFiles`; its descriptor comes and goes."""

    def __init__(self, files: OsFiles, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.failure: OSError | None = None
        """What its sync failed by, once and for all."""
        self._files = files
        self._mapped: memoryview | None = None

    @property
    def unsynced(self) -> bool:
        return self in self._files.dirty

    def append(self, buffers: Sequence[Buffer]) -> None:
        if self.failure is not None:
            raise self.failure
        files = self._files
        fd = files.descriptor(self)
        if len(buffers) == 1:
            total = len(buffers[0])
            written = os.write(fd, buffers[0])
        else:
            total = sum(map(len, buffers))
            written = os.writev(fd, buffers) if len(buffers) <= _IOV_MAX else 0
        if written < total:
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                rest = rest[os.write(fd, rest) :]
        self.size += total
        if self not in files.dirty:
            files.soil(self)

    def read(self, position: int, count: int) -> Buffer:
        return os.pread(self._files.descriptor(self), count, position)

    def views(self, position: int, count: int) -> list[Buffer]:
        end = min(position + count, self.size)
        if end - position < _MAP_FROM_BYTES:
            return [os.pread(self._files.descriptor(self), count, position)]
        if self._mapped is None or len(self._mapped) < end:
            fd = self._files.descriptor(self)
            self._mapped = memoryview(mmap.mmap(fd, self.size, prot=mmap.PROT_READ))
        return [self._mapped[position:end]]

    def sync(self) -> None:
        self._files.sync(self)

    def truncate(self, size: int) -> None:
        self._mapped = None
        os.ftruncate(self._files.descriptor(self), size)
        self.size = size
        self._files.soil(self)

    def close(self) -> None:
        self._files.links.drop(self)
        self._files.release(self)

    def unmap(self) -> None:
        """Let the mapping go as soon as what was read from it has been sent."""
        self._mapped = None


class OsFiles:
    """A directory of the operating system, locked against other processes.

    Raises DataDirectoryInUseError when another process holds it, StorageError when it cannot be
    used at all.
    """

    def __init__(self, root: str | Path, *, max_open: int = 512) -> None:
        self.root = Path(root)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if 0 <= limit < 2 * max_open:  # sockets want some, and modules that are imported later
            max_open = limit // 2
        self._max_open = max(2, max_open)
        self._clean: OrderedDict[OsFile, int] = OrderedDict()
        """Descriptors of files without unsynced bytes, the one that was used last at the end."""
        self.dirty: OrderedDict[OsFile, int] = OrderedDict()
        """Descriptors of the others, the one that was written first at the beginning."""
        self._mutex = threading.Lock()
        self._syncing: Counter[OsFile] = Counter()
        self._orphans: dict[OsFile, int] = {}
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"the data directory {self.root} cannot be used: {error.strerror}; give another "
                "as data_dir (--data-dir), or change its permissions"
            ) from error
        self._take_lock()
        self.links = LocalLinks(self.root)
        """For consumers on this machine; there are none before it is begun."""
        self.folds_case = os.path.exists(self.root / ".LOCK")

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise DataDirectoryInUseError(
                f"the data directory {self.root} is in use by process {holder}; stop that broker, "
                "or give this one another data_dir"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Close every descriptor and let the lock go. Nothing is synced by this."""
        self.links.end()
        for file in (*self._clean, *self.dirty):
            self.release(file)
        if self._lock >= 0:
            # By hand, because a child that this process has forked holds the descriptor too.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1

    # -- descriptors

    def descriptor(self, file: OsFile) -> int:
        """The open descriptor of a file; the least recently used clean one makes room."""
        fd = self.dirty.get(file)
        if fd is not None:
            return fd
        with self._mutex:  # the flusher moves files from one to the other
            fd = self._clean.get(file)
            if fd is not None:
                self._clean.move_to_end(file)
                return fd
            fd = self.dirty.get(file)
            if fd is not None:
                return fd
        return self._open(file, _FLAGS)

    def _open(self, file: OsFile, flags: int) -> int:
        if len(self._clean) + len(self.dirty) >= self._max_open:
            self._make_room()
        fd = os.open(f"{self.root}/{file.path}", flags, 0o600)
        with self._mutex:
            self._clean[file] = fd
        return fd

    def soil(self, file: OsFile) -> None:
        """It has unsynced bytes."""
        with self._mutex:
            fd = self._clean.pop(file, None)
            if fd is not None:
                self.dirty[file] = fd

    def _make_room(self) -> None:
        if not self._clean:
            # Who wants room has no part in a failure; the file keeps it for who writes or syncs it.
            with contextlib.suppress(OSError):
                self._sync_open(list(islice(self.dirty, max(1, self._max_open // 2))))
        with self._mutex:
            idle = next((file for file in self._clean if not self._syncing[file]), None)
        if idle is not None:
            self.release(idle)

    def release(self, file: OsFile) -> None:
        """Close it, or let the one who syncs it do that."""
        file.unmap()
        with self._mutex:
            fd = self._clean.pop(file, None)
            if fd is None:
                fd = self.dirty.pop(file, None)
            if fd is None:
                return
            if self._syncing[file]:
                self._orphans[file] = fd
                return
        os.close(fd)

    def sync(self, file: OsFile) -> None:
        """Called on the flusher's thread too."""
        if file.failure is not None:
            raise file.failure
        with self._mutex:
            fd = self.dirty.pop(file, None)
            if fd is None:
                fd = self._clean.get(file)
            if fd is None:  # closed or removed since: a clean file, or one without waiters
                return
            self._clean[file] = fd
            self._syncing[file] += 1
        try:
            _fdatasync(fd)
        except OSError as error:
            file.failure = error
            raise
        finally:
            self._synced(file)

    def _synced(self, file: OsFile) -> None:
        orphan = None
        with self._mutex:
            self._syncing[file] -= 1
            if not self._syncing[file]:
                del self._syncing[file]
                orphan = self._orphans.pop(file, None)
            if file.failure is not None and file in self._clean:
                self.dirty[file] = self._clean.pop(file)
        if orphan is not None:
            os.close(orphan)

    def sync_all(self, files: Sequence[Syncable]) -> None:
        """Sync many files at once, whether they are open or not."""
        step = max(1, self._max_open // 2)
        for first in range(0, len(files), step):
            some = files[first : first + step]
            for file in some:
                if isinstance(file, OsFile):
                    self.descriptor(file)
            self._sync_open(some)

    def _sync_open(self, files: Sequence[Syncable]) -> None:
        if len(files) == 1:
            files[0].sync()
            return
        from concurrent.futures import ThreadPoolExecutor  # most processes never come here

        with ThreadPoolExecutor(SYNC_THREADS, "kohort-sync") as pool:
            for _ in pool.map(_sync, files):
                """The first error is raised when all were tried."""

    # -- names

    def open(self, path: str, *, create: bool = False) -> LogFile:
        if not create:
            return OsFile(self, path, os.stat(f"{self.root}/{path}").st_size)
        file = OsFile(self, path, 0)
        fd = self._open(file, _FLAGS | os.O_CREAT)  # it is written to soon
        file.size = os.fstat(fd).st_size
        return file

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(f"{self.root}/{path}"))
        except FileNotFoundError:
            return []

    def read_all(self, path: str) -> bytes | None:
        try:
            with open(f"{self.root}/{path}", "rb", buffering=0) as file:
                return file.readall()
        except FileNotFoundError:
            return None

    def make_dir(self, path: str) -> bool:
        try:
            os.mkdir(f"{self.root}/{path}", mode=0o700)
        except FileExistsError:
            return False
        return True

    def rename(self, old: str, new: str) -> None:
        os.replace(f"{self.root}/{old}", f"{self.root}/{new}")

    def remove(self, path: str) -> None:
        os.unlink(f"{self.root}/{path}")

    def remove_tree(self, path: str) -> None:
        import shutil  # it brings compressors along

        shutil.rmtree(self.root / path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _fsync(fd)
        finally:
            os.close(fd)


def _sync(file: Syncable) -> None:
    file.sync()
