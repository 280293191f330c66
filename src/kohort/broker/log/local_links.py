"""Names by which a consumer on this machine reads segments itself (ADR 0015).

Rules:
- A segment that is to be read so gets a hard link `.local/RUN/NUMBER`. RUN is random (behind the
  name of the running kernel) and new with each start of the broker, NUMBER is never used twice: so
  a name always refers to the same file, even if the segment's own name is deleted, compacted or
  created again. Paths and inodes do not: a topic created again may get both of them back.
- Links of earlier runs go before the log is opened. Who finds RUN gone knows that recovery may have
  cut what it reads; who does not, that nothing below the high watermark has changed.
- A link goes with its segment, or it would hold the disk's space; at most `LINKS_MAX` are kept.
- Only the owner may enter, as with the data directory itself. Where links cannot be made, no client
  learns of any, and records are sent over the network.

Shell: files, and randomness (the name of the run). Everything on the loop's thread.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kohort.wire.local_files import kernel_id

if TYPE_CHECKING:
    from kohort.broker.log.files import LogFile

log = logging.getLogger("kohort.broker")

LINKS: Final = ".local"
LINKS_MAX: Final = 1_024


class LocalLinks:
    """The links of one run. `directory` is None where there can be none."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._numbers: OrderedDict[LogFile, int] = OrderedDict()
        """By file, the one that was asked for last at the end."""
        self._next = 1
        self.directory: str | None = None
        """The run's, an absolute path."""

    def begin(self) -> None:
        """Remove what earlier runs left, and make a directory for this one."""
        base = os.path.abspath(self._root / LINKS)
        try:
            os.makedirs(base, mode=0o700, exist_ok=True)
            for run in os.listdir(base):
                _remove(f"{base}/{run}")
            directory = f"{base}/{kernel_id()}.{os.urandom(16).hex()}"
            os.mkdir(directory, mode=0o700)
        except OSError as error:
            log.info("clients cannot read the log's files directly: %s", error)
            return
        self.directory = directory

    def number(self, file: LogFile) -> int | None:
        """The name of a file in `directory`; None where it can have none."""
        number = self._numbers.get(file)
        if number is not None:
            self._numbers.move_to_end(file)
            return number
        if self.directory is None:
            return None
        try:
            os.link(self._root / file.path, f"{self.directory}/{self._next}")
        except FileNotFoundError:  # the directory or the segment was removed
            return None
        except OSError as error:
            log.info("clients cannot read the log's files directly: %s", error)
            self.end()
            return None
        number = self._numbers[file] = self._next
        self._next += 1
        if len(self._numbers) > LINKS_MAX:
            self.drop(next(iter(self._numbers)))
        return number

    def drop(self, file: LogFile) -> None:
        """The file is closed permanently, or no longer read."""
        number = self._numbers.pop(file, None)
        if number is not None and self.directory is not None:
            with suppress(OSError):  # it is removed by the next start at the latest
                os.unlink(f"{self.directory}/{number}")

    def end(self) -> None:
        """The run is over."""
        self._numbers.clear()
        directory, self.directory = self.directory, None
        if directory is not None:
            with suppress(OSError):  # as above
                _remove(directory)


def _remove(run: str) -> None:
    """Remove the links of a run. Raises OSError."""
    for name in os.listdir(run):
        os.unlink(f"{run}/{name}")
    os.rmdir(run)
