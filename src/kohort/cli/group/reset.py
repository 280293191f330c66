"""`kohort group reset`: set the offsets at which a group continues.

Rules:
- It only says what it would do, until `--execute`.
- Only a group without members can be set: a member would commit over it.
- Places are written as for `kohort consume --offset`; also the offsets of another group, or of a
  file, which `--export` and `--undo-file` write.

Shell: the clock, for `@-2h`; files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, named_partitions, open_admin
from kohort.cli.common.group_lookup import existing, settings, without_members
from kohort.cli.common.output import output_option, show
from kohort.cli.common.paths import PathType
from kohort.errors import UsageError
from kohort.observe.resets import Place, parse_place, place_exactly, targets

if TYPE_CHECKING:
    from pathlib import Path

    from kohort.client.admin.admin import Admin
    from kohort.client.common.types import OffsetAndMetadata, TopicPartition

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
    help="Write the present offsets first, in the same form.",
)
@click.option("--execute", is_flag=True, help="Do it; without this nothing is changed.")
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
) -> None:
    """Set the offsets at which a group without members continues.

    AGAIN is how many records the group would read once more, SKIPPED how many never.
    """
    from kohort.cli.group.offset_files import write_offsets

    with open_admin(settings(client)) as admin:
        (described,) = existing(admin, [group])
        without_members(described, "which would commit over it")
        held = admin.list_group_offsets(group)
        new = _new_offsets(admin, where, topics, held)
        if undo_file:
            write_offsets(undo_file, {tp: held[tp].offset for tp in new if tp in held})
        if export:
            write_offsets(export, new)
        if execute:
            admin.alter_group_offsets(group, new)
    show([_row(group, tp, held, at) for tp, at in new.items()], COLUMNS, output)
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _new_offsets(
    admin: Admin,
    where: str,
    topics: Sequence[str],
    held: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, int]:
    """Where each partition continues. Raises ConfigError, UsageError, BrokerError, GroupError."""
    kind, _, name = where.strip().partition(":")
    if kind not in ("file", "group"):
        place = parse_place(where, time.time_ns() // 1_000_000, "--to")
        chosen = named_partitions(admin, topics) if topics else sorted(held)
        return _targets(admin, place, chosen, held)
    if kind == "file":
        from pathlib import Path

        from kohort.cli.group.offset_files import read_offsets

        exact = read_offsets(Path(name))
    else:
        existing(admin, [name])
        exact = {tp: at.offset for tp, at in admin.list_group_offsets(name).items()}
    there = named_partitions(admin, topics or sorted({tp.topic for tp in exact}))
    if not topics and (gone := sorted(set(exact) - set(there))):
        raise UsageError(f"there is no partition {gone[0]}, which {where} has an offset of")
    chosen = [tp for tp in there if tp in exact]
    firsts = admin.list_offsets(dict.fromkeys(chosen, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(chosen, "latest"))
    return {tp: place_exactly(tp, exact[tp], firsts[tp].offset, ends[tp].offset) for tp in chosen}


def _targets(
    admin: Admin,
    place: Place,
    chosen: Sequence[TopicPartition],
    held: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, int]:
    firsts = admin.list_offsets(dict.fromkeys(chosen, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(chosen, "latest"))
    times: dict[TopicPartition, int] = {}
    if place.time_ms is not None:
        hits = admin.list_offsets(dict.fromkeys(chosen, place.time_ms))
        times = {tp: hit.offset for tp, hit in hits.items() if hit.offset >= 0}
    # A partition without a committed offset is shifted from its beginning.
    current = {tp: held[tp].offset if tp in held else firsts[tp].offset for tp in chosen}
    return targets(
        place,
        current,
        {tp: at.offset for tp, at in firsts.items()},
        {tp: at.offset for tp, at in ends.items()},
        times,
    )


def _row(
    group: str, tp: TopicPartition, held: Mapping[TopicPartition, OffsetAndMetadata], new: int
) -> dict[str, Any]:
    old = held[tp].offset if tp in held else None
    return {
        "group": group,
        "topic": tp.topic,
        "partition": tp.partition,
        "current_offset": old,
        "new_offset": new,
        "again": None if old is None else max(0, old - new),
        "skipped": None if old is None else max(0, new - old),
    }
