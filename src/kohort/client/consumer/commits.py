"""The commits of one consumer: jobs, automatic commits and their outcome.

Rules:
- The consumer's lock guards the queue (`plan.commit_queue`) and the positions. It is not held while
  a request is sent or a callback runs.
- A job is bound to the assignment it was made in; committed offsets count as processed, so that an
  automatic commit in flight never sets one back (C5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from kohort.client.cluster.client import ClusterClient
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.exchange import Exchange
from kohort.client.consumer.group_session import GroupSession
from kohort.client.consumer.plan.commit_queue import (
    CommitDone,
    CommitEffect,
    CommitJob,
    CommitQueue,
    CommitRefused,
    CommitSend,
    CoordinatorLost,
    Identity,
)
from kohort.client.consumer.plan.positions import Positions
from kohort.client.consumer.plan.subscription import Subscription
from kohort.client.consumer.setup import warn
from kohort.errors import ErrorCode, KohortError
from kohort.metrics.events import OffsetsCommitted

Done = Callable[[KohortError | None], None]


class CommitOwner(Protocol):
    """The parts of a consumer that its commits use."""

    config: ConsumerConfig
    cluster: ClusterClient
    notify: Callable[[], None]
    positions: Positions
    subscription: Subscription
    session: GroupSession | None
    exchange: Exchange

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Guards positions and plans."""
        ...


class Commits:
    """One consumer's commits; `queue` is None without a group."""

    def __init__(self, owner: CommitOwner) -> None:
        config = owner.config
        self._owner = owner
        self._loop = owner.cluster.loop
        self.queue: CommitQueue | None = None
        if config.group_id is not None:
            self.queue = CommitQueue(config.group_id, config.retry_backoff_ms)
        self._callbacks: dict[CommitJob, Done] = {}
        self._auto_at_ms = 0

    # -- from the caller's thread ----------------------------------------------------------------

    def job(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int
    ) -> CommitJob:
        """A job for these offsets, bound to the present assignment; `submit` has to follow."""
        assert self.queue is not None, "committing needs a group"
        owner = self._owner
        owned: dict[TopicPartition, int] = {}
        until_ms, bound = self._loop.now_ms() + timeout_ms, not owner.subscription.partitions
        job = CommitJob(offsets, owned, until_ms, bound)
        with owner.lock:
            for tp, offset in offsets.items():
                position = owner.positions.partitions.get(tp)
                if position is None:
                    continue
                owned[tp] = position.stamp.assignment
                if position.acked < offset.offset <= position.offset:
                    position.acked, position.acked_epoch = offset.offset, offset.leader_epoch
        return job

    def acknowledged(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets of an automatic commit now (C4). Under the lock."""
        return {
            position.tp: OffsetAndMetadata(position.acked, "", position.acked_epoch)
            for position in self._owner.positions
            if position.acked >= 0 and position.acked != position.committed
        }

    @property
    def idle(self) -> bool:
        """True when no commit waits or is in flight."""
        with self._owner.lock:
            return self.queue is None or self.queue.idle

    # -- on the network thread -------------------------------------------------------------------

    def submit(self, job: CommitJob, on_done: Done) -> None:
        """Commit; `on_done` is called on the network thread."""
        assert self.queue is not None, "committing needs a group"
        self._callbacks[job] = on_done
        with self._owner.lock:
            effects = self.queue.submit(job)
        self.run(effects)

    def plan(self, identity: Identity | None, now_ms: int, known: bool) -> list[CommitEffect]:
        """The commits that may go out now, a due automatic one included. Under the lock.

        Args:
            identity: the member as which the group is asked; None while there is none.
            now_ms: the loop's time in milliseconds.
            known: whether the coordinator is known.
        """
        queue, owner = self.queue, self._owner
        if queue is None:
            return []
        effects: list[CommitEffect] = []
        if owner.config.enable_auto_commit and now_ms >= self._auto_at_ms:
            self._auto_at_ms = now_ms + owner.config.auto_commit_interval_ms
            if (
                identity is not None
                and owner.session is not None
                and owner.session.may_commit
                and not queue.automatic_pending
                and (offsets := self.acknowledged())
            ):
                owned = {tp: owner.positions.get(tp).stamp.assignment for tp in offsets}
                until_ms = now_ms + owner.config.default_api_timeout_ms
                job = CommitJob(offsets, owned, until_ms, not owner.subscription.partitions, True)
                effects += queue.submit(job)
        effects += queue.next(identity, self._owned, now_ms, coordinator_known=known)
        return effects

    def deadlines(self, now_ms: int) -> list[int | None]:
        """When to plan again, in the loop's milliseconds. Under the lock."""
        if self.queue is None:
            return []
        due = [self.queue.next_deadline(now_ms)]
        if self._owner.config.enable_auto_commit and len(self._owner.positions):
            due.append(self._auto_at_ms)
        return due

    def run(self, effects: Iterable[CommitEffect]) -> None:
        """Carry out what the queue decided."""
        owner, session = self._owner, self._owner.session
        for effect in effects:
            match effect:
                case CommitSend():
                    assert session is not None, "only a group's queue commits"
                    coordinator = session.coordinator
                    assert coordinator is not None, "commits are planned for a known coordinator"
                    owner.exchange.commit(effect, coordinator, session.free_connection)
                case CommitDone():
                    self._done(effect)
                case CoordinatorLost():
                    if session is not None:
                        session.coordinator_lost()
                case CommitRefused():
                    if session is not None:
                        session.commit_refused(effect.code, effect.identity)

    def answered(self, token: int, answer: Mapping[TopicPartition, int] | KohortError) -> None:
        """The outcome of an OffsetCommit: codes by partition, or the error that came instead."""
        assert self.queue is not None, "only a group's queue commits"
        with self._owner.lock:
            effects = self.queue.answered(token, answer, self._loop.now_ms(), self._is_missing)
        self.run(effects)

    def abandon(self, error: KohortError) -> None:
        """Every commit ends with `error`."""
        with self._owner.lock:
            left = self.queue.abandon(error) if self.queue is not None else []
        self.run(left)

    def _is_missing(self, topic: str) -> bool:
        code = self._owner.cluster.metadata.errors.get(topic)
        return code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _owned(self, tp: TopicPartition) -> int | None:
        position = self._owner.positions.partitions.get(tp)
        return None if position is None else position.stamp.assignment

    def _done(self, done: CommitDone) -> None:
        job, error, owner = done.job, done.error, self._owner
        if error is None:
            with owner.lock:
                for tp, offset in job.offsets.items():
                    position = owner.positions.partitions.get(tp)
                    if position is not None and position.stamp.assignment == job.owned.get(tp):
                        position.committed = offset.offset
        elif job.automatic:
            warn(f"automatic commit failed: {error}")
        owner.cluster.events.emit(OffsetsCommitted(job.offsets, job.automatic, error))
        callback = self._callbacks.pop(job, None)
        if callback is not None:
            callback(error)
        owner.notify()  # a caller may wait until no commit is in flight
