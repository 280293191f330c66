"""`kohort console`: the web console of a cluster.

Rules: it only shows, unless --allow-actions is given; beyond this machine it needs a token.

Shell: the environment, signals.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.paths import text_of
from kohort.config import parse_duration_ms
from kohort.console.web import CONSOLE_PORT
from kohort.errors import ConfigError
from kohort.signals import handled

if TYPE_CHECKING:
    from kohort.console.web.server import ConsoleServer

DEFAULT_LISTEN = f"127.0.0.1:{CONSOLE_PORT}"
TOKEN = "KOHORT_CONSOLE_TOKEN"


@click.command(
    epilog="""\b
Examples:
  kohort console
  kohort console -b broker1:9092 --listen 127.0.0.1:9000 --history ~/.cache/kohort/history.db
  kohort console --allow-actions --audit audit.jsonl
  KOHORT_CONSOLE_TOKEN=... kohort console --listen 0.0.0.0:8088
  kohort console --mask '*email*' --mask authorization
"""
)
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    metavar="[HOST:]PORT",
    help=f"Where to listen; beyond this machine a token is needed (${TOKEN}). Port 0: any.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"A file with the token, instead of ${TOKEN}.",
)
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Allow redrives, offset resets, and pause and drain of processes.",
)
@click.option(
    "--audit",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append each action to this file, as a line of JSON.",
)
@click.option(
    "--mask",
    "masks",
    multiple=True,
    metavar="RULE",
    help="Hide JSON fields and headers by name (`*email*`); `key` and `value` hide "
    "whole ones. May be given again.",
)
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="URL",
    help="A store with ledgers of pipelines; repeatable.",
)
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep hours of history in this file.  [default: in memory]",
)
@click.option(
    "--keep", default="6h", show_default=True, metavar="TIME", help="How much history is kept."
)
@click.option(
    "--every", default="5s", show_default=True, metavar="TIME", help="The time between two samples."
)
@click.option(
    "--control",
    envvar="KOHORT_CONTROL",
    metavar="PORT",
    help="The control port of an embedded broker, for its faults.",
)
@click.option(
    "--remote",
    default="kohort",
    show_default=True,
    metavar="PREFIX",
    help="The prefix of `App(remote=PREFIX)`.",
)
@client_options
def console(
    listen: str,
    token_file: Path | None,
    allow_actions: bool,
    audit: Path | None,
    masks: tuple[str, ...],
    stores: tuple[str, ...],
    history: Path | None,
    keep: str,
    every: str,
    control: str | None,
    remote: str,
    client: Client,
) -> None:
    """Run the web console: groups, dead letters, retries, topics.

    Prints one line on standard output when it is ready: `console on http://HOST:PORT/`.
    """
    from kohort.client.common.config import ClientConfig
    from kohort.console.web.server import ConsoleOptions, serve_console

    host, port = address(listen)
    interval_s, hours = parse_duration_ms(every) / 1000, parse_duration_ms(keep) / 3_600_000
    if interval_s < 1:
        raise ConfigError(f"--every {every} is too often; at least 1s")
    options = ConsoleOptions(
        host,
        port,
        _token(token_file),
        allow_actions,
        masks,
        stores,
        history,
        hours,
        audit,
        interval_s,
        control or "",
        remote,
    )
    settings = client.for_role(ClientConfig)
    with open_admin(settings):
        pass
    ended = SimpleQueue[int]()  # unlike an Event's, its lock is not held when a handler runs
    with handled(ended.put):
        serve_console(settings, options, _ready, lambda: _wait(ended))


def _token(file: Path | None) -> str:
    """The token to log in with; "" where none is asked for. Raises ConfigError for an empty one."""
    if file is None and TOKEN not in os.environ:
        return ""
    token, place = os.environ.get(TOKEN, ""), f"${TOKEN}"
    if file is not None:
        token, place = text_of(file).strip(), f"the token file {file}"
    if not token:
        raise ConfigError(
            f"{place} is empty, so the console would need no login; put a token there"
        )
    return token


def _wait(ended: SimpleQueue[int]) -> None:
    while True:  # again and again: a signal just before a wait does not end it
        with contextlib.suppress(Empty):
            ended.get(timeout=1.0)
            return


def address(listen: str) -> tuple[str, int]:
    """HOST and PORT of `--listen`. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"--listen {listen!r} is not PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def _ready(server: ConsoleServer) -> None:
    changes = "actions are allowed" if server.options.allow_actions else "read-only"
    click.echo(f"console on {server.url} ({changes})")
