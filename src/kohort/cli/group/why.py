"""`kohort group why`: why a group does not move, as text, for the engineer on call.

Rules:
- Nothing is changed: offsets, members, leaders and open transactions are read twice, and
  `observe.verdicts` compares. A stuck partition is checked for whether it holds a record at all.
- Exit code 3 when a partition is stuck, so that a monitor may ask.

Shell: the clock, and a wait between the two looks.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.formats import iso_time
from kohort.cli.common.group_lookup import existing, settings
from kohort.cli.common.output import output_option, printable, show
from kohort.cli.common.root import EXIT_CHECK_FAILED
from kohort.config import parse_duration_ms
from kohort.errors import KohortError, UsageError

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.group.explain.timeline import Rebalance
    from kohort.observe.lag import Total
    from kohort.observe.open_transactions import Open
    from kohort.observe.verdicts import Finding, Verdict

COLUMNS = (
    "group",
    "topic",
    "partition",
    "state",
    "current_offset",
    "log_end_offset",
    "lag",
    "done_per_s",
    "written_per_s",
    "why",
)
REASONS_SHOWN: Final = 10
PARTITIONS_SHOWN: Final = 10
"""In text; JSON and CSV hold all."""


@click.command(
    epilog="""\b
Examples:
  kohort group why billing
  kohort group why billing --for 30s      # members that commit more seldom than every 10 s
  kohort group why billing -o json        # exit code 3 when a partition is stuck
