"""How one micro-batch is committed: the order of steps, over ports. Pure.

    database alone            Kafka alone                both: the database decides
    1  fence: run or skip     1  new epoch, fence        1  fence; settle the last transaction
    2  tasks stage            2  tasks write             2  new epoch, tasks stage and write
    3  ONE transaction:       3  fence into it           3  fence into Kafka's transaction
       fence, merge, counts   4  EndTxn                  4  ONE transaction: fence, merge, identity
                                                         5  EndTxn        6  note that it has ended

Rules (ADR 0019):
- After a kill at any step, the same batch is replayed and ends in the same state.
- The Kafka transaction carries its own fence. When EndTxn is refused, that fence tells whether the
  transaction was committed before (by us or by another driver) or is lost.
- With both, a lost Kafka transaction is sent again from the outbox, before the next batch begins:
  the rows of the batch are decided once, also when a replay would compute others.
- An attempt that failed may have written with the batch's epoch, and the same sequence numbers
  must not be used for other records. So a batch with any second attempt is aborted and runs again
  under a new epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from kohort.client.common.types import TopicPartition
from kohort.client.producer.plan.transaction_requests import Identity
from kohort.client.shared.transaction import EncodedBatch, TransactionLostError
from kohort.errors import DataLossError, KohortError
from kohort.spark.outputs.fence import Batch, Fence, FencePolicy, Verdict
from kohort.spark.outputs.merge_sql import Rejected

MAX_ROUNDS: Final = 3


class Step(StrEnum):
    """The points between which a driver may die; see `reached`."""

    BEGUN = "begun"
    FENCE_READ = "fence read"
    PRODUCER_READY = "producer ready"
    BEFORE_STAGING = "before staging"
    AFTER_STAGING = "after staging"
    KAFKA_FENCED = "fence in the Kafka transaction"
    BEFORE_FENCE = "before the database's fence"
    AFTER_MERGE = "after the merge, before the database's commit"
    AFTER_FENCE = "after the database's commit"
    BEFORE_END = "before EndTxn"
    AFTER_END = "after EndTxn"
    BEFORE_COMMIT_LOG = "before Spark's commit log"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task attempt that succeeded, and how many rows it staged for one output."""

    output: str
    id: int
    rows: int


@dataclass(slots=True)
class Written:
    """What the tasks of a batch have done.

    Args:
        staged: the attempts that count, for the database's transaction.
        outbox: ids of the attempts whose encoded batches are in the outbox.
        records: how many records were written to each partition.
        rejected: rows that the database could not even stage.
        tainted: why the epoch may hold records of an attempt that does not count; "" when not.
    """

    staged: list[Attempt] = field(default_factory=list[Attempt])
    outbox: list[int] = field(default_factory=list[int])
    records: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    tainted: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """The database's fence, with the Kafka transaction that belongs to it.

    Args:
        identity: who wrote the Kafka transaction; None for a query without topics.
        outbox: the attempts whose encoded batches are that transaction's content.
        ended: the Kafka transaction is known to be committed.
    """

    fence: Fence
    identity: Identity | None = None
    outbox: tuple[int, ...] = ()
    ended: bool = True


class Database(Protocol):
    """The store of one query's tables."""

    def fence(self) -> Stored | None: ...
    def commit(
        self,
        batch: Batch,
        expected: Stored | None,
        written: Written,
        identity: Identity | None,
        topics: Topics | None,
    ) -> str:
        """Fence, merge and counts in one transaction; "" when it is committed, else why not.

        Dead letters of rows that the database refuses are written to `topics` within it.
        """
        ...

    def ended(self, batch: Batch) -> None:
        """Note that the Kafka transaction of the fence is committed; drop its outbox."""
        ...

    def outbox(self, attempts: Sequence[int]) -> Iterable[EncodedBatch]: ...


