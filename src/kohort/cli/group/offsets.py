"""`kohort group delete-offsets`: committed offsets that a group no longer needs.

Rules:
- It only says what it would do, until `--execute`.
- The broker refuses a topic that a member reads: a member would commit it again.
"""

from __future__ import annotations

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, open_admin, topic_and_numbers
from kohort.cli.common.group_lookup import existing, settings
from kohort.cli.common.output import output_option, show
from kohort.errors import UsageError

COLUMNS = ("group", "topic", "partition", "current_offset")


@click.command(
    "delete-offsets",
    epilog="""\b
Examples:
  kohort group delete-offsets billing --topic orders-old
  kohort group delete-offsets billing --topic orders:0,2 --execute
""",
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:P,...]",
    help="This topic, or these partitions of it; may be given again.",
)
@click.option("--execute", is_flag=True, help="Do it; without this nothing is changed.")
@output_option
@client_options
def delete_offsets(
    group: str, topics: tuple[str, ...], execute: bool, output: str, client: Client
) -> None:
    """Delete committed offsets of topics that no member of the group reads.

    The topic itself may be gone already.
    """
    pairs = [topic_and_numbers(text) for text in topics]
    with open_admin(settings(client)) as admin:
        existing(admin, [group])
        held = admin.list_group_offsets(group)
        chosen = [
            tp
            for tp in sorted(held)
            for name, numbers in pairs
            if tp.topic == name and (not numbers or str(tp.partition) in numbers)
        ]
        if not chosen:
            known = ", ".join(sorted({tp.topic for tp in held})) or "no topic"
            raise UsageError(
                f"group {group} has no committed offset of {', '.join(topics)}; it has offsets of "
                f"{known}"
            )
        if execute:
            admin.delete_group_offsets(group, chosen)
    rows = [
        {
            "group": group,
            "topic": tp.topic,
            "partition": tp.partition,
            "current_offset": held[tp].offset,
        }
        for tp in chosen
    ]
    show(rows, COLUMNS, output)
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)
