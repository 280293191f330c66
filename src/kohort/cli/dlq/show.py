"""`kohort dlq show`: one record with all of its attempts, its headers and its value.

Rules (spec 5.6): from the ledger when there is one; else from the copies in the retry topics and in
the dead-letter topic, of which the retry topics keep theirs for a week. Only committed records are
read; nothing is changed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.formats import iso_time
from kohort.cli.common.ledger_source import (
    LedgerSource,
    Source,
    TopicSource,
    names_of,
    retry_topics_of,
    source_options,
)
from kohort.cli.common.output import as_table, printable, printable_lines
from kohort.cli.dlq.commands import dlq
from kohort.errors import UsageError

if TYPE_CHECKING:
    from kohort.records import Record

COLUMNS = ("attempt", "redrive", "outcome", "at", "topic", "reason", "error_class", "message")
EXAMPLES = """\b
Examples:
  kohort dlq show orders/3/1742 --topic orders --group billing
  kohort dlq show orders/3/1742 --store sqlite:///bills.db --name billing -o json
"""


@dlq.command("show", epilog=EXAMPLES)
@click.argument("record", metavar="TOPIC/PARTITION/OFFSET")
@source_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="What is printed.",
)
@client_options
def show_failed(record: str, source: Source, output: str, client: Client) -> None:
    """One record by its first place: every attempt, and what became of it.

    ATTEMPT 0 is the first try; OUTCOME is the status in the ledger, or why the copy was made.
    """
    copy: dict[str, Any] | None = None
    if isinstance(source, LedgerSource):
        attempts = _by_ledger(source, record)
    else:
        attempts, copy = _by_topics(source, record, client)
    if not attempts:
        raise UsageError(f"{record} has not failed here; `kohort dlq list` shows what has")
    if output == "json":
        whole: dict[str, Any] = {"schema": 2, "record": record, "attempts": attempts, "copy": copy}
        click.echo(json.dumps(whole, indent=2))
        return
    click.echo(as_table(attempts, COLUMNS))
    if copy is not None:
        click.echo("\n".join(_lines(copy)))


def _by_ledger(source: LedgerSource, record: str) -> list[dict[str, Any]]:
    from kohort.retry.ledger_view import attempt_rows

    return [
        {
            "attempt": row.number,
            "redrive": row.redrive_count,
            "outcome": row.status.value,
            "at": iso_time(row.closed_ms or row.created_ms),
            "topic": None if row.place is None or row.closed_ms else row.place.topic,
            "reason": row.reason,
            "error_class": row.error_class,
            "message": row.error_message,
        }
        for row in attempt_rows(source.store, source.name, record)
    ]


def _by_topics(
    source: TopicSource, record: str, client: Client
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Every copy of a record, and the last of them in full."""
    from kohort.client.common.config import ConsumerConfig
    from kohort.client.common.types import TopicPartition
    from kohort.retry.headers import HeaderFault, parse
    from kohort.retry.reading import pages_to_end

    names = names_of(source)
    with open_admin(client.common()) as admin:
        counts = {t.name: t.partition_count for t in admin.list_topics()}
    topics = [
        name for name in (*retry_topics_of(source, counts), names.dead_letter) if name in counts
    ]
    settings = client.for_role(
        ConsumerConfig,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        isolation_level="read_committed",
    )
    parts = [TopicPartition(name, p) for name in topics for p in range(counts[name])]
    copies: list[tuple[tuple[int, int, int], dict[str, Any], Record]] = []
    for page in pages_to_end(ConsumerConfig.from_mapping(settings), parts):
        for copy in page:
            try:
                retry = parse(copy.headers)
            except HeaderFault:
                continue  # not one of ours
            if retry.origin.retry_id != record:
                continue
            ended = copy.topic == names.dead_letter
            line = {
                "attempt": retry.number if ended else max(0, retry.number - 1),
                "redrive": retry.redrive_count,
                "outcome": retry.disposition.value,
                "at": iso_time(retry.last_failed_at_ms),
                "topic": copy.topic,
                "reason": retry.reason,
                "error_class": retry.error_class,
                "message": retry.error_message,
            }
            order = (retry.redrive_count, retry.last_failed_at_ms, retry.number)
            copies.append((order, line, copy.detach()))
    copies.sort(key=lambda each: each[0])
    return [line for _, line, _ in copies], _in_full(copies[-1][2]) if copies else None


def _in_full(copy: Record) -> dict[str, Any]:
    return {
        "key": _text(copy.key),
        "value": _text(copy.value),
        "headers": [{"name": name, "value": _text(value)} for name, value in copy.headers],
        "copy": f"{copy.topic}/{copy.partition}/{copy.offset}",
    }


def _lines(copy: dict[str, Any]) -> list[str]:
    """The copy for people: where, what, its headers one by one, and the stack as it was."""
    from kohort.retry.headers import ERROR_STACK

    pairs: list[tuple[str, str | None]] = [
        (each["name"], each["value"]) for each in copy["headers"]
    ]
    stack = dict(pairs).get(ERROR_STACK) or ""
    headers = [(name, value) for name, value in pairs if name != ERROR_STACK]
    lines = ["", f"current copy: {copy['copy']}"]
    lines += [f"{name}: {_shown(copy[name])}" for name in ("key", "value")]
    lines.append("headers:" if headers else "headers: none")
    lines += [f"  {printable(name)}: {_shown(value)}" for name, value in headers]
    if stack:
        lines += ["stack:", *(f"  {line}" for line in printable_lines(stack))]
    return lines


def _shown(text: str | None) -> str:
    return "null" if text is None else printable(text)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "backslashreplace")
