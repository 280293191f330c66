"""`kohort config`: the settings in force, and where each of them was given.

Rules: secrets are never printed; a setting that no client knows fails as it would in any command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import click

from kohort.cli.common.connect import Client, client_options
from kohort.cli.common.output import output_option, show
from kohort.cli.common.root import CommandGroup
from kohort.settings import DEFAULT, ROLES, Setting, choose, shown

EXAMPLES = """\b
Examples:
  kohort config show --origin
  kohort config show --role consumer --given --config client.properties -o json
"""


@click.group(cls=CommandGroup)
def config() -> None:
    """Show the effective settings, and where each one comes from."""


@config.command(name="show", epilog=EXAMPLES)
@click.option("--role", type=click.Choice(ROLES), help="One kind of client; all kinds by default.")
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@click.option("--given", "changed", is_flag=True, help="Omit settings that have their default.")
@output_option
@client_options
def show_settings(
    role: str | None, origin: bool, changed: bool, output: str, client: Client
) -> None:
    """Print every setting with its value, after files, environment and flags have been read."""
    from kohort.client.common.config import AdminConfig, ConsumerConfig, ProducerConfig

    kinds = {"consumer": ConsumerConfig, "producer": ProducerConfig, "admin": AdminConfig}
    chosen = [kinds[role]] if role else list(kinds.values())
    rows: dict[tuple[Any, ...], list[str]] = {}
    for kind in chosen:
        for key, value, where in settings_of(kind, client, strict=role is not None):
            if not changed or where != DEFAULT:
                rows.setdefault((key, value, where), []).append(kind.role())
    columns = ["key", "value", *(["origin"] if origin else []), *([] if role else ["role"])]
    listed = (
        {"key": key, "value": value, "origin": where, "role": _whose(roles)}
        for (key, value, where), roles in sorted(rows.items(), key=lambda row: row[0][0])
    )
    show(listed, columns, output)


def settings_of(kind: Any, client: Client, *, strict: bool) -> Iterable[tuple[str, Any, str]]:
    """Key, value and origin of each setting of one role."""
    if strict:
        chosen = choose(kind, client.shared, strict=client.flags)
    else:
        chosen = choose(kind, (*client.shared, *client.flags))
    made = kind.from_mapping({name: setting.value for name, setting in chosen.items()})
    for name in kind.field_names():
        setting = chosen.get(name, Setting(name, None, DEFAULT))
        value = getattr(made, name)
        if isinstance(value, tuple):
            value = ",".join(str(part) for part in cast("tuple[Any, ...]", value))
        yield name.replace("_", "."), shown(name, value), setting.origin


def _whose(roles: list[str]) -> str:
    return "all" if len(roles) == len(ROLES) else ",".join(roles)
