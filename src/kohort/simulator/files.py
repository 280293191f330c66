"""A simulated disk: the bytes written, which of them are durable, and the rest after a power cut.

Rules:
- A file's bytes are durable up to what a `sync` has covered; a name is durable once its directory
  was synced. Everything else may be lost in a power cut, wholly or in part.
- A directory's changes become durable in their order, as on a journaling file system: a power cut
  keeps a prefix of those that were not synced.
- Of bytes that were not synced a power cut keeps a prefix; its last part may be torn (zeros).
- `kill -9` of the process loses nothing: the operating system has it all.
- A disk that lies reports each sync as done and makes nothing durable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Final

from kohort.broker.log.files import Buffer, LogFile, Syncable
from kohort.simulator.schedule import Random

_TORN_BYTES_MAX: Final = 512


class _Node:
    """A file: its bytes in the page cache, and the durable ones."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.is_cut = False
        """Whether it was truncated since the last sync."""
        self.file: SimFile | None = None
        """The one handle, which every `open` returns: they share its size."""

    def sync(self, size: int) -> None:
        """Make the first `size` bytes durable."""
        self.durable = bytes(self.data[:size])
        self.is_cut = False

    def after_power_cut(self, chance: Random) -> None:
        """Lose what the disk did not have, perhaps not all of it."""
        kept = bytearray(self.durable)
        if self.is_cut:
            if chance.random() < 0.5:
                kept = self.data
        elif len(self.data) > len(self.durable):
            end = chance.randint(len(self.durable), len(self.data))
            kept = self.data[:end]
            torn = min(chance.randint(0, _TORN_BYTES_MAX), end - len(self.durable))
            if torn and chance.random() < 0.5:
                kept[end - torn :] = bytes(torn)
        self.data = bytearray(kept)
        self.durable = bytes(kept)
        self.is_cut = False


class _Directory:
    """A directory: its entries now, and the changes that are not durable yet."""

    def __init__(self) -> None:
        self.entries: dict[str, _Node | _Directory] = {}
        self._durable: dict[str, _Node | _Directory] = {}
        self._changes: list[dict[str, _Node | _Directory | None]] = []

    def set(self, changes: dict[str, _Node | _Directory | None]) -> None:
        """Apply one atomic change: names to their new nodes, None for names that go."""
        self._changes.append(changes)
        _apply(self.entries, changes)

    def sync(self) -> None:
        """Make every change durable."""
        self._durable = dict(self.entries)
        self._changes.clear()

    def after_power_cut(self, chance: Random) -> None:
        """Keep a prefix of the changes that were not durable."""
        for changes in self._changes[: chance.randint(0, len(self._changes))]:
            _apply(self._durable, changes)
        self._changes.clear()
        self.entries = dict(self._durable)
        for node in self.entries.values():
            node.after_power_cut(chance)


