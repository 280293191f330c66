"""The books of a batch: one change of fence, ledger and counts for each partition. Pure.

Rules:
- They are written in the transaction of the batch's rows, by the statements that row handlers use,
  so that status, redrive and reconciliation treat both alike.
- A copy is written in the Kafka transaction of its batch, so it exists exactly when its ledger row
  is: the row names its partition, and no offset (`ledger.IN_BATCH`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kohort.retry import ledger
from kohort.retry.copies import Attempt, copy_for
from kohort.retry.ledger import Claim, Counts, Entries, FenceMove, LedgerRow, Place
from kohort.retry.store import Transaction
from kohort.spark.dataframes.failing import RetrySpec, failure_of
from kohort.spark.dataframes.judging import Failed, Judgement, TopicPartition


@dataclass(frozen=True)
class BatchRange:
    """The offsets of one micro-batch: [start, end) of each partition, as Spark has logged them."""

    start: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Books:
    """What a batch's transaction changes beside its rows, and the topics that copies go to."""

    changes: list[Transaction]
    copy_topics: frozenset[str] = frozenset()


@dataclass
class _Part:
    claims: list[Claim] = field(default_factory=list[Claim])
    rows: list[LedgerRow] = field(default_factory=list[LedgerRow])

    def book(self, entries: Entries) -> None:
        """Add what one ended attempt means for the ledger."""
        if entries.claim is not None:
            self.claims.append(entries.claim)
        self.rows += entries.rows


def books_of(
    pipeline: str,
    span: BatchRange,
    now_ms: int,
    spec: RetrySpec,
    judgement: Judgement,
    retried: Iterable[Attempt],
) -> Books:
    """The books of a batch.

    Args:
        span: the batch's offsets.
        retried: the copies of retry topics that were run.
    """
    parts: dict[TopicPartition, _Part] = {}
    topics: set[str] = set()
    for failed in judgement.failed.values():
        part = parts.setdefault(failed.attempt.position[:2], _Part())
        topics.add(_failed(part, failed, spec, now_ms))
    for attempt in retried:
        if attempt.position in judgement.failed:
            continue
        entries = ledger.succeeded(attempt, now_ms)
        part = parts.setdefault(attempt.position[:2], _Part())
        part.book(entries)
    changes = [
        Transaction(
            pipeline,
            FenceMove(*at, span.start.get(at, end), end),
            now_ms,
            claims=parts[at].claims if at in parts else [],
            rows=parts[at].rows if at in parts else [],
            counts=judgement.counts.get(at, Counts()),
        )
        for at, end in sorted(span.end.items())
        if end != span.start.get(at) or at in parts
    ]
    return Books(changes, frozenset(topics))


def _failed(part: _Part, failed: Failed, spec: RetrySpec, now_ms: int) -> str:
    """Book a failed input; returns the topic of its copy."""
    attempt = failed.attempt
    names = spec.topics[spec.base(attempt.position[0])]
    failure = failure_of(failed.permanent, failed.reason, failed.message)
    copy, step = copy_for(attempt, failure, topics=names, now_ms=now_ms)
    place = Place(copy.topic, spec.place(copy.topic, copy.partition_hint), ledger.IN_BATCH)
    entries = ledger.failed(attempt, failure, copy, step, place, now_ms)
    part.book(entries)
    return copy.topic
