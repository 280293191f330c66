"""`kohort dlq`: the records that failed permanently, by reason, and each of them.

Rules (spec 5.6, 6.3): counted and listed by the ledger when there is one; else by the copies in the
dead-letter topic, marked as such. `list` changes and commits nothing; sending back is
`redrive`.

Shell: clock.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.formats import iso_time
from kohort.cli.common.ledger_source import (
    BY_LEDGER,
    BY_TOPIC,
    LedgerSource,
    Source,
    TopicSource,
    names_of,
    source_options,
)
from kohort.cli.common.output import as_table, output_option, show
from kohort.cli.common.root import CommandGroup
from kohort.errors import BrokerError, ErrorCode

if TYPE_CHECKING:
    from kohort.records import Record
    from kohort.retry.headers import RetryHeaders
    from kohort.retry.ledger_view import FailedFilter, FailedKind, FailedRow

KIND_COLUMNS = ("reason", "error_class", "fingerprint", "count", "first", "last")
ROW_COLUMNS = (
    "origin",
    "reason",
    "error_class",
    "attempts",
    "first_failed",
    "failed",
    "message",
)
JSON_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "reason",
    "error_class",
    "message",
    "fingerprint",
    "disposition",
    "attempts",
    "redrives",
    "first_failed",
    "failed",
    "copy",
)
MAX_KINDS = 1_000
MESSAGE_COLUMNS = 60
EXAMPLES = """\b
Examples:
  kohort dlq list --pipeline examples/flights_pipeline.py
  kohort dlq list --store sqlite:///flights.db --reason missing_weather --limit 5
  kohort dlq list --topic orders --group billing --since -2h -o jsonl
"""


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List and show dead letters, and send them back."""


