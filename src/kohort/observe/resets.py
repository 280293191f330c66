"""Where a group would go on, by a place that somebody names: `earliest`, `@-2h`, `+100`, ...

Rules: an offset is a bare number, a time begins with `@`, a shift with `+` or `-`, so that none is
taken for another; a time without a zone is UTC. A target outside the log moves to its nearer end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kohort.config import parse_duration_ms
from kohort.errors import ConfigError

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition

FORMS: Final = "earliest, latest, N (an offset), +N or -N (a shift), @2026-01-31T06:00Z or @-2h"


@dataclass(frozen=True, slots=True)
class Place:
    """One of: the first record, the end, an offset, a shift, a time."""

    kind: str
    number: int = 0
    time_ms: int | None = None


def parse_place(text: str, now_ms: int) -> Place:
    """A place as a person writes it. Raises ConfigError."""
    written = text.strip()
    if written in ("earliest", "latest"):
        return Place(written)
    if written.startswith("@"):
        return Place("time", time_ms=_time(written[1:], now_ms))
    digits = written[1:] if written[:1] in "+-" else written
    if not digits.isdecimal() or len(digits) > 18:
        raise ConfigError(f"{text!r}: write {FORMS}")
    if written[0] in "+-":
        return Place("shift", int(written))
    return Place("offset", int(written))


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
    """
    found: dict[TopicPartition, int] = {}
    for tp, at in current.items():
        if tp not in firsts or tp not in ends:
            continue
        first, end = firsts[tp], ends[tp]
        wanted = {
            "earliest": first,
            "latest": end,
            "offset": place.number,
            "shift": at + place.number,
            "time": times.get(tp, end),
        }[place.kind]
        found[tp] = min(max(first, wanted), end)
    return found
