"""Reading stored records from the broker's own files, where both are on one machine (ADR 0015).

Rules:
- Only files of the directory that a broker announced are opened, by number, and only plain ones.
  Its random name, behind that of the running kernel, shows that it is this machine's; that it can
  be opened shows that we may.
- Data read counts only if the directory is still there afterwards: a broker that restarts removes
  it before it may cut a file. An open file stays the same file even if its name is removed.
- Never a mapping: a file that is cut under it would end the process.
- Nothing waits for the disk: data that is not in memory is fetched over the network, and so is
  everything of that broker for `COLD_MS`; the same holds when a file is gone.
- A directory that cannot be opened is not tried again.
- Large data is read piece by piece, each just before it is decoded, so that it is still in the
  processor's cache, however much one answer has announced.

Shell: files. Directories are opened on the network thread, files on the reader's.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kohort.records.implementation import allocate, whole_batches
from kohort.wire.local_files import Place, kernel_id

COLD_MS: Final = 1_000
FILES_MAX: Final = 128
DIRECTORIES_MAX: Final = 64
"""Of brokers, and of starts of them, that one consumer remembers."""
PIECE_BYTES: Final = 4 << 20
"""What is read at once; less costs more Python, and more is not hotter when it is decoded."""
_NO_WAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_FILE_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


class _Descriptor:
    """An open file. Closed when no reference is left, so never during a read."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class LocalDirectory:
    """What one start of one broker lets us read."""

    def __init__(self, path: str, size_max: int) -> None:
        """Raises OSError."""
        self._directory = _Descriptor(os.open(path, _DIRECTORY_FLAGS))
        self._size_max = size_max
        self._files: OrderedDict[int, _Descriptor] = OrderedDict()
        """The one that was used last at the end."""
        self._flags = _NO_WAIT
        self._missed = False
        self._ordinary_until_ms = 0
        self.gone = False
        """The broker has ended, or the consumer has."""

    def is_usable(self, now_ms: int) -> bool:
        """Whether a Fetch may ask for places now. On the network thread."""
        if self._missed:
            self._missed = False
            self._ordinary_until_ms = now_ms + COLD_MS
        return not self.gone and now_ms >= self._ordinary_until_ms

    def read(self, place: Place) -> memoryview | None:
        """The records there; None: they have to be fetched the ordinary way. On the reader's."""
        if self.gone:
            return None
        try:
            data = self._read(place)
            if data is not None and os.fstat(self._directory.number).st_nlink == 0:
                self.gone = True
        except OSError:  # gone, not ours to read, not in memory: the broker has it all the same
            data = None
        if self.gone:
            return None
        if data is None:
            self._missed = True
        return data

    def _read(self, place: Place) -> memoryview | None:
        file = self._open(place.file)
        if place.size > self._size_max:
            return None
        if os.fstat(file.number).st_size < place.position + place.size:
            return None
        data = allocate(place.size)
        try:
            count = os.preadv(file.number, [data], place.position, self._flags)
        except OSError as error:
            if not self._flags or error.errno != errno.EOPNOTSUPP:
                raise
            self._flags = 0  # this file system cannot tell what is in memory
            count = os.preadv(file.number, [data], place.position)
        return data if count == place.size else None

    def _open(self, number: int) -> _Descriptor:
        files = self._files
        file = files.get(number)
        if file is None:
            name = str(number)
            file = _Descriptor(os.open(name, _FILE_FLAGS, dir_fd=self._directory.number))
            if not stat.S_ISREG(os.fstat(file.number).st_mode):
                raise OSError(errno.EINVAL, "no plain file", name)
            files[number] = file
            if len(files) > FILES_MAX:
                files.popitem(last=False)
        else:
            files.move_to_end(number)
        return file

    def close(self) -> None:
        """Nothing is read any more. From any thread."""
        self.gone = True
        self._files = OrderedDict()


class LocalRecords:
    """Records of one partition that are still in the broker's file."""

    __slots__ = ("_directory", "_place", "end_offset")

    def __init__(self, directory: LocalDirectory, place: Place) -> None:
        self._directory = directory
        self._place = place
        self.end_offset = place.end_offset
        """Where reading continues after them; -1: unknown."""

    def __len__(self) -> int:
        return self._place.size

    def read(self, *, whole: bool = False) -> tuple[memoryview, LocalRecords | None] | None:
        """Whole batches from the beginning, and what is behind them, which may be read later.

        None: it has to be fetched the ordinary way. `whole`: everything at once.
        """
        directory, place = self._directory, self._place
        if place.size > PIECE_BYTES and not whole:
            data = directory.read(place._replace(size=PIECE_BYTES))
            if data is None:
                return None
            size = whole_batches(data)
            if size:
                left = place.size - size
                behind = place._replace(position=place.position + size, size=left)
                return data[:size], LocalRecords(directory, behind)
            del data  # one batch is larger than that, or there is none: who decodes it will say
        data = directory.read(place)
        return None if data is None else (data, None)


class LocalReads:
    """The directories of all brokers of one consumer. On the network thread."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._kernel: str | None = None
        self._directories: OrderedDict[str, LocalDirectory | None] = OrderedDict()

    def usable(self, path: str | None, now_ms: int) -> LocalDirectory | None:
        """The directory that a broker announced, if files there may be asked for now."""
        if path is None:
            return None
        directories = self._directories
        if path not in directories:
            directories[path] = self._opened(path)
            if len(directories) > DIRECTORIES_MAX:
                _close(directories.popitem(last=False)[1])
        directory = directories[path]
        return directory if directory is not None and directory.is_usable(now_ms) else None

    def _opened(self, path: str) -> LocalDirectory | None:
        if self._kernel is None:
            self._kernel = kernel_id()
        if not os.path.basename(path).startswith(self._kernel + "."):
            return None
        try:
            return LocalDirectory(path, self._size_max)
        except OSError:  # another user's, or not to be seen from this container
            return None

    def close(self) -> None:
        """Close all files; unread data is lost."""
        for directory in self._directories.values():
            _close(directory)
        self._directories.clear()


def _close(directory: LocalDirectory | None) -> None:
    if directory is not None:
        directory.close()
