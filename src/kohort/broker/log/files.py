"""Where a log keeps its bytes: the one interface to the disk, which tests can replace.

Rules:
- Paths are texts relative to the data directory, with `/`.
- `LogFile.append` writes all of its buffers or raises; its caller cuts off the bytes of a failed
  append with `truncate`.
- Nothing is durable before `LogFile.sync` (its bytes) and `Files.sync_dir` (its name) return.
- An error of `sync` is final for that file: its next success proves nothing (PostgreSQL's lesson).
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Protocol

from kohort.errors import BrokerError, ErrorCode

DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
Buffer = bytes | bytearray | memoryview
_KEPT_BYTES_MIN: Final = 65_536  # a copy of less costs little
_HELD_FACTOR_MAX: Final = 16
"""So many times its size may be held by a piece of memory: by a frame whose other batches were
refused, or are gone."""


class Syncable(Protocol):
    """Something that may be made durable; `sync` may be called from another thread."""

    @property
    def path(self) -> str: ...

    def sync(self) -> None: ...


class LogFile(Protocol):
    """One append-only file. Only `sync` may be called from another thread."""

    path: str

    @property
    def size(self) -> int:
        """Bytes in the file."""
        ...

    @property
    def unsynced(self) -> bool:
        """Whether something was written by this process since it was synced."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write at the end; raises OSError, after which an unknown part has been written.

        Appended memory is given away: the caller does not write to it again.
        """
        ...

    def read(self, position: int, count: int) -> Buffer:
        """Up to `count` bytes at `position`; fewer at the end."""
        ...

    def views(self, position: int, count: int) -> list[Buffer]:
        """The same as `read` in as many pieces as cost nothing, for sending."""
        ...

    def sync(self) -> None:
        """Return when everything appended before the call is on the disk."""
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Files(Protocol):
    """A data directory."""

    @property
    def folds_case(self) -> bool:
        """Names that differ in upper and lower case alone are one (macOS, as it is sold)."""
        ...

    def open(self, path: str, *, create: bool = False) -> LogFile: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def read_all(self, path: str) -> bytes | None:
        """The whole of a small file, or None when it is not there."""
        ...

    def make_dir(self, path: str) -> bool:
        """Make a directory; False when it was there. Durable after `sync_dir` of its parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file of that name. Durable after `sync_dir` of its directory.

        Only closed files are renamed.
        """
        ...

    def sync_all(self, files: Sequence[Syncable]) -> None:
        """`sync` each of these, perhaps many at once; raises what the first raised."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None: ...

    def close(self) -> None:
        """Let go of everything. Nothing is synced by this."""
        ...


class Names:
    """The names in a directory, to be made durable like file contents."""

    __slots__ = ("_files", "path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path

    def sync(self) -> None:
        """Return when every name that was there before the call is on the disk. Raises OSError."""
        self._files.sync_dir(self.path)


def disk_refusal(error: OSError) -> BrokerError:
    """The message to clients after the disk refused a call."""
    free = "; free some space there" if error.errno in DISK_FULL else ""
    why = error.strerror or error
    text = f"the broker cannot write to its disk: {why}{free}"
    return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, text)


def parent_of(path: str) -> str:
    """The directory of a path; "" is the data directory itself."""
    return path.rpartition("/")[0]


def replace_file(files: Files, path: str, data: bytes, *, durable: bool = True) -> None:
    """Write a small file in one step: a reader finds the old content or the new, never a mix."""
    temporary = path + ".tmp"
    if files.read_all(temporary) is not None:
        files.remove(temporary)
    file = files.open(temporary, create=True)
    try:
        file.append([data])
        if durable:
            file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    if durable:
        # Without this the rename itself may be rolled back by a power cut.
        files.sync_dir(parent_of(path))


class MemoryFile:
    """A file of `MemoryFiles`: the appended pieces, large ones as they came, small ones joined."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._starts: list[int] = []
        self._pieces: list[bytes | memoryview] = []
        self.unsynced = False

    def append(self, buffers: Sequence[Buffer]) -> None:
        small: list[Buffer] = []
        for buffer in buffers:
            if isinstance(buffer, memoryview) and _is_worth_keeping(buffer):
                self._add(b"".join(small))
                small.clear()
                self._add(buffer.toreadonly())
            else:
                small.append(buffer)
        self._add(b"".join(small))

    def _add(self, piece: bytes | memoryview) -> None:
        if piece:
            self._starts.append(self.size)
            self._pieces.append(piece)
            self.size += len(piece)

    def views(self, position: int, count: int) -> list[Buffer]:
        end = min(position + count, self.size)
        pieces: list[Buffer] = []
        at = bisect_right(self._starts, position) - 1
        while position < end:
            start, piece = self._starts[at], self._pieces[at]
            take = min(end - start, len(piece))
            pieces.append(memoryview(piece)[position - start : take])
            position = start + take
            at += 1
        return pieces

    def read(self, position: int, count: int) -> Buffer:
        pieces = self.views(position, count)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sync(self) -> None: ...

    def truncate(self, size: int) -> None:
        kept = bytes(self.read(0, size))
        self._starts, self._pieces, self.size = [], [], 0
        self.append([kept])

    def close(self) -> None: ...


def _is_worth_keeping(view: memoryview) -> bool:
    """Whether it is large, and not a small part of what it would keep alive."""
    size = len(view)
    return size >= _KEPT_BYTES_MIN and len(memoryview(view.obj)) <= size * _HELD_FACTOR_MAX


class MemoryFiles:
    """A data directory in memory: durability `memory`. It outlives a broker that is restarted."""

    folds_case = False

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._dirs: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> LogFile:
        file = self._files.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(path)
            file = self._files[path] = MemoryFile(path)
        return file

    def list(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        inside = {p[len(prefix) :] for p in (*self._files, *self._dirs) if p.startswith(prefix)}
        return sorted({name.split("/")[0] for name in inside if name})

    def read_all(self, path: str) -> bytes | None:
        file = self._files.get(path)
        return None if file is None else bytes(file.read(0, file.size))

    def make_dir(self, path: str) -> bool:
        made = path not in self._dirs
        self._dirs.add(path)
        return made

    def rename(self, old: str, new: str) -> None:
        if old in self._files:
            file = self._files[new] = self._files.pop(old)
            file.path = new
            return
        self._dirs.discard(old)
        self._dirs.add(new)
        for path in [p for p in self._files if p.startswith(old + "/")]:
            file = self._files.pop(path)
            file.path = new + path[len(old) :]
            self._files[file.path] = file

    def remove(self, path: str) -> None:
        del self._files[path]

    def remove_tree(self, path: str) -> None:
        self._dirs.discard(path)
        for inside in [p for p in self._files if p.startswith(path + "/")]:
            del self._files[inside]

    def sync_dir(self, path: str) -> None: ...

    def close(self) -> None: ...

    def sync_all(self, files: Sequence[Syncable]) -> None: ...
