"""`kohort group delete`: groups that are not needed any more, with the offsets they have committed.

Rules:
- It only says what it would do, until `--execute`.
- Only groups without members go, and none does unless all that were named can.
"""

from __future__ import annotations

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.group_lookup import existing, settings, without_members
from kohort.cli.common.output import printable


@click.command(
    epilog="""\b
Examples:
  kohort group delete billing-old
  kohort group delete billing-old --execute
"""
)
@click.argument(
    "groups", nargs=-1, required=True, shell_complete=complete_groups, metavar="GROUP..."
)
@click.option("--execute", is_flag=True, help="Do it; without this only what would go is shown.")
@client_options
def delete(groups: tuple[str, ...], execute: bool, client: Client) -> None:
    """Delete groups without members, with their offsets. Only with --execute."""
    with open_admin(settings(client)) as admin:
        names = existing(admin, groups)
        for described in names:
            without_members(described, "which may still commit")
        held = {each.group_id: len(admin.list_group_offsets(each.group_id)) for each in names}
        if execute:
            admin.delete_groups(held)
    for name, count in held.items():
        offsets = "1 committed offset" if count == 1 else f"{count:,} committed offsets"
        click.echo(f"{'deleted' if execute else 'would delete'} {printable(name)}: {offsets}")
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)
