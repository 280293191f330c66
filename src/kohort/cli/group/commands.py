"""`kohort group`: which groups there are, who is in them, how far behind they are.

Rules:
- Columns are those of Kafka's own tool, so that runbooks carry over.
- A group of the consumer protocol (KIP-848) has more to show: epochs, and what each member is on
  its way to.
- Unknown values are shown as unknown, never as 0: no committed offset, a partition without a
  leader, a group whose coordinator does not answer. One such row never ends the command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.completing import topics as complete_topics
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.group_lookup import (
    is_gone,
    known,
    report_missing,
    settings,
    unreachable,
)
from kohort.cli.common.output import as_table, output_option, remark, show
from kohort.cli.common.root import EXIT_CHECK_FAILED, EXIT_PARTIAL, CommandGroup
from kohort.cli.group.delete import delete
from kohort.cli.group.members import remove_member
from kohort.cli.group.offsets import delete_offsets
from kohort.cli.group.plan import plan
from kohort.cli.group.positions import GroupPositions, every_position, positions_of
from kohort.cli.group.reset import reset
from kohort.cli.group.timeline import timeline
from kohort.cli.group.why import why
from kohort.config import parse_duration_ms
from kohort.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from kohort.client.admin.types import GroupDescription, SurveyedGroup
    from kohort.client.common.types import TopicPartition

LIST_COLUMNS = ("group", "state", "type", "protocol", "members", "coordinator", "error")
STATE_COLUMNS = ("group", "coordinator", "assignment_strategy", "state", "members")
MEMBER_COLUMNS = ("group", "consumer_id", "host", "client_id", "partitions", "assignment")
EPOCH_COLUMNS = ("group_epoch", "target_assignment_epoch")
TARGET_COLUMNS = ("epoch", "target_assignment")
LAG_COLUMNS = (
    "group",
    "topic",
    "partition",
    "current_offset",
    "log_end_offset",
    "lag",
    "consumer_id",
    "host",
    "client_id",
)
TOPIC_COLUMNS = ("group", "topic", "partitions", "lag", "unknown")
STATES = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)


@click.group(cls=CommandGroup)
def group() -> None:
    """List, describe, reset and delete groups; show lag, stuck partitions and rebalances."""


@group.command(
    "list",
    epilog="""\b
Examples:
  kohort group list
  kohort group list --state Empty -o json
""",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only groups in this state; may be given again.",
)
@output_option
@client_options
def list_groups(states: tuple[str, ...], output: str, client: Client) -> int:
    """All groups. Exit code 4 when some could not be described."""
    with open_admin(settings(client)) as admin:
        survey = admin.survey_groups()
    silent = unreachable(survey)
    if silent and not survey.groups:
        raise silent[0]
    rows = [_list_row(one) for one in survey.groups.values() if not is_gone(one)]
    wanted = {state.lower() for state in states}
    rows = [row for row in rows if not wanted or (row["state"] or "").lower() in wanted]
    failed = any(row["error"] for row in rows)
    show(rows, LIST_COLUMNS if failed else LIST_COLUMNS[:-1], output)
    return report_missing(silent) or (EXIT_PARTIAL if failed else 0)


def _list_row(one: SurveyedGroup) -> dict[str, Any]:
    listing, described = one.listing, one.description
    row: dict[str, Any] = dict.fromkeys(LIST_COLUMNS)
    row |= {
        "group": listing.group_id,
        "state": listing.state or None,
        "type": listing.group_type or None,
    }
    if described is None:
        return row | {"error": one.error if listing.describable else None}
    return row | {
        "state": described.state,
        "protocol": described.protocol or None,
        "members": len(described.members),
        "coordinator": _coordinator(described),
    }


@group.command(
    epilog="""\b
Examples:
  kohort group describe billing
  kohort group describe billing -o json
"""
)
@click.argument(
    "groups", nargs=-1, required=True, shell_complete=complete_groups, metavar="GROUP..."
)
@output_option
@client_options
def describe(groups: tuple[str, ...], output: str, client: Client) -> int:
    """Show state, members, assignments and offsets of groups.

    CSV has only the members; JSON lines have one group each. Exit code 4 when some of the groups
    do not exist.
    """
    with open_admin(settings(client)) as admin:
        positions, missing = positions_of(admin, groups)
    if output == "json":
        click.echo(json.dumps({"schema": 1, "groups": [_as_json(f) for f in positions]}, indent=2))
    elif output == "jsonl":
        for one in positions:
            click.echo(json.dumps(_as_json(one)))
    elif output == "csv":
        columns = MEMBER_COLUMNS + TARGET_COLUMNS
        if all(f.group.epoch is None for f in positions):
            columns = MEMBER_COLUMNS
        show([row for f in positions for row in _member_rows(f.group)], columns, output)
    else:
        click.echo("\n\n".join(_as_text(f) for f in positions))
    return report_missing(missing)


@group.command(
    epilog="""\b
