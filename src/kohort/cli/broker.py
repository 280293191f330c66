"""`kohort broker run`: the embedded broker as a process."""

from __future__ import annotations

import logging

import click

from kohort.cli.connect import read_settings
from kohort.errors import ConfigError


@click.group()
def broker() -> None:
    """Run the embedded broker."""


@broker.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where the log is kept.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9092, show_default=True, help="Port; 0 takes any free one.")
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os", "memory"]),
    help="When a write is safe: on disk, with the system, or nowhere.  [default: fsync; "
    "memory without --data-dir]",
)
@click.option("--partitions", type=int, help="Partitions of topics that are made on first use.")
@click.option("--allow-open", is_flag=True, help="Listen beyond this machine, with no password.")
@click.option("-X", "properties", multiple=True, metavar="KEY=VALUE", help="Any broker setting.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="A .properties or .toml file with broker settings.",
)
@click.option("-v", "--verbose", is_flag=True, help="Say more on standard error.")
def run(
    data_dir: str | None,
    host: str,
    port: int,
    durability: str | None,
    partitions: int | None,
    allow_open: bool,
    properties: tuple[str, ...],
    config_file: str | None,
    verbose: bool,
) -> None:
    """Run a broker until it is interrupted.

    Prints one line on standard output when it is ready: `ready on HOST:PORT`.
    """
    from pathlib import Path

    from kohort.broker import Broker, BrokerConfig, serve

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    values: dict[str, object] = read_settings(Path(config_file)) if config_file else {}
    values.update(host=host, port=port, allow_open=allow_open)
    values["durability"] = durability or ("fsync" if data_dir else "memory")
    if data_dir:
        values["data_dir"] = data_dir
    if partitions is not None:
        values["num_partitions"] = partitions
    for text in properties:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"-X {text!r} is not KEY=VALUE")
        values[key.strip().replace(".", "_")] = value.strip()

    def ready(started: Broker) -> None:
        kept = data_dir or "memory only, nothing is kept"
        click.echo(f"ready on {started.bootstrap} (durability {values['durability']}, {kept})")

    serve(BrokerConfig.from_mapping(values), ready=ready)
