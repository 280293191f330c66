"""The way of one record through its retry topics, as text and as a picture. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from kohort.config import format_duration

DONE: Final = "done"
ROW_PX: Final = 34
LEFT_PX: Final = 220
WIDTH_PX: Final = 760
TOP_PX: Final = 44


@dataclass(frozen=True)
class Attempt:
    """One call of a handler for one record.

    Attributes:
        at_ms: when, milliseconds since 1970.
        topic, partition, offset: the original position of the record.
        read_from: the topic that it was read from: the same, or a retry topic.
        number: 0 for the first try, 1 for the first retry, and so on.
        failure: why it failed, as "ValueError: text"; None when it succeeded.
        next_topic: the retry topic or dead-letter topic that it goes to; "" for none.
        next_try_ms: when it is tried again at the earliest; None: never.
    """

    at_ms: int
    topic: str
    partition: int
    offset: int
    read_from: str
    number: int
    failure: str | None = None
    next_topic: str = ""
    next_try_ms: int | None = None


def as_text(attempts: Sequence[Attempt], started_ms: int) -> str:
    """One line for each attempt: when, which, where it was read, what came of it, where it went."""
    rows = [
        (
            format_duration(a.at_ms - started_ms) if a.at_ms > started_ms else "0s",
            f"attempt {a.number}",
            a.read_from,
            DONE if a.failure is None else a.failure,
            f"-> {a.next_topic}" if a.next_topic else "",
        )
        for a in attempts
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def as_svg(attempts: Sequence[Attempt], started_ms: int) -> str:
    """A picture: topics from top to bottom, time from left to right, a dot for each attempt."""
    topics = list(dict.fromkeys([*(a.read_from for a in attempts), *_ends(attempts)]))
    last_ms = max((a.at_ms for a in attempts), default=started_ms)
    scale = (WIDTH_PX - LEFT_PX - 40) / max(1, last_ms - started_ms)
    height = TOP_PX + ROW_PX * len(topics) + 10

    def x(at_ms: int) -> float:
        return LEFT_PX + 20 + (at_ms - started_ms) * scale

    def y(topic: str) -> int:
        return TOP_PX + ROW_PX * topics.index(topic) + ROW_PX // 2

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {height}" role="img" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(_title(attempts))}</title>",
        '<g stroke="#8886" fill="none">',
        *(f'<path d="M{LEFT_PX} {y(t)}H{WIDTH_PX - 10}"/>' for t in topics),
        '</g><g fill="currentColor">',
        *(f'<text x="0" y="{y(t) + 4}">{escape(t)}</text>' for t in topics),
        '</g><g stroke="#c60" fill="none" stroke-width="1.5">',
        *_paths(attempts, x, y),
        "</g>",
    ]
    for a in attempts:
        colour = "#080" if a.failure is None else "#c60"
        when = format_duration(a.at_ms - started_ms) if a.at_ms > started_ms else "0s"
        label = f"attempt {a.number} after {when}: {a.failure or DONE}"
        parts.append(
            f'<circle cx="{x(a.at_ms):.1f}" cy="{y(a.read_from)}" r="5" fill="{colour}">'
            f"<title>{escape(label)}</title></circle>"
        )
        parts.append(
            f'<text x="{x(a.at_ms):.1f}" y="{TOP_PX - 14 - 12 * (a.number % 2)}" '
            f'text-anchor="middle" fill="currentColor">{when}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _ends(attempts: Sequence[Attempt]) -> list[str]:
    return [a.next_topic for a in attempts if a.next_topic and a.next_try_ms is None]


def _title(attempts: Sequence[Attempt]) -> str:
    if not attempts:
        return "a record that was not handled"
    a = attempts[0]
    return f"{a.topic}/{a.partition}/{a.offset}: {len(attempts)} attempts"


def _paths(
    attempts: Sequence[Attempt], x: Callable[[int], float], y: Callable[[str], int]
) -> list[str]:
    paths: list[str] = []
    for a, b in zip(attempts, [*attempts[1:], None], strict=True):
        start = f"M{x(a.at_ms):.1f} {y(a.read_from)}"
        if b is not None:
            paths.append(f'<path d="{start}V{y(b.read_from)}H{x(b.at_ms):.1f}"/>')
        elif a.next_topic and a.next_try_ms is None:
            paths.append(f'<path d="{start}V{y(a.next_topic)}h8"/>')
    return paths
