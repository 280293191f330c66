"""`kohort dlq redrive`: send failed records back for another round, after a look at which.

Rules (spec 5.6): a preview comes first, and a question, unless `--yes` is given. Ctrl-C stops after
the current page, a second one at once; the same `--id` continues. Nothing is deleted.

Shell: clock, signals.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options
from kohort.cli.common.option_rules import refuse_beside
from kohort.cli.common.output import printable
from kohort.cli.common.paths import FILE
from kohort.cli.common.root import EXIT_FAILED, EXIT_INTERRUPTED
from kohort.cli.dlq.commands import dlq
from kohort.errors import ConfigError
from kohort.signals import handled

if TYPE_CHECKING:
    from pathlib import Path

    from kohort.retry.redrive import Edit, Redrive, Report

_OFFSETS = re.compile(r"(\d+):(\d+)(?:-(\d+))?")
_NOT_TO_CANCEL = (
    "dry_run",
    "reason",
    "error_class",
    "fingerprint",
    "since",
    "offsets",
    "target",
    "retries",
    "rate",
    "edit_file",
)
EXAMPLES = """\b
Examples:
  kohort dlq redrive --topic orders --group billing --reason down --dry-run
  kohort dlq redrive --topic orders --group billing --id after-the-outage --rate 100 --yes
  kohort dlq redrive --topic orders --group billing --offsets 3:10-20 --to retry:30m
"""


@dlq.command("redrive", epilog=EXAMPLES)
@click.option("--topic", required=True, help="The source topic.")
@click.option("--group", required=True, help="The group that retries.")
@click.option("--id", "redrive_id", help="The redrive's id; a run with the same id resumes it.")
@click.option("--reason", help="Only failures of this reason.")
@click.option("--error-class", help="Only failures of this exception class.")
@click.option("--fingerprint", help="Only failures of this fingerprint.")
@click.option("--since", metavar="TIME", help="Failed since 2026-01-31T06:00Z, or since -2h.")
@click.option(
    "--offsets",
    multiple=True,
    metavar="P:FROM-TO",
    help="Only these offsets of the dead-letter topic, inclusive; repeatable.",
)
@click.option(
    "--to",
    "target",
    default="entry",
    show_default=True,
    help="The target: entry (only this group), retry:30m, or topic:NAME.",
)
@click.option("--retries", help="The group's delays, when --to is a retry topic: '5m 30m 1h'.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="The maximum rate, in records per second.",
)
@click.option(
    "--edit",
    "edit_file",
    type=FILE,
    help="A Python file with edit(key, value, headers) -> the same three, or None to leave out.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be sent; send nothing.")
@click.option("--yes", is_flag=True, help="Send without confirmation.")
@click.option("--cancel", is_flag=True, help="Discard the progress of --id, and send nothing more.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The output format.",
)
@client_options
def redrive(
    topic: str,
    group: str,
    redrive_id: str | None,
    reason: str | None,
    error_class: str | None,
    fingerprint: str | None,
    since: str | None,
    offsets: tuple[str, ...],
    target: str,
    retries: str | None,
    rate: float | None,
    edit_file: Path | None,
    dry_run: bool,
    yes: bool,
    cancel: bool,
    output: str,
    client: Client,
) -> int:
    """Send records of the dead-letter topic back to the group.

    The command produces them to the group's own entry topic, so no other group reads them again.
    The program that retries must run to handle them. For pipelines the ledger decides which
    copies count: a duplicate has no effect. Ctrl-C stops after the current page (exit code 130),
    a second one at once.
    """
    from kohort.cli.common.positions import parse_time
    from kohort.retry.policy import RetryPolicy, RetryTopics
    from kohort.retry.redrive import Choice, Redrive

    if cancel:
        if not redrive_id:
            raise click.UsageError("--cancel needs the --id of the redrive")
        refuse_beside("--cancel", _NOT_TO_CANCEL, "forgets all of --id and sends nothing")
    now_ms = time.time_ns() // 1_000_000
    since_ms = None if since is None else parse_time(since, now_ms)
    choice = Choice(reason, error_class, fingerprint, since_ms, _ranges(offsets))
    name = redrive_id or time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ms / 1_000))
    topics = RetryTopics(topic, group, RetryPolicy.parse(retries or ""))
    job = Redrive(name, topics, client.all_roles(), choice, target=target, edit=_edit_of(edit_file))
    if cancel:
        job.cancel()
        _say(output, f"redrive {name} is forgotten; what it sent stays sent", {"cancelled": name})
        return 0
    preview = job.preview()
    if dry_run or not preview.sent:
        _show(name, preview, output, sent=False)
        if not preview.sent and output == "text":
            would = "would be" if dry_run else "was"
            click.echo(f"nothing {would} sent: {_why_nothing(name, preview)}", err=True)
        return 0
    if not yes:
        _show(name, preview, "text", sent=False, err=output != "text")
        these = "this record" if preview.sent == 1 else f"these {preview.sent:,} records"
        if not _confirm(f"send {these} back?"):
            click.echo("nothing was sent", err=True)
            return EXIT_FAILED
    report = _run(job, rate)
    _show(name, report, output, sent=True)
    if report.finished and not redrive_id:
        click.echo(
            f"repeat it with --id {name}: under another id the same records are sent again",
            err=True,
        )
    return 0 if report.finished else EXIT_INTERRUPTED


def _confirm(question: str) -> bool:
    """Whether the answer is yes. Raises UsageError where there is no terminal."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # the question has left its line open
        raise click.UsageError(
            "nobody answers here; add --yes to send them, or --dry-run to only look"
        ) from None


