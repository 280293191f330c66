"""Exactly once: read, handle and write one partition's records behind a fence on source offsets.

The step order is the whole of the guarantee (E2):

    1  read the fence n (made at the range's start when absent)
    2  n >= end: skip; n < start: refuse; drop records below n
    3  ask the ledger which copies may run; run the handler
    4  publish copies of what failed, and wait until every one is acknowledged
    5  ONE transaction: compare-and-set of the fence, claims, effects, ledger rows
    6  report; progress to the group is published by the driver, and is only ever advisory

A kill before 5 leaves orphan copies that no ledger row backs; a kill after 5 leaves a fence that
makes the re-run skip. A second writer loses the compare-and-set and rolls back.

Rules:
- Records come in offset order; gaps (compaction, markers) are fine, the fence ends at the range's
  end. A chunk is one transaction, so memory and lock time are bounded by the chunk.
- A batch that nobody can read is a permanent failure with its bytes; the rest goes on (spec 5.6).
- A broken constraint is found by a probe of single records and becomes their permanent failure,
  before anything of the chunk is published twice or written at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from kohort.config import format_duration
from kohort.errors import DataLossError, KohortError, UsageError
from kohort.retry import ledger as books
from kohort.retry.classify import Disposition, Failure, describe
from kohort.retry.copies import (
    BAD_HEADERS_REASON,
    DEFAULT_SKEW_MS,
    Attempt,
    Copy,
    copy_for,
    due_ms,
    postponed_copy,
    read_attempt,
    waits_on,
)
from kohort.retry.effects import Effect, Execute, statements
from kohort.retry.headers import Header, HeaderFault, Origin
from kohort.retry.ledger import Claim, Counts, FenceMove, LedgerRow, Place, Verdict
from kohort.retry.policy import RetryTopics, Step
from kohort.retry.store import Applied, ConstraintError, Store, Transaction
from kohort.retry.unreadable import REASON as UNREADABLE_REASON
from kohort.retry.unreadable import Unreadable

MAX_ROUNDS: Final = 5
MAX_EARLY_MS: Final = 30_000
"""The longest that a task waits for a record; one that is due later was never planned."""
CONSTRAINT_REASON: Final = "constraint_violated"
NO_INPUT_REASONS: Final = (BAD_HEADERS_REASON, UNREADABLE_REASON)
"""Of these failures in a retry topic nobody knows which input they stand for."""


class RawRecord(NamedTuple):
    """One record as it was fetched."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    unreadable: Unreadable | None = None
    """The batch that stands here and that nobody can read; then the rest says nothing."""

    @property
    def next_offset(self) -> int:
        """The offset behind it."""
        return self.offset + 1 if self.unreadable is None else self.unreadable.next_offset


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Offsets [start, end) of one partition, as the driver planned them.

    Args:
        base: the topic whose handler and retry topics apply (the topic itself, or a retry topic's
            source).
        delay_ms: None for a source topic, 0 for the entry topic, else the retry topic's delay.
        first: start is where the pipeline began with this partition; only then may there be no
            fence yet.
        planned_ms: when the driver saw by the broker that all of the range was due.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    base: str
    delay_ms: int | None = None
    first: bool = False
    planned_ms: int = 0


class Handler(Protocol):
    """Runs the user's code over attempts: for each, its effects or its failure, in order."""

    def __call__(
        self, base: str, attempts: Sequence[Attempt], store: Store
    ) -> list[Sequence[Effect] | Failure]: ...


class Publisher(Protocol):
    """Publishes copies and returns when all are acknowledged: their places, in order."""

    def publish(self, copies: Sequence[Copy]) -> list[Place]: ...


class Clock(Protocol):
    """Wall time, and waiting for it."""

    def now_ms(self) -> int: ...
    def sleep_ms(self, ms: int) -> None: ...


@dataclass(slots=True)
class Report:
    """What became of one range. Counts are for display; the ledger is the truth."""

    topic: str
    partition: int
    next_offset: int
    loaded: int = 0
    retried: int = 0
    failed: int = 0
    inert: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class _Ended:
    """One attempt with its outcome, on its way into the transaction. None: it waits on."""

    attempt: Attempt
    outcome: Sequence[Effect] | Failure | None
    copy: Copy | None = None
    step: Step | None = None
    place: Place | None = None
    unreadable: Unreadable | None = None
    owed: Sequence[LedgerRow] = ()
    """The scheduled copies that stood in the unreadable batch."""


