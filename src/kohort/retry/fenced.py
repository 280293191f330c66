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
- An unreadable batch is a permanent failure with its bytes; reading continues behind it (spec 5.6).
- A broken constraint is found by a probe of single records and becomes their permanent failure,
  before anything of the chunk is published twice or written at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kohort.config import format_duration
from kohort.errors import DataLossError, KohortError, UsageError
from kohort.records import Record
from kohort.retry import ledger as books
from kohort.retry.classify import Disposition, Failure, describe
from kohort.retry.copies import (
    BAD_HEADERS_REASON,
    DEFAULT_SKEW_MS,
    Attempt,
    Copy,
    copy_for,
    due_ms,
    omitted_value,
    postponed_copy,
    read_attempt,
    waits_on,
)
from kohort.retry.headers import HeaderFault, Origin
from kohort.retry.ledger import Claim, Counts, FenceMove, FenceRow, LedgerRow, Place, Verdict
from kohort.retry.policy import RetryTopics, Step
from kohort.retry.sql_statements import Effect, Statement, statements
from kohort.retry.store import Applied, ConstraintError, Store, Transaction
from kohort.retry.unreadable import REASON as UNREADABLE_REASON
from kohort.retry.unreadable import Unreadable

MAX_ROUNDS: Final = 5
MAX_EARLY_MS: Final = 30_000
"""The longest that a task waits for a record; one that is due later was never planned."""
CONSTRAINT_REASON: Final = "constraint_violated"
NO_INPUT_REASONS: Final = (BAD_HEADERS_REASON, UNREADABLE_REASON)
"""Failures in a retry topic whose input is unknown."""
Outcome = Sequence[Effect] | Failure
Fetched = Record | Unreadable
"""The content of an offset: a record, or an unreadable batch."""
Handled = Sequence[Attempt] | Sequence[Record]
"""What a handler gets: attempts of a retry topic, or records of a source topic as fetched."""


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
    """Runs the user's code over records (those of a source topic as they were fetched): for each,
    its effects or its failure, in order."""

    def __call__(self, base: str, attempts: Handled, store: Store) -> list[Outcome]: ...


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
    outcome: Outcome | None
    copy: Copy | None = None
    step: Step | None = None
    place: Place | None = None
    unreadable: Unreadable | None = None
    owed: Sequence[LedgerRow] = ()
    """The scheduled copies in the unreadable batch."""


@dataclass(slots=True)
class _Chunk:
    """What one transaction writes.

    Args:
        first: records of the source topic; they are many, and most of them leave no trace but
            their effects, so nothing is made for each.
        effects: what is to be written for each of `first`; None for one that has failed.
        ended: all other attempts.
    """

    first: Sequence[Record] = ()
    effects: list[Sequence[Effect] | None] = field(default_factory=list[Sequence[Effect] | None])
    ended: list[_Ended] = field(default_factory=list[_Ended])
    inert: int = 0


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
                    "was emptied or replaced. Restore it, or delete the checkpoint to start over"
                )
            row = self.store.open_fence(
                self.pipeline, span.topic, span.topic_id, span.partition, span.start, now
            )
        refuse_recreated(self.pipeline, row, span.topic_id)
        if row.next_offset < span.start:
            raise DataLossError(
                f"pipeline {self.pipeline}: the fence of {span.topic}/{span.partition} is at "
                f"{row.next_offset}, behind the checkpoint at {span.start}: the store was restored "
                "from a backup. Delete the checkpoint; the pipeline then starts at the fence"
            )
        return RangeLoad(self, span, row.next_offset)


