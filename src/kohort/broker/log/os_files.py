"""The data directory on a real disk.

Rules:
- At most `max_open` descriptors are kept; only files without unsynced bytes are closed to make
  room, so that no write error can be lost between two openings.
- A file that is closed or removed while the flusher syncs it is closed by the flusher's side: a
  descriptor number is never used again under a running `fdatasync`.
- Large reads for sending are slices of a mapping, which halves the CPU of a fetch; the kernel
  copies them from the page cache to the socket. What is mapped is never cut off: files are only
  truncated above the high watermark.

Shell: threads (a lock between the loop and the flusher).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from kohort.broker.log.files import Buffer, LogFile
from kohort.errors import DataDirectoryInUseError, StorageError

_IOV_MAX = 1000
_MAP_FROM_BYTES = 128 << 10  # below, one copy costs less than the mapping's page faults
_fdatasync = getattr(os, "fdatasync", os.fsync)


class OsFile:
    """A file of `OsFiles`; its descriptor comes and goes."""

    def __init__(self, files: OsFiles, path: str, size: int) -> None:
        self.path = path
        self.size = size
        self.unsynced = False
        self._files = files
        self._mapped: memoryview | None = None

    def append(self, buffers: Sequence[Buffer]) -> None:
        fd = self._files.descriptor(self)
        self.unsynced = True
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
        self.unsynced = True

    def close(self) -> None:
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
        self._max_open = max_open
        self._open: OrderedDict[OsFile, int] = OrderedDict()
        self._mutex = threading.Lock()
        self._syncing: dict[OsFile, int] = {}
        self._orphans: set[int] = set()
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"the data directory {self.root} cannot be used: {error.strerror}; give another "
                "as data_dir (--data-dir), or change its permissions"
            ) from error
        self._take_lock()

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
        for file in list(self._open):
            self.release(file)
        if self._lock >= 0:
            # By hand, because a child that this process has forked holds the descriptor too.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1

    # -- descriptors

    def descriptor(self, file: OsFile) -> int:
        """The open descriptor of a file; the least recently used clean one makes room."""
        fd = self._open.get(file)
        if fd is not None:
            self._open.move_to_end(file)
            return fd
        if len(self._open) >= self._max_open:
            self._close_one()
        fd = os.open(self.root / file.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._open[file] = fd
        return fd

    def _close_one(self) -> None:
        for file in self._open:
            if not file.unsynced and file not in self._syncing:
                self.release(file)
                return

    def release(self, file: OsFile) -> None:
        file.unmap()
        with self._mutex:
            fd = self._open.pop(file, None)
            if fd is None:
                return
            if file in self._syncing:
                self._orphans.add(fd)
                return
        os.close(fd)

    def sync(self, file: OsFile) -> None:
        """Called on the flusher's thread too."""
        with self._mutex:
            fd = self._open.get(file)
            if fd is None:  # closed or removed since: a clean one, or one nobody waits for
                return
            self._syncing[file] = fd
            size = file.size
        try:
            _fdatasync(fd)
        finally:
            with self._mutex:
                del self._syncing[file]
                orphan = fd in self._orphans
                self._orphans.discard(fd)
            if orphan:
                os.close(fd)
        if file.size == size:
            file.unsynced = False

    # -- names

    def open(self, path: str, *, create: bool = False) -> LogFile:
        full = self.root / path
        if create:
            os.close(os.open(full, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return OsFile(self, path, os.stat(full).st_size)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / path))
        except FileNotFoundError:
            return []

    def read_all(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def make_dir(self, path: str, *, durable: bool = True) -> None:
        full = self.root / path
        try:
            full.mkdir(mode=0o700)
        except FileExistsError:
            return
        if durable:
            try:
                self.sync_dir(path.rpartition("/")[0])
            except OSError:
                full.rmdir()  # the next attempt has to find that it is not there
                raise

    def rename(self, old: str, new: str) -> None:
        os.replace(self.root / old, self.root / new)
        for file in self._open:
            if file.path == old or file.path.startswith(old + "/"):
                file.path = new + file.path[len(old) :]

    def remove(self, path: str) -> None:
        os.unlink(self.root / path)

    def remove_tree(self, path: str) -> None:
        import shutil  # it brings compressors along

        shutil.rmtree(self.root / path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
