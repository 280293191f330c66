"""`kohort group reset`: where a group goes on reading, set by hand.

Rules:
- It only says what it would do, until `--execute`.
- Only a group without members can be set: a member would commit over it.
- Places are written as for `kohort consume --offset`.

Shell: the clock, for `@-2h`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, existing_topics, open_admin
from kohort.cli.common.group_lookup import existing, settings, without_members
from kohort.cli.common.output import output_option, show
from kohort.errors import UsageError
from kohort.observe.resets import Place, parse_place, targets

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.common.types import OffsetAndMetadata, TopicPartition

COLUMNS = ("group", "topic", "partition", "current_offset", "new_offset", "again", "skipped")


@click.command(
    epilog="""\b
Examples:
  kohort group reset billing --to earliest                      # what it would do
  kohort group reset billing --to @-2h --topic orders --execute
  kohort group reset billing --to 42 --topic orders:0 --execute
  kohort group reset billing --to shift:-100 --execute
"""
)
@click.argument("group")
@click.option(
    "--to", "where", required=True, metavar="WHERE",
    help="earliest, latest, N, -N (the last N), shift:-N, shift:+N, @TIME or @-2h.",
)  # fmt: skip
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,...]",
    help="Only this topic, or these partitions of it; may be given again.  "
    "[default: all with a committed offset]",
)  # fmt: skip
@click.option("--execute", is_flag=True, help="Do it; without this nothing is changed.")
@output_option
@client_options
def reset(
    group: str, where: str, topics: tuple[str, ...], execute: bool, output: str, client: Client
) -> None:
    """Set where a group without members goes on reading.

    AGAIN is how many records the group would read once more, SKIPPED how many never.
    """
    place = parse_place(where, time.time_ns() // 1_000_000, "--to")
    with open_admin(settings(client)) as admin:
        (described,) = existing(admin, [group])
        without_members(described, "which would commit over it")
        held = admin.list_group_offsets(group)
        chosen = _chosen(admin, topics) if topics else sorted(held)
        new = _targets(admin, place, chosen, held)
        if execute:
            admin.alter_group_offsets(group, new)
    show([_row(group, tp, held, at) for tp, at in new.items()], COLUMNS, output)
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _chosen(admin: Admin, texts: Sequence[str]) -> list[TopicPartition]:
    """The partitions of `orders` or `orders:0,2`. Raises BrokerError, UsageError."""
    from kohort.client.common.types import TopicPartition

    wanted = [(name, numbers) for name, _, numbers in (text.partition(":") for text in texts)]
    found = existing_topics(admin, [name for name, _ in wanted])
    chosen: set[TopicPartition] = set()
    for name, numbers in wanted:
        count = len(found[name].partitions)
        for number in numbers.split(",") if numbers else map(str, range(count)):
            if not number.isdecimal() or int(number) >= count:
                raise UsageError(
                    f"topic {name} has no partition {number!r}; it has {count}: 0 to {count - 1}"
                )
            chosen.add(TopicPartition(name, int(number)))
    return sorted(chosen)


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
        place, current, {tp: at.offset for tp, at in firsts.items()},
        {tp: at.offset for tp, at in ends.items()}, times,
    )  # fmt: skip


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
