"""Screen 8, processes: the last published status of apps on other machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kohort.console.views.figures import DASH, Paging, clock, count, duration, paging, whole

if TYPE_CHECKING:
    from kohort.remote import Process

PER_PAGE: Final = 100
TONES: Final = {"running": "moving", "paused": "waiting", "draining": "waiting", "gone": "stuck"}
"""How a state is coloured; others as it comes."""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process in the list."""

    process: str
    kind: str
    group: str
    state: str
    tone: str
    uptime: str
    silent: str
    lag: str
    outstanding: str
    oldest: str
    waiting: str
    trouble: str


@dataclass(frozen=True, slots=True)
class ProcessesView:
    """All processes, those that are gone last."""

    prefix: str
    note: str
    rows: Sequence[ProcessRow]
    gone: int
    paging: Paging


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of a process."""

    name: str
    state: str
    since: str
    lag: str
    outstanding: str
    oldest: str
    why: str


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process."""

    row: ProcessRow
    host: str
    pid: int
    version: str
    started: str
    published: str
    figures: Sequence[tuple[str, str]]
    partitions: Sequence[PartitionRow]
    more_partitions: int
    troubles: Sequence[str]
    results: Sequence[tuple[str, str]]
    actions: Sequence[str]


def processes_view(
    processes: Sequence[Process], prefix: str, query: Mapping[str, str], note: str = ""
) -> ProcessesView:
    """The list; `note` says why there is none.

    Args:
        processes: every process.
        prefix: of the topics.
        query: `group` chooses one, `page` a page.
        note: why nothing could be read.
    """
    group = query.get("group", "")
    some = [one for one in processes if group in ("", one.status.group)]
    some.sort(key=lambda one: (one.gone, one.status.group, one.status.process))
    page = paging(len(some), whole(query.get("page", ""), 1), PER_PAGE)
    rows = [_row(one) for one in some[page.first : page.last]]
    return ProcessesView(prefix, note, rows, sum(one.gone for one in some), page)


def process_view(one: Process) -> ProcessView:
    """The page of one process."""
    status = one.status
    return ProcessView(
        _row(one),
        status.host,
        status.pid,
        status.version,
        clock(status.started_ms),
        clock(one.seen_ms),
        [(_name(k), _figure(k, v)) for k, v in status.figures.items()],
        [_partition(each) for each in status.partitions],
        max(0, _number(status.figures.get("partitions")) - len(status.partitions)),
        list(status.troubles),
        [("done" if r.ok else "failed", r.text) for r in reversed(status.results)],
        []
        if one.gone
        else [a.value for a in status.actions if a.value != "status" and not a.of_record],
    )


def _row(one: Process) -> ProcessRow:
    status, figures = one.status, one.status.figures
    return ProcessRow(
        status.process,
        status.kind,
        status.group,
        one.state,
        TONES.get(one.state, "watching"),
        duration(max(0, status.at_ms - status.started_ms)),
        duration(one.silent_ms),
        _figure("lag", figures.get("lag")),
        _figure("n", figures.get("outstanding")),
        _figure("x_ms", figures.get("oldest_unfinished_ms")),
        _figure("n", figures.get("retries_waiting")),
        status.troubles[0] if status.troubles else "",
    )


def _partition(fields: Mapping[str, Any]) -> PartitionRow:
    return PartitionRow(
        f"{fields.get('topic', DASH)}-{fields.get('partition', DASH)}",
        str(fields.get("state") or DASH),
        _figure("x_ms", fields.get("since_ms")),
        _figure("n", fields.get("lag")),
        _figure("n", fields.get("outstanding")),
        _figure("x_ms", fields.get("oldest_ms") if fields.get("oldest") is not None else None),
        str(fields.get("why") or ""),
    )


def _name(key: str) -> str:
    return key.removesuffix("_ms").replace("_", " ")


def _figure(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return DASH if value is None else str(value)
    return duration(value) if key.endswith("_ms") else count(value)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
