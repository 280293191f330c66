"""`kohort group plan`: what an assignor would make of a group, and what that would move.

Rules:
- The group is either live (`--group`, read from the cluster, never touched) or made up
  (`--members`, `--topics`). `--without` and `--with` change it after today's assignment is known:
  that of the live group, or what the assignor gives the made-up one.
- The plan itself is `kohort.observe.assignment_preview`'s, which the console shows, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.group_lookup import existing, settings
from kohort.cli.common.output import as_table, output_option, show
from kohort.observe.assignment_preview import (
    Planned,
    Scene,
    live_scene,
    moves,
    parse_members,
    planned,
)
from kohort.sampling.topic_views import topic_views

if TYPE_CHECKING:
    from kohort.group.assignors import TopicView
    from kohort.group.assignors.measure import Move, Spread

MEMBER_COLUMNS = (
    "member",
    "rack",
    "weight",
    "partitions",
    "kept",
    "gained",
    "lost",
    "assignment",
)
ONLY_IF_KNOWN = ("rack", "weight")
ONLY_IF_CHANGED = ("kept", "gained", "lost")
TOPIC_COLUMNS = ("topic", "partitions", "subscribers", "min", "max", "mean", "stddev")
MOVE_COLUMNS = ("topic", "partition", "from", "to", "needed")
MOST_MOVES_SHOWN = 20


@click.command(
    epilog="""\b
A member is NAME[:rack=R][:weight=N][:static=ID][:topics=T+T], or just how many there are;
without topics it reads all of them. --racks lays the partitions' replicas out over racks in turn.
\b
Examples:
  kohort group plan --assignor range --members 3 --topics orders:6,payments:4
  kohort group plan --assignor cooperative-sticky --members a,b,c --topics orders:8 --without b
  kohort group plan --assignor rack-aware --members a:rack=r1,b:rack=r2 --topics t:8 --racks r1,r2
  kohort group plan --group billing --assignor uniform
  kohort group plan --group billing --with new-1 -o json
  kohort group plan --assignor mymodule:MyAssignor --members 5 --topics orders:12
"""
)
@click.option("--group", "live", metavar="GROUP", help="A live group: its members and topics.")
@click.option(
    "--assignor",
    metavar="NAME",
    help="A name, 'weighted:4', or module:Class. [default: the live group's assignor]",
)
@click.option("--members", "members", multiple=True, metavar="M,...", help="Hypothetical members.")
@click.option("--topics", "topics", multiple=True, metavar="T:N,...", help="Hypothetical topics.")
@click.option("--racks", metavar="R,...", help="Racks of the topics' replicas, in turn.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Replicas of each partition; only with --racks.",
)
@click.option("--without", multiple=True, metavar="M,...", help="Members that leave.")
@click.option("--with", "joining", multiple=True, metavar="M,...", help="Members that join.")
@click.option("--server-side", is_flag=True, help="Use the broker-side assignor (KIP-848).")
@output_option
@client_options
def plan(
    live: str | None,
    assignor: str | None,
    members: tuple[str, ...],
    topics: tuple[str, ...],
    racks: str | None,
    replicas: int,
    without: tuple[str, ...],
    joining: tuple[str, ...],
    server_side: bool,
    output: str,
    client: Client,
) -> None:
    """Show the assignment that an assignor would compute, its balance, and its moves.

    Nothing is changed. CSV and JSON lines hold one member a line.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where module:Class is most likely to be
    if live is not None:
        if members or topics or racks:
            raise click.UsageError("--group reads members and topics; add some by --with")
        scene = _live(live, assignor, _listed(*joining), server_side, client)
    elif members and topics and assignor:
        scene = _made_up(assignor, members, topics, _listed(racks), replicas, server_side)
    else:
        raise click.UsageError("say --group, or all of --assignor, --members and --topics")
    _print(planned(scene, _listed(*without), _listed(*joining)), output)


# -- the scene


def _made_up(
    assignor: str,
    members: tuple[str, ...],
    topics: tuple[str, ...],
    racks: Sequence[str],
    replicas: int,
    server_side: bool,
) -> Scene:
    views: dict[str, TopicView] = {}
    for each in _listed(*topics):
        name, colon, count = each.rpartition(":")
        if not colon or not name or not count.isdecimal():
            raise click.UsageError(f"a topic is NAME:PARTITIONS, not {each!r}")
        views[name] = _laid_out(int(count), racks, replicas)
    people = {p.name: p for each in _listed(*members) for p in parse_members(each, views)}
    return Scene(people, views, None, assignor, server_side)


def _laid_out(partitions: int, racks: Sequence[str], replicas: int) -> TopicView:
    from kohort.group.assignors import TopicView

    if not racks:
        return TopicView(partitions)
    several = min(replicas, len(racks))
    rows = [
        [racks[(number + k) % len(racks)] for k in range(several)] for number in range(partitions)
    ]
    return TopicView(
        partitions, tuple(map(frozenset, rows)), leader_racks=tuple(each[0] for each in rows)
    )