@dataclass
class Loader:
    """The steps above for all ranges of one pipeline in one task.

    Args:
        pipeline: the name under which fence and ledger are kept.
        topics: the retry topics by source topic.
        skew_ms: the allowance between the broker's clock and ours.
        origins: by source topic its handler's table, and the columns that name a row's input.
    """

    pipeline: str
    topics: dict[str, RetryTopics]
    store: Store
    publisher: Publisher
    handler: Handler
    clock: Clock
    skew_ms: int = DEFAULT_SKEW_MS
    origins: Mapping[str, tuple[str, tuple[str, str]]] = field(
        default_factory=dict[str, tuple[str, tuple[str, str]]]
    )

    def open(self, span: SourceRange) -> RangeLoad:
        """Steps 1 and 2 for a range. Raises DataLossError when fence and range disagree."""
        now = self.clock.now_ms()
        row = self.store.fence(self.pipeline, span.topic, span.partition)
        if row is None:
            if not span.first:
                raise DataLossError(
                    f"pipeline {self.pipeline}: the store has no fence for {span.topic}/"
                    f"{span.partition}, but the checkpoint is already at {span.start}: the store "
                    "was emptied or replaced. Restore it, or delete the checkpoint to start anew"
                )
            row = self.store.open_fence(
                self.pipeline, span.topic, span.topic_id, span.partition, span.start, now
            )
        if span.topic_id and row.topic_id != span.topic_id:
            raise DataLossError(
                f"topic {span.topic} was deleted and made anew (id {row.topic_id} became "
                f"{span.topic_id}): offsets no longer mean what the fence says. Start a pipeline "
                "with another name, or remove the fence of the old topic"
            )
        if row.next_offset < span.start:
            raise DataLossError(
                f"pipeline {self.pipeline}: the fence of {span.topic}/{span.partition} stands at "
                f"{row.next_offset}, behind the checkpoint at {span.start}: the store was restored "
                "from a backup. Delete the checkpoint; the pipeline then starts at the fence"
            )
        return RangeLoad(self, span, row.next_offset)


