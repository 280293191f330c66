"""`kohort group timeline`: why a group rebalanced, what moved, and how long it took.

Rules:
- What the coordinator remembers is exact: only an embedded broker of ours does. What is older, and
  all of it on Apache Kafka, is read off `__consumer_offsets`; each such rebalance says what of it
  is inferred, and in text those lines begin with `~`.
- An unknown value is a dash, never 0. A log that may not be read is reported, and is no failure
  while the coordinator still remembers something.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.formats import iso_time
from kohort.cli.common.group_lookup import settings
from kohort.cli.common.output import output_option, printable, remark, show
from kohort.errors import ErrorCode, GroupError, KohortError

if TYPE_CHECKING:
    from kohort.group.explain.timeline import Rebalance, RebalanceCause

COLUMNS = (
    "group",
    "protocol",
    "generation",
    "outcome",
    "began",
    "joining_ms",
    "settling_ms",
    "causes",
    "members",
    "came",
    "went",
    "partitions",
    "moved",
    "needed",
    "not_needed",
    "source",
    "inferred",
)
COORDINATOR, LOG = "coordinator", "log"
_NAMES_SHOWN = 5
_ID_END = 6
_NEEDED = {
    "new": "nobody had them",
    "owner gone": "their owner is gone or reads the topic no more",
    "topic gone": "the topic is gone",
    "balance": "balance needs them",
    "": "NOT needed",
}


@click.command(
    epilog="""\b
Examples:
  kohort group timeline billing
  kohort group timeline billing --last 3 --moves
  kohort group timeline billing -o json
