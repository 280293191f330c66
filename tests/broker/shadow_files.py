"""A disk that forgets: what was not synced survives a crash in part, or torn, or not at all.

Rules of this disk, which are worse than most real ones:
- Bytes are safe after the file's own `sync`, names after `sync_dir` of their directory.
- Of unsynced bytes a crash keeps none, a prefix, a random choice of 512-byte sectors, only the size
  (zeros), or all; of unsynced names it keeps a prefix of the directory's changes.
- `fail_at` raises `Crash` in the n-th call that changes anything, half way through it; `error_at`
  raises `error` there, after a part of what was to be written.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kohort.broker.log.files import Buffer, LogFile, Syncable

SECTOR = 512


class Crash(BaseException):
    """The power is gone. Not an Exception: nothing may catch it."""


class Inode:
    """A file's bytes, and those of them that are safe."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""

    def after_crash(self, rng: random.Random) -> bytes:
        live, safe = bytes(self.data), self.synced
        if live == safe:
            return safe
        if not live.startswith(safe):  # cut, or written anew: either may be found
            return rng.choice([live, safe])
        tail = live[len(safe) :]
        mode = rng.choice(["none", "prefix", "sectors", "zeros", "all"])
        if mode == "none":
            return safe
        if mode == "prefix":
            return safe + tail[: rng.randrange(len(tail) + 1)]
        if mode == "zeros":
            return safe + bytes(len(tail))
        if mode == "all":
            return live
        kept = [
            tail[at : at + SECTOR] if rng.random() < 0.5 else bytes(len(tail[at : at + SECTOR]))
            for at in range(0, len(tail), SECTOR)
        ]
        return safe + b"".join(kept)


class ShadowFile:
    """An open file."""

    def __init__(self, disk: ShadowFiles, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    @property
    def size(self) -> int:
        return len(self._inode.data)

    @property
    def unsynced(self) -> bool:
        return self._inode.synced != self._inode.data

    def append(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        half = self._disk.touch(len(data))
        self._inode.data += data if half is None else data[:half]
        self._disk.check(half)

    def read(self, position: int, count: int) -> Buffer:
        return bytes(self._inode.data[position : position + count])

    def views(self, position: int, count: int) -> list[Buffer]:
        return [self.read(position, count)]

    def sync(self) -> None:
        half = self._disk.touch(0)
        self._disk.check(half)
        self._inode.synced = bytes(self._inode.data)

    def truncate(self, size: int) -> None:
        half = self._disk.touch(0)
        self._disk.check(half)
        del self._inode.data[size:]

    def close(self) -> None: ...


class ShadowFiles:
    """The disk."""

    folds_case = False

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.calls = 0
        self.fail_at: int | None = None
        self.error_at: int | None = None
        self.error = OSError(28, "No space left on device")
        self._live: dict[str, Inode] = {}
        self._safe: dict[str, Inode] = {}
        self._dirs: set[str] = set()
        self._safe_dirs: set[str] = set()
        self._changes: dict[str, list[list[tuple[str, Inode | None]]]] = {}

    def touch(self, size: int) -> int | None:
        """Count a changing call; how much of it happens when it is the one that fails."""
        self.calls += 1
        if self.calls in (self.error_at, self.fail_at):
            return self.rng.randrange(size + 1)
        return None

    def check(self, half: int | None) -> None:
        if half is not None:
            raise Crash if self.calls == self.fail_at else self.error

    def _changed(self, *names: tuple[str, Inode | None]) -> None:
        """One change of a directory, which happens as a whole or not at all."""
        parent = names[0][0].rpartition("/")[0]
        self._changes.setdefault(parent, []).append(list(names))

    def open(self, path: str, *, create: bool = False) -> LogFile:
        inode = self._live.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(path)
            self.check(self.touch(0))
            inode = self._live[path] = Inode()
            self._changed((path, inode))
        return ShadowFile(self, path, inode)

    def list(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        inside = {p[len(prefix) :] for p in (*self._live, *self._dirs) if p.startswith(prefix)}
        return sorted({name.split("/")[0] for name in inside if name})

    def read_all(self, path: str) -> bytes | None:
        inode = self._live.get(path)
        return None if inode is None else bytes(inode.data)

    def make_dir(self, path: str) -> bool:
        self.check(self.touch(0))
        made = path not in self._dirs
        self._dirs.add(path)
        return made

    def rename(self, old: str, new: str) -> None:
        self.check(self.touch(0))
        inode = self._live.pop(old)
        self._live[new] = inode
        self._changed((old, None), (new, inode))

    def remove(self, path: str) -> None:
        self.check(self.touch(0))
        del self._live[path]
        self._changed((path, None))

    def remove_tree(self, path: str) -> None:
        for inside in [p for p in self._live if p.startswith(path + "/")]:
            self.remove(inside)
        self.check(self.touch(0))
        self._dirs.discard(path)
        self._safe_dirs.discard(path)
        self._safe = {p: i for p, i in self._safe.items() if not p.startswith(path + "/")}
        self._changes.pop(path, None)

    def sync_dir(self, path: str) -> None:
        self.check(self.touch(0))
        for change in self._changes.pop(path, []):
            self._apply(self._safe, change)
        self._safe_dirs.update(d for d in self._dirs if d.rpartition("/")[0] == path)

    @staticmethod
    def _apply(names: dict[str, Inode], change: list[tuple[str, Inode | None]]) -> None:
        for name, inode in change:
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode

    def sync_all(self, files: Sequence[Syncable]) -> None:
        for file in files:
            file.sync()

    def close(self) -> None: ...

    def after_crash(self) -> ShadowFiles:
        """What is found when the power is back."""
        found = ShadowFiles(self.rng)
        names = dict(self._safe)
        for changes in self._changes.values():
            for change in changes[: self.rng.randrange(len(changes) + 1)]:
                self._apply(names, change)
        for name, inode in names.items():
            parent = name.rpartition("/")[0]
            if parent and parent not in self._safe_dirs:
                continue
            kept = Inode()
            kept.synced = inode.after_crash(self.rng)
            kept.data = bytearray(kept.synced)
            found._live[name] = found._safe[name] = kept
        found._dirs = set(self._safe_dirs)
        found._safe_dirs = set(self._safe_dirs)
        return found