def refuse_recreated(pipeline: str, fence: FenceRow, topic_id: str) -> None:
    """Raise DataLossError when a fence is of another topic of this name. "": an id is not known."""
    if topic_id and fence.topic_id and fence.topic_id != topic_id:
        raise DataLossError(
            f"pipeline {pipeline}: topic {fence.topic} was deleted and created again (id "
            f"{fence.topic_id} became {topic_id}): offsets no longer mean what the fence says. "
            "Start a pipeline with another name, or remove what is there of the old topic "
            "(`kohort pipeline diff` names it)"
        )


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

    def load(self, records: Sequence[Fetched]) -> None:
        """Steps 2 to 5 for the next records, as one transaction."""
        for _ in range(MAX_ROUNDS):
            unprocessed = [r for r in records if self._fence <= r.offset < self._span.end]
            self.report.skipped += len(records) - len(unprocessed)
            if not unprocessed:
                return
            if self._round(unprocessed, min(_behind(unprocessed[-1]), self._span.end)):
                return
            records = unprocessed
        raise KohortError(
            f"{self._span.topic}/{self._span.partition} at {self._fence}: lost the race for its "
            f"fence or ledger {MAX_ROUNDS} times; another pipeline of the same name is running"
        )

    def finish(self) -> Report:
        """Move the fence over what holds no records (markers, compaction) to the range's end."""
        if not self.done and not self._commit(_Chunk(), self._span.end):
            self._reread_fence()
            if not self.done:
                raise KohortError(
                    f"{self._span.topic}/{self._span.partition}: the fence moved to {self._fence} "
                    "while the range was finished; another pipeline of the same name is running"
                )
        self.report.next_offset = self._fence
        return self.report

    def _round(self, records: Sequence[Fetched], next_offset: int) -> bool:
        """Steps 3 to 5 once; False when another writer was faster and it must be tried again."""
        readable = [r for r in records if not isinstance(r, Unreadable)]
        of_retry_topic = self._span.delay_ms is not None
        chunk = self._retried(readable) if of_retry_topic else self._first_tries(readable)
        chunk.ended += [self._damaged(r) for r in records if isinstance(r, Unreadable)]
        self._publish(chunk.ended)
        if not self._commit(chunk, next_offset):
            self._reread_fence()
            return False
        self._count(chunk)
        return True

    def _first_tries(self, records: Sequence[Record]) -> _Chunk:
        """Run the handler over records of the source topic."""
        chunk = _Chunk(records)
        for record, outcome in zip(records, self._handled(records), strict=True):
            if isinstance(outcome, Failure):
                chunk.effects.append(None)
                chunk.ended.append(_Ended(self._own(record), outcome))
            else:
                chunk.effects.append(outcome)
        return chunk

    def _retried(self, records: Sequence[Record]) -> _Chunk:
        """Run the handler over those records of a retry topic that the ledger knows of."""
        ended, runnable, inert = self._sort(records)
        if runnable:
            self._wait_until_due(runnable, records)
            tried: list[Attempt] = []
            for attempt in runnable:
                failure = omitted_value(attempt)
                if failure is not None or waits_on(attempt):
                    ended.append(_Ended(attempt, failure))
                else:
                    tried.append(attempt)
            outcomes = self._handled(tried)
            ended += [_Ended(a, o) for a, o in zip(tried, outcomes, strict=True)]
        return _Chunk(ended=ended, inert=inert)

    def _handled(self, runnable: Handled) -> list[Outcome]:
        if not runnable:
            return []
        outcomes = self._loader.handler(self._span.base, runnable, self._loader.store)
        if len(outcomes) != len(runnable):
            raise UsageError(
                f"the handler of {self._span.base} gave {len(outcomes)} outcomes for "
                f"{len(runnable)} records"
            )
        return outcomes

    def _sort(self, records: Sequence[Record]) -> tuple[list[_Ended], list[Attempt], int]:
        """Attempts that may run, and copies whose headers cannot be trusted (already failed)."""
        span = self._span
        assert span.delay_ms is not None, "records of a source topic need no sorting"
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
        """An unreadable batch is a permanent failure."""
        span, loader = self._span, self._loader
        owed: Sequence[LedgerRow] = ()
        if span.delay_ms is not None:
            owed = loader.store.scheduled_within(
                loader.pipeline, span.topic, span.partition, batch.offset, batch.next_offset
            )
        attempt = batch.attempt(span.topic_id)
        return _Ended(attempt, batch.failure(), unreadable=batch, owed=owed)

    def _own(self, r: Record) -> Attempt:
        """A record as its own origin."""
        span = self._span
        origin = Origin(
            span.topic, span.partition, r.offset, r.timestamp, int(r.timestamp_type), span.topic_id
        )
        return Attempt(origin, 0, (span.topic, span.partition, r.offset), r.key, r.value, r.headers)

    def _wait_until_due(self, runnable: Sequence[Attempt], records: Sequence[Record]) -> None:
        """Wait out what is left of a due time.

        The plan's time counts where this machine's clock is behind: the driver compared the
        broker's time stamps with it. What is left then is a delay that the record asked for.
        """
        span, skew = self._span, self._loader.skew_ms
        if not span.delay_ms:
            return
        appended = {r.offset: r.timestamp for r in records}
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
        """Step 4. Copies that exist already (a second pass after a probe) are not created again."""
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

    def _commit(self, chunk: _Chunk, next_offset: int) -> bool:
        """Step 5. False: another writer moved the fence or closed a claim first."""
        store = self._loader.store
        try:
            applied = store.apply(self._transaction(chunk, next_offset))
        except ConstraintError as broken:
            self._fail_the_broken(chunk, broken)
            self._publish(chunk.ended)
            applied = store.apply(self._transaction(chunk, next_offset))
        if applied is Applied.COMMITTED:
            self._fence = next_offset
            return True
        return False

    def _fail_the_broken(self, chunk: _Chunk, error: ConstraintError) -> None:
        """Turn the records whose effects break a constraint into permanent failures."""
        first = [(i, effects) for i, effects in enumerate(chunk.effects) if effects]
        others = [e for e in chunk.ended if not isinstance(e.outcome, Failure | None)]
        parts = [statements(effects) for _, effects in first]
        parts += [statements(e.outcome) for e in others if isinstance(e.outcome, Sequence)]
        broken = self._loader.store.probe(parts)
        if not broken:
            raise KohortError(
                f"{self._span.topic}/{self._span.partition}: a constraint broke at commit that no "
                f"single record breaks ({error}); deferred constraints cannot be attributed"
            ) from error
        for index, cause in broken.items():
            failure = describe(
                cause, permanent=True, reason=CONSTRAINT_REASON, disposition=Disposition.FATAL
            )
            if index >= len(first):
                others[index - len(first)].outcome = failure
                continue
            at = first[index][0]
            chunk.effects[at] = None
            chunk.ended.append(_Ended(self._own(chunk.first[at]), failure))

    def _transaction(self, chunk: _Chunk, next_offset: int) -> Transaction:
        now = self._loader.clock.now_ms()
        effects: list[Effect] = []
        for outcome in chunk.effects:
            if outcome:
                effects += outcome
        claims: list[Claim] = []
        rows: list[LedgerRow] = []
        for e in chunk.ended:
            if isinstance(e.outcome, Failure):
                assert e.copy is not None, "a failure has its copy before it is written down"
                assert e.place is not None, "a copy is acknowledged before it is written down"
                entries = books.failed(e.attempt, e.outcome, e.copy, e.step, e.place, now)
                claims += books.failed_unread(e.owed, e.outcome, e.copy, e.place, now)
            elif e.outcome is None:
                assert e.copy is not None, "who waits on has a copy"
                assert e.place is not None, "a copy is acknowledged before it is written down"
                entries = books.held(e.attempt, e.copy, e.place, now)
            else:
                effects += e.outcome
                entries = books.succeeded(e.attempt, now)
            if entries.claim is not None:
                claims.append(entries.claim)
            rows += entries.rows
        fence = FenceMove(self._span.topic, self._span.partition, self._fence, next_offset)
        of_retry_topic = self._span.delay_ms is not None
        written = statements(effects)
        return Transaction(
            self._loader.pipeline,
            fence,
            now,
            written,
            claims,
            rows,
            of_retry_topic,
            self._counted(chunk, written),
        )

    def _reread_fence(self) -> None:
        row = self._loader.store.fence(
            self._loader.pipeline, self._span.topic, self._span.partition
        )
        if row is not None:
            self._fence = row.next_offset

    def _counted(self, chunk: _Chunk, written: Sequence[Statement]) -> Counts:
        """What the transaction does, in numbers.

        A copy whose headers are wrong is no input; an attempt that waits on has not ended. Of a
        unreadable batch of a retry topic the copies count that the ledger knows.
        """
        counts = Counts()
        origin = self._loader.origins.get(self._span.base)
        if origin is not None:
            counts.rows = sum(len(s.rows) for s in written if _names_input(s, *origin))
        counts.filtered = sum(effects is not None and not effects for effects in chunk.effects)
        counts.loaded = sum(bool(effects) for effects in chunk.effects)
        counts.read = counts.filtered + counts.loaded
        for e in chunk.ended:
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
            else:
                counts.filtered += 1
            counts.read += 1
        return counts

    def _count(self, chunk: _Chunk) -> None:
        report = self.report
        report.inert += chunk.inert
        report.loaded += sum(effects is not None for effects in chunk.effects)
        for e in chunk.ended:
            if e.outcome is None:
                report.retried += 1
            elif not isinstance(e.outcome, Failure):
                report.loaded += 1
            elif e.step is not None:
                report.retried += 1
            else:
                report.failed += 1
                report.reasons[e.outcome.reason] += 1


def _names_input(written: Statement, table: str, origin: tuple[str, str]) -> bool:
    """Whether a statement writes rows of this table that name their inputs."""
    return written.table == table and set(origin) <= set(written.columns)


def _behind(item: Fetched) -> int:
    """The offset behind a record or batch."""
    return item.next_offset if isinstance(item, Unreadable) else item.offset + 1
