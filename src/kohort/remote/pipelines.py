"""A pipeline as remote processes are shown and commanded: its progress, and the command to drain.

Shell: threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from kohort.remote.agent import Agent, Look
from kohort.remote.messages import Action, Command

KIND: Final = "pipeline"


class Measured(Protocol):
    """A pipeline's progress; `kohort.spark.Progress`."""

    @property
    def inputs(self) -> int:
        """Records read."""
        ...

    @property
    def done(self) -> int:
        """Records loaded."""
        ...

    @property
    def retrying(self) -> int:
        """Records that wait for a retry."""
        ...

    @property
    def failed(self) -> int:
        """Dead letters."""
        ...

    @property
    def retries(self) -> int:
        """Retries so far."""
        ...

    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]:
        """The next offset to read, by topic and partition."""
        ...


P = TypeVar("P", bound=Measured)


class Commanded(Protocol):
    """The part of a `Pipeline` that others may look at and command."""

    name: str
    stopping: bool

    @property
    def client_config(self) -> dict[str, str]:
        """Settings of its clients."""
        ...

    def stop(self) -> None:
        """End it soon."""
        ...


@contextmanager
def reachable(
    pipeline: Commanded, prefix: str, on_progress: Callable[[P], None] | None
) -> Generator[Callable[[P], None]]:
    """While inside, a pipeline publishes its progress and obeys commands.

    Args:
        pipeline: the one that runs.
        prefix: of the topics PREFIX.status and PREFIX.commands.
        on_progress: called with its progress, too.

    Returns:
        What to call with each progress.
    """
    last: list[P] = []

    def note(progress: P) -> None:
        last[:] = [progress]
        if on_progress is not None:
            on_progress(progress)

    def drain(_: Command) -> str:
        pipeline.stop()
        return "draining: it ends; what its batch at hand has not committed is read again"

    def status(_: Command) -> str:
        return str(last[0]) if last else "it has not measured its progress yet"

    actions: dict[Action, Callable[[Command], str]] = {Action.STATUS: status, Action.DRAIN: drain}
    agent = Agent(
        prefix,
        pipeline.client_config,
        KIND,
        pipeline.name,
        lambda: look_at(pipeline, last[0] if last else None),
        actions,
    )
    agent.start()
    try:
        yield note
    finally:
        agent.stop()


def look_at(pipeline: Commanded, progress: Measured | None) -> Look:
    """A pipeline at this instant; without a progress it is starting."""
    if progress is None:
        return Look("draining" if pipeline.stopping else "starting")
    figures: dict[str, Any] = {
        "inputs": progress.inputs,
        "done": progress.done,
        "lag": max(0, progress.inputs - progress.done),
        "retries_waiting": progress.retrying,
        "failed": progress.failed,
        "retries": progress.retries,
        "partitions": len(progress.next_offsets),
    }
    partitions = [
        {"topic": topic, "partition": number, "state": "reads", "position": offset}
        for (topic, number), offset in sorted(progress.next_offsets.items())
    ]
    return Look("draining" if pipeline.stopping else "running", figures, partitions)
