"""An `App` as remote processes are shown and commanded: its health in figures, and what it can do.

Shell: threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from kohort.config import format_elapsed
from kohort.processing.engine.health import AppHealth, AppPartitionHealth
from kohort.processing.runtime.client_settings import ClientSettings
from kohort.remote.agent import Agent, Look
from kohort.remote.messages import Action, Command

KIND: Final = "app"


class Reachable(Protocol):
    """The part of an `App` that others may look at and command."""

    group: str
    client_settings: ClientSettings

    @property
    def is_paused(self) -> bool: ...
    @property
    def is_stopping(self) -> bool: ...
    def health(self) -> AppHealth: ...
    def counts(self) -> dict[str, int]: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def retry_now(self) -> None:
        """Run what waits in the retry topics now."""
        ...

    def stop(self) -> None: ...
    def retry_record(self, topic: str, partition: int, offset: int) -> None: ...
    def dead_letter_record(self, topic: str, partition: int, offset: int, by: str = "") -> None: ...


@contextmanager
def reachable(app: Reachable, prefix: str) -> Generator[Agent]:
    """While inside, the app publishes its health and obeys commands."""
    agent = Agent(
        prefix, app.client_settings.shared, KIND, app.group, lambda: look_at(app), _actions(app)
    )
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def look_at(app: Reachable) -> Look:
    """The app at this instant."""
    state = "draining" if app.is_stopping else "paused" if app.is_paused else "running"
    health = app.health()
    return Look(state, figures(health, app.counts()), _partitions(health), list(health.concerns))


def figures(health: AppHealth, counts: Mapping[str, int]) -> dict[str, Any]:
    """Totals by name; an unknown figure is None."""
    known = [each.lag for each in health.partitions if each.lag is not None]
    oldest = [each.oldest_ms for each in health.partitions if each.oldest is not None]
    values: dict[str, Any] = {
        "partitions": len(health.partitions),
        "moving": sum(each.moving for each in health.partitions),
        "lag": sum(known) if len(known) == len(health.partitions) else None,
        "outstanding": sum(each.outstanding for each in health.partitions),
        "oldest_unfinished_ms": max(oldest, default=None),
        "circuits_open": sum(each.circuit not in ("", "closed") for each in health.partitions),
    }
    for kind, workers in health.workers.items():
        values[f"{kind}_busy"], values[kind] = workers.busy, workers.workers
    if health.retries is not None:
        values |= {
            "retries_waiting": health.retries.waiting,
            "retries_due": health.retries.due,
            "next_due_in_ms": health.retries.next_due_in_ms,
        }
    for name in ("succeeded", "to_retry", "to_dead_letter"):
        values[name] = counts.get(name, 0)
    if health.last_failure is not None:
        ago_ms = max(0, health.now_ms - health.last_failure.failed_ms)
        values["last_failure"] = f"{format_elapsed(ago_ms)} ago: {health.last_failure}"
    return values


def _partitions(health: AppHealth) -> list[dict[str, Any]]:
    """The worst first: what does not move, then by lag."""

    def severity(each: AppPartitionHealth) -> tuple[bool, int]:
        return each.moving, -(each.lag or 0)

    return [
        {
            "topic": each.partition[0],
            "partition": each.partition[1],
            "state": each.state,
            "since_ms": each.since_ms,
            "lag": each.lag,
            "outstanding": each.outstanding,
            "oldest": each.oldest,
            "oldest_ms": each.oldest_ms,
            "circuit": each.circuit or None,
            "why": each.why or None,
        }
        for each in sorted(health.partitions, key=severity)
    ]


def _actions(app: Reachable) -> dict[Action, Callable[[Command], str]]:
    def status(_: Command) -> str:
        return str(app.health()).partition("\n")[0]

    def pause(_: Command) -> str:
        app.pause()
        return "paused: records in progress end, no other ones begin"

    def resume(_: Command) -> str:
        app.resume()
        return "resumed"

    def drain(_: Command) -> str:
        app.stop()
        return "draining: ends and commits its records, then leaves the group"

    def retry_now(_: Command) -> str:
        retries = app.health().retries
        app.retry_now()
        return f"trying {retries.waiting if retries else 0:,} waiting records now"

    def retry_record(command: Command) -> str:
        app.retry_record(*command.place)
        return f"trying {command.at} now"

    def dead_letter_record(command: Command) -> str:
        app.dead_letter_record(*command.place, by=command.by)
        return f"sending {command.at} to the dead-letter topic"

    return {
        Action.STATUS: status,
        Action.PAUSE: pause,
        Action.RESUME: resume,
        Action.DRAIN: drain,
        Action.RETRY_NOW: retry_now,
        Action.RETRY_RECORD: retry_record,
        Action.DEAD_LETTER_RECORD: dead_letter_record,
    }
