"""A real ext4 file system whose power can be cut: a loop device over a file, as root.

What was not flushed when it is cut is lost: the file system is shut down without writing its
journal out (the ioctl that xfstests uses), then mounted again, which replays the journal.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSHING = 2
IMAGE_BYTES = 256 << 20


def why_not() -> str:
    """Why this machine cannot do it; "" when it can."""
    if os.geteuid() != 0:
        return "only root may mount a file system"
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices here"
    return ""


class PowerCutDisk:
    """An ext4 file system under `directory`."""

    def __init__(self, directory: Path) -> None:
        self._image = directory / "disk.img"
        self.path = directory / "disk"
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mounted = False
        self.mount()

    def mount(self) -> None:
        """Switch it on; the journal is replayed."""
        _run("mount", "-o", "loop", str(self._image), str(self.path))
        self._mounted = True

    def cut(self) -> None:
        """From now on nothing reaches the disk, and everything that has not yet is lost."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSHING))
        finally:
            os.close(handle)

    def unmount(self) -> None:
        """Take it out; nobody may use it any more."""
        if self._mounted:
            _run("umount", str(self.path))
            self._mounted = False


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
