"""`kohort group`: which groups there are, who is in them, how far behind they are.

Rules:
- Columns are those of Kafka's own tool, so that runbooks carry over.
- A group of the consumer protocol (KIP-848) has more to show: epochs, and what each member is on
  its way to.
- Unknown values are shown as unknown, never as 0: no committed offset, a partition without a
  leader,
  a group whose coordinator does not answer. One such row never ends the command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.completing import topics as complete_topics
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.group_lookup import known, report_missing, settings
from kohort.cli.common.output import as_table, output_option, remark, show
from kohort.cli.common.root import EXIT_CHECK_FAILED, EXIT_PARTIAL, CommandGroup
from kohort.cli.group.delete import delete
from kohort.cli.group.members import remove_member
from kohort.cli.group.offsets import delete_offsets
from kohort.cli.group.plan import plan
from kohort.cli.group.reset import reset
from kohort.cli.group.timeline import timeline
from kohort.cli.group.why import why
from kohort.config import parse_duration_ms
from kohort.errors import ConfigError, KohortError, UsageError
from kohort.lean import dataclass
from kohort.observe.snapshot import records_between
from kohort.sampling.log_offsets import offsets, topics_there

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import GroupDescription, GroupListing, MemberDescription
    from kohort.client.common.types import OffsetAndMetadata, TopicPartition

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


@dataclass(frozen=True)
class Found:
    """One group at present: its members, and the position of each of its partitions."""

    group: GroupDescription
    rows: tuple[dict[str, Any], ...]

    @property
    def lags(self) -> list[int | None]:
        """Of each partition; None where it is not known."""
        return [row["lag"] for row in self.rows]

    @property
    def total_lag(self) -> int | None:
        """The sum of the known lags; None when none is known."""
        known = [lag for lag in self.lags if lag is not None]
        return sum(known) if known else None


@click.group(cls=CommandGroup)
def group() -> None:
    """List, describe, reset, delete groups; their lag, why they are stuck or rebalanced."""


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
        rows = [_list_row(admin, listing) for listing in admin.list_groups(states=states)]
    failed = any(row["error"] for row in rows)
    show(rows, LIST_COLUMNS if failed else LIST_COLUMNS[:-1], output)
    return EXIT_PARTIAL if failed else 0


def _list_row(admin: Admin, listing: GroupListing) -> dict[str, Any]:
    name = listing.group_id
    row: dict[str, Any] = dict.fromkeys(LIST_COLUMNS)
    row |= {"group": name, "state": listing.state or None, "type": listing.group_type or None}
    if not listing.describable:
        return row
    try:
        described = admin.describe_groups([name])[name]
    except KohortError as error:
        return row | {"error": str(error)}
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
    """State, members with what is assigned to them, and offsets of groups.

    CSV holds the members alone; JSON lines hold one group each. Exit code 4 when there are some of
    the groups only.
    """
    with open_admin(settings(client)) as admin:
        looks, missing = _looks(admin, groups)
    if output == "json":
        click.echo(json.dumps({"schema": 1, "groups": [_as_json(f) for f in looks]}, indent=2))
    elif output == "jsonl":
        for one in looks:
            click.echo(json.dumps(_as_json(one)))
    elif output == "csv":
        columns = MEMBER_COLUMNS + TARGET_COLUMNS
        if all(f.group.epoch is None for f in looks):
            columns = MEMBER_COLUMNS
        show([row for f in looks for row in _member_rows(f.group)], columns, output)
    else:
        click.echo("\n\n".join(_as_text(f) for f in looks))
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
    help="Exit code 3 when the lag of a partition is above N, or not known.",
)
@click.option("--match", metavar="REGEX", help="With --all: only groups with this in their name.")
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
    help="With --total: look again so much later, for rates, trend and health.",
)
@click.option("--watch", "again", is_flag=True, help="With --total: again every 5 s.")
@click.option(
    "--sort",
    type=click.Choice(["severity", "lag", "age", "name"]),
    default="severity",
    help="With --total: what comes first.",
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
    """How far groups are behind, partition by partition.

    A dash is an unknown number: nothing committed yet, or no leader to ask. Exit code 4
    when there are some of the groups only, or a coordinator does not answer for its groups.
    """
    if everything == bool(groups):
        raise click.UsageError("name the groups, or say --all")
    if match is not None and not everything:
        raise click.UsageError("--match chooses among --all groups")
    groups = groups if match is None else _matching(client, match)
    if total:
        if topics or by_topic:
            raise click.UsageError(
                "--total is about whole groups; leave --topic and --by-topic out"
            )
        return _totals(groups, fail_above, watch, again, sort, output, client)
    if watch or again:
        raise click.UsageError("--for and --watch need --total")
    with open_admin(settings(client)) as admin:
        names = groups or [g.group_id for g in admin.list_groups() if g.describable]
        looks, missing = _looks(admin, names)
    looks = [_only(one, topics) for one in looks]
    rows = [row for f in looks for row in f.rows]
    if by_topic:
        show(summed_by_topic(rows), TOPIC_COLUMNS, output)
    else:
        show(rows, LAG_COLUMNS, output)
    silent, wanted = _silent(looks, topics, not everything)
    for sentence in silent:
        remark(sentence)
    partial = report_missing(missing)
    return _check(looks, fail_above, wanted) or partial


def _matching(client: Client, pattern: str) -> tuple[str, ...]:
    try:
        test = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--match {pattern!r} is not a regular expression: {error}") from None
    with open_admin(settings(client)) as admin:
        names = tuple(
            g.group_id for g in admin.list_groups() if g.describable and test.search(g.group_id)
        )
    if not names:
        raise UsageError(f"no group has {pattern!r} in its name; `kohort group list` shows all")
    return names


def _only(look: Found, topics: Sequence[str]) -> Found:
    """The group with the rows of these topics; of all when none is named."""
    rows = tuple(row for row in look.rows if not topics or row["topic"] in topics)
    return Found(look.group, rows)


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


def _silent(looks: Sequence[Found], topics: Sequence[str], named: bool) -> tuple[list[str], bool]:
    """What there are no rows of, in sentences, and whether something that was asked for is.

    Of all groups some have no offsets (Kafka Connect's), and most do not read a certain topic.
    """
    names = [one.group.group_id for one in looks if not one.rows]
    if not topics:
        return [f"group {name} has no offsets and reads nothing" for name in names], (
            named and bool(names)
        )
    found = {row["topic"] for one in looks for row in one.rows}
    unread = [topic for topic in topics if topic not in found] if looks else []
    asked = " or ".join(map(repr, topics))
    sentences = [
        f"group {name} has no offsets of {asked}, and does not read it" for name in names if named
    ]
    if len(looks) > 1:
        sentences += [
            f"none of the {len(looks)} groups has offsets of {topic!r}, or reads it"
            for topic in unread
        ]
    return sentences, bool(unread)


def _check(looks: Sequence[Found], fail_above: int | None, silent: bool) -> int:
    if fail_above is None:
        return 0
    bad = [row for f in looks for row in f.rows if row["lag"] is None or row["lag"] > fail_above]
    for row in bad:
        lag = "unknown" if row["lag"] is None else f"{row['lag']:,}"
        remark(
            f"lag of group {row['group']} on {row['topic']}-{row['partition']} is {lag}, "
            f"more than {fail_above:,} is not allowed"
        )
    return EXIT_CHECK_FAILED if bad or silent else 0


# -- one group


def _looks(admin: Admin, names: Iterable[str]) -> tuple[list[Found], list[KohortError]]:
    """Groups at present, and an error for each that cannot be looked at.

    Raises the first error where there is none else.
    """
    there, errors = known(admin, names)
    looks: list[Found] = []
    for described in there:
        try:
            looks.append(_look(admin, described))
        except KohortError as error:
            errors.append(error)
    if errors and not looks:
        raise errors[0]
    return looks, errors


def _look(admin: Admin, described: GroupDescription) -> Found:
    committed = admin.list_group_offsets(described.group_id)
    owners = {tp: m for m in described.members for tp in m.assignment}
    partitions = sorted({*committed, *owners})
    topics = topics_there(admin, {tp.topic for tp in partitions})
    ends = offsets(admin, topics.values(), "latest")
    return Found(
        described,
        tuple(
            _lag_row(described.group_id, tp, committed, ends, owners.get(tp)) for tp in partitions
        ),
    )


def _lag_row(
    name: str,
    tp: TopicPartition,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Mapping[TopicPartition, int],
    owner: MemberDescription | None,
) -> dict[str, Any]:
    at, end = committed.get(tp), ends.get(tp)
    return {
        "group": name,
        "topic": tp.topic,
        "partition": tp.partition,
        "current_offset": None if at is None else at.offset,
        "log_end_offset": end,
        "lag": records_between(None if at is None else at.offset, end),
        "consumer_id": None if owner is None else owner.member_id,
        "host": None if owner is None else owner.host,
        "client_id": None if owner is None else owner.client_id,
    }


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


def _as_text(look: Found) -> str:
    described = look.group
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
    if look.rows:
        parts.append(as_table(look.rows, LAG_COLUMNS))
    return "\n\n".join(parts)


def _as_json(look: Found) -> dict[str, Any]:
    described = look.group
    return {
        "group": described.group_id,
        "state": described.state,
        "type": described.group_type or None,
        "protocol_type": described.protocol_type,
        "assignment_strategy": described.protocol or None,
        "coordinator": _coordinator(described),
        "lag": look.total_lag,
        "unknown": look.lags.count(None),
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
            {key: value for key, value in row.items() if key != "group"} for row in look.rows
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