class Topics(Protocol):
    """The Kafka transaction of one query, driver's side. Each call raises TransactionLostError when
    the transaction is over without us; `expired` then tells whether by its time-out.

    `partitions` counts those of each topic, as the present transaction uses it.
    """

    partitions: dict[str, int]

    def init(self) -> Identity:
        """A new epoch; transactions open under an older one are aborted or completed."""
        ...

    def fence(self) -> Fence | None: ...
    def add(self, identity: Identity) -> None: ...
    def write(
        self,
        identity: Identity,
        batches: Iterable[EncodedBatch],
        after: Mapping[TopicPartition, int] = ...,
    ) -> None:
        """Write from the driver, after so many records that tasks have written to a partition."""
        ...

    def set_fence(self, identity: Identity, batch: Batch) -> None: ...
    def end(self, identity: Identity, *, commit: bool) -> None: ...


class Work(Protocol):
    """The tasks of one batch."""

    def run(self, identity: Identity | None) -> Written:
        """Stage and write everything. Raises the error that fails the batch."""
        ...


class Outcome(StrEnum):
    """How a batch has ended."""

    COMMITTED = "committed"
    SKIPPED = "skipped"


class BatchFailedError(KohortError):
    """A batch could not be committed. Nothing of it is visible; a restart runs it again."""

    retriable = True


def ignore(_step: Step, /) -> None:
    """The default of `reached`."""


