"""Group commit: one thread a data directory that flushes for all who wait.

Rules:
- While it flushes, others queue; then it takes the whole queue, flushes each file once, and tells
  everybody in the order in which they came (O7, L1).
- Several files are flushed by several threads: a file system commits once for all who wait.
- An error goes to everybody who waits for that file; the file is not flushed again here.

Shell: threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cached_property
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from kohort.broker.log.files import Syncable
from kohort.broker.log.os_files import SYNC_THREADS

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger("kohort.broker")
_TOGETHER_MIN: Final = 4
"""So few files are flushed one by one: waking threads takes time, too."""

FlushDone = Callable[[OSError | None], None]
Waiting = list[tuple[Syncable, FlushDone]]


class Flusher:
    """The flusher of one data directory. `post` must run its argument on the loop's thread."""

    def __init__(self, post: Callable[..., None]) -> None:
        self._post = post
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self.flushes = 0
        """How often a file was flushed; with the number of waiters, the worth of grouping."""
        self._thread = threading.Thread(target=self._run, name="kohort-flusher", daemon=True)
        self._thread.start()

    def submit(self, waiting: Waiting) -> None:
        """Flush for some more waiters."""
        self._queue.put(waiting)

    def stop(self) -> None:
        """Flush what waits, then end."""
        self._queue.put(None)
        self._thread.join()
        if "_together" in self.__dict__:
            self._together.shutdown()

    def _run(self) -> None:
        more = True
        while more:
            taken = [self._queue.get()]
            while not self._queue.empty():  # no other thread takes from it
                taken.append(self._queue.get())
            more = None not in taken
            waiting = [waiter for group in taken if group is not None for waiter in group]
            if waiting:
                self._flush(waiting)

    def _flush(self, waiting: Waiting) -> None:
        files = list(dict.fromkeys(file for file, _ in waiting))
        few = len(files) < _TOGETHER_MIN
        errors = map(_sync, files) if few else self._together.map(_sync, files)
        results = dict(zip(files, errors, strict=True))
        self.flushes += len(files)
        self._post(_notify, waiting, results)

    @cached_property
    def _together(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor  # most brokers never come here

        return ThreadPoolExecutor(SYNC_THREADS, "kohort-flusher")


def _sync(file: Syncable) -> OSError | None:
    try:
        file.sync()
    except OSError as error:
        return error
    return None


def _notify(waiting: Waiting, results: dict[Syncable, OSError | None]) -> None:
    for file, done in waiting:
        try:
            done(results[file])
        except Exception:  # one waiter's defect must not leave the others without an answer
            log.exception("a waiter for %s", file.path)
