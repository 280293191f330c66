"""`kohort group reset`: set the offsets at which a group continues.

Rules:
- It only says what it would do, until `--execute`.
- Only a group without members can be set: a member would commit over it.
- Without `--topic`, one partition that no leader answers for does not keep the others from it.
- Places are written as for `kohort consume --offset`; also the offsets of another group, or of a
  file, which `--export` and `--undo-file` write.

Shell: the clock, for `@-2h`; files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, named_partitions, open_admin
from kohort.cli.common.group_lookup import existing, settings, without_members
from kohort.cli.common.output import output_option, remark, show
from kohort.cli.common.paths import PathType
from kohort.cli.common.root import EXIT_PARTIAL
from kohort.errors import ErrorCode, GroupError, UsageError
from kohort.lean import dataclass
from kohort.observe.resets import Place, again_and_skipped, parse_place, place_exactly, targets

if TYPE_CHECKING:
    from pathlib import Path

    from kohort.client.admin.admin import Admin
    from kohort.client.admin.types import OffsetSpec
    from kohort.client.common.types import OffsetAndMetadata, TopicPartition

    Ask = Callable[[Sequence[TopicPartition], OffsetSpec], Mapping[TopicPartition, int]]

COLUMNS = ("group", "topic", "partition", "current_offset", "new_offset", "again", "skipped")


@click.command(
    epilog="""\b
Examples:
  kohort group reset billing --to earliest                      # what it would do
  kohort group reset billing --to @-2h --topic orders --execute
  kohort group reset billing --to 42 --topic orders:0 --execute
  kohort group reset billing --to shift:-100 --undo-file before.csv --execute
  kohort group reset billing --to file:before.csv --execute