def _apply(
    entries: dict[str, _Node | _Directory], changes: dict[str, _Node | _Directory | None]
) -> None:
    for name, node in changes.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class SimFile:
    """An open file."""

    def __init__(self, files: SimFiles, path: str, node: _Node) -> None:
        self.path = path
        self.node = node
        self.size = len(node.data)
        self.unsynced = False
        self.failing_appends = 0
        """How many appends to come fail to this file alone."""
        self._files = files

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Write at the end. Raises OSError, as the plan says."""
        self.unsynced = True
        if self._files.written_as is not None:
            buffers = [self._files.written_as(self.path, b"".join(buffers))]
        fails = self._fails()
        before = len(self.node.data)
        for buffer in buffers:
            self.node.data += buffer
        if fails:
            del self.node.data[(before + len(self.node.data)) // 2 :]
        self.size = len(self.node.data)
        if fails:
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")

    def _fails(self) -> bool:
        for counter in (self, self._files):
            if counter.failing_appends > 0:
                counter.failing_appends -= 1
                return True
        return False

    def read(self, position: int, count: int) -> Buffer:
        """Up to `count` bytes."""
        return bytes(self.node.data[position : position + count])

    def views(self, position: int, count: int) -> list[Buffer]:
        """The same as a list."""
        data = self.read(position, count)
        return [data] if data else []

    def sync(self) -> None:
        """Make all of it durable. Raises OSError, as the plan says."""
        self.sync_to(self.size)

    def sync_to(self, size: int) -> None:
        """Make the first `size` bytes durable: what was there when a flush began."""
        self._files.may_fail()
        if not self._files.lies:
            self.node.sync(size)
        self.unsynced = self.size > size

    def truncate(self, size: int) -> None:
        """Cut the file."""
        del self.node.data[size:]
        self.size = len(self.node.data)
        self.node.is_cut = len(self.node.durable) > size
        self.unsynced = True

    def close(self) -> None:
        """Nothing is made durable by this."""


class SimFiles:
    """A data directory on a simulated disk; `Files`."""

    folds_case = False

    def __init__(self) -> None:
        self._root = _Directory()
        self.failing_appends = 0
        """How many appends to come fail, each after half of its bytes."""
        self.failing_syncs = 0
        self.lies = False
        self.written_as: Callable[[str, bytes], bytes] | None = None
        """What the process writes in place of what is appended to a path; None: just that."""

    def power_cut(self, chance: Random) -> None:
        """Lose what is not durable."""
        self._root.after_power_cut(chance)

    def open(self, path: str, *, create: bool = False) -> LogFile:
        """Open a file. Raises FileNotFoundError."""
        parent, name = self._place(path)
        node = parent.entries.get(name)
        if not isinstance(node, _Node):
            if not create:
                raise FileNotFoundError(path)
            node = _Node()
            parent.set({name: node})
        if node.file is None:
            node.file = SimFile(self, path, node)
        node.file.path, node.file.size = path, len(node.data)
        return node.file

    def list(self, path: str) -> list[str]:
        """Names in a directory."""
        directory = self._directory(path)
        return [] if directory is None else sorted(directory.entries)

    def read_all(self, path: str) -> bytes | None:
        """The bytes of a file, or None without one."""
        directory = self._directory(path.rpartition("/")[0])
        node = None if directory is None else directory.entries.get(path.rpartition("/")[2])
        return bytes(node.data) if isinstance(node, _Node) else None

    def make_dir(self, path: str) -> bool:
        """Make a directory; False when it was there."""
        parent, name = self._place(path)
        if name in parent.entries:
            return False
        parent.set({name: _Directory()})
        return True

    def rename(self, old: str, new: str) -> None:
        """Rename within one directory, atomically."""
        parent, name = self._place(old)
        target, new_name = self._place(new)
        node = parent.entries[name]
        if parent is target:
            parent.set({name: None, new_name: node})
        else:
            target.set({new_name: node})
            parent.set({name: None})

    def sync_all(self, files: Sequence[Syncable]) -> None:
        """Make each durable."""
        for file in files:
            file.sync()

    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""
        parent, name = self._place(path)
        if name not in parent.entries:
            raise FileNotFoundError(path)
        parent.set({name: None})

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it."""
        parent, name = self._place(path)
        if name in parent.entries:
            parent.set({name: None})

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. Raises OSError, as the plan says."""
        self.may_fail()
        directory = self._directory(path)
        if directory is not None and not self.lies:
            directory.sync()

    def may_fail(self) -> None:
        """Raise OSError where the plan has a sync fail."""
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, "the simulated disk failed")

    def close(self) -> None:
        """Nothing is made durable by this."""

    def _directory(self, path: str) -> _Directory | None:
        node: _Node | _Directory | None = self._root
        for name in path.split("/") if path else ():
            node = node.entries.get(name) if isinstance(node, _Directory) else None
        return node if isinstance(node, _Directory) else None

    def _place(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        directory = self._directory(parent)
        if directory is None:
            raise FileNotFoundError(parent)
        return directory, name
