"""Committing offsets: one lane, in the order in which the commits were asked for.

Rules:
- One OffsetCommit is under way at a time. What is asked for meanwhile waits and goes out together,
  a later offset replacing an earlier one of the same partition; so no commit overtakes a later one
  and none is cut off by closing a connection (C5, B49). Its callers are answered one by one.
- A job remembers under which assignment its partitions were owned. If one of them has been given
  up since, the job fails; it is never sent under a generation in which it owns nothing (C7). Only
  a commit of partitions that the caller assigned itself is sent all the same.
- The lane is taken from the moment at which a commit is asked for, not only when it has come here
  from the caller's thread: who waits for an idle lane waits for that one, too.
- A lost connection or a moved coordinator leaves the job where it is: it is sent again (CL2).
- A partition that is not known yet holds up its own job only: what was accepted of that is not sent
  again, or it would set back later commits. The job fails when metadata does not know the topic,
  either, or when a new topic would be known everywhere.
- A job whose time is over is answered with a timeout, but the lane stays taken until the broker has
  answered or the connection is gone.
- A commit whose member epoch has advanced is sent again with the next one, as long as each of its
  partitions is still owned under the assignment of the job (B11, KIP-848).
- Nothing to commit is a success at once and leaves no trace (B63).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.errors import (
    BrokerError,
    CommitFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
    UsageError,
)
from kohort.lean import dataclass, field

MAX_WAITING_JOBS = 10_000

# The coordinator has moved or is not ready: find it again, then send again.
COORDINATOR_CODES = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
)
KNOWN_EVERYWHERE_MS = 5_000
"""A coordinator knows a new topic by then."""
# The epoch has advanced (KIP-848): offsets that are still owned are sent again with it (B11).
STALE_CODES = frozenset({ErrorCode.STALE_MEMBER_EPOCH})
# This member is no longer valid.
IDENTITY_CODES = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


class Identity(NamedTuple):
    """Who commits. Without membership: generation -1 and an empty member id."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


NO_MEMBER = Identity()
GIVEN_UP: Final = "was given up in a rebalance before the commit was sent"


@dataclass(eq=False)
class CommitJob:
    """One call to commit. `owned` holds the assignment version of each partition owned then."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    owned: Mapping[TopicPartition, int]
    deadline_ms: int
    bound: bool = True
    """Whether the group assigns its partitions; else the caller chose them."""
    automatic: bool = False
    done: bool = False
    taken: bool = False
    """True when the lane has it."""
    codes: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    """What the coordinator has decided of its partitions; those are not sent again."""
    unknown_since_ms: int | None = None
    """When the coordinator first did not know one of them."""

    @property
    def left(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is still to be sent."""
        return {tp: at for tp, at in self.offsets.items() if tp not in self.codes}


class CommitSend(NamedTuple):
    """Send this OffsetCommit to the coordinator."""

    token: int
    offsets: dict[TopicPartition, OffsetAndMetadata]
    identity: Identity


class CommitDone(NamedTuple):
    """A job is finished; `error` is None on success."""

    job: CommitJob
    error: KohortError | None


class CoordinatorLost(NamedTuple):
    """The coordinator is not (or no longer) the right one."""


class CommitRefused(NamedTuple):
    """The answer says something about the membership; the member decides what (B11, B40)."""

    code: int
    identity: Identity


CommitEffect = CommitSend | CommitDone | CoordinatorLost | CommitRefused


