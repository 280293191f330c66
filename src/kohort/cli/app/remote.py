"""`kohort app status`, `pause`, `resume`, `drain`, `retry-now`, and so on: remote processes.

Rules:
- They reach programs with `remote="PREFIX"`: through the topics PREFIX.status and PREFIX.commands,
  whose ACLs say who may look and who may command.
- `drain` ends processes, so it only says which, until `--execute`. The others can be taken back.
- Exit code 4 when a process has not answered; 3 when one has refused or failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kohort.cli.common.completing import groups as complete_groups
from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.output import output_option, printable, show
from kohort.cli.common.root import EXIT_CHECK_FAILED, EXIT_PARTIAL
from kohort.config import format_elapsed

if TYPE_CHECKING:
    from kohort.remote import Action, Process, RemoteControl
    from kohort.remote.control import Answer

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_PREFIX = "kohort"
COLUMNS = (
    "process",
    "kind",
    "group",
    "state",
    "uptime",
    "lag",
    "outstanding",
    "oldest_unfinished",
    "retries_waiting",
    "trouble",
)
ANSWER_COLUMNS = ("process", "ok", "answer")


def remote_options(function: F) -> F:
    """The options of every command for remote processes."""
    return click.option(
        "--remote",
        "prefix",
        default=DEFAULT_PREFIX,
        show_default=True,
        metavar="PREFIX",
        help="What the processes were started with: their topics are PREFIX.status, "
        "PREFIX.commands.",
    )(function)


def command_options(function: F) -> F:
    """The group, one of its processes, and how long to wait."""
    for option in (
        click.argument("group", shell_complete=complete_groups),
        click.option(
            "--process", default="", metavar="NAME", help="Only this process of the group."
        ),
        click.option(
            "--wait",
            default="10s",
            show_default=True,
            metavar="TIME",
            help="How long to wait for answers.",
        ),
        remote_options,
        output_option,
        client_options,
    ):
        function = option(function)
    return function


@click.command(
    epilog="""\b
Examples:
  kohort app status
  kohort app status billing -o json
"""
)
@click.argument("group", required=False, shell_complete=complete_groups)
@click.option("--all", "everything", is_flag=True, help="Include processes that have ended.")
@remote_options
@output_option
@client_options
def status(group: str | None, everything: bool, prefix: str, output: str, client: Client) -> int:
    """Show the last published status of processes.

    Exit code 3 if the group has no running process.
    """
    with _control(prefix, client) as control:
        processes = [
            one
            for one in control.processes()
            if (everything or not one.gone) and group in (None, one.status.group)
        ]
    if output == "json":
        click.echo(
            json.dumps({"schema": 1, "processes": [as_json(one) for one in processes]}, indent=2)
        )
    else:
        show([_row(one, output) for one in processes], COLUMNS, output)
    if group is not None and not processes:
        click.echo(f"no process of {group} has published its status lately", err=True)
        return EXIT_CHECK_FAILED
    return 0


@click.command(
    epilog="""\b
Examples:
  kohort app pause billing
  kohort app pause billing --process billing@host-7/4711-a1b2c3
"""
)
@command_options
def pause(**options: Any) -> int:
    """Pause processes: they start no more records, and keep their partitions until `resume`."""
    return _command("PAUSE", **options)


@click.command(
    epilog="""\b
Examples:
  kohort app resume billing
"""
)
@command_options
def resume(**options: Any) -> int:
    """Resume paused processes."""
    return _command("RESUME", **options)


@click.command(
    "retry-now",
    epilog="""\b
Examples:
  kohort app retry-now billing
""",
)
@command_options
def retry_now(**options: Any) -> int:
    """Retry all waiting records now; records that fail again wait as usual."""
    return _command("RETRY_NOW", **options)


@click.command(
    "retry-record",
    epilog="""\b
Examples:
  kohort app retry-record billing orders.billing.retry.5m/3/17
""",
)
@command_options
@click.argument("at", metavar="RETRY-TOPIC/PARTITION/OFFSET")
def retry_record(**options: Any) -> int:
    """Retry one record of a retry topic now; the records before it continue to wait."""
    return _of_record("RETRY_RECORD", **options)


@click.command(
    "dead-letter-record",
    epilog="""\b