class RangeLoad:
    """One open range: `load` its records in order, then `finish`."""

    def __init__(self, loader: Loader, span: SourceRange, fence: int) -> None:
        self._loader = loader
        self._span = span
        self._fence = fence
        self.report = Report(span.topic, span.partition, fence)

    @property
    def done(self) -> bool:
        """True when the fence is at or past the end: nothing of the range is left to do."""
        return self._fence >= self._span.end

    def load(self, records: Sequence[RawRecord]) -> None:
        """Steps 2 to 5 for the next records, as one transaction."""
        for _ in range(MAX_ROUNDS):
            unprocessed = [r for r in records if self._fence <= r.offset < self._span.end]
            self.report.skipped += len(records) - len(unprocessed)
            if not unprocessed:
                return
            if self._round(unprocessed, min(unprocessed[-1].next_offset, self._span.end)):
                return
            records = unprocessed
        raise KohortError(
            f"{self._span.topic}/{self._span.partition} at {self._fence}: lost the race for its "
            f"fence or ledger {MAX_ROUNDS} times; another pipeline of the same name is running"
        )

    def finish(self) -> Report:
        """Move the fence over what holds no records (markers, compaction) to the range's end."""
        if not self.done and not self._commit([], self._span.end):
            self._reread_fence()
            if not self.done:
                raise KohortError(
                    f"{self._span.topic}/{self._span.partition}: the fence moved to {self._fence} "
                    "while the range was finished; another pipeline of the same name is running"
                )
        self.report.next_offset = self._fence
        return self.report

    def _round(self, records: Sequence[RawRecord], next_offset: int) -> bool:
        """Steps 3 to 5 once; False when another writer was faster and it must be tried again."""
        readable = [r for r in records if r.unreadable is None]
        ended, runnable, inert = self._sort(readable)
        ended += [self._damaged(r.unreadable) for r in records if r.unreadable is not None]
        if runnable:
            self._wait_until_due(runnable, records)
            ended += [_Ended(a, None) for a in runnable if waits_on(a)]
            runnable = [a for a in runnable if not waits_on(a)]
        if runnable:
            outcomes = self._loader.handler(self._span.base, runnable, self._loader.store)
            if len(outcomes) != len(runnable):
                raise UsageError(
                    f"the handler of {self._span.base} gave {len(outcomes)} outcomes for "
                    f"{len(runnable)} records"
                )
            ended += [_Ended(a, o) for a, o in zip(runnable, outcomes, strict=True)]
        self._publish(ended)
        if not self._commit(ended, next_offset):
            self._reread_fence()
            return False
        self._count(ended, inert)
        return True

    def _sort(self, records: Sequence[RawRecord]) -> tuple[list[_Ended], list[Attempt], int]:
        """Attempts that may run, and copies whose headers cannot be trusted (already failed)."""
        span = self._span
        if span.delay_ms is None:
            return [], [self._own(r) for r in records], 0
        faulty: list[_Ended] = []
        attempts: list[Attempt] = []
        topics = self._loader.topics[span.base]
        for r in records:
            try:
                attempts.append(
                    read_attempt(
                        span.topic,
                        span.partition,
                        r.offset,
                        r.key,
                        r.value,
                        r.headers,
                        policy=topics.policy,
                        delay_ms=span.delay_ms,
                        group=topics.group,
                    )
                )
            except HeaderFault as fault:
                failure = describe(fault, permanent=True, reason=BAD_HEADERS_REASON)
                faulty.append(_Ended(self._own(r), failure))
        ids = [a.origin.retry_id for a in attempts]
        states = self._loader.store.states(self._loader.pipeline, ids)
        runnable: list[Attempt] = []
        taken: set[str] = set()
        for attempt, retry_id in zip(attempts, ids, strict=True):
            verdict = books.gate(attempt, states.get(retry_id, ()))
            if verdict is Verdict.RUN and retry_id not in taken:
                taken.add(retry_id)
                runnable.append(attempt)
        return faulty, runnable, len(attempts) - len(runnable)

    def _damaged(self, batch: Unreadable) -> _Ended:
        """A batch that nobody can read is a permanent failure."""
        span, loader = self._span, self._loader
        owed: Sequence[LedgerRow] = ()
        if span.delay_ms is not None:
            owed = loader.store.scheduled_within(
                loader.pipeline, span.topic, span.partition, batch.offset, batch.next_offset
            )
        attempt = batch.attempt(span.topic_id)
        return _Ended(attempt, batch.failure(), unreadable=batch, owed=owed)

    def _own(self, r: RawRecord) -> Attempt:
        """A record as its own origin."""
        span = self._span
        origin = Origin(
            span.topic, span.partition, r.offset, r.timestamp_ms, r.timestamp_type, span.topic_id
        )
        return Attempt(origin, 0, (span.topic, span.partition, r.offset), r.key, r.value, r.headers)

    def _wait_until_due(self, runnable: Sequence[Attempt], records: Sequence[RawRecord]) -> None:
        """Wait out what is left of a due time.

        The plan's time counts where this machine's clock is behind: the driver compared the
        broker's time stamps with it. What is left then is a delay that the record asked for.
        """
        span, skew = self._span, self._loader.skew_ms
        if not span.delay_ms:
            return
        appended = {r.offset: r.timestamp_ms for r in records}
        last = max(due_ms(a, appended[a.position[2]], span.delay_ms, skew) for a in runnable)
        left = last - max(self._loader.clock.now_ms(), span.planned_ms)
        if left <= 0:
            return
        if left > 2 * skew + MAX_EARLY_MS:
            raise DataLossError(
                f"{span.topic}/{span.partition}: a record was planned {format_duration(left)} "
                "before it is due; the log was truncated, or the clocks of broker and driver differ"
            )
        self._loader.clock.sleep_ms(left)

    def _publish(self, ended: Sequence[_Ended]) -> None:
        """Step 4. Copies that stand already (a second pass after a probe) are not made again."""
        now = self._loader.clock.now_ms()
        new: list[tuple[_Ended, Copy]] = []
        for e in ended:
            if e.copy is not None:
                continue
            topics = self._loader.topics[self._span.base]
            if e.unreadable is not None:
                e.copy = e.unreadable.copy(e.attempt, topics, now)
            elif e.outcome is None:
                e.copy = postponed_copy(e.attempt, topics=topics, now_ms=now)
            elif isinstance(e.outcome, Failure):
                e.copy, e.step = copy_for(e.attempt, e.outcome, topics=topics, now_ms=now)
            if e.copy is not None:
                new.append((e, e.copy))
        if new:
            places = self._loader.publisher.publish([copy for _, copy in new])
            for (e, _), place in zip(new, places, strict=True):
                e.place = place

    def _commit(self, ended: list[_Ended], next_offset: int) -> bool:
        """Step 5. False: another writer moved the fence or closed a claim first."""
        store = self._loader.store
        try:
            applied = store.apply(self._transaction(ended, next_offset))
        except ConstraintError as broken:
            self._fail_the_broken(ended, broken)
            self._publish(ended)
            applied = store.apply(self._transaction(ended, next_offset))
        if applied is Applied.COMMITTED:
            self._fence = next_offset
            return True
        return False

    def _fail_the_broken(self, ended: list[_Ended], error: ConstraintError) -> None:
        """Turn the records whose effects break a constraint into permanent failures."""
        written = [e for e in ended if isinstance(e.outcome, Sequence)]
        parts = [statements(e.outcome) for e in written if isinstance(e.outcome, Sequence)]
        broken = self._loader.store.probe(parts)
        if not broken:
            raise KohortError(
                f"{self._span.topic}/{self._span.partition}: a constraint broke at commit that no "
                f"single record breaks ({error}); deferred constraints cannot be told apart"
            ) from error
        for index, cause in broken.items():
            written[index].outcome = describe(
                cause, permanent=True, reason=CONSTRAINT_REASON, disposition=Disposition.FATAL
            )

    def _transaction(self, ended: Sequence[_Ended], next_offset: int) -> Transaction:
        now = self._loader.clock.now_ms()
        effects: list[Effect] = []
        claims: list[Claim] = []
        rows: list[LedgerRow] = []
        for e in ended:
            if isinstance(e.outcome, Failure):
                assert e.copy is not None, "a failure has its copy before it is written down"
                assert e.place is not None, "a copy is acknowledged before it is written down"
                entries = books.failed(e.attempt, e.outcome, e.copy, e.step, e.place, now)
                claims += books.failed_unread(e.owed, e.outcome, e.copy, e.place, now)
                also = books.also_ended(e.attempt, e.step, now)
                if also is not None:
                    rows.append(also)
            elif e.outcome is None:
                assert e.copy is not None, "who waits on has a copy"
                assert e.place is not None, "a copy is acknowledged before it is written down"
                entries = books.held(e.attempt, e.copy, e.place, now)
            else:
                effects += e.outcome
                if e.attempt.previous is None:
                    continue  # a first try that succeeds leaves no trace in the ledger
                entries = books.succeeded(e.attempt, now)
            if entries.claim is not None:
                claims.append(entries.claim)
            if entries.row is not None:
                rows.append(entries.row)
        fence = FenceMove(self._span.topic, self._span.partition, self._fence, next_offset)
        of_retry_topic = self._span.delay_ms is not None
        return Transaction(
            self._loader.pipeline,
            fence,
            now,
            statements(effects),
            claims,
            rows,
            of_retry_topic,
            self._counted(ended),
        )

    def _reread_fence(self) -> None:
        row = self._loader.store.fence(
            self._loader.pipeline, self._span.topic, self._span.partition
        )
        if row is not None:
            self._fence = row.next_offset

    def _counted(self, ended: Sequence[_Ended]) -> Counts:
        """What the transaction does, in numbers.

        A copy whose headers are wrong is no input; an attempt that waits on has not ended. Of a
        batch of a retry topic that nobody can read the copies count that the ledger knows.
        """
        counts = Counts()
        origin = self._loader.origins.get(self._span.base)
        for e in ended:
            if e.outcome is None:
                continue
            if isinstance(e.outcome, Failure):
                counts.read += len(e.owed)
                counts.failed += len(e.owed)
                if e.outcome.reason in NO_INPUT_REASONS and self._span.delay_ms is not None:
                    continue
                if e.step is None:
                    counts.failed += 1
                else:
                    counts.scheduled += 1
            elif e.outcome:
                counts.loaded += 1
                if origin is not None:
                    counts.rows += sum(_names_input(effect, *origin) for effect in e.outcome)
            else:
                counts.filtered += 1
            counts.read += 1
        return counts

    def _count(self, ended: Sequence[_Ended], inert: int) -> None:
        report = self.report
        report.inert += inert
        for e in ended:
            if e.outcome is None:
                report.retried += 1
            elif not isinstance(e.outcome, Failure):
                report.loaded += 1
            elif e.step is not None:
                report.retried += 1
            else:
                report.failed += 1
                report.reasons[e.outcome.reason] += 1


def _names_input(effect: Effect, table: str, origin: tuple[str, str]) -> bool:
    """Whether an effect writes a row of this table that names its input."""
    return (
        not isinstance(effect, Execute)
        and effect.table == table
        and all(column in effect.row for column in origin)
    )
