"""`kohort retry`: what waits in the retry topics, why, and when it falls due.

Rules:
- By the ledger, when there is one. Else by the topics: a retry topic has one delay and the broker's
  append time, so what is due now ends at the first record appended less than the delay ago; nothing
  is read for it but one record a partition.

Shell: clock.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.common.connect import Client, client_options, open_admin
from kohort.cli.common.ledger_source import (
    BY_LEDGER,
    BY_TOPIC,
    LedgerSource,
    Source,
    TopicSource,
    retry_topic_delay_ms,
    retry_topics_of,
    source_options,
)
from kohort.cli.common.output import output_option, show
from kohort.cli.common.root import CommandGroup
from kohort.config import format_duration
from kohort.errors import UsageError

if TYPE_CHECKING:
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer
    from kohort.records import Record
    from kohort.retry.ledger_view import WaitingRow

COLUMNS = ("retry_topic", "delay", "waiting", "due_now", "oldest_due", "next_due", "counted_by")
ROW_COLUMNS = ("origin", "retry", "due", "reason", "error", "first_failed", "waits_at")
JSON_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "retry",
    "due",
    "reason",
    "error_class",
    "message",
    "fingerprint",
    "first_failed",
    "retry_topic",
    "waits_at",
)
MESSAGE_COLUMNS = 60
PAGE_RECORDS = 500
LIST_EXAMPLES = """\b
Examples:
  kohort retry list --topic orders --group billing
  kohort retry list --pipeline examples/flights_pipeline.py --limit 100
  kohort retry list --store sqlite:///flights.db --name flights -o jsonl
"""
EXAMPLES = """\b
Examples:
  kohort retry status --pipeline examples/flights_pipeline.py
  kohort retry status --store sqlite:///flights.db --name flights -o json
  kohort retry status --topic orders --group billing
"""


@click.group(cls=CommandGroup)
def retry() -> None:
    """Show the waiting records of the retry topics."""


@retry.command(epilog=EXAMPLES)
@source_options
@output_option
@client_options
def status(source: Source, output: str, client: Client) -> None:
    """Show each retry topic: how many records wait, how many are due, and when the next are.

    COUNTED-BY shows whether the numbers come from the ledger or from the topics. The topics give
    an estimate: it includes orphans of killed attempts, duplicates, and the transaction markers of
    an exactly-once program. `kohort retry list` reads the records and counts exactly.
    """
    now_ms = time.time_ns() // 1_000_000
    if isinstance(source, LedgerSource):
        rows = _by_ledger(source, now_ms)
    else:
        rows = _by_topics(source, client, now_ms)
    show(rows, COLUMNS, output)


@retry.command("list", epilog=LIST_EXAMPLES)
@source_options
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="The maximum number of records, due ones first.",
)
@output_option
@client_options
def list_waiting(source: Source, limit: int, output: str, client: Client) -> None:
    """Which records wait for their next try, why, and until when.

    Without a ledger the retry topics are read to their end, from the group's position. WAITS-AT is
    the place that `kohort app retry-record` and `dead-letter-record` take.
    """
    from kohort.retry.ledger_view import waiting_rows

    if isinstance(source, LedgerSource):
        count, rows = waiting_rows(source.store, source.name, limit)
    else:
        count, rows = _waiting_in_topics(source, client, limit)
    if output != "table":
        show([_as_json(row) for row in rows], JSON_COLUMNS, output)
        return
    waits = "1 record waits" if count == 1 else f"{count:,} records wait"
    first = f"; the {len(rows):,} that are due first:" if len(rows) < count else ""
    click.echo(f"{waits}{first}", err=True)
    if rows:
        show([_as_row(row) for row in rows], ROW_COLUMNS, output)


def _as_row(row: WaitingRow) -> dict[str, Any]:
    from kohort.cli.common.formats import iso_time

    error = f"{row.error_class.rpartition('.')[2]}: {' '.join(row.error_message.split())}"
    return {
        "origin": row.origin.retry_id,
        "retry": row.number,
        "due": iso_time(row.due_ms),
        "reason": row.reason,
        "error": error[:MESSAGE_COLUMNS] if row.error_class else None,
        "first_failed": iso_time(row.first_failed_ms),
        "waits_at": row.waits_at or row.waits_in,
    }


def _as_json(row: WaitingRow) -> dict[str, Any]:
    from kohort.cli.common.formats import iso_time

    origin = row.origin
    return {
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "retry": row.number,
        "due": iso_time(row.due_ms),
        "reason": row.reason,
        "error_class": row.error_class,
        "message": row.error_message,
        "fingerprint": row.fingerprint,
        "first_failed": iso_time(row.first_failed_ms),
        "retry_topic": row.waits_in,
        "waits_at": row.waits_at or None,
    }


def _waiting_in_topics(
    source: TopicSource, client: Client, limit: int
) -> tuple[int, list[WaitingRow]]:
    """By the copies that the group has not passed; how many, and the first `limit` by due time."""
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer
    from kohort.processing.engine.snapshot import SnapshotError, decode
    from kohort.retry.reading import pages_between

    counts, retry_topics = _retry_topics(source, client)
    parts = [TopicPartition(topic, p) for topic in retry_topics for p in range(counts[topic])]
    count = 0
    first: list[WaitingRow] = []
    with Consumer(**_settings(source, client)) as consumer:
        ends, firsts = consumer.end_offsets(parts), consumer.beginning_offsets(parts)
        starts, done = dict(firsts), dict[tuple[str, int], Sequence[tuple[int, int]]]()
        for tp, commit in consumer.committed(parts).items():
            if commit is not None:
                starts[tp] = max(firsts[tp], commit.offset)
                with contextlib.suppress(SnapshotError):  # another program's metadata
                    done[tp] = decode(commit.offset, commit.metadata).done
        for page in pages_between(consumer, starts, ends, PAGE_RECORDS):
            rows = [
                _waiting_row(record)
                for record in page
                if not any(
                    start <= record.offset < end
                    for start, end in done.get((record.topic, record.partition), ())
                )
            ]
            waiting = [row for row in rows if row is not None]
            count += len(waiting)
            first = heapq.nsmallest(limit, [*first, *waiting], key=lambda row: row.due_ms or 0)
    return count, first


def _waiting_row(record: Record) -> WaitingRow | None:
    """What a copy says of itself; None for a stranger's record."""
    from kohort.retry.headers import HeaderFault, parse
    from kohort.retry.ledger_view import WaitingRow

    try:
        retry = parse(record.headers)
    except HeaderFault:
        return None
    due_ms = max(retry.not_before_ms, record.timestamp + retry.delay_ms)
    return WaitingRow(
        retry.origin,
        retry.number,
        retry.reason,
        retry.error_class,
        retry.error_message,
        retry.fingerprint,
        retry.first_failed_at_ms,
        due_ms,
        record.topic,
        f"{record.topic}/{record.partition}/{record.offset}",
    )