"""
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--to",
    "where",
    required=True,
    metavar="WHERE",
    help="earliest, latest, N, -N (the last N), shift:-N, shift:+N, @TIME, @-2h, group:OTHER or "
    "file:PLAN.csv.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,...]",
    help="Only this topic, or these partitions of it; may be given again.  "
    "[default: all with a committed offset]",
)
@click.option(
    "--export",
    type=PathType(dir_okay=False),
    metavar="FILE",
    help="Write the new offsets as TOPIC,PARTITION,OFFSET lines.",
)
@click.option(
    "--undo-file",
    type=PathType(dir_okay=False),
    metavar="FILE",
    help="First write the current offsets to this file, in the same format.",
)
@click.option("--execute", is_flag=True, help="Set the offsets; default: a dry run.")
@output_option
@client_options
def reset(
    group: str,
    where: str,
    topics: tuple[str, ...],
    export: Path | None,
    undo_file: Path | None,
    execute: bool,
    output: str,
    client: Client,
) -> int:
    """Set the offsets at which a group without members continues.

    AGAIN counts the records that the group would read again, SKIPPED those that it would skip.
    Without --topic, partitions whose leader does not answer are left out (exit code 4).
    """
    from kohort.cli.group.offset_files import write_offsets

    with open_admin(settings(client)) as admin:
        (described,) = existing(admin, [group])
        without_members(described, "which would commit over it")
        held = admin.list_group_offsets(group)
        plan = _plan(admin, where, topics, held)
        left_out = _left_out(admin, plan)
        if left_out and not plan.new:
            raise GroupError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"no offset of group {group!r} can be set, and nothing was changed: "
                + "; ".join(left_out),
            )
        old = {tp: held[tp].offset for tp in plan.new if tp in held}
        if undo_file:
            write_offsets(undo_file, old)
        if export:
            write_offsets(export, plan.new)
        if execute:
            admin.alter_group_offsets(group, plan.new)
    show([_row(group, tp, old.get(tp), plan) for tp in plan.new], COLUMNS, output)
    for sentence in left_out:
        remark(f"error: {sentence}")
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)
    return EXIT_PARTIAL if left_out else 0


@dataclass(frozen=True)
class Plan:
    """Where partitions continue.

    Attributes:
        new: the new offsets.
        logs: where the logs of the same partitions begin and end.
        left_out: partitions that no leader answers for.
    """

    new: dict[TopicPartition, int]
    logs: Mapping[TopicPartition, tuple[int, int]]
    left_out: Sequence[TopicPartition] = ()


def _plan(
    admin: Admin,
    where: str,
    topics: Sequence[str],
    held: Mapping[TopicPartition, OffsetAndMetadata],
) -> Plan:
    """Where each partition continues. Raises ConfigError, UsageError, BrokerError, GroupError."""
    kind, _, name = where.strip().partition(":")
    if kind not in ("file", "group"):
        place = parse_place(where, time.time_ns() // 1_000_000, "--to")
        chosen = named_partitions(admin, topics) if topics else sorted(held)
        return _by_place(_asking(admin, whole=bool(topics)), place, chosen, held)
    if kind == "file":
        from pathlib import Path

        from kohort.cli.group.offset_files import read_offsets

        exact = read_offsets(Path(name))
    else:
        existing(admin, [name])
        exact = {tp: at.offset for tp, at in admin.list_group_offsets(name).items()}
        if not topics:
            return _exactly(_asking(admin, whole=False), sorted(exact), exact)
    there = named_partitions(admin, topics or sorted({tp.topic for tp in exact}))
    if not topics and (gone := sorted(set(exact) - set(there))):
        raise UsageError(f"there is no partition {gone[0]}, which {where} has an offset of")
    return _exactly(_asking(admin, whole=True), [tp for tp in there if tp in exact], exact)


def _asking(admin: Admin, *, whole: bool) -> Ask:
    """How logs are asked: for all that was named, or for as much as there is."""
    from kohort.sampling.log_offsets import partition_offsets

    def every(chosen: Sequence[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        found = admin.list_offsets(dict.fromkeys(chosen, spec))
        return {tp: at.offset for tp, at in found.items()}

    return every if whole else partial(partition_offsets, admin)


def _by_place(
    ask: Ask,
    place: Place,
    chosen: Sequence[TopicPartition],
    held: Mapping[TopicPartition, OffsetAndMetadata],
) -> Plan:
    firsts, ends = ask(chosen, "earliest"), ask(chosen, "latest")
    times = ends if place.time_ms is None else ask(chosen, place.time_ms)
    logs = {tp: (firsts[tp], ends[tp]) for tp in chosen if tp in firsts and tp in ends}
    # A partition without a committed offset is shifted from its beginning.
    current = {
        tp: held[tp].offset if tp in held else first
        for tp, (first, _) in logs.items()
        if tp in times
    }
    hits = {tp: at for tp, at in times.items() if at >= 0}
    new = targets(place, current, firsts, ends, hits)
    return Plan(new, logs, [tp for tp in chosen if tp not in new])


def _exactly(
    ask: Ask, chosen: Sequence[TopicPartition], exact: Mapping[TopicPartition, int]
) -> Plan:
    firsts, ends = ask(chosen, "earliest"), ask(chosen, "latest")
    logs = {tp: (firsts[tp], ends[tp]) for tp in chosen if tp in firsts and tp in ends}
    new = {tp: place_exactly(tp, exact[tp], *log) for tp, log in logs.items()}
    return Plan(new, logs, [tp for tp in chosen if tp not in new])


def _left_out(admin: Admin, plan: Plan) -> list[str]:
    """A sentence for each partition that keeps its offset because no leader answers for it."""
    from kohort.sampling.log_offsets import topics_there

    there = topics_there(admin, {tp.topic for tp in plan.left_out}) if plan.left_out else {}
    return [
        f"{tp} is left out: "
        + (
            "no leader answers for it"
            if tp.topic in there
            else "the topic does not exist (any more)"
        )
        for tp in plan.left_out
    ]


def _row(group: str, tp: TopicPartition, old: int | None, plan: Plan) -> dict[str, Any]:
    new = plan.new[tp]
    again, skipped = (None, None) if old is None else again_and_skipped(old, new, *plan.logs[tp])
    return {
        "group": group,
        "topic": tp.topic,
        "partition": tp.partition,
        "current_offset": old,
        "new_offset": new,
        "again": again,
        "skipped": skipped,
    }
