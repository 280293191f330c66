"""The shell around an exactly-once engine: batches instead of publications and commits.

Rules:
- While one batch is committed, the next one gathers; nothing is published outside of a batch.
- A partition that is taken away is released only when its finished records are committed, or when
  the time for it is over: then its next owner repeats them, since nothing of it is visible.
- The work of a member that its group has removed is given up at once: nothing of it can be
  committed, since no member comes back under its old id.
- With a store, the group's commits only report progress; the store decides.
- Whose partition it is, the group decides: a member that is fenced and keeps its partition takes it
  over again, since a former owner may have been the last to do so. It waits a little: a former
  owner hears meanwhile that it is one, and of two that do not know, each gets work done.

Shell: threads, the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from kohort.client.common.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.errors import BrokerError, ErrorCode, KohortError
from kohort.processing.engine.exactly_once_engine import Batch, ExactEngine, Verdict
from kohort.processing.runtime.publishing import Publisher
from kohort.processing.runtime.retry_topic_poller import RetryTopicPoller
from kohort.processing.runtime.runner import LAST_WAIT_S, Runner, Start
from kohort.processing.runtime.store_transactor import BY_STORE
from kohort.processing.runtime.transactor import Broken, Judged, Transactor

log = logging.getLogger("kohort.processing")

JUDGED_AT_ONCE = 500
COMMIT_PROGRESS_EVERY_MS = 1_000
PAUSE_AFTER_ABORT_MS = 100
PAUSE_AFTER_FENCE_MS = 1_000
UNANSWERED_MS = 5_000
"""A transaction takes milliseconds; one that lasts longer than this is reported."""
LEFT_BEHIND: Final = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}
)


class ExactRunner(Runner):
    """A runner whose engine is done by transactions. Give it its transactor before `run`."""

    transactor: Transactor
    commits_progress = False
    """The store is the source of truth; the group's offsets follow it."""
    _asked_ms: int | None = None
    """Since when the transactor has been at something that others wait for."""

    @property
    def exact(self) -> ExactEngine:
        """The engine, which is one of those."""
        assert isinstance(self.engine, ExactEngine), "made with one"
        return self.engine

    def run(self, publisher: Publisher, retry_poller: RetryTopicPoller | None) -> None:
        """As `Runner.run`."""
        self._uncommitted_due_ms = self.steady_ms()
        self._in_flight: Batch | None = None
        self._in_flight_member: GroupMetadata | None = None
        self._left_behind: GroupMetadata | None = None
        self._again_ms = self.steady_ms()
        self._nobody_commits = False
        self._uncommitted: dict[TopicPartition, OffsetAndMetadata] = {}
        self._fenced: dict[TopicPartition, int] = {}
        """The first offset that this member had not committed there."""
        self._take_over_due_ms = self.steady_ms()
        self.transactor.start(self.post, lambda: self._stopping)
        try:
            super().run(publisher, retry_poller)
        finally:
            self.transactor.stop(LAST_WAIT_S if self._hurried else self.timing.drain_ms / 1_000)

    def _unanswered(self) -> str:
        """A store that answers nothing, as a locked one, raises nothing."""
        asked_ms = self._asked_ms
        if asked_ms is None or self.steady_ms() - asked_ms < UNANSWERED_MS:
            return ""
        who = "the store is locked or" if self.commits_progress else "the cluster"
        return f"a transaction does not end: {who} does not answer"

    def _skew_ms(self) -> int | None:
        return self.transactor.skew_ms

    def _publish(self) -> None:
        """Everything goes with a batch; the ledger is asked of what came from the retry topics."""
        while items := self.exact.unjudged(JUDGED_AT_ONCE):
            self.transactor.judge(items)

    def _commit(self) -> None:
        steady_ms = self.steady_ms()
        if self._uncommitted and steady_ms >= self._uncommitted_due_ms:
            self._uncommitted_due_ms = steady_ms + COMMIT_PROGRESS_EVERY_MS
            mine = self.consumer.assignment()
            self.consumer.commit_async(
                {tp: at for tp, at in self._uncommitted.items() if tp in mine}
            )
            self._uncommitted = {}
        if self._in_flight is not None:
            return
        self._commit_due_ms = steady_ms + self.timing.commit_interval_ms
        batch = self.exact.batch(self._time())
        if batch is not None:
            self._in_flight, self._in_flight_member = batch, self.consumer.group_metadata()
            self._asked_ms = steady_ms
            self.transactor.submit(batch, self._in_flight_member)

    def _handle_other_event(self, event: object, now_ms: int) -> None:
        if isinstance(event, Judged):
            self.exact.judged(event.items, event.owed, event.elsewhere, now_ms)
        elif isinstance(event, Verdict):
            self._ended(event, now_ms)
        elif isinstance(event, Broken):
            self._nobody_commits = True
            raise event.error
        else:
            super()._handle_other_event(event, now_ms)

    def _ended(self, verdict: Verdict, now_ms: int) -> None:
        self._in_flight = self._asked_ms = None
        self.trouble = ""
        if verdict.error is None:
            self.exact.transaction_committed(verdict.batch, now_ms)
            if self.commits_progress:
                self._uncommitted |= _offsets_of(verdict.batch)
            return
        self.exact.transaction_aborted(verdict, now_ms)
        if verdict.fenced:
            self._note_fenced(verdict)
        reported = verdict.failures or verdict.unfit or verdict.inert or verdict.revived
        if not reported:
            self.trouble = f"a transaction was not committed: {verdict.error}"
            log.warning("%s; retrying", self.trouble)
            self._commit_due_ms = self._again_ms = self.steady_ms() + PAUSE_AFTER_ABORT_MS
        if isinstance(verdict.error, BrokerError) and verdict.error.code in LEFT_BEHIND:
            self._left_behind = self._in_flight_member

    def _note_fenced(self, verdict: Verdict) -> None:
        for key in verdict.fenced:
            if key not in self.engine.partitions:
                self._fenced[TopicPartition(*key)] = verdict.batch.owned[key].tracker.base
        self._take_over_due_ms = self.steady_ms() + PAUSE_AFTER_FENCE_MS

    def _turn(self) -> None:
        if self._fenced and self.steady_ms() >= self._take_over_due_ms:
            self._take_over_again()
        super()._turn()

    def _wait_s(self, now_ms: int) -> float:
        wait_s = super()._wait_s(now_ms)
        if not self._fenced:
            return wait_s
        return max(0.0, min(wait_s, (self._take_over_due_ms - self.steady_ms()) / 1_000))

    def _take_over_again(self) -> None:
        """Continue in fenced partitions that are this member's still."""
        fenced, self._fenced = self._fenced, {}
        mine = self.consumer.assignment()
        again = [tp for tp in fenced if tp in mine and tp not in self.engine.partitions]
        if not again:
            return
        names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in again)
        log.warning(
            "another program took over %s in the store, and the group still assigns it to this "
            "member: it is taken over again, and its uncommitted records are repeated",
            names,
        )
        self._remove(again)
        for tp in again:  # where neither the store nor the group says where to continue
            self.consumer.seek(tp, fenced[tp])
        self.on_partitions_assigned(again)

    def _starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        committed = super()._starts(partitions)
        asked_ms, self._asked_ms = self._asked_ms, self.steady_ms()
        taken_over = self.transactor.take_over(
            {(tp.topic, tp.partition): start for tp, start in committed.items()}
        )
        self._asked_ms = asked_ms
        starts = {tp: taken_over[tp.topic, tp.partition] for tp in partitions}
        positions = self.consumer.positions()  # without one, it begins at the group's commit
        for tp, start in starts.items():
            if start.offset not in (None, positions.get(tp, committed[tp].offset)):
                self.consumer.seek(tp, start.offset)
        return starts

    def _commit_last(self, keys: Sequence[TopicPartition]) -> int:
        """Commit settled records, while there is time; of how many partitions some are left."""
        if self._nobody_commits or self._is_over:
            return 0
        mine = set(keys)
        self._commit_all(mine, self.steady_ms() + self.timing.drain_ms)
        offsets = {tp: at for tp, at in self._uncommitted.items() if tp in mine}
        self._uncommitted = {tp: at for tp, at in self._uncommitted.items() if tp not in mine}
        if offsets:
            try:
                self.consumer.commit(offsets)
            except KohortError as error:
                log.info("could not commit the last progress to the group: %s", error)
        if self._in_flight is None:
            return sum(self.exact.owes({key}) for key in mine)
        in_flight = self._in_flight.commits
        return sum(key in in_flight or self.exact.owes({key}) for key in mine)

    def _commit_all(self, mine: set[TopicPartition], until_ms: int) -> None:
        while not self._hurried and (left_ms := until_ms - self.steady_ms()) > 0:
            wait_ms = left_ms
            if self._in_flight is None:
                if not self.exact.owes(mine):
                    return
                if self._left_behind == self.consumer.group_metadata():
                    log.warning("the group has continued without this member: it gives all up")
                    return
                if self.steady_ms() >= self._again_ms:
                    self._commit()
                if self._in_flight is None:  # what is left waits for its next try
                    next_ms = self._next_try_in_ms()
                    wait_ms = min(next_ms, left_ms) if next_ms > 0 else left_ms
            self._handle_next_events(wait_ms)
        if not self._hurried and (self._in_flight is not None or self.exact.owes(mine)):
            log.warning("the last transaction of revoked partitions had no end in time")

    def _next_try_in_ms(self) -> int:
        """How long until something may be put into a transaction (again)."""
        pause_ms, next_ms = self._again_ms - self.steady_ms(), self.exact.next_try_ms
        return pause_ms if next_ms is None else max(pause_ms, next_ms - self._time())


def _offsets_of(batch: Batch) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(*key): OffsetAndMetadata(commit.offset, BY_STORE)
        for key, commit in batch.commits.items()
    }
