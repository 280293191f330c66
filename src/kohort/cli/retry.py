"""`kohort retry`: what waits in the delay tiers, and when it falls due.

Rules:
- By the ledger, when there is one. Else by the topics: a tier has one delay and the broker's append
  time, so what is due now ends at the first record appended less than the delay ago; nothing is
  read for it but one record a partition.

Shell: clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kohort.cli.app import CommandGroup
from kohort.cli.connect import Client, client_options, open_admin
from kohort.cli.ledger_source import (
    BY_LEDGER,
    BY_TOPIC,
    LedgerSource,
    Source,
    TopicSource,
    source_options,
    tier_delay_ms,
    tiers_of,
)
from kohort.cli.output import output_option, show
from kohort.config import format_duration
from kohort.errors import UsageError

if TYPE_CHECKING:
    from kohort.client.consumer import Consumer
    from kohort.client.types import TopicPartition

COLUMNS = ("tier", "delay", "waiting", "due_now", "oldest_due", "next_due", "counted_by")
EXAMPLES = """\b
Examples:
  kohort retry status --pipeline examples/flights_pipeline.py
  kohort retry status --store sqlite:///flights.db --name flights -o json
  kohort retry status --topic orders --group billing
"""


@click.group(cls=CommandGroup)
def retry() -> None:
    """What waits in the retry tiers."""


@retry.command(epilog=EXAMPLES)
@source_options
@output_option
@client_options
def status(source: Source, output: str, client: Client) -> None:
    """Records that wait in each tier: how many, how many are due, and when the next ones are.

    COUNTED-BY tells whether the ledger counted, or the topics, in which orphans of killed attempts
    and duplicates count, too.
    """
    now_ms = time.time_ns() // 1_000_000
    if isinstance(source, LedgerSource):
        rows = _by_ledger(source, now_ms)
    else:
        rows = _by_topics(source, client, now_ms)
    show(rows, COLUMNS, output)


def _by_ledger(source: LedgerSource, now_ms: int) -> list[dict[str, Any]]:
    from kohort.cli.forms import iso_time
    from kohort.retry.ledger_view import tier_states

    return [
        {
            "tier": state.topic,
            "delay": _delay_text(tier_delay_ms(state.topic)),
            "waiting": state.waiting,
            "due_now": state.due_now,
            "oldest_due": iso_time(state.oldest_due_ms),
            "next_due": iso_time(state.next_due_ms),
            "counted_by": BY_LEDGER,
        }
        for state in tier_states(source.store, source.name, source.tiers, now_ms)
    ]


def _by_topics(source: TopicSource, client: Client, now_ms: int) -> list[dict[str, Any]]:
    from kohort.client.config import ConsumerConfig
    from kohort.client.consumer import Consumer
    from kohort.client.types import TopicPartition

    with open_admin(client.common()) as admin:
        counts = {t.name: t.partition_count for t in admin.list_topics()}
    tiers = tiers_of(source, counts)
    if not tiers:
        raise UsageError(
            f"there is no retry topic of topic {source.topic!r} and group {source.group!r} "
            f"(as {source.topic}.{source.group}.retry.5m); `kohort topic list` shows what there is"
        )
    settings = client.for_role(
        ConsumerConfig,
        group_id=source.group,
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
    )
    with Consumer(**settings) as consumer:
        return [
            _tier_row(consumer, topic, delay_ms, now_ms,
                      [TopicPartition(topic, p) for p in range(counts[topic])])
            for topic, delay_ms in tiers.items()
        ]  # fmt: skip


def _tier_row(
    consumer: Consumer, topic: str, delay_ms: int, now_ms: int, parts: Sequence[TopicPartition]
) -> dict[str, Any]:
    from kohort.cli.forms import iso_time

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
        "tier": topic,
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