def _live(
    name: str, assignor: str | None, joining: Sequence[str], server_side: bool, client: Client
) -> Scene:
    with open_admin(settings(client)) as admin:
        [described] = existing(admin, [name])
        topics = partial(topic_views, admin)
        return live_scene(described, topics, assignor, joining, server_side=server_side)


def _listed(*texts: str | None) -> list[str]:
    return [each for text in texts for each in (text or "").split(",") if each]


# -- what is shown


def _print(planned: Planned, output: str) -> None:
    rows = _member_rows(planned)
    if output in ("csv", "jsonl"):
        show(rows, MEMBER_COLUMNS, output)
    elif output == "json":
        click.echo(json.dumps(_as_json(planned, rows), indent=2))
    else:
        click.echo("\n\n".join(_as_text(planned, rows)))


def _topic_rows(planned: Planned) -> list[dict[str, Any]]:
    from kohort.group.assignors import measure

    group = planned.group
    return [
        {
            "topic": topic,
            "partitions": group.topics[topic].partitions,
            "subscribers": sum(topic in member.topics for member in group.members.values()),
            **_as_columns(spread),
        }
        for topic, spread in measure.per_topic(group, planned.after).items()
    ]


def _as_json(planned: Planned, rows: list[dict[str, Any]]) -> dict[str, Any]:
    from kohort.group.assignors import measure

    near = measure.nearness(planned.group, planned.after)
    return {
        "schema": 1,
        "assignor": planned.assignor.name,
        "cooperative": planned.assignor.cooperative,
        "balance": _as_columns(measure.spread(row["partitions"] for row in rows)),
        "racks": {"partitions": near.partitions, "replica": near.replica, "leader": near.leader}
        if near.partitions
        else None,
        "members": rows,
        "topics": _topic_rows(planned),
        "moves": [_move_row(move) for move in moves(planned)],
    }


def _as_text(planned: Planned, rows: list[dict[str, Any]]) -> list[str]:
    from kohort.group.assignors import measure

    hidden = {c for c in ONLY_IF_KNOWN if all(row[c] is None for row in rows)}
    if not planned.before:
        hidden.update(ONLY_IF_CHANGED)
    words = [
        f"{planned.assignor.name}: {_in_words(measure.spread(row['partitions'] for row in rows))}"
    ]
    near, moved = measure.nearness(planned.group, planned.after), moves(planned)
    if near.partitions:
        words.append(
            f"racks: {near.replica} of {near.partitions} partitions have a replica where their "
            f"member is, {near.leader} their leader"
        )
    if planned.before:
        words.append(_moved_in_words(moved))
    parts = [
        as_table(rows, [column for column in MEMBER_COLUMNS if column not in hidden]),
        as_table(_topic_rows(planned), TOPIC_COLUMNS),
        "\n".join(words),
    ]
    if moved:
        shown = [_move_row(m) | {"needed": "yes" if m.needed else "no"} for m in moved]
        parts.append(as_table(shown[:MOST_MOVES_SHOWN], MOVE_COLUMNS))
    if len(moved) > MOST_MOVES_SHOWN:
        parts.append(f"and {len(moved) - MOST_MOVES_SHOWN} more; -o json shows all")
    return parts


def _member_rows(planned: Planned) -> list[dict[str, Any]]:
    from kohort.group.assignors import WeightedAssignor
    from kohort.group.assignors.base import count, subtract
    from kohort.group.assignors.weighted import weight_of

    weighted = isinstance(planned.assignor, WeightedAssignor)
    rows: list[dict[str, Any]] = []
    for view in planned.group.in_order():
        before = planned.before.get(view.member_id, {})
        after = planned.after[view.member_id]
        lost = count(subtract(before, after))
        rows.append(
            {
                "member": view.member_id,
                "rack": view.rack,
                "weight": weight_of(view) if weighted else None,
                "partitions": count(after),
                "kept": count(before) - lost,
                "gained": count(subtract(after, before)),
                "lost": lost,
                "assignment": " ".join(
                    f"{topic}({_ranges(numbers)})" for topic, numbers in after.items()
                )
                or None,
            }
        )
    return rows


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,7`: ascending numbers, neighbours together."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _as_columns(spread: Spread) -> dict[str, Any]:
    return {
        "min": spread.least,
        "max": spread.most,
        "mean": round(spread.mean, 2),
        "stddev": round(spread.deviation, 2),
    }


def _in_words(loads: Spread) -> str:
    return (
        f"{loads.least} to {loads.most} partitions a member, mean {loads.mean:.2f}, "
        f"standard deviation {loads.deviation:.2f}"
    )


def _moved_in_words(moves: Sequence[Move]) -> str:
    new = sum(move.source is None for move in moves)
    needed = sum(move.needed for move in moves)
    between = len(moves) - new - needed
    parts = [f"{between} between members that stay"]
    if needed:
        parts.append(f"{needed} that had to")
    if new:
        parts.append(f"{new} that nobody had")
    what = "partition" if len(moves) == 1 else "partitions"
    return f"moves: {len(moves)} {what} ({', '.join(parts)})"


def _move_row(move: Move) -> dict[str, Any]:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": move.source,
        "to": move.target,
        "needed": move.needed,
    }
