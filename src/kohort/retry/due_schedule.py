"""The due-time gate of a retry topic: how far may be read now, without sleeping and never early.

A retry topic has one delay and the broker's append time, so "due by now" is an offset: the first
record at or after `now - delay - skew + 1`. Nothing at or past that offset is fetched.

Rules (D2; each is a test):
- `LATEST` is asked first and by-time second, on one connection in order. The other way round, what
  is appended in between would be read early.
- "No such record" (-1) is only believed when `MAX_TIMESTAMP` proves it: a broker whose log start
  moved may answer -1 although later records qualify. Unproven, the range is scanned.
- The gate answers from its cache until `next_check_ms`: an idle retry topic costs one question
  every 30 s at most, a busy one is asked when its next record falls due.
- An answer holds for 30 s at most, even when the clock is set back meanwhile.
- What the gate has opened stays open; it never closes behind a reader.

    questions(now) -> what to ask     answer(...) -> Opened | NeedProof | NeedScan
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kohort.retry.copies import DEFAULT_SKEW_MS

TopicPartition = tuple[str, int]

MAX_CHECK_MS: Final = 30_000
NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class Question:
    """Ask for LATEST, then for the first offset whose timestamp is at least `target_ms`."""

    partition: TopicPartition
    start: int
    target_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The broker's answers: LATEST, then (timestamp, offset) by time; -1 for none.

    `max_timestamp_ms` and `max_offset` are None until MAX_TIMESTAMP was asked. `scanned` is None
    until the range was scanned; then it is the first offset at or after the target, with
    `scanned_ms` its timestamp, or where the scan ended without one (`scanned_ms` None).
    """

    latest: int
    by_time_offset: int
    by_time_ms: int = NO_OFFSET
    max_offset: int | None = None
    max_timestamp_ms: int | None = None
    scanned: int | None = None
    scanned_ms: int | None = None
    log_start: int = 0
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Opened:
    """Offsets below `end` may be read, of those below `latest` that there are.

    `target_ms` and `leader_epoch` let the reader check it.
    """

    end: int
    target_ms: int
    leader_epoch: int
    next_check_ms: int
    lost_below: int | None = None
    latest: int = NO_OFFSET
    next_due_ms: int | None = None
    """When the first record that is not due falls due; None: there is none."""

    def holds(self, now_ms: int) -> bool:
        """Whether it need not be asked again. A clock that was set back makes it no younger."""
        return now_ms < self.next_check_ms <= now_ms + MAX_CHECK_MS


@dataclass(frozen=True, slots=True)
class NeedProof:
    """Ask MAX_TIMESTAMP and answer again."""


@dataclass(frozen=True, slots=True)
class NeedScan:
    """Scan [start, end) for the first record at or after `target_ms` and answer again."""

    start: int
    end: int
    target_ms: int


Outcome = Opened | NeedProof | NeedScan


def decide(
    question: Question, answer: Answer, *, delay_ms: int, skew_ms: int, now_ms: int
) -> Outcome:
    """One step of the gate for one partition: open it, or say what is still to be asked."""
    start, latest, target = question.start, answer.latest, question.target_ms
    if delay_ms == 0:
        return _opened(question, answer, latest, now_ms)  # the entry topic holds nothing back
    if answer.by_time_offset != NO_OFFSET:
        end = min(answer.by_time_offset, latest)
        due = answer.by_time_ms + delay_ms + skew_ms
        check = min(due, now_ms + MAX_CHECK_MS)
        return _opened(question, answer, end, max(check, now_ms), due)
    check = now_ms + min(delay_ms, MAX_CHECK_MS)
    if start >= latest:
        return _opened(question, answer, latest, check)
    if answer.max_offset is None:
        return NeedProof()
    stamp = answer.max_timestamp_ms
    proven = answer.max_offset == NO_OFFSET or (stamp is not None and stamp < target)
    if proven:
        return _opened(question, answer, latest, check)
    if answer.scanned is None:
        return NeedScan(max(start, answer.log_start), latest, target)
    if answer.scanned_ms is not None:
        check = min(answer.scanned_ms + delay_ms + skew_ms, now_ms + MAX_CHECK_MS)
    elif answer.scanned < latest:
        check = now_ms  # cut by a read limit: the rest is asked for at once
    return _opened(question, answer, min(answer.scanned, latest), max(check, now_ms))


def _opened(
    question: Question, answer: Answer, end: int, check_ms: int, due_ms: int | None = None
) -> Opened:
    lost = answer.log_start if question.start < answer.log_start else None
    return Opened(
        end=max(end, question.start),
        target_ms=question.target_ms,
        leader_epoch=answer.leader_epoch,
        next_check_ms=check_ms,
        lost_below=lost,
        latest=answer.latest,
        next_due_ms=due_ms,
    )


class DueSchedule:
    """The gate of every retry topic partition of one reader. Pure: the caller asks and answers.

    Args:
        delays_ms: delay by topic; 0 for the entry topic of redriven records.
        skew_ms: how far the broker's clock and ours may differ; due records wait that much longer.
    """

    def __init__(self, delays_ms: dict[str, int], *, skew_ms: int = DEFAULT_SKEW_MS) -> None:
        self.delays_ms = dict(delays_ms)
        self.skew_ms = skew_ms
        self._open: dict[TopicPartition, Opened] = {}

    def questions(self, starts: dict[TopicPartition, int], now_ms: int) -> list[Question]:
        """What must be asked now; partitions whose cached answer still holds are left out."""
        questions: list[Question] = []
        for partition, start in starts.items():
            known = self._open.get(partition)
            if known is not None and known.holds(now_ms) and known.end >= start:
                continue
            target = now_ms - self.delays_ms[partition[0]] - self.skew_ms + 1
            questions.append(Question(partition, start, max(target, 0)))
        return questions

    def answer(self, question: Question, answer: Answer, now_ms: int) -> Outcome:
        """Take a broker's answer. NeedProof and NeedScan ask for a fuller one."""
        topic = question.partition[0]
        outcome = decide(
            question, answer, delay_ms=self.delays_ms[topic], skew_ms=self.skew_ms, now_ms=now_ms
        )
        if isinstance(outcome, Opened):
            self._open[question.partition] = outcome
        return outcome

    def opened(self, partition: TopicPartition) -> Opened | None:
        """The last answer for a partition; None when it was never asked for."""
        return self._open.get(partition)

    def next_check_ms(self) -> int | None:
        """When the earliest cached answer runs out."""
        return min((o.next_check_ms for o in self._open.values()), default=None)

    def expire(self) -> None:
        """Ask everything again; until then the last answers stay."""
        self._open = {at: replace(o, next_check_ms=0) for at, o in self._open.items()}

    def forget(self) -> None:
        """Drop every cached answer (after an assignment, a restart or an error)."""
        self._open.clear()
