"""Group commit: one thread a data directory that flushes for all who wait.

Rules:
- While it flushes, others queue; then it takes the whole queue, flushes each file once, and tells
  everybody in the order in which they came (reliability reference, section 4).
- An error goes to everybody who waits for that file; the file is not flushed again here.

Shell: threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from kohort.broker.log.files import LogFile

log = logging.getLogger("kohort.broker")

FlushDone = Callable[[OSError | None], None]
Waiting = list[tuple[LogFile, FlushDone]]


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

    def _run(self) -> None:
        more = True
        while more:
            taken = [self._queue.get()]
            while not self._queue.empty():  # nobody else takes from it
                taken.append(self._queue.get())
            more = None not in taken
            waiting = [waiter for group in taken if group is not None for waiter in group]
            if waiting:
                self._flush(waiting)

    def _flush(self, waiting: Waiting) -> None:
        results: dict[LogFile, OSError | None] = {}
        for file, _ in waiting:
            if file not in results:
                results[file] = _sync(file)
                self.flushes += 1
        self._post(_tell, waiting, results)


def _sync(file: LogFile) -> OSError | None:
    try:
        file.sync()
    except OSError as error:
        return error
    return None


def _tell(waiting: Waiting, results: dict[LogFile, OSError | None]) -> None:
    for file, done in waiting:
        try:
            done(results[file])
        except Exception:  # one waiter's defect must not leave the others without an answer
            log.exception("a waiter for %s", file.path)
