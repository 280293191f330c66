"""Screen 6, pipelines: their books, their fence beside the group's commits, what failed and waits.

Rules: the figures are the store's, counted in the transactions of the results; what the cluster
adds (commits, ends) is a dash where it does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kohort.client.common.types import TopicPartition
from kohort.console.views.figures import ago, count

if TYPE_CHECKING:
    from kohort.retry.ledger_view import BookRow, FailedKind, RetryTopicState


@dataclass(frozen=True, slots=True)
class PipelineLine:
    """One pipeline of a store."""

    name: str
    store: str
    number: int
    rows: str


@dataclass(frozen=True, slots=True)
class PipelinesView:
    """All pipelines of all stores."""

    lines: Sequence[PipelineLine]
    stores: int
    troubles: Sequence[str]


@dataclass(frozen=True, slots=True)
class BookLine:
    """One partition."""

    name: str
    fence: str
    committed: str
    end: str
    behind: str
    read: str
    loaded: str
    filtered: str
    scheduled: str
    failed: str
    moved: str
    trouble: str


@dataclass(frozen=True, slots=True)
class Sum:
    """One of the totals."""

    name: str
    number: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class PipelineView:
    """One pipeline."""

    name: str
    store: str
    balanced: bool
    sums: Sequence[Sum]
    books: Sequence[BookLine]
    retry_topics: Sequence[tuple[str, str, str]]
    kinds: Sequence[tuple[str, str, str]]


def pipeline_view(
    name: str,
    store: str,
    rows: Sequence[BookRow],
    retry_topics: Sequence[RetryTopicState],
    kinds: Sequence[FailedKind],
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    now_ms: int,
) -> PipelineView:
    """The page of one pipeline.

    Args:
        name: its name.
        store: where its ledger is, without a password.
        rows: its books.
        retry_topics: what waits, by retry topic.
        kinds: what failed, by kind.
        committed: what its group has committed.
        ends: where the logs end.
        now_ms: the time of day.
    """
    waiting, failed = sum(t.waiting for t in retry_topics), sum(row.failed for row in rows)
    balanced = all(row.balanced for row in rows)
    sums = [
        Sum("read", count(sum(row.read for row in rows))),
        Sum("loaded", count(sum(row.loaded for row in rows))),
        Sum("filtered", count(sum(row.filtered for row in rows))),
        Sum("waiting", count(waiting), "warn" if waiting else ""),
        Sum("failed", count(failed), "bad" if failed else "good"),
        Sum("books", "balance" if balanced else "do not balance", "good" if balanced else "bad"),
    ]
    lines = [_line(row, committed, ends, now_ms) for row in rows]
    return PipelineView(
        name,
        store,
        balanced,
        sums,
        lines,
        [(t.topic, count(t.waiting), count(t.due_now)) for t in retry_topics],
        [(kind.reason, kind.error_class, count(kind.count)) for kind in kinds],
    )


def _line(
    row: BookRow,
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    now_ms: int,
) -> BookLine:
    tp = TopicPartition(row.topic, row.partition)
    at, end = committed.get(tp), ends.get(tp)
    trouble = ""
    if not row.balanced:
        trouble = "records are counted in no way, or twice"
    elif at is not None and at > row.next_offset:
        trouble = "the group's commit is ahead of what is in the store"
    elif end is not None and end < row.next_offset:
        trouble = "the log ends before the fence: was the topic made again?"
    return BookLine(
        f"{row.topic}-{row.partition}",
        count(row.next_offset),
        count(at),
        count(end),
        count(None if end is None else max(0, end - row.next_offset)),
        count(row.read),
        count(row.loaded),
        count(row.filtered),
        count(row.scheduled),
        count(row.failed),
        ago(row.updated_ms, now_ms),
        trouble,
    )
