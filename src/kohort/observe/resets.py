"""Where a group would continue, by a named place: `earliest`, `@-2h`, `+100`, ...

Rules: an offset is a bare number, `-N` the last N records, a time begins with `@`, a shift of the
committed offset with `shift:`, so that none is taken for another; a time without a zone is UTC. A
shift past an end of the log stops there; an offset outside the log is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kohort.config import parse_duration_ms
from kohort.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition

FORMS: Final = (
    "earliest, latest, N (an offset), -N (the last N), shift:-N or shift:+N, @2026-01-31T06:00Z or "
    "@-2h"
)


@dataclass(frozen=True, slots=True)
class Place:
    """One of: the first record, the end, an offset, so many before the end, a shift, a time."""

    kind: str
    number: int = 0
    time_ms: int | None = None


def parse_place(text: str, now_ms: int, option: str = "") -> Place:
    """A place as a person writes it, in this option. Raises ConfigError."""
    written = text.strip()
    if written in ("earliest", "latest"):
        return Place(written)
    if written.startswith("@"):
        return Place("time", time_ms=_time(written[1:], now_ms))
    shifts = written.startswith("shift:")
    number = written.removeprefix("shift:")
    digits = number[1:] if number[:1] in ("-", "+" if shifts else "-") else number
    if not digits.isdecimal() or len(digits) > 18:
        raise ConfigError(f"{option} {text!r}: write {FORMS}".lstrip())
    if shifts:
        return Place("shift", int(number))
    return Place("last", int(digits)) if number.startswith("-") else Place("offset", int(digits))


def _time(text: str, now_ms: int) -> int:
    if text.startswith("-") and len(text) > 1:
        return now_ms - parse_duration_ms(text[1:])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time; write 2026-01-31T06:00Z, or -2h") from None
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def targets(
    place: Place,
    current: Mapping[TopicPartition, int],
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    times: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The new offset of each partition whose log is known.

    Args:
        place: where to.
        current: committed offsets.
        firsts: where logs begin.
        ends: where logs end.
        times: the first offset at or after the place's time; without one, the end is taken.

    Raises:
        UsageError: an offset that a partition does not have (any more).
    """
    offsets: dict[TopicPartition, int] = {}
    for tp, at in current.items():
        if tp not in firsts or tp not in ends:
            continue
        first, end = firsts[tp], ends[tp]
        specs = {
            "earliest": first,
            "latest": end,
            "offset": place.number,
            "last": end - place.number,
            "shift": at + place.number,
            "time": times.get(tp, end),
        }[place.kind]
        if place.kind == "offset":
            place_exactly(tp, specs, first, end)
        offsets[tp] = min(max(first, specs), end)
    return offsets


def again_and_skipped(old: int, new: int, first: int, end: int) -> tuple[int, int]:
    """What a new committed offset makes of the records in the log.

    An offset outside the log counts as the nearest one in it: no record is beyond.

    Args:
        old: the committed offset until now.
        new: the one to be.
        first: where the log begins.
        end: where the log ends.

    Returns:
        How many are read once more, and how many never.
    """
    source, target = (min(max(first, at), end) for at in (old, new))
    return max(0, source - target), max(0, target - source)


def place_exactly(tp: TopicPartition, offset: int, first: int, end: int) -> int:
    """The offset. Raises UsageError for one that the partition does not have (any more)."""
    if not first <= offset <= end:
        raise UsageError(
            f"offset {offset} is not in {tp}, which holds {first} to {end} (the next to be written)"
        )
    return offset
