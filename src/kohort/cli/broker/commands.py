"""`kohort broker run`: the embedded broker as a process.

Rules: flags win over the file, the file over the defaults; errors are reported before the data
directory is touched.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.broker.nodes import COMMANDS
from kohort.cli.broker.repair import repair
from kohort.cli.common.connect import key_values
from kohort.cli.common.paths import text_of
from kohort.cli.common.root import CommandGroup
from kohort.console.web import CONSOLE_PORT
from kohort.errors import ConfigError
from kohort.settings import COMMAND_LINE, Setting, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from kohort.broker import Broker, BrokerConfig
    from kohort.broker.control.port import Control

DEFAULT_PORT = 9092
CONTROL_LOG = 10_000
"""Requests that are kept for `kohort faults requests`."""
EXAMPLES = """\b
Examples:
  kohort broker run
  kohort broker run --data-dir ./data --port 9092
  kohort broker run --nodes 3 --racks a,b,c
  KOHORT_USERS="alice:secret" kohort broker run --data-dir ./data
  kohort broker run --nodes 3 --control 9690
  kohort broker run --console
  kohort broker run --port 0 -X message.max.bytes=16MiB -X auto.create.topics.enable=false
"""


@click.group(cls=CommandGroup)
def broker() -> None:
    """Run the embedded broker, stop its nodes, and repair its data directory."""


for command in (*COMMANDS, repair):
    broker.add_command(command)


@broker.command(epilog=EXAMPLES)
@click.option("--data-dir", type=click.Path(file_okay=False), help="The data directory of the log.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help=f"0 takes any free one.  [default: {DEFAULT_PORT}]")
@click.option(
    "--nodes", type=int, help="Nodes in this process, on consecutive ports.  [default: 1]"
)
@click.option("--racks", metavar="RACK,...", help="The rack of each node.")
@click.option(
    "--durability",
    type=click.Choice(["fsync", "os", "memory"]),
    help="When a write is safe: on disk, with the system, or nowhere.  [default: fsync; "
    "memory without --data-dir]",
)
@click.option("--partitions", type=int, help="Partitions of automatically created topics.")
@click.option(
    "--control",
    "control_port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Accept faults on this port of 127.0.0.1 (0: any free port); see kohort faults.",
)
@click.option(
    "--console",
    "console_port",
    type=click.IntRange(0, 65_535),
    is_flag=False,
    flag_value=CONSOLE_PORT,
    metavar="[PORT]",
    help="Run the web console, too, on this port of 127.0.0.1 (0: any free one)."
    f"  [without PORT: {CONSOLE_PORT}]",
)
@click.option(
    "--allow-open", is_flag=True, help="Listen beyond this machine without authentication."
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME:PASSWORD",
    envvar="KOHORT_USERS",
    help="A user who may log in (docs/security.md); repeatable. Other users of the machine can see "
    "it here: prefer $KOHORT_USERS (users separated by spaces) or a file.",
)
@click.option(
    "--users-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a NAME:PASSWORD in each line.",
)
@click.option("-X", "properties", multiple=True, metavar="KEY=VALUE", help="Any broker setting.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A .properties or .toml file with broker settings.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log more to standard error.")
def run(
    data_dir: str | None,
    host: str | None,
    port: int | None,
    nodes: int | None,
    racks: str | None,
    durability: str | None,
    partitions: int | None,
    control_port: int | None,
    console_port: int | None,
    allow_open: bool,
    users: tuple[str, ...],
    users_file: Path | None,
    properties: tuple[str, ...],
    config_file: Path | None,
    verbose: bool,
) -> None:
    """Run a broker until it is interrupted.

    Prints one line on standard output when it is ready: `ready on HOST:PORT`, with several nodes
    all of their addresses, with commas between.
    """
    from kohort.broker import BrokerConfig, serve

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    values: dict[str, Any] = {"port": DEFAULT_PORT}
    file_settings = read_settings(config_file) if config_file else []
    file_settings += [Setting(k, v, COMMAND_LINE) for k, v in key_values(properties, "-X").items()]
    for setting in file_settings:
        if setting.name not in BrokerConfig.field_names():
            raise BrokerConfig.unknown(setting.key)
        values[setting.name] = setting.value
    flags = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "durability": durability,
        "nodes": nodes,
        "broker_rack": racks,
        "num_partitions": partitions,
        "allow_open": allow_open or None,
    }
    values |= {key: value for key, value in flags.items() if value is not None}
    _add_users(values, [*_one_each(users), *_lines(users_file)])
    values.setdefault("durability", "fsync" if values.get("data_dir") else "memory")
    config = BrokerConfig.from_mapping(values)

    consoles = ExitStack()

    def ready(started: Broker, control: str = "") -> None:
        if console_port is not None:
            _start_console(consoles, started.bootstrap, console_port, control)
        kept = "nothing is kept" if config.durability == "memory" else f"kept in {config.data_dir}"
        click.echo(f"ready on {started.bootstrap} (durability {config.durability}, {kept})")

    if console_port is not None:
        _console_may_run(config)
    with consoles:
        if control_port is None:
            serve(config, ready=ready)
        else:
            _serve_controlled(config, ready, control_port)


def _console_may_run(config: BrokerConfig) -> None:
    """Raises ConfigError where the console would need a password of this broker."""
    if config.security_protocol != "PLAINTEXT":
        raise ConfigError(
            "--console has no password for this broker; run `kohort console` beside it, with its "
            "own user (-X sasl.username=..., or --config FILE)"
        )


def _start_console(consoles: ExitStack, bootstrap: str, port: int, control: str) -> None:
    from kohort.console.web.server import ConsoleOptions, ConsoleServer

    server = ConsoleServer(
        {"bootstrap_servers": bootstrap}, ConsoleOptions(port=port, control=control)
    )
    consoles.enter_context(server)
    click.echo(f"console on {server.url}", err=True)


def _serve_controlled(
    config: BrokerConfig, ready: Callable[[Broker, str], object], control_port: int
) -> None:
    """Serve, with a control port. Raises ConfigError where it would go round the passwords."""
    from kohort.broker import serve
    from kohort.broker.control.port import Control
    from kohort.broker.faults.gate import FaultInjector

    token = os.environ.get("KOHORT_CONTROL_TOKEN", "")
    if "SASL" in config.security_protocol and not token:
        raise ConfigError(
            "--control would let everybody on this machine past the passwords of this broker; set "
            "a token for it in $KOHORT_CONTROL_TOKEN"
        )
    gate = FaultInjector(CONTROL_LOG)
    controls: list[Control] = []

    def begin(started: Broker) -> None:
        controls.append(Control(started, gate, control_port, token))
        click.echo(f"control on {controls[0].address}", err=True)
        ready(started, str(controls[0].port))

    try:
        serve(config, begin, gate)
    finally:
        for control in controls:
            control.close()


def _one_each(users: tuple[str, ...]) -> tuple[str, ...]:
    """The users of the command line. Raises ConfigError for several of them in one."""
    for entry in users:
        if "," in entry:
            raise ConfigError(
                f"the entry of user {entry.partition(':')[0]!r} has a comma; separate users by "
                'blanks ($KOHORT_USERS="alice:secret bob:other"), or repeat --user; '
                "a password with a comma needs a --users-file"
            )
    return users


def _lines(path: Path | None) -> list[str]:
    """The lines of a file that say something; `#` begins a comment."""
    lines = text_of(path).splitlines() if path else []
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _add_users(values: dict[str, Any], users: list[str]) -> None:
    """Users of the command line beside those of the settings; where there are any, SASL is on."""
    if not users:
        return
    held = values.get("sasl_users", ())
    held = tuple(held.split(",")) if isinstance(held, str) else tuple(held)
    values["sasl_users"] = (*held, *users)
    tls = bool(values.get("ssl_certificate_location"))
    values.setdefault("security_protocol", "SASL_SSL" if tls else "SASL_PLAINTEXT")