Examples:
  kohort group lag billing
  kohort group lag --all -o json
  kohort group lag billing --fail-above 1000   (exit code 3 when a partition has more)
  kohort group lag --all --total --watch       (a line for each group, the worst first)
  kohort group lag --all --match '^bill' --by-topic
"""
)
@click.argument("groups", nargs=-1, shell_complete=complete_groups, metavar="[GROUP]...")
@click.option("--all", "everything", is_flag=True, help="Every classic and consumer group.")
@click.option(
    "--fail-above",
    type=click.IntRange(min=0),
    metavar="N",
    help="Exit with 3 if the lag of a partition is above N or unknown.",
)
@click.option("--match", metavar="REGEX", help="With --all: only groups whose name matches.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    metavar="TOPIC",
    help="Only this topic; may be given again.",
)
@click.option("--by-topic", is_flag=True, help="A line for each group and topic.")
@click.option("--total", is_flag=True, help="A line for each group: lag in records and in time.")
@click.option(
    "--for",
    "watch",
    metavar="TIME",
    help="With --total: take a second sample after this time, for rates, trend and health.",
)
@click.option("--watch", "again", is_flag=True, help="With --total: repeat every 5 s.")
@click.option(
    "--sort",
    type=click.Choice(["severity", "lag", "age", "name"]),
    default="severity",
    help="With --total: the sort order.",
    show_default=True,
)
@output_option
@client_options
def lag(
    groups: tuple[str, ...],
    everything: bool,
    fail_above: int | None,
    match: str | None,
    topics: tuple[str, ...],
    by_topic: bool,
    total: bool,
    watch: str | None,
    again: bool,
    sort: str,
    output: str,
    client: Client,
) -> int:
    """Show the lag of groups for each partition.

    A dash is an unknown number: no committed offset, or no leader. Exit code 4 when some of the
    groups do not exist, or a coordinator does not answer.
    """
    if everything == bool(groups):
        raise click.UsageError("name the groups, or say --all")
    if match is not None and not everything:
        raise click.UsageError("--match chooses among --all groups")
    chosen = bool if match is None else _matches(match)
    if total:
        if topics or by_topic:
            raise click.UsageError(
                "--total is about whole groups; leave --topic and --by-topic out"
            )
        groups = groups if match is None else _matching(client, match)
        return _totals(groups, fail_above, watch, again, sort, output, client)
    if watch or again:
        raise click.UsageError("--for and --watch need --total")
    with open_admin(settings(client)) as admin:
        positions, missing = (
            every_position(admin, chosen) if everything else positions_of(admin, groups)
        )
    if match is not None and not positions:
        raise _none_matches(match)
    positions = [_only(one, topics) for one in positions]
    rows = [row for f in positions for row in f.rows]
    if by_topic:
        show(summed_by_topic(rows), TOPIC_COLUMNS, output)
    else:
        show(rows, LAG_COLUMNS, output)
    silent, wanted = _silent(positions, topics, not everything)
    for sentence in silent:
        remark(sentence)
    partial = report_missing(missing)
    return _check(positions, fail_above, wanted) or partial


def _matches(pattern: str) -> Callable[[str], object]:
    try:
        return re.compile(pattern).search
    except re.error as error:
        raise ConfigError(f"--match {pattern!r} is not a regular expression: {error}") from None


def _matching(client: Client, pattern: str) -> tuple[str, ...]:
    chosen = _matches(pattern)
    with open_admin(settings(client)) as admin:
        names = tuple(
            g.group_id for g in admin.list_groups() if g.describable and chosen(g.group_id)
        )
    if not names:
        raise _none_matches(pattern)
    return names


def _none_matches(pattern: str) -> UsageError:
    return UsageError(f"no group has {pattern!r} in its name; `kohort group list` shows all")


def _only(one: GroupPositions, topics: Sequence[str]) -> GroupPositions:
    """The group with the rows of these topics; of all when none is named."""
    rows = tuple(row for row in one.rows if not topics or row["topic"] in topics)
    return GroupPositions(one.group, rows)


def summed_by_topic(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sums; `unknown` counts the partitions whose lag is unknown, which are in no sum."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        empty = {
            "group": row["group"],
            "topic": row["topic"],
            "partitions": 0,
            "lag": None,
            "unknown": 0,
        }
        line = sums.setdefault((row["group"], row["topic"]), empty)
        line["partitions"] += 1
        if row["lag"] is None:
            line["unknown"] += 1
        else:
            line["lag"] = (line["lag"] or 0) + row["lag"]
    return list(sums.values())


def _totals(
    groups: tuple[str, ...],
    fail_above: int | None,
    watch: str | None,
    again: bool,
    sort: str,
    output: str,
    client: Client,
) -> int:
    from kohort.cli.group.totals import show_totals

    if fail_above is not None:
        raise click.UsageError("--fail-above is about partitions; leave --total out")
    watch_s = parse_duration_ms(watch) / 1000 if watch else 0.0
    with open_admin(settings(client)) as admin:
        missing = known(admin, groups)[1] if groups else []
        complete = show_totals(
            admin,
            client.common(),
            groups,
            output,
            watch_s=watch_s,
            every_s=5.0 if again else 0.0,
            sort=sort,
        )
    return report_missing(missing) or (0 if complete else EXIT_PARTIAL)


def _silent(
    positions: Sequence[GroupPositions], topics: Sequence[str], named: bool
) -> tuple[list[str], bool]:
    """What there are no rows of, in sentences, and whether something that was asked for is.

    Of all groups some have no offsets (Kafka Connect's), and most do not read a certain topic.
    """
    names = [one.group.group_id for one in positions if not one.rows]
    if not topics:
        return [f"group {name} has no offsets and reads nothing" for name in names], (
            named and bool(names)
        )
    found = {row["topic"] for one in positions for row in one.rows}
    unread = [topic for topic in topics if topic not in found] if positions else []
    requested = " or ".join(map(repr, topics))
    sentences = [
        f"group {name} has no offsets of {requested}, and does not read it"
        for name in names
        if named
    ]
    if len(positions) > 1:
        sentences += [
            f"none of the {len(positions)} groups has offsets of {topic!r}, or reads it"
            for topic in unread
        ]
    return sentences, bool(unread)


def _check(positions: Sequence[GroupPositions], fail_above: int | None, silent: bool) -> int:
    if fail_above is None:
        return 0
    bad = [
        row for f in positions for row in f.rows if row["lag"] is None or row["lag"] > fail_above
    ]
    for row in bad:
        lag = "unknown" if row["lag"] is None else f"{row['lag']:,}"
        remark(
            f"lag of group {row['group']} on {row['topic']}-{row['partition']} is {lag}, "
            f"more than {fail_above:,} is not allowed"
        )
    return EXIT_CHECK_FAILED if bad or silent else 0


# -- one group


def _member_rows(described: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "group": described.group_id,
            "consumer_id": m.member_id,
            "host": m.host,
            "client_id": m.client_id,
            "partitions": len(m.assignment),
            "assignment": _assignment_text(m.assignment) or None,
            "epoch": m.epoch,
            "target_assignment": _assignment_text(m.target or ()) or None,
        }
        for m in described.members
    ]


def _assignment_text(assignment: Iterable[TopicPartition]) -> str:
    """`orders(0,1,2) payments(4)`, as Kafka's tool writes it."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(assignment):
        by_topic.setdefault(topic, []).append(partition)
    return " ".join(f"{t}({','.join(map(str, numbers))})" for t, numbers in by_topic.items())


def _as_text(one: GroupPositions) -> str:
    described = one.group
    state = {
        "group": described.group_id,
        "coordinator": _coordinator(described),
        "assignment_strategy": described.protocol or None,
        "state": described.state,
        "members": len(described.members),
        "group_epoch": described.epoch,
        "target_assignment_epoch": described.assignment_epoch,
    }
    epochs = described.epoch is not None
    parts = [as_table([state], STATE_COLUMNS + EPOCH_COLUMNS if epochs else STATE_COLUMNS)]
    if described.members:
        columns = MEMBER_COLUMNS + TARGET_COLUMNS if epochs else MEMBER_COLUMNS
        parts.append(as_table(_member_rows(described), columns))
    if one.rows:
        parts.append(as_table(one.rows, LAG_COLUMNS))
    return "\n\n".join(parts)


def _as_json(one: GroupPositions) -> dict[str, Any]:
    described = one.group
    return {
        "group": described.group_id,
        "state": described.state,
        "type": described.group_type or None,
        "protocol_type": described.protocol_type,
        "assignment_strategy": described.protocol or None,
        "coordinator": _coordinator(described),
        "lag": one.total_lag,
        "unknown": one.lags.count(None),
        "group_epoch": described.epoch,
        "target_assignment_epoch": described.assignment_epoch,
        "members": [
            {
                "consumer_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "host": m.host,
                "type": m.member_type,
                "rack": m.rack,
                "topics": list(m.topics),
                "pattern": m.pattern,
                "assignment": _assignment_json(m.assignment),
                "epoch": m.epoch,
                "target_assignment": None if m.target is None else _assignment_json(m.target),
            }
            for m in described.members
        ],
        "partitions": [
            {key: value for key, value in row.items() if key != "group"} for row in one.rows
        ],
    }


def _assignment_json(assignment: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": number} for topic, number in sorted(assignment)]


def _coordinator(described: GroupDescription) -> str:
    node = described.coordinator
    return f"{node.host}:{node.port} ({node.node_id})"


group.add_command(delete)
group.add_command(delete_offsets)
group.add_command(remove_member)
group.add_command(plan)
group.add_command(reset)
group.add_command(timeline)
group.add_command(why)
