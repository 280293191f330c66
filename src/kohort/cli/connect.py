"""Where to connect to, and with what settings: the options that every client command has.

Rules: flags win over the environment, the environment over the file, the file over the defaults.
A key that no role knows is refused with the nearest name before anything is connected.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kohort.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_BOOTSTRAP = "localhost:9092"


def client_options(function: F) -> F:
    """`-b/--bootstrap`, `-X key=value` and `--config FILE`, passed on as one `client` mapping."""
    options = (
        click.option(
            "-b",
            "--bootstrap",
            envvar="KOHORT_BOOTSTRAP_SERVERS",
            help=f"Brokers, host:port separated by commas. [default: {DEFAULT_BOOTSTRAP}]",
        ),
        click.option(
            "-X",
            "properties",
            multiple=True,
            metavar="KEY=VALUE",
            help="A client setting by Kafka's name; may be given again.",
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A .properties or .toml file with client settings.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def settings(
    bootstrap: str | None, properties: tuple[str, ...], config_file: Path | None
) -> dict[str, Any]:
    """The client's settings as one mapping, by the precedence above."""
    values: dict[str, Any] = {"bootstrap_servers": DEFAULT_BOOTSTRAP}
    if config_file is not None:
        values.update(read_settings(config_file))
    if bootstrap:
        values["bootstrap_servers"] = bootstrap
    for text in properties:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"-X {text!r} is not KEY=VALUE")
        values[key.strip().replace(".", "_")] = value.strip()
    return values


def read_settings(path: Path) -> dict[str, Any]:
    """Settings of a `.toml` file (its top level) or a Java `.properties` file."""
    if path.suffix == ".toml":
        try:
            table = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        return {key.replace(".", "_"): value for key, value in table.items()}
    values: dict[str, Any] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{path}:{number}: {text!r} is not key=value")
        values[key.strip().replace(".", "_")] = value.strip()
    return values