Examples:
  kohort app dead-letter-record billing orders.billing.retry.5m/3/17
""",
)
@command_options
@click.argument("at", metavar="RETRY-TOPIC/PARTITION/OFFSET")
def dead_letter_record(**options: Any) -> int:
    """Send one record of a retry topic to the dead-letter topic now; a redrive brings it back."""
    return _of_record("DEAD_LETTER_RECORD", **options)


@click.command(
    epilog="""\b
Examples:
  kohort app drain billing --process billing@host-7/4711-a1b2c3
  kohort app drain billing --execute
"""
)
@click.option("--execute", is_flag=True, help="Drain the processes; default: a dry run.")
@command_options
def drain(execute: bool, **options: Any) -> int:
    """Drain processes: they finish records in progress, commit, leave the group and end."""
    if execute:
        return _command("DRAIN", **options)
    with _control(options["prefix"], options["client"]) as control:
        for one in control.processes():
            mine = one.status.group == options["group"] and not one.gone
            if mine and options["process"] in ("", one.status.process):
                click.echo(f"would drain {printable(one.status.process)}")
    click.echo("nothing was changed; add --execute to do it", err=True)
    return 0


def _of_record(action_name: str, output: str, **options: Any) -> int:
    """A command that one process of the group carries out; the others say that it is not theirs."""
    answers = _answers(action_name, **options)
    done = [one for one in answers if one.result is not None and one.result.ok]
    return _show(done or answers, output)


def _command(action_name: str, output: str, **options: Any) -> int:
    return _show(_answers(action_name, **options), output)


def _answers(
    action_name: str,
    group: str,
    process: str,
    wait: str,
    prefix: str,
    client: Client,
    at: str = "",
) -> list[Answer]:
    from kohort.config import parse_duration_ms
    from kohort.remote import Action

    action: Action = Action[action_name]
    wait_s = parse_duration_ms(wait) / 1000
    with _control(prefix, client) as control:
        return control.send(group, action, process=process, at=at, wait_s=wait_s)


def _show(answers: Sequence[Answer], output: str) -> int:
    rows = [
        {
            "process": one.process,
            "ok": None if one.result is None else one.result.ok,
            "answer": "no answer yet" if one.result is None else one.result.text,
        }
        for one in answers
    ]
    show(rows, ANSWER_COLUMNS, output)
    if any(one.result is not None and not one.result.ok for one in answers):
        return EXIT_CHECK_FAILED
    return EXIT_PARTIAL if any(one.result is None for one in answers) else 0


def _control(prefix: str, client: Client) -> RemoteControl:
    from kohort.client.common.config import ClientConfig
    from kohort.remote import RemoteControl

    settings = client.for_role(ClientConfig)
    with open_admin(settings):  # an unreachable cluster is reported at once
        return RemoteControl(prefix, settings)


def _row(one: Process, output: str) -> dict[str, Any]:
    last = one.status
    uptime_ms = max(0, last.at_ms - last.started_ms)
    oldest = last.figures.get("oldest_unfinished_ms")
    table = output == "table"
    return {
        "process": last.process,
        "kind": last.kind,
        "group": last.group,
        "state": one.state,
        "uptime": format_elapsed(uptime_ms) if table else uptime_ms,
        "lag": last.figures.get("lag"),
        "outstanding": last.figures.get("outstanding"),
        "oldest_unfinished": format_elapsed(oldest) if table and oldest is not None else oldest,
        "retries_waiting": last.figures.get("retries_waiting"),
        "trouble": "; ".join(last.troubles) or None,
    }


def as_json(one: Process) -> dict[str, Any]:
    """Everything that a process has published."""
    last = one.status
    return {
        "process": last.process,
        "kind": last.kind,
        "group": last.group,
        "state": one.state,
        "silent_ms": one.silent_ms,
        "host": last.host,
        "pid": last.pid,
        "version": last.version,
        "started_ms": last.started_ms,
        "at_ms": last.at_ms,
        "actions": [action.value for action in last.actions],
        "figures": dict(last.figures),
        "partitions": [dict(each) for each in last.partitions],
        "troubles": list(last.troubles),
    }
