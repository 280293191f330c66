"""Where to start reading, as a person writes it: `earliest`, `42`, `-10`, `@2026-01-31T06:00Z`.

Rules: an offset is a bare number, a time begins with `@`, so that neither is taken for the other;
a time without a zone is UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime

from kohort.config import parse_duration_ms
from kohort.errors import ConfigError, UsageError
from kohort.lean import dataclass

FORMS = "earliest, latest, N (an offset), -N (the last N), @2026-01-31T06:00Z or @-2h"


@dataclass(frozen=True, slots=True)
class Start:
    """One of: the first record, the end, an offset, so many before the end, a time."""

    kind: str
    number: int = 0
    time_ms: int | None = None

    @property
    def reset_policy(self) -> str:
        """What it means to a group's member that finds no committed offset."""
        return self.kind

    def offset_in(self, partition: str, first: int, end: int, by_time: int | None) -> int:
        """The offset in one partition that holds `first` to before `end`.

        Raises UsageError for an offset that the partition does not have (any more).
        """
        if self.kind == "earliest":
            return first
        if self.kind == "last":
            return max(first, end - self.number)
        if self.kind == "time":
            return end if by_time is None else by_time
        if self.kind == "latest":
            return end
        if not first <= self.number <= end:
            raise UsageError(
                f"offset {self.number} is not in {partition}, which holds {first} to {end} "
                "(the next to be written)"
            )
        return self.number


def parse_start(text: str, now_ms: int, option: str = "--offset") -> Start:
    """What `--offset`, or another option, says. Raises ConfigError."""
    start = text.strip()
    if start in ("earliest", "latest"):
        return Start(start)
    if start.startswith("@"):
        return Start("time", time_ms=parse_time(start[1:], now_ms))
    digits = start.removeprefix("-")
    if not digits.isdecimal() or len(digits) > 18:
        raise ConfigError(f"{option} {text!r}: write {FORMS}")
    return Start("last" if start.startswith("-") else "offset", int(digits))


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds of `2026-01-31T06:00Z`, or of `-2h` before now. Raises ConfigError."""
    if text.startswith("-") and not text[1:2].isspace():
        return now_ms - parse_duration_ms(text[1:])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time; write for example 2026-01-31T06:00Z, or -2h for two hours ago"
        ) from None
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)
