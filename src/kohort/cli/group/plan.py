"""`kohort group plan`: what an assignor would make of a group, and what that would move.

Rules:
- The group is either live (`--group`, read from the cluster, never touched) or made up
  (`--members`, `--topics`). `--without` and `--with` change it after today's assignment is known:
  that of the live group, or what the assignor gives the made-up one.
- Members tell the assignor what they would tell a leader: user data, owned partitions where it is
  cooperative, racks. A broker's assignor is shown what a member's target is.
- A plan is checked as a leader would check it; one that breaks its contract ends the command.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.group_lookup import existing, settings
from kohort.cli.common.output import as_table, output_option, show

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import MemberDescription
    from kohort.client.common.types import TopicPartition
    from kohort.group.assignors import Assignor, GroupView, MemberView, Partitions, TopicView
    from kohort.group.assignors.measure import Move, Spread

MEMBER_COLUMNS = (
    "member", "rack", "weight", "partitions", "kept", "gained", "lost", "assignment",
)  # fmt: skip
ONLY_IF_KNOWN = ("rack", "weight")
ONLY_IF_CHANGED = ("kept", "gained", "lost")
TOPIC_COLUMNS = ("topic", "partitions", "subscribers", "min", "max", "mean", "stddev")
MOVE_COLUMNS = ("topic", "partition", "from", "to", "needed")
MOST_MOVES_SHOWN = 20
MOST_MEMBERS = 100_000
CONSUMER = "consumer"


@dataclass(frozen=True)
class Participant:
    """A member before an assignor has been asked what it would tell."""

    name: str
    topics: frozenset[str]
    rack: str | None = None
    weight: int | None = None
    instance_id: str | None = None
    user_data: bytes | None = None
    aliases: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scene:
    """Who is there, which topics there are, and who has what today (None: nobody was asked yet)."""

    members: Mapping[str, Participant]
    topics: Mapping[str, TopicView]
    today: Mapping[str, Partitions] | None
    assignor: str
    server_side: bool


@dataclass(frozen=True)
class Planned:
    """A plan and what it was made of."""

    assignor: Assignor
    group: GroupView
    scene: Scene
    before: Mapping[str, Partitions]
    after: Mapping[str, Partitions]


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
    "--assignor", metavar="NAME",
    help="By name, as 'weighted:4', or as module:Class. [default: the live group's own]",
)  # fmt: skip
@click.option("--members", "members", multiple=True, metavar="M,...", help="Made-up members.")
@click.option("--topics", "topics", multiple=True, metavar="T:N,...", help="Made-up topics.")
@click.option("--racks", metavar="R,...", help="Racks of the made-up topics' replicas, in turn.")
@click.option(
    "--replicas", type=click.IntRange(1, 100), default=1, show_default=True,
    help="Replicas of each made-up partition; counts with --racks.",
)  # fmt: skip
@click.option("--without", multiple=True, metavar="M,...", help="These leave.")
@click.option("--with", "joining", multiple=True, metavar="M,...", help="These join.")
@click.option("--server-side", is_flag=True, help="The broker's assignor of that name (KIP-848).")
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
    """What an assignor would give whom, how level that is, and what it would move.

    Nothing is changed. CSV and JSON lines hold one member a line.
    """
    if live is not None:
        if members or topics or racks:
            raise click.UsageError("--group reads members and topics; add some by --with")
        scene = _live(live, assignor, _listed(*joining), server_side, client)
    elif members and topics and assignor:
        scene = _made_up(assignor, members, topics, _listed(racks), replicas, server_side)
    else:
        raise click.UsageError("say --group, or all of --assignor, --members and --topics")
    _print(_planned(scene, _listed(*without), _listed(*joining)), output)


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
    people = {p.name: p for each in _listed(*members) for p in _participants(each, views)}
    return Scene(people, views, None, assignor, server_side)


def _laid_out(partitions: int, racks: Sequence[str], replicas: int) -> TopicView:
    from kohort.group.assignors import TopicView

    if not racks:
        return TopicView(partitions)
    several = min(replicas, len(racks))
    found = [
        [racks[(number + k) % len(racks)] for k in range(several)] for number in range(partitions)
    ]
    return TopicView(
        partitions, tuple(map(frozenset, found)), leader_racks=tuple(each[0] for each in found)
    )


def _participants(text: str, topics: Iterable[str]) -> list[Participant]:
    name, *details = text.split(":")
    if name.isdecimal() and not details:
        count = int(name)
        if not 1 <= count <= MOST_MEMBERS:
            raise click.UsageError(f"1 to {MOST_MEMBERS:,} members can be made up, not {count}")
        width = len(name)
        return [Participant(f"m{k:0{width}}", frozenset(topics)) for k in range(1, count + 1)]
    made = Participant(name, frozenset(topics))
    for setting in details:
        key, _, value = setting.partition("=")
        if key == "rack" and value:
            made = replace(made, rack=value)
        elif key == "weight" and value.isdecimal():
            made = replace(made, weight=int(value))
        elif key == "static" and value:
            made = replace(made, instance_id=value)
        elif key == "topics" and value:
            made = replace(made, topics=frozenset(value.split("+")))
        else:
            raise click.UsageError(
                f"a member is NAME[:rack=R][:weight=N][:static=ID][:topics=T+T], not {text!r}"
            )
    if not name:
        raise click.UsageError(f"a member needs a name: {text!r}")
    return [made]


def _live(
    name: str, assignor: str | None, joining: Sequence[str], server_side: bool, client: Client
) -> Scene:
    from kohort.group.assignors import SERVER_SIDE

    new = [p for each in joining for p in _participants(each, ())]
    with open_admin(settings(client)) as admin:
        [described] = existing(admin, [name])
        chosen = assignor or described.protocol
        if not chosen:
            raise click.UsageError(f"group {name} has no assignor of its own now; say --assignor")
        # What members tell their own assignor means nothing to another.
        same = chosen.partition(":")[0] == described.protocol
        members = {m.member_id: _participant(m, same) for m in described.members}
        wanted = frozenset[str]().union(*[m.topics for m in (*members.values(), *new)])
        topics = _topics_of(admin, wanted)
    today = {
        m.member_id: _by_topic(m.assignment if m.target is None else m.target)
        for m in described.members
    }
    brokers = described.group_type.lower() == CONSUMER and chosen in SERVER_SIDE
    return Scene(members, topics, today, chosen, server_side or brokers)


def _participant(member: MemberDescription, same: bool) -> Participant:
    topics = frozenset(member.topics) or frozenset(tp.topic for tp in member.assignment)
    aliases = {member.client_id, member.group_instance_id} - {None}
    return Participant(
        member.member_id,
        topics,
        member.rack,
        None,
        member.group_instance_id,
        member.user_data if same else None,
        frozenset(str(alias) for alias in aliases),
    )


def _topics_of(admin: Admin, wanted: Iterable[str]) -> dict[str, TopicView]:
    from kohort.group.assignors import TopicView

    there = sorted({t.name for t in admin.list_topics(include_internal=True)}.intersection(wanted))
    if not there:
        return {}
    rack_of = {node.node_id: node.rack for node in admin.describe_cluster().nodes}
    found: dict[str, TopicView] = {}
    for name, described in admin.describe_topics(there).items():
        parts = sorted(described.partitions, key=lambda p: p.partition)
        racks = [frozenset(r for n in p.replicas if (r := rack_of.get(n))) for p in parts]
        leaders = tuple(p.leader for p in parts)
        leading = tuple(rack_of.get(leader) for leader in leaders)
        found[name] = TopicView(
            len(parts),
            tuple(racks) if any(racks) else (),
            leaders,
            leader_racks=leading if any(leading) else (),
        )
    return found


def _by_topic(assignment: Iterable[TopicPartition]) -> Partitions:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(assignment):
        found.setdefault(topic, []).append(number)
    return {topic: tuple(numbers) for topic, numbers in found.items()}


def _listed(*texts: str | None) -> list[str]:
    return [each for text in texts for each in (text or "").split(",") if each]


# -- planning


def _planned(scene: Scene, without: Sequence[str], joining: Sequence[str]) -> Planned:
    today: Mapping[str, Partitions] = scene.today or {}
    if scene.today is None and (without or joining):
        today = _assign(scene, {}).after  # a made-up group begins with the assignor's own plan
    members = dict(scene.members)
    for each in without:
        del members[_known(each, members)]
    topics = frozenset[str]().union(*[m.topics for m in scene.members.values()])
    for each in joining:
        for new in _participants(each, topics):
            if new.name in members:
                raise click.UsageError(f"{new.name!r} is in the group already")
            members[new.name] = new
    return _assign(replace(scene, members=members), today)


def _known(name: str, members: Mapping[str, Participant]) -> str:
    found = [m for m, each in members.items() if name == m or name in each.aliases]
    if len(found) == 1:
        return found[0]
    what = f"several members are {name!r}" if found else f"nobody in the group is {name!r}"
    raise click.UsageError(f"{what}; there are: {', '.join(list(members)[:10])}")


def _assign(scene: Scene, today: Mapping[str, Partitions]) -> Planned:
    from kohort.group.assignors import GroupView
    from kohort.group.assignors.base import freeze
    from kohort.group.member.leader_plan import planned_by

    leader = _maker(scene)(None)
    views = {m: _view(scene, each, today.get(m, {})) for m, each in scene.members.items()}
    subscribed = frozenset[str]().union(*[m.topics for m in scene.members.values()])
    topics = {topic: view for topic, view in scene.topics.items() if topic in subscribed}
    group = GroupView(views, topics)
    made = planned_by(leader, group)
    after = {m: freeze(made.assignments.get(m, {})) for m in views}
    return Planned(leader, group, scene, today, after)


def _maker(scene: Scene) -> Callable[[int | None], Assignor]:
    """Makes the assignor of a member with its weight."""
    from kohort.group.assignors import (
        BUILT_IN,
        SERVER_SIDE,
        make_assignors,
        make_server_assignors,
    )

    base = scene.assignor.partition(":")[0]
    on_server = scene.server_side or (base in SERVER_SIDE and base not in BUILT_IN)

    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where module:Class is most likely to be

    def make(weight: int | None) -> Assignor:
        text = scene.assignor if weight is None else f"{base}:{weight}"
        [one] = make_server_assignors(text) if on_server else make_assignors(text)
        return one

    return make


def _view(scene: Scene, member: Participant, owned: Partitions) -> MemberView:
    from kohort.group.assignors import MemberView

    mine = _maker(scene)(member.weight)
    if owned:
        mine.on_assignment(owned, None, 1)
    user_data = mine.subscription(member.topics)
    if member.user_data is not None and mine.cooperative and member.weight is None:
        user_data = member.user_data  # what the live member says of itself
    return MemberView(
        member.name,
        member.topics,
        member.instance_id,
        owned if mine.cooperative else {},
        1 if owned else -1,
        member.rack,
        user_data,
    )


# -- what is shown


def _print(planned: Planned, output: str) -> None:
    rows = _member_rows(planned)
    if output in ("csv", "jsonl"):
        show(rows, MEMBER_COLUMNS, output)
    elif output == "json":
        click.echo(json.dumps(_as_json(planned, rows), indent=2))
    else:
        click.echo("\n\n".join(_as_text(planned, rows)))


def _moves(planned: Planned) -> list[Move]:
    from kohort.group.assignors import measure

    return measure.moves(planned.group, planned.before, planned.after) if planned.before else []


def _topic_rows(planned: Planned) -> list[dict[str, Any]]:
    from kohort.group.assignors import measure

    group = planned.group
    return [
        {
            "topic": topic,
            "partitions": group.topics[topic].partitions,
            "subscribers": sum(topic in member.topics for member in group.members.values()),
            **_as_columns(found),
        }
        for topic, found in measure.per_topic(group, planned.after).items()
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
        "moves": [_move_row(move) for move in _moves(planned)],
    }


def _as_text(planned: Planned, rows: list[dict[str, Any]]) -> list[str]:
    from kohort.group.assignors import measure

    hidden = {c for c in ONLY_IF_KNOWN if all(row[c] is None for row in rows)}
    if not planned.before:
        hidden.update(ONLY_IF_CHANGED)
    words = [
        f"{planned.assignor.name}: {_in_words(measure.spread(row['partitions'] for row in rows))}"
    ]
    near, moves = measure.nearness(planned.group, planned.after), _moves(planned)
    if near.partitions:
        words.append(
            f"racks: {near.replica} of {near.partitions} partitions have a replica where their "
            f"member is, {near.leader} their leader"
        )
    if planned.before:
        words.append(_moved_in_words(moves))
    parts = [
        as_table(rows, [column for column in MEMBER_COLUMNS if column not in hidden]),
        as_table(_topic_rows(planned), TOPIC_COLUMNS),
        "\n".join(words),
    ]
    if moves:
        shown = [_move_row(m) | {"needed": "yes" if m.needed else "no"} for m in moves]
        parts.append(as_table(shown[:MOST_MOVES_SHOWN], MOVE_COLUMNS))
    if len(moves) > MOST_MOVES_SHOWN:
        parts.append(f"and {len(moves) - MOST_MOVES_SHOWN} more; -o json shows all")
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
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _as_columns(found: Spread) -> dict[str, Any]:
    return {
        "min": found.least,
        "max": found.most,
        "mean": round(found.mean, 2),
        "stddev": round(found.deviation, 2),
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
