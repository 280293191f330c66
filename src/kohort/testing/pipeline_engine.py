"""What a `PipelineHarness` asks of what runs its pipeline. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kohort.records import Record
from kohort.retry.headers import Header

Reach = Callable[[str], None]
"""Called at each step with its name. Raises Crashed where the program is to die."""


@dataclass(frozen=True)
class FailedRecord:
    """A record that waits for a retry, or a dead letter, as the ledger knows it.

    Attributes:
        topic, partition, offset: where it was first.
        attempts: how often it was tried.
        reason, message: of the last failure.
        due_ms: when it is tried again, milliseconds since 1970; None for a dead letter.
    """

    topic: str
    partition: int
    offset: int
    attempts: int
    reason: str
    message: str
    due_ms: int | None = None


class Crashed(BaseException):
    """The program dies here. Not an Exception: no handler of errors may catch it."""


class Engine(Protocol):
    """What runs a pipeline for the harness."""

    @property
    def now_ms(self) -> int: ...
    @property
    def moved_ms(self) -> int:
        """How far `move_to` has moved the clock, without what passes while batches run."""
        ...

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[Header],
    ) -> None: ...
    def run(self) -> None:
        """Handle what is there and due. Raises Crashed where a step says so."""
        ...

    def next_due_ms(self, waiting: Sequence[FailedRecord]) -> int | None: ...
    def move_to(self, time_ms: int) -> None: ...
    def records(self, topic: str) -> list[Record]: ...
    def close(self) -> None: ...
