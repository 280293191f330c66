"""`kohort topic delete-records`: the first records of partitions, up to a place.

Rules:
- It only says what it would do, until `--execute`.
- Places are written as for `kohort consume --offset`; records before the place go.

Shell: the clock, for `@-2h`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kohort.cli.common.completing import topics as complete_topics
from kohort.cli.common.connect import Client, client_options, named_partitions, open_admin
from kohort.cli.common.output import output_option, show
from kohort.cli.common.positions import FORMS, parse_start

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.client.common.types import TopicPartition

COLUMNS = ("topic", "partition", "first_offset", "new_first_offset", "deleted")


@click.command(
    "delete-records",
    epilog="""\b
Examples:
  kohort topic delete-records orders --before @-7d
  kohort topic delete-records orders:0,2 --before 1000 --execute
  kohort topic delete-records scratch --before latest --execute    # all of them
""",
)
@click.argument(
    "topics", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC[:P,...]..."
)
@click.option("--before", required=True, metavar="WHERE", help=f"{FORMS}.")
@click.option("--execute", is_flag=True, help="Delete the records; default: a dry run.")
@output_option
@client_options
def delete_records(
    topics: tuple[str, ...], before: str, execute: bool, output: str, client: Client
) -> None:
    """Delete the records before an offset or time. Irreversible; a dry run without --execute.

    DELETED counts offsets; a compacted topic holds fewer records.
    """
    from kohort.client.common.config import AdminConfig

    with open_admin(client.for_role(AdminConfig)) as admin:
        chosen = named_partitions(admin, topics)
        firsts = {
            tp: at.offset
            for tp, at in admin.list_offsets(dict.fromkeys(chosen, "earliest")).items()
        }
        new = _places(admin, before, firsts)
        if execute:
            admin.delete_records({tp: at for tp, at in new.items() if at > firsts[tp]})
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "first_offset": firsts[tp],
            "new_first_offset": at,
            "deleted": at - firsts[tp],
        }
        for tp, at in new.items()
    ]
    show(rows, COLUMNS, output)
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _places(
    admin: Admin, before: str, firsts: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The new first offset of each partition. Raises ConfigError, UsageError."""
    start = parse_start(before, time.time_ns() // 1_000_000, "--before")
    ends = admin.list_offsets(dict.fromkeys(firsts, "latest"))
    times: dict[TopicPartition, int] = {}
    if start.time_ms is not None:
        hits = admin.list_offsets(dict.fromkeys(firsts, start.time_ms))
        times = {tp: hit.offset for tp, hit in hits.items() if hit.offset >= 0}
    return {
        tp: start.offset_in(str(tp), first, ends[tp].offset, times.get(tp))
        for tp, first in firsts.items()
    }