"""
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--for",
    "watch",
    default="10s",
    show_default=True,
    metavar="TIME",
    help="The time between the two samples; longer than the members' time between commits.",
)
@click.option(
    "--rebalance-timeout",
    default="5m",
    show_default=True,
    metavar="TIME",
    help="The members' longest max.poll.interval.ms, the time that a rebalance may take.",
)
@output_option
@client_options
def why(group: str, watch: str, rebalance_timeout: str, output: str, client: Client) -> int:
    """Show why a group makes no progress: what blocks each partition, and how to fix it.

    Samples the group twice. Exit code 3 when a partition is stuck. A group without lag is
    reported after the first sample.
    """
    from kohort.observe.verdicts import judge, stuck_spans, unsettled
    from kohort.sampling.open_transactions import open_in
    from kohort.sampling.snapshots import look_at
    from kohort.sampling.unread import without_records

    watch_ms = parse_duration_ms(watch)
    if watch_ms < 1:
        raise UsageError("--for needs a time to watch, such as 10s")
    timeout_s = parse_duration_ms(rebalance_timeout) / 1000
    with open_admin(settings(client)) as admin:
        before = now = look_at(admin, *existing(admin, [group]))
        if unsettled(before):
            time.sleep(watch_ms / 1000)
            now = look_at(admin, *existing(admin, [group]))
        held = [
            tp
            for tp, p in now.partitions.items()
            if p.stable is not None and p.end is not None and p.stable < p.end
        ]
        history = _history(admin, group, client, in_doubt=unsettled(now))
        weigh = partial(
            judge,
            before,
            now,
            _aged(admin, open_in(admin, held)),
            _recent(history),
            rebalancing_s=_rebalancing_s(history),
            rebalance_timeout_s=timeout_s,
            now_ms=_now_ms(),
        )
        verdict = weigh()
        if spans := stuck_spans(verdict):
            verdict = weigh(nothing_to_read=without_records(client.common(), spans))
    _print_verdict(verdict, output)
    return EXIT_CHECK_FAILED if verdict.stuck else 0


def _aged(admin: Admin, transactions: Sequence[Open]) -> list[Open]:
    """The same, with since when each is open, as far as its coordinator tells."""
    ages: dict[str, float] = {}
    for name in {one.listed.transactional_id for one in transactions if one.listed}:
        with suppress(KohortError):  # it may have ended meanwhile
            begun_ms = admin.describe_transactions([name])[name].started_ms
            if begun_ms >= 0:
                ages[name] = max(0.0, (_now_ms() - begun_ms) / 1000)
    return [
        replace(one, open_s=ages.get(one.listed.transactional_id)) if one.listed else one
        for one in transactions
    ]


def _history(admin: Admin, group: str, client: Client, *, in_doubt: bool) -> Sequence[Rebalance]:
    """Rebalances as their coordinator remembers them; Apache Kafka's are read from the log.

    The log is read only where they can explain something, and only its last minutes.
    """
    from kohort.client.admin.group_timeline import read_rebalances
    from kohort.client.common.config import ConsumerConfig
    from kohort.observe.verdicts import RECENT_MS

    remembered = admin.group_timeline(group)
    if remembered is not None or not in_doubt:
        return remembered or ()
    with suppress(KohortError):  # it may not be read by everybody
        since_ms = _now_ms() - RECENT_MS
        return read_rebalances(admin, group, client.for_role(ConsumerConfig), since_ms=since_ms)
    return ()


def _recent(history: Sequence[Rebalance]) -> list[str]:
    """A line for each recent one; the log does not say when one began, so its end dates it."""
    from kohort.observe.verdicts import RECENT_MS

    since_ms = _now_ms() - RECENT_MS
    dated = [(one.began_ms or one.joined_ms or one.settled_ms, one) for one in history]
    return [
        f"{iso_time(at_ms)} ({', '.join(cause.trigger for cause in one.causes[:3])})"
        for at_ms, one in dated
        if at_ms is not None and at_ms >= since_ms
    ]


def _rebalancing_s(history: Sequence[Rebalance]) -> float | None:
    """For how long the rebalance that is under way has lasted, where the coordinator knows."""
    from kohort.group.explain.timeline import GOING_ON

    if not history or history[-1].outcome != GOING_ON or history[-1].began_ms is None:
        return None
    return max(0.0, (_now_ms() - history[-1].began_ms) / 1000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- forms


def _print_verdict(verdict: Verdict, output: str) -> None:
    rows = [_row(verdict, finding) for finding in verdict.findings]
    if output == "json":
        click.echo(json.dumps({"schema": 1, **_whole(verdict), "partitions": rows}, indent=2))
    elif output == "jsonl":
        click.echo(json.dumps({**_whole(verdict), "partitions": rows}))
    elif output == "csv":
        show(rows, COLUMNS, output)
    else:
        click.echo(_text(verdict))


def _whole(verdict: Verdict) -> dict[str, Any]:
    group = verdict.now.group
    return {
        "group": group.group_id,
        "state": group.state,
        "members": len(group.members),
        "lag": verdict.lag.value,
        "unknown": verdict.lag.unknown,
        "watched_s": round(verdict.watched_s, 1),
        "stuck": verdict.stuck,
        "concerns": list(verdict.concerns),
        "notes": list(verdict.notes),
    }


def _row(verdict: Verdict, finding: Finding) -> dict[str, Any]:
    return {
        "group": verdict.now.group.group_id,
        "topic": finding.partition.topic,
        "partition": finding.partition.partition,
        "state": finding.state.value,
        "current_offset": finding.seen.committed,
        "log_end_offset": finding.seen.end,
        "lag": finding.seen.lag,
        "done_per_s": round(finding.done_per_s, 1),
        "written_per_s": round(finding.written_per_s, 1),
        "why": finding.why or None,
    }


def _text(verdict: Verdict) -> str:
    from kohort.observe.verdicts import State

    group, findings = verdict.now.group, verdict.findings
    count = Counter(f.state for f in findings)
    states = ", ".join(f"{state.value} {count[state]}" for state in State if count[state])
    lines = [
        f"{printable(group.group_id)}: {group.state}, members {len(group.members)}, "
        f"lag {_sum(verdict.lag)}, partitions {len(findings)}" + (f" ({states})" if states else "")
    ]
    lines += [printable(line) for line in (*verdict.concerns, *verdict.notes)]
    by_reason = _by_reason(findings)
    for (state, reason), some in by_reason[:REASONS_SHOWN]:
        lines += ["", *map(_figures, some[:PARTITIONS_SHOWN])]
        more = len(some) - PARTITIONS_SHOWN
        lines += [f"and {more:,} more"] if more > 0 else []
        lines.append(f"  {state}: {printable(reason)}")
    if len(by_reason) > REASONS_SHOWN:
        lines.append(f"\nand {len(by_reason) - REASONS_SHOWN:,} more reasons: -o csv has them all")
    return "\n".join(lines)


def _sum(lag: Total) -> str:
    """`>=` where some partitions' lag is not in the sum."""
    if lag.value is None:
        return "unknown"
    return f"{'>=' if lag.at_least else ''}{lag.value:,}"


def _by_reason(findings: Sequence[Finding]) -> list[tuple[tuple[str, str], list[Finding]]]:
    """Partitions of one reason are together, stuck ones with the largest lag first."""
    by_reason: dict[tuple[str, str], list[Finding]] = {}
    for one in sorted(findings, key=lambda f: (f.state.value != "stuck", -(f.seen.lag or 0))):
        if one.why:
            by_reason.setdefault((one.state.value, one.why), []).append(one)
    return list(by_reason.items())


def _figures(finding: Finding) -> str:
    seen = finding.seen
    at = "nothing committed" if seen.committed is None else f"at {seen.committed:,}"
    lag = "lag unknown" if seen.lag is None else f"lag {seen.lag:,}"
    rates = f"{finding.done_per_s:,.1f}/s consumed, {finding.written_per_s:,.1f}/s produced"
    return f"{printable(str(finding.partition))} {at}, {lag}, {rates}"
