"""What an `App` gives away: how a run has ended, and what a harness needs of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kohort.errors import UsageError
from kohort.processing.engine.app_routes import AppRoutes
from kohort.processing.engine.failures import FailedAttempt
from kohort.processing.engine.state import REFUSED_AFTER_ALL, Limits
from kohort.processing.runtime.exactly_once import Exactly
from kohort.processing.workers.handlers import HandlerSpec
from kohort.retry.handling import SetupStore

if TYPE_CHECKING:
    from kohort.processing.workers.task_pool import Lifespan  # asyncio, for those who use it


@dataclass(frozen=True)
class Ended:
    """How a run has ended.

    Args:
        counts: how often each outcome has happened, as `App.counts`.
        given_up: records that were still in progress when the time to drain was over; the next
            owner of their partitions handles them again.
        uncommitted: partitions whose last commit failed; their next owner handles the records
            since the commit before again.
    """

    counts: Mapping[str, int]
    given_up: int
    uncommitted: int = 0

    @property
    def clean(self) -> bool:
        """Whether everything that was begun was finished and committed."""
        return not self.given_up and not self.uncommitted

    def __str__(self) -> str:
        counts = Counter(self.counts)
        counts["succeeded"] -= counts[REFUSED_AFTER_ALL]
        parts = [f"{label} {counts[name]:,}" for name, label in _SUMMARY]
        parts += [f"abandoned {self.given_up:,}"] if self.given_up else []
        parts += [f"partitions not committed {self.uncommitted:,}"] if self.uncommitted else []
        return ", ".join(parts)


_SUMMARY: Final = (
    ("succeeded", "succeeded"),
    ("to_retry", "scheduled for retry"),
    ("to_dead_letter", "dead-lettered"),
)


_loading: list[str] = []


@contextmanager
def loading(name: str) -> Generator[None]:
    """While a command imports the program that makes the app, which is not to run by that."""
    _loading.append(name)
    try:
        yield
    finally:
        _loading.remove(name)


def refuse_while_loading() -> None:
    """Raise UsageError when a program that is imported calls `app.run()`."""
    if _loading:
        raise UsageError(
            f"{_loading[-1]} calls app.run() when it is imported; put the call under "
            '`if __name__ == "__main__":`'
        )


@dataclass(frozen=True)
class AppParts:
    """What an app is made of, for a harness that runs its handlers without a cluster."""

    specs: Mapping[str, HandlerSpec]
    routes: AppRoutes
    limits: Limits
    exactly: Exactly
    crash_guard: bool
    setups: Sequence[Callable[[SetupStore], None]]
    on_failure: Sequence[Callable[[FailedAttempt], object]]
    lifespans: Sequence[Lifespan]