def _by_ledger(source: LedgerSource, now_ms: int) -> list[dict[str, Any]]:
    from kohort.cli.common.formats import iso_time
    from kohort.retry.ledger_view import retry_topic_states

    return [
        {
            "retry_topic": state.topic,
            "delay": _delay_text(retry_topic_delay_ms(state.topic)),
            "waiting": state.waiting,
            "due_now": state.due_now,
            "oldest_due": iso_time(state.oldest_due_ms),
            "next_due": iso_time(state.next_due_ms),
            "counted_by": BY_LEDGER,
        }
        for state in retry_topic_states(source.store, source.name, source.retry_topics, now_ms)
    ]


def _by_topics(source: TopicSource, client: Client, now_ms: int) -> list[dict[str, Any]]:
    from kohort.client.common.types import TopicPartition
    from kohort.client.consumer.consumer import Consumer

    counts, retry_topics = _retry_topics(source, client)
    with Consumer(**_settings(source, client)) as consumer:
        return [
            _retry_topic_row(
                consumer,
                topic,
                delay_ms,
                now_ms,
                [TopicPartition(topic, p) for p in range(counts[topic])],
            )
            for topic, delay_ms in retry_topics.items()
        ]


def _retry_topics(source: TopicSource, client: Client) -> tuple[dict[str, int], dict[str, int]]:
    """Partitions of every topic, and the delays of this group's retry topics.

    Raises UsageError when it has none.
    """
    with open_admin(client.common()) as admin:
        counts = {t.name: t.partition_count for t in admin.list_topics()}
    retry_topics = retry_topics_of(source, counts)
    if not retry_topics:
        raise UsageError(
            f"there is no retry topic of topic {source.topic!r} and group {source.group!r} "
            f"(as {source.topic}.{source.group}.retry.5m); `kohort topic list` shows what there is"
        )
    return counts, retry_topics


def _settings(source: TopicSource, client: Client) -> dict[str, Any]:
    from kohort.client.common.config import ConsumerConfig

    return client.for_role(
        ConsumerConfig,
        group_id=source.group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
    )


def _retry_topic_row(
    consumer: Consumer, topic: str, delay_ms: int, now_ms: int, parts: Sequence[TopicPartition]
) -> dict[str, Any]:
    from kohort.cli.common.formats import iso_time

    firsts, ends = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
    committed = consumer.committed(parts)
    starts = {tp: max(firsts[tp], c.offset if (c := committed[tp]) else 0) for tp in parts}
    young = consumer.offsets_for_times(dict.fromkeys(parts, now_ms - delay_ms + 1))
    waiting = due = 0
    next_due: list[int] = []
    oldest: list[int] = []
    for tp in parts:
        hit, start, end = young[tp], starts[tp], ends[tp]
        border = end if hit is None else max(start, hit.offset)
        waiting += max(0, end - start)
        due += max(0, border - start)
        if hit is not None and hit.offset >= start:
            next_due.append(hit.timestamp_ms + delay_ms)
        if start < end:
            oldest.append(_timestamp_at(consumer, tp, start) + delay_ms)
    return {
        "retry_topic": topic,
        "delay": _delay_text(delay_ms),
        "waiting": waiting,
        "due_now": due,
        "oldest_due": iso_time(min(oldest, default=None)),
        "next_due": iso_time(min(next_due, default=None)),
        "counted_by": BY_TOPIC,
    }


def _timestamp_at(consumer: Consumer, tp: TopicPartition, offset: int) -> int:
    """The append time of the first record from an offset on; now if none comes."""
    consumer.assign([tp])
    consumer.seek(tp, offset)
    for _ in range(10):
        records = consumer.poll(0.5, max_records=1)
        if records:
            return records[0].timestamp
    return time.time_ns() // 1_000_000


def _delay_text(delay_ms: int | None) -> str:
    return format_duration(delay_ms or 0)
