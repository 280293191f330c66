"""What a cluster refuses again and again, so that trying on is not silent. Pure.

Rules:
- A refusal that may pass by itself is tried again for ever (a moved leader, a coordinator that
  loads). When it does not pass, such as a disk that fails (KAFKA_STORAGE_ERROR), nothing else
  reports it: `health()` shows it at once, and after `WARNED_MS` it is logged once, with an event.
- A partition, a group or a transactional id (by name) is refused.
- Only answers count: `ClusterClient.unreachable` covers brokers that do not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, NamedTuple

from kohort.config import format_elapsed
from kohort.errors import ErrorCode
from kohort.lean import dataclass
from kohort.metrics.events import Events, RefusalEnded, Refused

WARNED_MS: Final = 3_000
"""A leader or coordinator that moves has done so by then."""
_NAMED: Final = 5
_NO_COORDINATOR: Final = "its coordinator moves, or cannot write to its disk; see the broker's log"
_CAUSES: Final[Mapping[int, str]] = {
    ErrorCode.KAFKA_STORAGE_ERROR: "its broker cannot use its disk; see the broker's log",
    ErrorCode.NOT_ENOUGH_REPLICAS: "too few replicas are in sync for min.insync.replicas",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "does the topic still exist?",
    ErrorCode.NOT_COORDINATOR: _NO_COORDINATOR,  # what Kafka, too, answers when its disk is full
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _NO_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading",
    ErrorCode.CONCURRENT_TRANSACTIONS: "the transaction before it is still being ended",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction that committed its offset is still open",
}


@dataclass(slots=True)
class Refusal:
    """Since when (the core's milliseconds), and with which code last."""

    code: int
    since_ms: int
    reported: bool = False

    def text(self, now_ms: int) -> str:
        """The refusal as text."""
        cause = _CAUSES.get(self.code)
        name, for_ms = ErrorCode.name_of(self.code), format_elapsed(now_ms - self.since_ms)
        return f"{name} for {for_ms}{f' ({cause})' if cause else ''}"


class Report(NamedTuple):
    """The reports that are due now."""

    warnings: list[str]
    events: list[Refused | RefusalEnded]

    def emit(self, warn: Callable[[str], None], events: Events) -> None:
        """Log the warnings and emit the events."""
        for text in self.warnings:
            warn(text)
        for event in self.events:
            events.emit(event)


class Refusals:
    """Everything that one client is refused at present."""

    def __init__(self) -> None:
        self._by: dict[Hashable, Refusal] = {}
        self._ended: dict[Hashable, Refusal] = {}
        self._has_unreported = False
        """Whether a refusal is still unreported: looking costs, and there may be thousands."""

    def __bool__(self) -> bool:
        return bool(self._by)

    def get(self, what: Hashable) -> Refusal | None:
        """The refusal of this, if it is refused at present."""
        return self._by.get(what)

    def longest(self, now_ms: int) -> str:
        """The oldest refusal as text; empty when there is none."""
        if not self._by:
            return ""
        what, known = min(self._by.items(), key=lambda one: one[1].since_ms)
        return f"{_names([what])} is refused with {known.text(now_ms)}"

    def note(self, what: Hashable, code: int, now_ms: int) -> None:
        """It was refused (again)."""
        known = self._by.get(what)
        if known is None:
            self._by[what] = Refusal(code, now_ms)
            self._has_unreported = True
        else:
            known.code = code

    def served(self, what: Hashable) -> None:
        """It is not refused any more."""
        if self._by and (known := self._by.pop(what, None)) is not None and known.reported:
            self._ended[what] = known

    def forget(self, what: Hashable) -> None:
        """It is not asked for any more."""
        self._by.pop(what, None)
        self._ended.pop(what, None)

    def look(self, now_ms: int) -> Report | None:
        """What is new to say; None: nothing."""
        late: dict[Hashable, Refusal] = {}
        if self._has_unreported:
            waiting = {what: known for what, known in self._by.items() if not known.reported}
            late = {w: k for w, k in waiting.items() if now_ms - k.since_ms >= WARNED_MS}
            self._has_unreported = len(waiting) > len(late)
        if not late and not self._ended:
            return None
        ended, self._ended = self._ended, {}
        report = Report([], [])
        for code in dict.fromkeys(known.code for known in late.values()):
            some = {what: known for what, known in late.items() if known.code == code}
            longest = min(some.values(), key=lambda known: known.since_ms).text(now_ms)
            report.warnings.append(f"{_names(some)}: refused with {longest}; retrying")
        for what, known in late.items():
            known.reported = True
            report.events.append(Refused(what, known.code, now_ms - known.since_ms))
        if ended:
            report.warnings.append(f"{_names(ended)}: not refused any more")
            report.events.extend(
                RefusalEnded(w, k.code, now_ms - k.since_ms) for w, k in ended.items()
            )
        return report


def _names(what: Iterable[Hashable]) -> str:
    names = [f"{w[0]}-{w[1]}" if isinstance(w, tuple) else str(w) for w in what]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
