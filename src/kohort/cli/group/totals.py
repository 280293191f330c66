"""`kohort group lag --total`: a line for each group, the worst first, from the console's own query.

Rules: the figures are `kohort.observe.overview`'s, which the console shows, too. One look tells lag
in records and in time; with --for, or from the second round of --watch on, also rates and health.

Shell: the clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import click

from kohort.cli.common.output import remark, show
from kohort.config import format_elapsed
from kohort.errors import KohortError

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.observe.lag import Total
    from kohort.observe.overview import GroupLine, Overview

COLUMNS: Final = (
    "group",
    "state",
    "members",
    "partitions",
    "lag",
    "unknown",
    "oldest_unread",
    "written_per_s",
    "done_per_s",
    "trend",
    "health",
)
"""In tables the lag's `>=` says that some partitions are `unknown`."""
ONE_LOOK: Final = COLUMNS[:7]
CLEAR: Final = "\x1b[H\x1b[2J"
SORTS: Final[dict[str, Callable[[GroupLine], Any]]] = {
    "severity": lambda line: line.severity,
    "lag": lambda line: -(line.lag.value or 0),
    "age": lambda line: -(line.time_lag.value or 0),
    "name": lambda line: line.group,
}


def show_totals(
    admin: Admin,
    settings: dict[str, Any],
    names: Collection[str],
    output: str,
    *,
    watch_s: float = 0.0,
    every_s: float = 0.0,
    sort: str = "severity",
) -> bool:
    """Print a line for each group.

    Args:
        admin: of the cluster.
        settings: of the consumer that reads the times of records.
        names: of the groups; empty for all.
        output: the form.
        watch_s: look again so much later, for rates; 0 looks once.
        every_s: print again and again, so far apart, until interrupted; 0 prints once.
        sort: one of `SORTS`.

    Returns:
        Whether every group was looked at.

    Raises:
        KohortError: the cluster does not answer; with `every_s` it is reported and asked again.
    """
    from kohort.sampling.sampler import Sampler

    sampler = Sampler(admin, settings, times_first=True)
    rates = bool(watch_s)
    try:
        while True:
            overview = sampler.sample()
            if watch_s and overview is not None:
                time.sleep(watch_s)
                overview, watch_s = sampler.sample(), 0.0
            if overview is None and not every_s:
                raise KohortError(sampler.error)
            if every_s and sys.stdout.isatty():
                click.echo(CLEAR, nl=False)
            complete = _show(overview, names, SORTS[sort], output, rates) if overview else False
            if sampler.error:
                remark(f"error: {sampler.error}")
            if not every_s:
                return complete
            rates = True
            time.sleep(every_s)
    finally:
        sampler.close()


def _show(
    overview: Overview,
    names: Collection[str],
    key: Callable[[GroupLine], Any],
    output: str,
    rates: bool,
) -> bool:
    """Print one look and what is missing from it; whether nothing is."""
    lines = [one for one in overview.lines if not names or one.group in names]
    table = output == "table"
    rows = [_row(line, table) for line in sorted(lines, key=key)]
    columns = COLUMNS if rates else ONE_LOOK
    show(rows, [c for c in columns if not (table and c == "unknown")], output)
    failed = [line for line in lines if line.error]
    for line in failed:
        remark(f"error: group {line.group!r}: {line.error}")
    for trouble in overview.snapshot.troubles:
        remark(f"warning: {trouble}")
    unseen = len(lines) < len(set(names)) if names else bool(overview.snapshot.silent)
    return not (failed or unseen)


def _row(line: GroupLine, table: bool) -> dict[str, Any]:
    trend = line.trend
    return {
        "group": line.group,
        "state": line.state or None,
        "members": line.members,
        "partitions": line.partitions,
        "lag": _figure(line.lag, table),
        "unknown": line.lag.unknown,
        "oldest_unread": _age(line.time_lag, table),
        "written_per_s": None if trend.written_per_s is None else round(trend.written_per_s, 1),
        "done_per_s": None if trend.done_per_s is None else round(trend.done_per_s, 1),
        "trend": trend.direction.value if trend.per_s is not None else None,
        "health": line.health.value,
    }


def _figure(figure: Total, table: bool) -> Any:
    if figure.value is None or not (table and figure.at_least):
        return figure.value
    return f">={figure.value}"


def _age(figure: Total, table: bool) -> Any:
    """Milliseconds; for people as `4m12s`. Nothing for "at least 0 ms"."""
    if not figure.value and figure.at_least:
        return None
    if figure.value is None or not table:
        return figure.value
    return f"{'>=' if figure.at_least else ''}{format_elapsed(figure.value)}"
