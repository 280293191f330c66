"""`kohort faults`: what goes wrong in a broker that runs with `--control`, and what came to it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from kohort.cli.common.control_port import control_option
from kohort.cli.common.output import output_option, show
from kohort.cli.common.root import CommandGroup
from kohort.observe.faults import (
    DISK_ERRORS,
    DISK_OPERATIONS,
    KINDS,
    counted,
    disk_body,
    disk_row,
    fault_body,
    fault_row,
    request_row,
)
from kohort.sampling.control_port import ControlPort

ADD_EXAMPLES = """\b
Examples:
  kohort faults add fail OffsetCommit --error NOT_COORDINATOR --times 3 --control 9690
  kohort faults add fail Produce --error NONE --error NOT_LEADER_OR_FOLLOWER --topic orders \
--partition 0 --control 9690
  kohort faults add delay Fetch --ms 200 --node 2 --control 9690
  kohort faults add cut JoinGroup --handled --control 9690
"""


@click.group(cls=CommandGroup)
def faults() -> None:
    """Inject faults into a broker."""


@faults.command(epilog=ADD_EXAMPLES)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("apis", nargs=-1, metavar="[API]...")
@click.option(
    "--error",
    "errors",
    multiple=True,
    metavar="NAME",
    help="With fail: one error per request, in order; NONE lets a request pass.",
)
@click.option("--ms", type=click.IntRange(min=1), help="With delay: the delay of answers.")
@click.option("--handled", is_flag=True, help="With fail and cut: execute the request first.")
@click.option(
    "--times",
    type=click.IntRange(min=1),
    help="The number of requests (cut and silence: 1); with fail, how often to send each error.",
)
@click.option(
    "--skip", type=click.IntRange(min=0), default=0, help="Let this many requests pass first."
)
@click.option("--node", type=int, help="Only requests to this node.")
@click.option("--topic", help="Only for this topic; others are served normally.")
@click.option("--partition", type=int, help="Only for this partition of the topic.")
@click.option("--group", help="Only for this group.")
@click.option("--transactional-id", help="Only for this transactional id.")
@click.option("--client-id", help="Only requests of this client id.")
@control_option
def add(
    kind: str,
    apis: tuple[str, ...],
    errors: tuple[str, ...],
    ms: int | None,
    handled: bool,
    times: int | None,
    control: ControlPort,
    **narrowed: Any,
) -> None:
    """Set a fault for the next requests of these APIs (default: all APIs).

    fail: answer with errors. delay: answer late. hold: answer when the fault is removed. silence:
    never answer. cut: close the connection.
    """
    body = fault_body(
        kind, apis, errors=errors, delay_ms=ms, times=times, handled=handled, narrowed=narrowed
    )
    click.echo(f"fault {control.ask('POST', '/faults', body)['id']} is set")


@faults.command(
    epilog="\b\nExamples:\n"
    "  kohort faults disk append --error ENOSPC --path 'orders-0/*' --after 3 --control 9690\n"
)
@click.argument("operation", type=click.Choice(DISK_OPERATIONS))
@click.option(
    "--error",
    type=click.Choice(DISK_ERRORS),
    default="EIO",
    show_default=True,
    help="The error of the operating system.",
)
@click.option("--path", default="*", show_default=True, help="Files: TOPIC-PARTITION/*.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, help="Let this many calls succeed first."
)
@click.option("--times", type=click.IntRange(min=1), help="Calls that fail.  [default: all]")
@control_option
def disk(
    operation: str, error: str, path: str, after: int, times: int | None, control: ControlPort
) -> None:
    """Let the broker's disk fail."""
    control.ask("POST", "/disk", disk_body(operation, error, path=path, after=after, times=times))
    click.echo(f"{operation} fails with {error}")


@faults.command(
    epilog="\b\nExamples:\n  kohort faults limit ConsumerGroupHeartbeat -1 --control 9690\n"
    "  kohort faults limit Fetch 11 --control 9690\n",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("api")
@click.argument("max_version", type=int)
@control_option
def limit(api: str, max_version: int, control: ControlPort) -> None:
    """Offer an API up to a version only (-1: not at all), as an older broker does."""
    control.ask("POST", "/limits", {"api": api, "max_version": max_version})
    click.echo(f"{api} is offered " + (f"up to {max_version}" if max_version >= 0 else "no more"))


@faults.command(
    "list",
    epilog="\b\nExamples:\n  kohort faults list --control 9690\n"
    "  kohort faults list --control 9690 -o json\n",
)
@control_option
@output_option
def list_faults(control: ControlPort, output: str) -> None:
    """List the faults that are set, used up or not; those of the disk have no number."""
    rows = [fault_row(fault) for fault in control.ask("GET", "/faults")["faults"]]
    rows += [disk_row(fault) for fault in control.ask("GET", "/disk")["faults"]]
    if output == "table":
        rows = [{**row, "errors": counted(row.get("errors", ())) or None} for row in rows]
    show(rows, ["id", "then", "api", "errors", "hits", "left", "about"], output)


@faults.command(
    epilog="\b\nExamples:\n  kohort faults clear --control 9690\n"
    "  kohort faults clear 3 --control 9690\n"
)
@click.argument("number", type=int, required=False)
@control_option
def clear(number: int | None, control: ControlPort) -> None:
    """Remove one fault, or all of them, including disk faults; held answers are sent."""
    control.ask("DELETE", "/faults" if number is None else f"/faults/{number}")
    click.echo("no fault is set" if number is None else f"fault {number} is gone")


@faults.command(
    epilog="\b\nExamples:\n  kohort faults requests --control 9690 --api OffsetCommit\n"
    "  kohort faults requests --control 9690 --since 120 --wait-ms 5000 -o jsonl\n"
)
@click.option("--api", help="Only requests of this API.")
@click.option("--since", type=int, default=0, help="Only requests after this number.")
@click.option("--wait-ms", type=int, default=0, help="How long to wait for a first request.")
@control_option
@output_option
def requests(api: str | None, since: int, wait_ms: int, control: ControlPort, output: str) -> None:
    """Print the last requests of the broker's clients, and how they were answered."""
    query = {"since": since, "wait_ms": wait_ms, **({"api": api} if api else {})}
    entries = control.ask("GET", f"/requests?{urlencode(query)}")["requests"]
    columns = [
        "number",
        "time_ms",
        "node",
        "client_id",
        "api",
        "version",
        "groups",
        "about",
        "errors",
        "fault",
    ]
    show([request_row(entry) for entry in entries], columns, output)