"""
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--last",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    metavar="N",
    help="The maximum number of rebalances.",
)
@click.option("--moves", is_flag=True, help="List every partition that moved.")
@output_option
@client_options
def timeline(group: str, last: int, moves: bool, output: str, client: Client) -> None:
    """Show each rebalance of a group: causes, phases and moves, the newest last.

    The coordinator of an embedded broker records its rebalances. On Apache Kafka, and for older
    rebalances, the command reads __consumer_offsets; inferred lines begin with "~".
    """
    rebalances = _read(group, last, client)
    if output == "json":
        click.echo(
            json.dumps({"schema": 1, "rebalances": [_as_json(r) for r in rebalances]}, indent=2)
        )
    elif output == "jsonl":
        for one in rebalances:
            click.echo(json.dumps(_as_json(one)))
    elif output == "csv":
        show([_row(one) for one in rebalances], COLUMNS, output)
    else:
        click.echo("\n\n".join(_as_text(one, moves=moves) for one in rebalances))
        _explain(rebalances)


def _read(group: str, last: int, client: Client) -> list[Rebalance]:
    from kohort.client.admin.group_timeline import read_rebalances
    from kohort.client.common.config import ConsumerConfig
    from kohort.group.explain.timeline import merged, needs_log

    with open_admin(settings(client)) as admin:
        exact = admin.group_timeline(group, last=last)
        read: list[Rebalance] = []
        if needs_log(exact, last):
            try:
                read = read_rebalances(admin, group, client.for_role(ConsumerConfig))
            except KohortError as error:
                if not exact:
                    raise
                remark(f"warning: what is older cannot be read: {error}")
    rebalances = merged(exact or (), read)[-last:]
    if not rebalances:
        raise GroupError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"of group {group!r} no rebalance is known: it has never had a member, or its records "
            "are gone. `kohort group list` shows the groups there are",
        )
    return rebalances


# -- forms


def _as_json(one: Rebalance) -> dict[str, Any]:
    return {
        **asdict(one),
        "joining_ms": one.joining_ms,
        "settling_ms": one.settling_ms,
        "source": LOG if one.from_log else COORDINATOR,
    }


def _row(one: Rebalance) -> dict[str, Any]:
    causes = [_cause(one, cause) for cause in one.causes]
    return {
        **asdict(one),
        "began": iso_time(one.began_ms),
        "joining_ms": one.joining_ms,
        "settling_ms": one.settling_ms,
        "causes": "; ".join(causes),
        "source": LOG if one.from_log else COORDINATOR,
    }


def _as_text(one: Rebalance, *, moves: bool) -> str:
    lines = [_headline(one)]
    mark = "~ " if "causes" in one.inferred else "  "
    lines += [f"{mark}cause    {_cause(one, cause)}" for cause in one.causes]
    if one.causes_more:
        lines.append(f"{mark}cause    and {one.causes_more:,} more")
    if one.gap:
        lines.append(f"~ before   {one.gap:,} generations before it are in the log no more")
    lines.append(_phases(one))
    if one.moved is not None:
        lines.append(f"  members  {one.members:,}{_who(one)}")
        mark = "~ " if "moves" in one.inferred else "  "
        lines.append(f"{mark}moves    {_moves(one)}")
    if moves:
        lines += [
            f"           {printable(m.topic)}-{m.partition}  {_name(one, m.source)} -> "
            f"{_name(one, m.target)}  {'-' if m.needed is None else m.needed or 'not needed'}"
            for m in one.moves
        ]
        more = (one.moved or 0) - len(one.moves)
        lines += [f"           and {more:,} more"] if more else []
    return "\n".join(lines)


def _headline(one: Rebalance) -> str:
    word = "epoch" if one.protocol == "consumer" else "generation"
    number = "(not yet)" if one.generation is None else one.generation
    when = one.began_ms if one.began_ms is not None else one.joined_ms or one.settled_ms
    return f"{iso_time(when) or '-'}  {word} {number}  {one.outcome}"


def _phases(one: Rebalance) -> str:
    mark = "~ " if "joined_ms" in one.inferred else "  "
    waited = f" (waited for {_name(one, one.waited_for)})" if one.waited_for else ""
    first, second = _ms(one.joining_ms), _ms(one.settling_ms)
    if one.protocol == "consumer":
        return f"{mark}phases   target {first}, reached by all {second}{waited}"
    return f"{mark}phases   join {first}{waited}, assignment {second}"


def _cause(one: Rebalance, cause: RebalanceCause) -> str:
    from kohort.group.coordinator.state.rebalance_history import Trigger

    text = Trigger[cause.trigger.upper()].value
    if cause.member_id:
        who = _name(one, cause.member_id)
        where = f" ({printable(cause.host)})" if cause.host else ""
        static = f" [{printable(cause.instance_id)}]" if cause.instance_id else ""
        text = f"{who}{static}{where} {text}"
    return f'{text}: "{printable(cause.reason)}"' if cause.reason else text


def _who(one: Rebalance) -> str:
    parts = [
        f"{word} {', '.join(_name(one, m) for m in some[:_NAMES_SHOWN])}"
        + (f" and {len(some) - _NAMES_SHOWN:,} more" if len(some) > _NAMES_SHOWN else "")
        for word, some in (("came:", one.came), ("went:", one.went))
        if some
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def _moves(one: Rebalance) -> str:
    if not one.moved:
        return f"none of {one.partitions:,} partitions"
    ending = "" if one.partitions == 1 else "s"
    text = f"{one.moved:,} (the group has {one.partitions:,} partition{ending})"
    if one.needed is None:
        return f"{text}; which of them had to be was not worked out"
    if len(one.moves) < one.moved:
        return f"{text}: {one.needed:,} needed, {one.not_needed:,} NOT needed"
    why = Counter(move.needed for move in one.moves)
    return f"{text}: " + ", ".join(
        f"{why[kind]:,} {words}" for kind, words in _NEEDED.items() if why[kind]
    )


def _name(one: Rebalance, member_id: str | None) -> str:
    """The client id, with the end of the member id where that is not enough to tell two apart."""
    if member_id is None:
        return "nobody"
    client_id = one.names.get(member_id, "")
    if not client_id:
        return printable(member_id)
    if list(one.names.values()).count(client_id) > 1:
        return printable(f"{client_id}..{member_id[-_ID_END:]}")
    return printable(client_id)


def _ms(duration_ms: int | None) -> str:
    if duration_ms is None:
        return "-"
    return f"{duration_ms} ms" if duration_ms < 1_000 else f"{duration_ms / 1_000:.1f} s"


def _explain(rebalances: Sequence[Rebalance]) -> None:
    """Say on standard error what the marks mean, where there are any."""
    read = sum(one.from_log for one in rebalances)
    if not read:
        return
    click.echo(
        f"\n{read} of {len(rebalances)} rebalances were read off __consumer_offsets. Exact there: "
        "generations, members, who had what, and when records were written. Lines with ~ are "
        "inferred: the log does not say why a group rebalanced, and not when that began.",
        err=True,
    )
