"""Asks a cluster how far its retry topics may be read: the questions of `due_schedule`.

Rules (D2):
- LATEST is requested before by-time, in one request for all partitions whose cached answer has
  expired.
- A partition whose leader does not answer is left out where the caller asks for what is known: it
  stays as far open as it was.
- An uncertain answer is verified (MAX_TIMESTAMP), and scanned when it cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kohort.errors import UnsupportedVersionError
from kohort.retry.due_schedule import Answer, DueSchedule, NeedProof, NeedScan, Question

TopicPartition = tuple[str, int]


class TopicView(NamedTuple):
    """A topic as the cluster knows it; `topic_id` is empty where brokers have none."""

    topic_id: str
    partitions: int


class Stamped(NamedTuple):
    """An offset and its timestamp; -1 for none."""

    offset: int
    timestamp_ms: int


NOTHING: Final = Stamped(-1, -1)
FEW_OFFSETS: Final = 4
"""Of a partition: as many offsets may be markers alone."""


class OffsetPort(Protocol):
    """What is asked of a cluster. Every call raises a KohortError when it cannot answer."""

    def latest(
        self,
        partitions: Sequence[TopicPartition],
        timeout_s: float | None = None,
        *,
        partial: bool = False,
    ) -> dict[TopicPartition, int]:
        """With `partial`, what no leader tells in time is left out instead of raised."""
        ...

    def by_time(
        self, times: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, Stamped]: ...
    def max_timestamp(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Stamped]: ...
    def scan(self, at: TopicPartition, start: int, end: int, target_ms: int) -> Stamped: ...


class RecordPort(Protocol):
    """What is asked about a few offsets."""

    def has_records(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Whether there is a record in any of the ranges [start, end)."""
        ...


def markers_alone(port: RecordPort, ranges: Mapping[TopicPartition, tuple[int, int]]) -> bool:
    """Whether transaction markers are all that there is in some ranges [start, end).

    Long ranges are taken to hold records: a transaction writes one marker to a partition.
    """
    few = all(end - start <= FEW_OFFSETS for start, end in ranges.values())
    return few and not port.has_records(ranges)


def ask(
    gate: DueSchedule,
    port: OffsetPort,
    starts: dict[TopicPartition, int],
    now_ms: int,
    log_starts: Mapping[TopicPartition, int] | None = None,
    *,
    timeout_s: float | None = None,
    partial: bool = False,
) -> dict[TopicPartition, int]:
    """Update the schedule for readers at `starts`; returns the logs' ends, where requested.

    `timeout_s` (None: the client's) and `partial` are as in `OffsetPort.latest`.
    """
    questions = {q.partition: q for q in gate.questions(starts, now_ms)}
    if not questions:
        return {}
    latest = port.latest(list(questions), timeout_s, partial=partial)
    known = {at: questions[at] for at in latest}
    delayed = {at: q.target_ms for at, q in known.items() if gate.delays_ms[at[0]] > 0}
    by_time = port.by_time(delayed, timeout_s) if delayed else {}
    for at, question in known.items():
        stamped = by_time.get(at, NOTHING)
        log_start = (log_starts or {}).get(at, 0)
        answer = Answer(latest[at], stamped.offset, stamped.timestamp_ms, log_start=log_start)
        _settle(gate, port, question, answer, now_ms)
    return latest


def _settle(
    gate: DueSchedule, port: OffsetPort, question: Question, answer: Answer, now_ms: int
) -> None:
    at = question.partition
    outcome = gate.answer(question, answer, now_ms)
    if isinstance(outcome, NeedProof):
        best = _proof(port, at)
        answer = Answer(
            answer.latest,
            answer.by_time_offset,
            answer.by_time_ms,
            answer.latest if best is None else best.offset,
            None if best is None else best.timestamp_ms,
            log_start=answer.log_start,
        )
        outcome = gate.answer(question, answer, now_ms)
    if isinstance(outcome, NeedScan):
        scan = port.scan(at, outcome.start, outcome.end, outcome.target_ms)
        answer = Answer(
            answer.latest,
            answer.by_time_offset,
            answer.by_time_ms,
            answer.max_offset,
            answer.max_timestamp_ms,
            scan.offset,
            scan.timestamp_ms if scan.timestamp_ms >= 0 else None,
            answer.log_start,
        )
        gate.answer(question, answer, now_ms)


def _proof(port: OffsetPort, at: TopicPartition) -> Stamped | None:
    """The record with the largest timestamp; None from brokers that do not know which it is."""
    try:
        return port.max_timestamp([at])[at]
    except UnsupportedVersionError:  # before Kafka 3.0
        return None
