"""What a broker was asked, for tests to look at: the last requests, and how each was answered.

Rules:
- Bounded: the oldest go first. A request's records are not kept, so no large memory stays alive.
- An entry is in the log as soon as the request has come; its answer is filled in later,
  and never when the connection ended first.
- On the broker's thread only; `changed` is called there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kohort.broker.faults.rules import Seen
from kohort.errors import ErrorCode
from kohort.lean import dataclass

DEFAULT_CAPACITY: Final = 1_000
MAX_PARTITIONS: Final = 100
"""Of one request; a fetch of thousands would make the log as large as a topic."""


@dataclass(slots=True)
class LoggedRequest:
    """One request as the broker saw it."""

    number: int
    """Counts from 1 for each broker, in the order of arrival."""
    time_ms: int
    """When it came, since 1970."""
    node: int
    """Which node it came to."""
    client_id: str
    api: str
    """Kafka's name, as `OffsetCommit`."""
    version: int
    groups: tuple[str, ...]
    """The groups that it names."""
    transactional_id: str | None
    partitions: tuple[tuple[str, int], ...]
    """Topics and partitions that it names, the first 100; -1: a topic as a whole."""
    answered_ms: int | None = None
    """When its answer left; None: not yet, or never."""
    errors: tuple[int, ...] = ()
    """The codes other than 0 of the answer, each once."""
    fault: int | None = None
    """The number of the fault that was carried out on it."""

    @property
    def topics(self) -> set[str]:
        """The topics that it names."""
        return {topic for topic, _ in self.partitions}

    def as_json(self) -> dict[str, Any]:
        """All of it, errors by name."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        fields["groups"] = list(self.groups)
        fields["partitions"] = [list(partition) for partition in self.partitions]
        fields["errors"] = [name_of_error(code) for code in self.errors]
        return fields

    def __str__(self) -> str:
        outcome = "no answer yet" if self.answered_ms is None else "answered"
        if self.errors:
            outcome = ", ".join(name_of_error(code) for code in self.errors)
        named = [*self.groups, *(f"{t}-{p}" if p >= 0 else t for t, p in self.partitions[:4])]
        more = " …" if len(self.partitions) > 4 else ""
        about = f" ({' '.join(named)}{more})" if named else ""
        return f"{self.api} v{self.version} of {self.client_id!r} to {self.node}{about}: {outcome}"


def name_of_error(code: int) -> str:
    """Kafka's name of an error code; the number where it has none."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


class RequestLog:
    """The last `capacity` requests; 0: none are kept."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._kept: deque[LoggedRequest] = deque(maxlen=capacity)
        self.enabled = capacity > 0
        self.count = 0
        """How many have come since the broker began."""
        self.changed: Callable[[], object] = lambda: None
        """Called after every arrival and every answer."""

    def came(self, seen: Seen, now_ms: int) -> LoggedRequest:
        """A request has come."""
        self.count += 1
        entry = LoggedRequest(
            self.count,
            now_ms,
            seen.node,
            seen.client_id,
            seen.api,
            seen.version,
            seen.groups,
            seen.transactional_id,
            seen.partitions[:MAX_PARTITIONS],
        )
        self._kept.append(entry)
        self.changed()
        return entry

    def answered(self, entry: LoggedRequest, now_ms: int, errors: tuple[int, ...]) -> None:
        """Its answer is about to leave."""
        entry.answered_ms, entry.errors = now_ms, errors
        self.changed()

    def since(self, number: int = 0) -> list[LoggedRequest]:
        """The kept ones after the one of that number, oldest first."""
        return [entry for entry in self._kept if entry.number > number]

    def clear(self) -> None:
        """Forget them; numbers continue."""
        self._kept.clear()
