"""Failures made visible: one log entry for each kind, then counts; what failed last. Pure.

Rules (spec 5.7):
- The first failure of a kind (fingerprint) is logged with its traceback, unless the handler raised
  it on purpose; later failures are counted, and the count is logged after 10, 20, 40 s and so on,
  at most every five minutes.
- A failure that dead-letters its record is logged again, as an error.
- The number of kinds is bounded: the kind that failed longest ago is removed, and logged again if
  it returns.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from kohort.config import format_duration

FIRST_MS: Final = 10_000
LONGEST_MS: Final = 300_000
MOST_KINDS: Final = 1_000
MAX_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt to handle one record.

    Attributes:
        topic, partition, offset: where the record was read first.
        attempt: 0 for the first try, 1 for the first retry, and so on.
        reason, error_class, message, stack: why it failed; the stack is "" where nothing raised.
        fingerprint: equal for failures of one kind.
        permanent: whether it is never retried because of its kind.
        failed_ms: when it failed, milliseconds since the epoch.
        next_try_ms: when it is tried again at the earliest; None: not by itself.
        waits_in: the retry topic or dead-letter topic that it goes to; "" when it stays in memory.
        dead: whether it goes to the dead-letter topic.
    """

    topic: str
    partition: int
    offset: int
    attempt: int
    reason: str
    error_class: str
    message: str
    stack: str
    fingerprint: str
    permanent: bool
    failed_ms: int
    next_try_ms: int | None
    waits_in: str
    dead: bool

    @property
    def error(self) -> str:
        """What failed, in one line."""
        name = self.error_class.rpartition(".")[2]
        text = " ".join(self.message.split())
        return f"{name}: {text}"[:MAX_SHOWN_CHARS]

    @property
    def on_purpose(self) -> bool:
        """Whether the handler itself raised `Permanent`, `Temporary` or `RetryAfter`."""
        return self.error_class.rpartition(".")[2] in ("Permanent", "Temporary", "RetryAfter")

    @property
    def next(self) -> str:
        """The next step for the record, as text."""
        if self.dead:
            return f"it goes to the dead-letter topic {self.waits_in}"
        if self.next_try_ms is None:
            return "its partition is stopped until it is resumed"
        return f"next try in {format_duration(max(0, self.next_try_ms - self.failed_ms))}"

    def __str__(self) -> str:
        place = f"{self.topic}-{self.partition} offset {self.offset}"
        return f"{place}, attempt {self.attempt}, failed: {self.error}; {self.next}"


class Entry(NamedTuple):
    """What is to be logged."""

    level: int
    text: str


@dataclass(slots=True)
class _Kind:
    counted: int = 0
    pause_ms: int = FIRST_MS
    again_ms: int = 0


class FailureLog:
    """The failures that are to be logged."""

    def __init__(self, most_kinds: int = MOST_KINDS) -> None:
        self._most = most_kinds
        self._kinds: OrderedDict[tuple[str, str, bool], _Kind] = OrderedDict()
        self.last: FailedAttempt | None = None
        """The last failure."""

    def note(self, failed: FailedAttempt) -> Entry | None:
        """A record has failed: what is to be logged now, if anything."""
        self.last = failed
        name, now_ms = (failed.topic, failed.fingerprint, failed.dead), failed.failed_ms
        level = logging.ERROR if failed.dead else logging.WARNING
        kind = self._kinds.get(name)
        if kind is None:
            self._kinds[name] = _Kind(0, FIRST_MS, now_ms + FIRST_MS)
            if len(self._kinds) > self._most:
                self._kinds.popitem(last=False)
            tells = failed.stack and not failed.on_purpose
            stack = f"\n{failed.stack.rstrip()}" if tells else ""
            return Entry(level, f"{failed}{stack}")
        self._kinds.move_to_end(name)
        kind.counted += 1
        if kind.again_ms - kind.pause_ms <= now_ms < kind.again_ms:  # or the clock was set
            return None
        more, kind.counted = kind.counted, 0
        kind.pause_ms = min(2 * kind.pause_ms, LONGEST_MS)
        kind.again_ms = now_ms + kind.pause_ms
        times = "1 more failure" if more == 1 else f"{more:,} more failures"
        return Entry(level, f"{times} of this kind; the last: {failed}")
