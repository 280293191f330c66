"""Work that continues after its request: its progress, its pause, how it ended.

Shell: threads, the clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from kohort.errors import KohortError, UsageError

log = logging.getLogger("kohort.console")

KEPT: Final = 100


class Job:
    """One piece of work.

    Args:
        id: its name; `again` is where it is begun again.
        kind: what it does.
        target: to what.
    """

    def __init__(self, id: str, kind: str, target: str, again: str) -> None:
        self.id, self.kind, self.target, self.again = id, kind, target, again
        self.begun_ms = time.time_ns() // 1_000_000
        self.count = 0
        self.outcome = ""
        self.stop: Callable[[], None] | None = None

    def progress(self, count: int) -> None:
        """So many records so far."""
        self.count = count


class Jobs:
    """The jobs of this console."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def start(self, job: Job, run: Callable[[], str], ended: Callable[[str], object]) -> None:
        """Run a job on a thread of its own. Raises UsageError while one of its name runs."""
        with self._lock:
            running = self._jobs.get(job.id)
            if running is not None and not running.outcome:
                raise UsageError(f"{job.kind} {job.id} is running; /job?id={job.id} shows it")
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT:
                del self._jobs[next(iter(self._jobs))]

        def work() -> None:
            try:
                job.outcome = run()
            except KohortError as error:
                job.outcome = f"failed: {error}"
            except Exception as error:  # a fault of ours: else the job could not be repeated
                log.exception("job %s failed", job.id)
                job.outcome = f"failed: {type(error).__name__}: {error}"
            ended(job.outcome)

        threading.Thread(target=work, name=f"kohort-{job.kind}", daemon=True).start()

    def get(self, name: str) -> Job | None:
        """A job by its id."""
        return self._jobs.get(name)

    def listed(self) -> list[Job]:
        """All of them, the newest first."""
        return list(self._jobs.values())[::-1]

    def stop_all(self) -> None:
        """Ask every job to stop after its page at hand."""
        for job in self.listed():
            if job.stop is not None and not job.outcome:
                job.stop()