@dataclass
class Committer:
    """The commit protocol of one query.

    Args:
        policy: how the fence is judged.
        database: the store of its tables; None for a query with topics alone.
        topics: its Kafka transaction; None for a query with tables alone.
        reached: called at each step (tests end the driver there).
    """

    policy: FencePolicy
    database: Database | None
    topics: Topics | None
    reached: Callable[[Step], None] = ignore

    def run(self, batch: Batch, work: Work) -> Outcome:
        """Commit one batch, or skip it when it is committed already.

        Raises DataLossError when fence and checkpoint disagree, BatchFailedError when it has failed
        MAX_ROUNDS times (`transaction_timeout` too short, tasks that died), and what the tasks
        or the ports raise.
        """
        self.reached(Step.BEGUN)
        reasons: list[str] = []
        while len(reasons) < MAX_ROUNDS:
            stored = self._stored()
            if self.database is not None and self._decided(batch, stored and stored.fence):
                return self._ended(Outcome.SKIPPED)
            identity = self._begin(batch)
            if self.topics is not None and identity is None:
                return self._ended(Outcome.SKIPPED)
            reason = self._round(batch, stored, work, identity)
            if not reason:
                return self._ended(Outcome.COMMITTED)
            reasons.append(reason)
            self._abort(identity)
        raise BatchFailedError(f"{batch} was given up after {MAX_ROUNDS} rounds: {reasons[-1]}")

    def _round(
        self, batch: Batch, stored: Stored | None, work: Work, identity: Identity | None
    ) -> str:
        """Run and commit once; "" when it is committed, else why it must be looked at again."""
        try:
            written = self._work(work, identity)
            return written.tainted or self._commit(batch, stored, written, identity)
        except TransactionLostError as lost:
            if not lost.expired:
                raise
            return str(lost)

    def _ended(self, outcome: Outcome) -> Outcome:
        self.reached(Step.BEFORE_COMMIT_LOG)
        return outcome

    # Beginning

    def _decided(self, batch: Batch, fence: Fence | None) -> bool:
        done = self.policy.decide(batch, fence) is Verdict.DONE
        self.reached(Step.FENCE_READ)
        return done

    def _stored(self) -> Stored | None:
        """The database's fence, once the Kafka transaction that belongs to it is committed."""
        if self.database is None:
            return None
        stored = self.database.fence()
        if stored is not None and not stored.ended:
            self._settle(self.database, stored)
        return stored

    def _begin(self, batch: Batch) -> Identity | None:
        """A new epoch; None when Kafka decides, and has the batch already."""
        if self.topics is None:
            return None
        identity = self.topics.init()
        self.reached(Step.PRODUCER_READY)
        if self.database is None and self._decided(batch, self.topics.fence()):
            return None
        self.topics.add(identity)
        return identity

    # Committing

    def _work(self, work: Work, identity: Identity | None) -> Written:
        self.reached(Step.BEFORE_STAGING)
        try:
            written = work.run(identity)
        except Exception:  # after any error: the transaction must not stay open
            self._abort(identity)
            raise
        self.reached(Step.AFTER_STAGING)
        return written

    def _commit(
        self, batch: Batch, stored: Stored | None, written: Written, identity: Identity | None
    ) -> str:
        """Commit; "" when it is done, else why the batch must be looked at again."""
        if self.topics is not None and identity is not None:
            self.topics.set_fence(identity, batch)
            self.reached(Step.KAFKA_FENCED)
        if self.database is not None:
            self.reached(Step.BEFORE_FENCE)
            if refusal := self._decide(self.database, batch, stored, written, identity):
                return refusal
            self.reached(Step.AFTER_FENCE)
        if self.topics is not None and identity is not None:
            self._end(self.topics, identity)
        return ""

    def _decide(
        self,
        database: Database,
        batch: Batch,
        stored: Stored | None,
        written: Written,
        identity: Identity | None,
    ) -> str:
        """The database's transaction. After an error of it the Kafka transaction is aborted: if the
        database has committed all the same, what it aborted is sent again from the outbox."""
        try:
            return database.commit(batch, stored, written, identity, self.topics)
        except Exception:  # every database has its own classes
            self._abort(identity)
            raise

    def _end(self, topics: Topics, identity: Identity) -> None:
        self.reached(Step.BEFORE_END)
        database = self.database
        if database is None:
            topics.end(identity, commit=True)
            self.reached(Step.AFTER_END)
            return
        stored = database.fence()
        assert stored is not None, "a fence that was just committed is there"
        self._settle(database, stored)

    def _abort(self, identity: Identity | None) -> None:
        """End the round's transaction as far as it can be reached; the next epoch does the rest."""
        if self.topics is None or identity is None:
            return
        try:
            self.topics.end(identity, commit=False)
        except KohortError:
            return

    # After the database has decided

    def _settle(self, database: Database, stored: Stored) -> None:
        """Commit the Kafka transaction of the database's fence, whichever state it is in."""
        topics, identity = self.topics, stored.identity
        if stored.ended or identity is None:
            return
        batch = Batch(self.policy.query, stored.fence.batch_id, stored.fence.checkpoint)
        if topics is None:
            raise DataLossError(
                f"{batch}: the database waits for the Kafka transaction of this batch "
                f"({identity.transactional_id}), but the query has no topic output any more. Start "
                "it once with its topics; then they may be taken out"
            )
        try:
            topics.end(identity, commit=True)
        except TransactionLostError:
            self._send_anew(database, topics, stored, batch)
        self.reached(Step.AFTER_END)
        database.ended(batch)

    def _send_anew(self, database: Database, topics: Topics, stored: Stored, batch: Batch) -> None:
        """EndTxn was refused: the transaction's own fence tells what has become of it."""
        identity = topics.init()
        fence = topics.fence()
        if fence is not None and fence.covers(batch):
            return
        if fence is None and batch.batch_id > self.policy.first_batch:
            raise DataLossError(
                f"{batch}: it cannot be found out whether its Kafka transaction was committed: "
                "the fence of the query in Kafka is gone (offsets.retention.minutes, or the group "
                "was deleted). Look whether the records of the batch are in the topics, then set "
                f"ended = 1 in kohort_batch_fence (they are), or {self.policy.rebuild}"
            )
        topics.add(identity)
        topics.write(identity, database.outbox(stored.outbox))
        topics.set_fence(identity, batch)
        self.reached(Step.BEFORE_END)
        topics.end(identity, commit=True)