def _why_nothing(name: str, preview: Report) -> str:
    stay = {
        "left out by --edit": preview.left_by_edit,
        "whose value is gone from the source topic": preview.value_gone,
        "too large for the target": preview.too_large,
        "that it sent before, and that failed again": preview.again,
        "in batches that cannot be read (`kohort dlq show` prints them)": preview.unreadable,
    }
    counts = ", ".join(f"{count:,} {what}" for what, count in stay.items() if count)
    if counts:
        return f"all that are as asked stay: {counts}"
    if preview.not_chosen + preview.inert:
        return "no failure is as asked; `kohort dlq list` shows those there are"
    return f"redrive {name} has been through all that failed before it began, or nothing has failed"


def _run(job: Redrive, rate: float | None) -> Report:
    """Run it; Ctrl-C stops it in order, a second one at once."""
    pressed = False

    def end(_: int) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        job.stop()

    with handled(end, (signal.SIGINT,)):
        return job.run(rate_per_s=rate)


def _show(name: str, report: Report, output: str, *, sent: bool, err: bool = False) -> None:
    kinds = [
        {"reason": reason, "error_class": error, "count": count}
        for (reason, error), count in report.kinds.most_common()
    ]
    counts = {
        "not_chosen": report.not_chosen,
        "inert": report.inert,
        "sent_before": report.again,
        "left_by_edit": report.left_by_edit,
        "value_gone": report.value_gone,
        "too_large": report.too_large,
        "unreadable": report.unreadable,
    }
    whole: dict[str, Any] = {
        "schema": 1,
        "id": name,
        "sent" if sent else "would_send": report.sent,
        "kinds": kinds,
        **counts,
        "finished": report.finished,
    }
    lines = [f"redrive {name}: {report.sent:,} {'sent' if sent else 'would be sent'}"]
    lines += [printable(f"  {k['count']:>8,}  {k['reason']}  {k['error_class']}") for k in kinds]
    lines += [f"  {value:>8,}  {key.replace('_', ' ')}" for key, value in counts.items() if value]
    if report.too_large:
        lines.append(
            "for those that are too large, raise max.message.bytes of the target (and "
            "max.request.size, if you set it), or make them smaller with --edit. Then use another "
            "--id: this one has passed them"
        )
    if sent and not report.finished:
        lines.append(f"stopped; `--id {name}` continues from here")
    _say(output, "\n".join(lines), whole, err=err)


def _say(output: str, text: str, whole: dict[str, Any], *, err: bool = False) -> None:
    click.echo(json.dumps(whole, indent=2) if output == "json" else text, err=err)


def _ranges(texts: tuple[str, ...]) -> dict[int, list[tuple[int, int]]]:
    """`3:10-20` or `3:10`: partition and offsets, both included."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for text in texts:
        match = _OFFSETS.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--offsets {text!r}: write PARTITION:FROM-TO, such as 3:10-20")
        first = int(match[2])
        last = int(match[3] or first)
        if last < first:
            raise click.UsageError(
                f"--offsets {text!r}: from {first} to {last} is no range; the first is smaller"
            )
        ranges.setdefault(int(match[1]), []).append((first, last + 1))
    return ranges


def _edit_of(file: Path | None) -> Edit | None:
    if file is None:
        return None
    import runpy

    try:
        edit = runpy.run_path(str(file)).get("edit")
    except Exception as error:  # the file is the user's, and may raise anything
        raise ConfigError(f"{file} does not load: {type(error).__name__}: {error}") from error
    if not callable(edit):
        raise ConfigError(f"{file} has no function edit(key, value, headers)")
    chosen: Any = edit
    return chosen
