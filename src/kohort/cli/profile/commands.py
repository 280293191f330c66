"""`kohort profile`: clusters by name, in the user's settings file.

Rules:
- A profile is a table `[profiles.NAME]` of `~/.config/kohort/config.toml`; what else the file holds
  stays as it is, comments included. The file is readable by its owner alone.
- A password is not written: `-X sasl.password.file=FILE` names a file that holds it.

Shell: files.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final, cast

import click

from kohort.cli.common.connect import key_values
from kohort.cli.common.output import output_option, show
from kohort.cli.common.root import CommandGroup
from kohort.errors import ConfigError
from kohort.setting_keys import is_secret, nearest
from kohort.settings import COMMAND_LINE, Setting, chosen_profile, refuse_unknown, shown, user_file

COLUMNS: Final = ("profile", "current", "bootstrap_servers", "settings")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_CHOICE: Final = re.compile(r"^profile\s*=.*\n?", re.MULTILINE)
_TABLE: Final = re.compile(r"^\[", re.MULTILINE)


@click.group(cls=CommandGroup)
def profile() -> None:
    """List, create, choose and delete named clusters."""


@profile.command(
    "list",
    epilog="""\b
Examples:
  kohort profile list
""",
)
@output_option
def list_profiles(output: str) -> None:
    """Every profile of the user's settings file, and which one is in force."""
    chosen = chosen_profile(os.environ)
    rows = [
        {
            "profile": name,
            "current": name == chosen,
            "bootstrap_servers": settings.get("bootstrap.servers"),
            "settings": " ".join(
                f"{key}={shown(key.replace('.', '_'), value)}"
                for key, value in settings.items()
                if key != "bootstrap.servers"
            )
            or None,
        }
        for name, settings in _profiles(_text()).items()
    ]
    show(rows, COLUMNS, output)


@profile.command(
    epilog="""\b
Examples:
  kohort profile create prod -b kafka-1:9092,kafka-2:9092
  kohort profile create prod -b kafka-1:9093 -X security.protocol=SSL --use
"""
)
@click.argument("name")
@click.option("-b", "--bootstrap", required=True, help="Brokers, host:port separated by commas.")
@click.option(
    "-X",
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A client setting by Kafka's name; may be given again.",
)
@click.option("--use", is_flag=True, help="Choose it, too.")
def create(name: str, bootstrap: str, properties: tuple[str, ...], use: bool) -> None:
    """Write a profile into the user's settings file."""
    from kohort.client.common.config import AdminConfig

    if not _NAME.fullmatch(name):
        raise ConfigError(f"profile {name!r}: use letters, digits, dashes and underscores")
    settings = {"bootstrap.servers": bootstrap, **key_values(properties, "-X")}
    refuse_unknown([Setting(k, v, COMMAND_LINE) for k, v in settings.items()], AdminConfig)
    secret = next((key for key in settings if is_secret(key.replace(".", "_"))), None)
    if secret is not None and not secret.endswith(".file"):
        raise ConfigError(f"{secret} is a secret; write -X {secret}.file=FILE, which holds it")
    text = _text()
    if name in _profiles(text):
        raise ConfigError(f"there is a profile {name!r} already; `kohort profile delete {name}`")
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items()]
    whole = "\n".join(
        [*([text.rstrip(), ""] if text.strip() else []), f"[profiles.{name}]", *lines]
    )
    _check(whole, name, is_there=True)
    _write(_choosing(whole + "\n", name) if use else whole + "\n")
    click.echo(f"created profile {name} in {user_file(os.environ)}")


@profile.command(
    epilog="""\b
Examples:
  kohort profile use prod
"""
)
@click.argument("name")
def use(name: str) -> None:
    """Choose the profile that commands use without --profile and KOHORT_PROFILE."""
    text = _text()
    _known(name, text)
    _write(_choosing(text, name))
    click.echo(f"commands use profile {name}")


@profile.command(
    epilog="""\b
Examples:
  kohort profile delete old
"""
)
@click.argument("name")
def delete(name: str) -> None:
    """Remove a profile from the user's settings file."""
    text = _text()
    _known(name, text)
    heading = rf"^\[profiles\.{re.escape(name)}(\.[^\]]*)?\][^\n]*\n?"
    table = re.compile(heading + r"(?:(?!\[)[^\n]*\n|(?!\[)[^\n]+\Z)*", re.MULTILINE)
    left = table.sub("", text)
    _check(left, name, is_there=False)
    if chosen_profile({**os.environ, "KOHORT_PROFILE": ""}) == name:
        left = _unchosen(left)
    _write(left)
    click.echo(f"deleted profile {name}")


def _text() -> str:
    path = user_file(os.environ)
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as settings: {error}") from error


def _profiles(text: str) -> dict[str, dict[str, Any]]:
    """The profiles of a settings file, each with its settings by dotted names."""
    try:
        profiles: Any = tomllib.loads(text).get("profiles", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{user_file(os.environ)} is not TOML: {error}") from error
    tables = cast("dict[str, dict[str, Any]]", profiles)
    return {name: dict(_flat(table, "")) for name, table in tables.items()}


def _flat(table: dict[str, Any], above: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            pairs += _flat(cast("dict[str, Any]", value), f"{above}{key}.")
        else:
            pairs.append((f"{above}{key}".replace("_", "."), value))
    return pairs


def _known(name: str, text: str) -> None:
    names = _profiles(text)
    if name not in names:
        near = nearest(name, names)
        hint = f"; did you mean {near!r}?" if near else f"; there are {', '.join(names) or 'none'}"
        raise ConfigError(f"there is no profile {name!r} in {user_file(os.environ)}{hint}")


def _check(text: str, name: str, *, is_there: bool) -> None:
    """Raise ConfigError unless this is what a change should have made of the file."""
    try:
        done = (name in tomllib.loads(text).get("profiles", {})) is is_there
    except tomllib.TOMLDecodeError:  # a table cannot be added to an inline one
        done = False
    if not done:
        raise ConfigError(
            f"{user_file(os.environ)} writes its profiles in another form than [profiles.{name}]; "
            "change it by hand"
        )


def _choosing(text: str, name: str) -> str:
    """The file with its choice replaced, or put first: a top-level key precedes any table."""
    return f'profile = "{name}"\n' + _unchosen(text).lstrip("\n")


def _unchosen(text: str) -> str:
    """The file without its choice; a key `profile` of a table is something else."""
    first = _TABLE.search(text)
    end = first.start() if first else len(text)
    return _CHOICE.sub("", text[:end], count=1) + text[end:]


def _write(text: str) -> None:
    tomllib.loads(text)  # never leave a file behind that no command can read
    path = user_file(os.environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(f"{path}.new")
    beside.touch(mode=0o600)
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
