"""`kohort group remove-member`: a static member that does not come back.

Rules:
- It only says what it would do, until `--execute`.
- Only static members: another one leaves by itself, or at its session timeout.
"""

from __future__ import annotations

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.group_lookup import existing, settings
from kohort.cli.common.output import printable
from kohort.errors import UsageError
from kohort.setting_keys import nearest


@click.command(
    "remove-member",
    epilog="""\b
Examples:
  kohort group remove-member billing --instance billing-7
  kohort group remove-member billing --instance billing-7 --execute
""",
)
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--instance",
    "instances",
    multiple=True,
    required=True,
    metavar="ID",
    help="The member's group.instance.id; may be given again.",
)
@click.option("--reason", default="", help="Why, for the coordinator's log.")
@click.option("--execute", is_flag=True, help="Do it; without this nothing is changed.")
@client_options
def remove_member(
    group: str, instances: tuple[str, ...], reason: str, execute: bool, client: Client
) -> None:
    """Remove static members, so that their partitions move before the session timeout.

    A member that still runs is fenced, and ends with an error.
    """
    with open_admin(settings(client)) as admin:
        (described,) = existing(admin, [group])
        members = {m.group_instance_id: m for m in described.members if m.group_instance_id}
        for instance in instances:
            if instance not in members:
                near = nearest(instance, members)
                hint = f"; did you mean {near!r}?" if near else ""
                static = ", ".join(sorted(members)) or "none"
                raise UsageError(
                    f"group {group} has no static member {instance!r}{hint} (static members: "
                    f"{static})"
                )
        if execute:
            admin.remove_group_members(
                group, instances, reason=reason or "removed by kohort group remove-member"
            )
    for instance in instances:
        count = len(members[instance].assignment)
        held = "1 partition" if count == 1 else f"{count:,} partitions"
        click.echo(
            f"{'removed' if execute else 'would remove'} {printable(instance)}: it has {held}"
        )
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)
