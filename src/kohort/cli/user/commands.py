"""`kohort user`: who may log in by password.

Rules:
- A password is asked for at the terminal or read from a file, never taken from the command line,
  where others on the machine would see it.
- `delete` only says what it would do, until `--execute`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.output import output_option, show
from kohort.cli.common.paths import text_of
from kohort.cli.common.root import CommandGroup
from kohort.errors import BrokerError, ConfigError, ErrorCode
from kohort.setting_keys import nearest

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
COLUMNS = ("user", "mechanism", "iterations")


@click.group(cls=CommandGroup)
def user() -> None:
    """List, create and delete users with passwords (SCRAM)."""


@user.command(
    "list",
    epilog="""\b
Examples:
  kohort user list
  kohort user list --config admin.properties -o json
""",
)
@output_option
@client_options
def list_users(output: str, client: Client) -> None:
    """All users, with the mechanisms that they can log in by."""
    with open_admin(_settings(client)) as admin:
        users = admin.describe_users()
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, held in sorted(users.items())
        for mechanism, iterations in sorted(held.items())
    ]
    show(rows, COLUMNS, output)


@user.command(
    "set",
    epilog="""\b
Examples:
  kohort user set alice
  kohort user set alice --password-file alice.secret --mechanism SCRAM-SHA-512
""",
)
@click.argument("name")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file whose first line is the password.  [default: prompt]",
)
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(MECHANISMS),
    help="The SCRAM mechanism; repeatable.  [default: both]",
)
@click.option(
    "--iterations",
    type=click.IntRange(4_096, 16_384),
    default=4_096,
    show_default=True,
    help="SCRAM iterations; more make password guessing slower.",
)
@client_options
def set_user(
    name: str,
    password_file: Path | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    client: Client,
) -> None:
    """Make a user, or give one another password."""
    if password_file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("no terminal to ask for the password at; use --password-file")
        password = str(
            click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        )
    else:
        lines = text_of(password_file).splitlines()
        password = lines[0] if lines else ""
    if not password:
        raise ConfigError(f"the password of {name!r} is empty; give one")
    with open_admin(_settings(client)) as admin:
        admin.upsert_user(
            name, password, mechanisms=mechanisms or MECHANISMS, iterations=iterations
        )
    click.echo(f"user {name} can log in by {' and '.join(mechanisms or MECHANISMS)}")


@user.command(
    "delete",
    epilog="""\b
Examples:
  kohort user delete alice
  kohort user delete alice --execute
""",
)
@click.argument("name")
@click.option("--execute", is_flag=True, help="Delete the user; default: a dry run.")
@client_options
def delete_user(name: str, execute: bool, client: Client) -> None:
    """Remove a user. Connections that are open stay open."""
    with open_admin(_settings(client)) as admin:
        held = _known(admin, name)
        if execute:
            admin.delete_user(name)
    click.echo(
        f"{'removed' if execute else 'would remove'}: user {name} ({', '.join(sorted(held))})"
    )
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _known(admin: Admin, name: str) -> Mapping[str, int]:
    """What a user can log in by. Raises BrokerError, with the nearest name, if there is none."""
    users = admin.describe_users()
    if name in users:
        return users[name]
    near = nearest(name, users)
    hint = f" Did you mean {near!r}?" if near else ""
    raise BrokerError(
        ErrorCode.RESOURCE_NOT_FOUND,
        f"there is no user {name!r}.{hint} `kohort user list` shows those there are",
    )


def _settings(client: Client) -> dict[str, Any]:
    from kohort.client.common.config import AdminConfig

    return client.for_role(AdminConfig)