@dataclass
class CommitQueue:
    """The one lane to the coordinator. `group` is named in errors."""

    group: str
    backoff_ms: int
    _expected: set[CommitJob] = field(default_factory=set[CommitJob])
    _waiting: deque[CommitJob] = field(default_factory=deque[CommitJob])
    _jobs: list[CommitJob] = field(default_factory=list[CommitJob])
    _sent: CommitSend | None = None
    _retry_at_ms: int = 0
    _stale: Identity | None = None
    _tokens: int = 0
    _last_error: str = ""
    """Why the last try has to be repeated; empty when there was none."""

    @property
    def idle(self) -> bool:
        """True when nothing is coming, waits or is under way."""
        return self._sent is None and not self.owing

    @property
    def owing(self) -> bool:
        """True while the outcome of a commit has not been delivered."""
        if self._expected or self._waiting:
            return True
        return any(not job.done for job in self._jobs)

    @property
    def automatic_pending(self) -> bool:
        """True while an automatic commit has not been answered."""
        return any(job.automatic and not job.done for job in (*self._waiting, *self._jobs))

    def expect(self, job: CommitJob) -> None:
        """The commit is on its way; recorded after sending, so that no interrupt comes in
        between."""
        if not job.taken:
            self._expected.add(job)

    def submit(self, job: CommitJob) -> list[CommitEffect]:
        """Take a job in, behind all earlier ones."""
        job.taken = True
        self._expected.discard(job)
        if not job.offsets:
            return [self._finish(job, None)]
        if len(self._waiting) >= MAX_WAITING_JOBS:
            text = (
                f"group {self.group!r}: {MAX_WAITING_JOBS} commits wait for the coordinator; "
                "commit less often, or look why it does not answer"
            )
            return [self._finish(job, UsageError(text))]
        self._waiting.append(job)
        return []

    def next(
        self,
        identity: Identity | None,
        owned: Callable[[TopicPartition], int | None],
        now_ms: int,
        *,
        coordinator_known: bool,
    ) -> list[CommitEffect]:
        """Send what waits, if the lane is free. `identity` None: not a member at present."""
        effects = self._expire(now_ms)
        renewed = self._stale is not None and identity not in (None, self._stale)
        backing_off = now_ms < self._retry_at_ms and not renewed
        if self._sent is not None or backing_off or not coordinator_known:
            return effects
        self._stale = None
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        batch: list[CommitJob] = [job for job in self._jobs if not job.done]
        self._jobs = []
        while self._waiting:
            batch.append(self._waiting.popleft())
        for job in batch:
            error = self._obsolete(job, identity, owned)
            if error is not None:
                effects.append(self._finish(job, error))
            elif not job.done:
                self._jobs.append(job)
                offsets.update(job.left)
        if self._jobs and identity is not None:
            self._tokens += 1
            self._sent = CommitSend(self._tokens, offsets, identity)
            effects.append(self._sent)
        return effects

    def answered(
        self,
        token: int,
        codes: Mapping[TopicPartition, int] | KohortError,
        now_ms: int,
        is_missing: Callable[[str], bool] = lambda _: False,
    ) -> list[CommitEffect]:
        """The coordinator's answer: a code a partition, or the error that came instead of it.

        `is_missing` says whether metadata does not know a topic.
        """
        sent = self._sent
        if sent is None or sent.token != token:
            return []
        self._sent = None
        if isinstance(codes, KohortError):
            if codes.retriable:
                self._last_error = str(codes)
                self._retry_at_ms = now_ms + self.backoff_ms
                return [CoordinatorLost()]
            return self._finish_all(codes)
        bad = {code for code in codes.values() if code}
        self._last_error = ", ".join(map(ErrorCode.name_of, sorted(bad)))
        if bad & COORDINATOR_CODES:
            self._retry_at_ms = now_ms + self.backoff_ms
            return [CoordinatorLost()]
        if bad & STALE_CODES:
            self._retry_at_ms, self._stale = now_ms + self.backoff_ms, sent.identity
            return [CommitRefused(ErrorCode.STALE_MEMBER_EPOCH, sent.identity)]
        if bad & IDENTITY_CODES:
            code = min(bad & IDENTITY_CODES)
            refused = CommitRefused(code, sent.identity)
            return [*self._finish_all(self._refused(code, sent.identity)), refused]
        return self._finish_each(codes, now_ms, is_missing)

    def next_deadline(self, now_ms: int) -> int | None:
        """When the next back-off or a job's time ends, or None."""
        times = [job.deadline_ms for job in (*self._waiting, *self._jobs) if not job.done]
        if self._sent is None and times:
            times.append(self._retry_at_ms)
        return min((at for at in times if at > now_ms), default=None)

    def abandon(self, error: KohortError) -> list[CommitEffect]:
        """The consumer closes: every remaining commit fails with `error`."""
        effects = self._finish_all(error)
        while self._waiting:
            effects.append(self._finish(self._waiting.popleft(), error))
        return effects

    # -- inside --------------------------------------------------------------------------------

    def _expire(self, now_ms: int) -> list[CommitEffect]:
        effects: list[CommitEffect] = []
        why = f" (last: {self._last_error})" if self._last_error else ""
        for job in (*self._jobs, *self._waiting):
            if not job.done and job.deadline_ms <= now_ms:
                text = (
                    f"group {self.group!r}: the coordinator did not confirm the commit of "
                    f"{len(job.offsets)} partitions in time; it may or may not have been applied, "
                    f"and may be made again{why}"
                )
                effects.append(self._finish(job, KafkaTimeoutError(text)))
        if effects:
            self._waiting = deque(job for job in self._waiting if not job.done)
        return effects

    def _obsolete(
        self,
        job: CommitJob,
        identity: Identity | None,
        owned: Callable[[TopicPartition], int | None],
    ) -> KohortError | None:
        if job.done:
            return None
        if identity is None:
            return self._refused(ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER)
        left = job.left
        gone = [tp for tp, version in job.owned.items() if tp in left and owned(tp) != version]
        if gone and (job.bound or identity != NO_MEMBER):
            return self._refused(ErrorCode.ILLEGAL_GENERATION, identity, gone)
        return None

    def _refused(
        self, code: int, identity: Identity, gone: list[TopicPartition] | None = None
    ) -> CommitFailedError:
        who = (
            f"group {self.group!r}, member {identity.member_id or '(none)'!r}, "
            f"generation {identity.generation}"
        )
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            why = "a rebalance is under way; call poll() to finish it, then commit what is owned"
        elif gone:
            names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in gone[:5])
            why = f"{names} {GIVEN_UP}"
        else:
            why = (
                "the group has continued without this member, so the partitions may have a new "
                "owner and their records may be read again; poll() rejoins. If this comes often, "
                "poll more often than max_poll_interval_ms, or take fewer records a poll"
            )
        return CommitFailedError(code, f"{who}: nothing was committed: {why}")

    def _finish(self, job: CommitJob, error: KohortError | None) -> CommitDone:
        job.done = True
        return CommitDone(job, error)

    def _finish_all(self, error: KohortError | None) -> list[CommitEffect]:
        jobs, self._jobs, self._last_error = self._jobs, [], ""
        return [self._finish(job, error) for job in jobs if not job.done]

    def _finish_each(
        self, codes: Mapping[TopicPartition, int], now_ms: int, is_missing: Callable[[str], bool]
    ) -> list[CommitEffect]:
        """End each job whose partitions are all decided; the others are sent again."""
        jobs, self._jobs = self._jobs, []
        effects: list[CommitEffect] = []
        for job in jobs:
            if job.done:
                continue
            for tp in job.left:
                code = codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
                if not _has_to_wait(job, tp, code, now_ms, is_missing):
                    job.codes[tp] = code
            if job.left:
                self._jobs.append(job)
            else:
                effects.append(self._finish(job, self._error_of(job)))
        if self._jobs:
            self._retry_at_ms = now_ms + self.backoff_ms
        else:
            self._last_error = ""
        return effects

    def _error_of(self, job: CommitJob) -> KohortError | None:
        for tp, code in job.codes.items():
            if code:
                text = f"group {self.group!r}: {tp.topic}-{tp.partition} was not committed"
                return BrokerError(code, text)
        return None


def _has_to_wait(
    job: CommitJob, tp: TopicPartition, code: int, now_ms: int, is_missing: Callable[[str], bool]
) -> bool:
    """Whether a partition of a job is to be sent again."""
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return True
    if code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
        return False
    if job.unknown_since_ms is None:  # metadata may be older than the topic: ask it again first
        job.unknown_since_ms = now_ms
    waited_ms = now_ms - job.unknown_since_ms
    return not waited_ms or (waited_ms < KNOWN_EVERYWHERE_MS and not is_missing(tp.topic))
