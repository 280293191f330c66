"""Work of the console that continues after its request."""

from __future__ import annotations

from queue import SimpleQueue

from kohort.console.screens.jobs import Job, Jobs
from tests.patience import PATIENCE_S


def test_a_job_that_raises_anything_has_an_end_and_may_be_repeated() -> None:
    """It was shown as running for ever, and could not be begun again."""
    jobs, ended = Jobs(), SimpleQueue[str]()

    def fails() -> str:
        raise ValueError("odd")

    for run, outcome in ((fails, "failed: ValueError: odd"), (lambda: "done", "done")):
        jobs.start(Job("r1", "redrive", "orders", "/"), run, ended.put)
        assert ended.get(timeout=PATIENCE_S) == outcome
