"""Figures as people read them: counts, ages, rates; `-` with a reason where a figure is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from kohort.observe.lag import Figure, Total

DASH: Final = "–"
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def count(number: float | None) -> str:
    """`12,345`, or a dash."""
    return DASH if number is None else f"{number:,.0f}"


def duration(ms: float | None) -> str:
    """`4 m 12 s`: the two largest units; `0.4 s` below a second; a dash for None."""
    if ms is None:
        return DASH
    if ms < 1_000:
        return "0 s" if ms <= 0 else f"{ms / 1000:.1f} s"
    for place, (name, size) in enumerate(_UNITS):
        whole, rest = divmod(int(ms), size)
        if not whole:
            continue
        if place + 1 == len(_UNITS):
            return f"{whole} {name}"
        small_name, small = _UNITS[place + 1]
        return (
            f"{whole} {name} {rest // small} {small_name}" if rest // small else f"{whole} {name}"
        )
    return DASH


def ago(at_ms: int | None, now_ms: int) -> str:
    """`4 m 12 s ago`, or a dash."""
    return DASH if at_ms is None else f"{duration(max(0, now_ms - at_ms))} ago"


def clock(at_ms: int | None) -> str:
    """ISO 8601 in UTC to the second; a dash for None."""
    if at_ms is None or at_ms < 0:
        return DASH
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return at.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def rate(per_s: float | None) -> str:
    """`12.3/s`, or a dash."""
    if per_s is None:
        return DASH
    return f"{per_s:,.0f}/s" if abs(per_s) >= 100 else f"{per_s:,.1f}/s"


def size(number: float | None) -> str:
    """`1.5 MiB`, or a dash."""
    if number is None or number < 0:
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} B" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure as text, and its reason or its bounds as a hint."""

    text: str
    title: str = ""
    value: int | None = None


def records(figure: Figure | Total) -> Shown:
    """How many records, or a dash with the reason."""
    return _shown(figure, count, "records")


def age(figure: Figure | Total) -> Shown:
    """An age, or a dash with the reason."""
    return _shown(figure, duration, "")


def _shown(figure: Figure | Total, write: Any, unit: str) -> Shown:
    if isinstance(figure, Total):
        if figure.value is None:
            return Shown(DASH, "not known for any partition")
        more = f"; not known for {figure.unknown:,} partitions" if figure.unknown else ""
        mark = "≥ " if figure.at_least and figure.value else ""
        return Shown(
            f"{mark}{write(figure.value)}",
            f"{figure.value:,} {unit}{more}".strip(" ;"),
            figure.value,
        )
    if figure.value is None:
        if figure.at_least is not None:
            return Shown(f"≥ {write(figure.at_least)}", figure.reason, figure.at_least)
        return Shown(DASH, figure.reason)
    within = f"at most {duration(figure.within)} less" if figure.within else ""
    return Shown(write(figure.value), within, figure.value)


SPARK_WIDTH: Final = 96
SPARK_HEIGHT: Final = 24
SPARK_POINTS: Final = 60


def spark(values: Sequence[float | None]) -> str:
    """The points of an SVG polyline in a box of 96 by 24; empty for fewer than two values."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    step = max(1, len(known) // SPARK_POINTS)
    known = known[::-step][::-1]
    top = max(known) or 1
    width = SPARK_WIDTH / max(1, len(known) - 1)
    return " ".join(
        f"{i * width:.1f},{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * v / top:.1f}"
        for i, v in enumerate(known)
    )


@dataclass(frozen=True, slots=True)
class Paging:
    """Which part of a long list is shown; pages count from 1."""

    page: int
    pages: int
    total: int
    first: int
    last: int


def paging(total: int, page: int, size: int) -> Paging:
    """The page of a list; one past the end is the last one."""
    pages = max(1, -(-total // size))
    page = min(max(1, page), pages)
    first = (page - 1) * size
    return Paging(page, pages, total, first, min(total, first + size))


def whole(text: str, default: int) -> int:
    """A number out of a URL; the default for anything else."""
    return int(text) if text.isdecimal() and len(text) < 19 else default
