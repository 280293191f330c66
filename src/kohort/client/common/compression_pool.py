"""Threads that compress batches, as many as there are processors, while the loop serves others.

Rules:
- A packer takes one job at a time and posts what came of it to the loop; it decides nothing, and
  touches nothing but its job. `producer.plan.send_order` decides which request goes first.
- Jobs are requests that a producer has planned: no more wait than may be in flight.
- Threads begin with the first job: who sends without a codec, or only little, has none.
- Where time is virtual there are none at all (`NetworkThread.compression_pool`).

Shell: threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

Job = Callable[[], object]
OnPacked = Callable[[Any], object]
_THREADS_MAX: Final = 8
_JOIN_S: Final = 5.0


def processors() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CompressionPool:
    """The threads of one network thread. `post` must run its arguments on the loop's thread."""

    def __init__(self, post: Callable[..., object], count: int | None = None) -> None:
        self._post = post
        self._count = min(count or processors(), _THREADS_MAX)
        self._jobs: SimpleQueue[tuple[Job, OnPacked] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def submit(self, job: Job, on_packed: OnPacked) -> None:
        """Run `job()`, which must not raise; then `on_packed(result)` on the loop's thread."""
        if not self._threads:
            self._begin()
        self._jobs.put((job, on_packed))

    def stop(self, *, wait: bool) -> None:
        """End after the running jobs; waiting ones are dropped without a callback."""
        self._stopped = True
        for _ in self._threads:
            self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join(_JOIN_S)

    def _begin(self) -> None:
        for n in range(self._count):
            thread = threading.Thread(target=self._run, name=f"kohort-packer-{n}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, on_packed = entry
            if not self._stopped:
                self._post(on_packed, job())
            del entry, job, on_packed  # its memory is free as soon as it is done