@dlq.command("list", epilog=EXAMPLES)
@source_options
@click.option("--reason", help="Only failures of this reason.")
@click.option("--error-class", help="Only failures of this exception class.")
@click.option("--fingerprint", help="Only failures of this fingerprint.")
@click.option("--origin", "origin", metavar="TOPIC", help="Only records of this source topic.")
@click.option(
    "--search",
    metavar="TEXT",
    help="Failures with this text in reason, class or message; with --topic also key or value.",
)
@click.option("--since", metavar="TIME", help="Failed since 2026-01-31T06:00Z, or since -2h.")
@click.option(
    "--limit",
    type=click.IntRange(0, 100_000),
    default=20,
    show_default=True,
    help="The maximum number of listed records, latest first; counts include all.",
)
@output_option
@client_options
def list_failed(
    source: Source,
    reason: str | None,
    error_class: str | None,
    fingerprint: str | None,
    origin: str | None,
    search: str | None,
    since: str | None,
    limit: int,
    output: str,
    client: Client,
) -> None:
    """How many records failed for which reason, and the latest of them.

    ATTEMPTS counts the first try, too. CSV and JSON lines hold the records alone.
    """
    from kohort.cli.common.positions import parse_time
    from kohort.retry.ledger_view import FailedFilter, failed_kinds, failed_rows

    since_ms = None if since is None else parse_time(since, time.time_ns() // 1_000_000)
    filter_ = FailedFilter(reason, error_class, fingerprint, origin, since_ms, search)
    if isinstance(source, LedgerSource):
        kinds = failed_kinds(source.store, source.name, filter_, MAX_KINDS)
        rows = failed_rows(source.store, source.name, filter_, limit)
        _show(kinds, rows, BY_LEDGER, output)
        return
    kinds, rows = _of_topic(source, filter_, limit, client)
    _show(kinds, rows, BY_TOPIC, output)


def _show(kinds: Sequence[FailedKind], rows: Sequence[FailedRow], by: str, output: str) -> None:
    plain = [_row(row) for row in rows]
    if output in ("jsonl", "csv"):
        show(plain, JSON_COLUMNS, output)
        return
    groups = [
        {
            "reason": k.reason,
            "error_class": k.error_class,
            "fingerprint": k.fingerprint,
            "count": k.count,
            "first": iso_time(k.first_ms),
            "last": iso_time(k.last_ms),
        }
        for k in kinds
    ]
    if output == "json":
        whole = {"schema": 1, "counted_by": by, "kinds": groups, "rows": plain}
        click.echo(json.dumps(whole, indent=2))
        return
    total = sum(k.count for k in kinds)
    click.echo(f"{total:,} failed (counted by {by})")
    if total:
        click.echo()
        click.echo(as_table(groups, KIND_COLUMNS))
    if rows:
        click.echo()
        click.echo(as_table([_short(row) for row in rows], ROW_COLUMNS))


def _row(row: FailedRow) -> dict[str, Any]:
    copy = row.copy
    return {
        "topic": row.origin.topic,
        "partition": row.origin.partition,
        "offset": row.origin.offset,
        "timestamp": iso_time(row.origin.timestamp_ms),
        "reason": row.reason,
        "error_class": row.error_class,
        "message": row.error_message,
        "fingerprint": row.fingerprint,
        "disposition": row.disposition,
        "attempts": row.attempts,
        "redrives": row.redrives,
        "first_failed": iso_time(row.first_failed_ms),
        "failed": iso_time(row.failed_ms),
        "copy": None if copy is None else f"{copy.topic}/{copy.partition}/{copy.offset}",
    }


def _short(row: FailedRow) -> dict[str, Any]:
    message = " ".join(row.error_message.split())
    cut = message if len(message) <= MESSAGE_COLUMNS else message[: MESSAGE_COLUMNS - 1] + "…"
    return {
        "origin": row.origin.retry_id,
        "reason": row.reason,
        "error_class": row.error_class,
        "attempts": row.attempts,
        "first_failed": iso_time(row.first_failed_ms),
        "failed": iso_time(row.failed_ms),
        "message": cut,
    }


# -- without a ledger


def _of_topic(
    source: TopicSource, filter_: FailedFilter, limit: int, client: Client
) -> tuple[list[FailedKind], list[FailedRow]]:
    from kohort.retry.ledger_view import FailedKind

    found: dict[tuple[str, str, str], FailedKind] = {}
    latest: list[tuple[int, int, FailedRow]] = []
    for number, (row, record) in enumerate(_copies(source, client)):
        if not (_matches(row, filter_) and _holds(row, record, filter_.text)):
            continue
        key = (row.reason, row.error_class, row.fingerprint)
        known = found.get(key)
        if known is not None or len(found) < MAX_KINDS:
            at = row.failed_ms
            found[key] = FailedKind(
                *key,
                1 + (known.count if known else 0),
                min(at, known.first_ms) if known else at,
                max(at, known.last_ms) if known else at,
            )
        heapq.heappush(latest, (row.failed_ms, number, row))
        if len(latest) > limit:
            heapq.heappop(latest)
    kinds = sorted(found.values(), key=lambda k: (-k.count, k.reason, k.error_class, k.fingerprint))
    return kinds, [row for _, _, row in sorted(latest, reverse=True, key=lambda item: item[:2])]


def _matches(row: FailedRow, filter_: FailedFilter) -> bool:
    pairs = (
        (filter_.reason, row.reason),
        (filter_.error_class, row.error_class),
        (filter_.fingerprint, row.fingerprint),
        (filter_.topic, row.origin.topic),
    )
    if any(wanted is not None and wanted != value for wanted, value in pairs):
        return False
    return filter_.since_ms is None or row.failed_ms >= filter_.since_ms


def _holds(row: FailedRow, record: Record, text: str | None) -> bool:
    """Whether a failure's report, key or value contains a text."""
    if text is None:
        return True
    haystack = f"{row.reason} {row.error_class} {row.error_message}".lower()
    raw = text.encode()
    return text.lower() in haystack or raw in (record.key or b"") or raw in (record.value or b"")


def _copies(source: TopicSource, client: Client) -> Iterator[tuple[FailedRow, Record]]:
    """Every committed copy in the dead-letter topic with our headers, up to its present end."""
    from kohort.client.common.config import ConsumerConfig
    from kohort.client.common.types import TopicPartition
    from kohort.retry.headers import HeaderFault, parse
    from kohort.retry.reading import pages_to_end

    name = names_of(source).dead_letter
    with open_admin(client.common()) as admin:
        counts = {t.name: t.partition_count for t in admin.list_topics()}
        if name not in counts:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {source.topic!r} has no dead-letter topic of group "
                f"{source.group!r} ({name}); "
                "it is created when an App or a pipeline of that group first runs. Is the group's "
                "name right? (`kohort group list`)",
            )
    settings = client.for_role(
        ConsumerConfig,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        isolation_level="read_committed",
    )
    partitions = [TopicPartition(name, p) for p in range(counts[name])]
    pages = pages_to_end(ConsumerConfig.from_mapping(settings), partitions)
    for record in (record for page in pages for record in page):
        try:
            retry = parse(record.headers)
        except HeaderFault:
            continue  # not one of ours
        yield _from_headers(retry, name, record.partition, record.offset), record


def _from_headers(retry: RetryHeaders, topic: str, partition: int, offset: int) -> FailedRow:
    from kohort.retry.ledger import Place
    from kohort.retry.ledger_view import FailedRow

    return FailedRow(
        retry.origin,
        retry.reason,
        retry.error_class,
        retry.error_message,
        retry.fingerprint,
        retry.disposition.value,
        retry.number + 1,
        retry.redrive_count,
        retry.first_failed_at_ms,
        retry.last_failed_at_ms,
        Place(topic, partition, offset),
    )
