"""A consumer's calls as steps that a thread or an asyncio task carries out.

Rules:
- Each call is a generator of `Wait` and `Call`; see `waiting`. It may be left at any of them.
- Open rebalance steps come before records: revoke (commit, listener, commits of the listener, give
  up, confirm), assign (take, listener, confirm), in the order in which they came (C1, C6, B47).
- A listener is called once for a step, even if it raises; the step is finished before its error
  reaches the caller.
- A wakeup ends the wait, never the work: steps and records are where they were (spec 4.9, C9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kohort.client.cluster.client import UNREACHABLE_WARNING_MS
from kohort.client.cluster.network_thread import NetworkThread
from kohort.client.cluster.waiting import LONGEST_WAIT_S, Call, CloseReport, Steps, Wait
from kohort.client.common.listener import RebalanceListener
from kohort.client.common.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from kohort.client.consumer.core import ConsumerCore
from kohort.client.consumer.exchange import SESSIONS_END_MS
from kohort.client.consumer.health_snapshot import check_watchdog
from kohort.client.consumer.plan.commit_queue import CommitJob
from kohort.client.consumer.plan.committed_offsets import CommittedQuery
from kohort.client.consumer.plan.offset_lookups import OffsetQuery
from kohort.client.consumer.plan.positions import Phase
from kohort.client.consumer.plan.subscription import Subscription
from kohort.client.consumer.rebalance_steps import AssignStep, RevokeStep, Stage
from kohort.client.consumer.setup import warn
from kohort.errors import (
    ClosedError,
    KafkaTimeoutError,
    KohortError,
    UsageError,
    WakeupError,
    fresh,
)
from kohort.lean import dataclass
from kohort.metrics.events import (
    CallDone,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
    Polled,
)

T = TypeVar("T")
SLACK_MS = 1_000
NOTHING_TO_READ = (
    "poll() has nothing to read: the consumer has no subscription and no assignment. Call "
    "subscribe() or assign() first; an AsyncConsumer's are coroutines, which do nothing until they "
    "are awaited: `await consumer.subscribe([...])`"
)
COMPLAINTS_MS = 1_000
"""The shortest time between two errors about a stopped partition while others are read."""


@dataclass(eq=False)
class Outcome:
    """Of something asked of the network thread."""

    done: bool = False
    error: KohortError | None = None


class ConsumerCalls:
    """All calls of one consumer that may have to wait."""

    def __init__(self, core: ConsumerCore, network: NetworkThread) -> None:
        self.core = core
        self.listener: RebalanceListener = RebalanceListener()
        self.woken = False
        self.nudged = False
        self.closed = False
        self._network = network
        self._deaf = False
        self._polls = self._inside_ms = self._outside_ms = 0
        self._begun_ms = core.loop.now_ms()
        self._warned_unreachable = False
        self._cut_off_ms: int | None = None
        self._complain_at_ms = self._complaints = 0

    # -- polling ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """The caller is back: the records of the last call have been processed (C4)."""
        self.check()
        now_ms = self.core.loop.now_ms()
        self._count_poll(now_ms)
        self.core.last_poll_ms = now_ms
        self.core.reader.acknowledge(now_ms)

    def _count_poll(self, now_ms: int) -> None:
        """For the metrics; updated at most once a millisecond, because a poll may take far less."""
        ended_ms = self.core.last_poll_ms
        self._polls += 1
        self._inside_ms += max(0, ended_ms - self._begun_ms)
        self._outside_ms += now_ms - max(ended_ms, self._begun_ms)
        if now_ms != self._begun_ms:
            self.core.cluster.events.emit(Polled(self._polls, self._inside_ms, self._outside_ms))
            self._polls = self._inside_ms = self._outside_ms = 0
            self._begun_ms = now_ms

    def _called(self, call: str, since_ms: int) -> None:
        core = self.core
        core.cluster.events.emit(CallDone(call, core.loop.now_ms() - since_ms))

    def poll(self, take: Callable[[], T], timeout_s: float) -> Steps[T | None]:
        """What `take` gives, as soon as it is something; None when the time is over, or when a
        partition came to its bound by markers or gaps alone.

        Raises UsageError when there is nothing to read (spec 1.11).
        """
        core = self.core
        if not core.subscription:
            raise UsageError(NOTHING_TO_READ)
        until_ms = core.loop.now_ms() + round(timeout_s * 1_000)
        core.in_poll = True
        try:
            while True:
                free = True
                if core.inbox.attention or self.woken:
                    free = yield from self.attend(until_ms)
                if core.loop.now_ms() >= self._complain_at_ms:
                    self._complain(timeout_s)
                if free and core.fatal is None and (records := take()):
                    self.after_take()
                    return records
                self.after_take()
                if self.nudged or core.reader.reached_bound:
                    self.nudged = core.reader.reached_bound = False
                    return None
                if not (yield from self._wait(until_ms)):
                    self._raise_unreachable()
                    self._complain(timeout_s)
                    self._raise_hopeless()
                    check_watchdog(core)
                    return None
        finally:
            core.in_poll = False
            core.last_poll_ms = core.loop.now_ms()

    def _raise_unreachable(self) -> None:
        """No broker has ever answered: warn soon, and do not wait for ever."""
        core = self.core
        if core.cluster.metadata.version:
            self._warn_of_outage()
            return
        if not core.subscription:
            return
        waited_ms = core.loop.now_ms() - core.born_ms
        if waited_ms >= core.config.default_api_timeout_ms:
            raise core.cluster.unreachable()
        if waited_ms >= UNREACHABLE_WARNING_MS and not self._warned_unreachable:
            self._warned_unreachable = True
            warn(f"{core.cluster.unreachable()}; retrying")

    def _warn_of_outage(self) -> None:
        """Report once that all brokers are gone, and that they are back. Reading continues by
        itself."""
        core, now_ms = self.core, self.core.loop.now_ms()
        if not core.cluster.connections.is_cut_off:
            if self._warned_unreachable:
                warn("the cluster can be reached again")
            self._warned_unreachable, self._cut_off_ms = False, None
        elif self._cut_off_ms is None:
            self._cut_off_ms = now_ms
        elif now_ms - self._cut_off_ms >= UNREACHABLE_WARNING_MS and not self._warned_unreachable:
            self._warned_unreachable = True
            warn(f"{core.cluster.unreachable()}; retrying")

    def after_take(self) -> None:
        """Let the next fetches go out before the caller gets the records taken now (spec 4.2)."""
        core = self.core
        if core.reader.wants_more or core.planner.parked:
            core.reader.room_announced()
            core.planner.polled()
            core.kick()

    def attend(self, until_ms: int) -> Steps[bool]:
        """Callbacks, steps, errors to raise. False: the time is over and a step is still open."""
        core = self.core
        core.inbox.attention = finished = False
        try:
            self._wakeup_if_asked()
            yield from self.callbacks()
            if core.overdue:
                if not (yield from self.on_network(_polled, core, until_ms=until_ms)):
                    return False
                core.overdue = False
            if not (yield from self._run_steps(until_ms)):
                return False
            if core.inbox.errors:
                raise core.inbox.errors.popleft()
            finished = core.fatal is None  # else no poll may pass this by
            return True
        finally:
            # After any end, a wakeup or a cancel too, the next call handles the rest.
            if not finished:
                core.inbox.attention = True

    def callbacks(self) -> Steps[None]:
        """Tell the outcomes of asynchronous commits, in the order of the commits."""
        callbacks = self.core.inbox.callbacks
        while callbacks:
            fn, args = callbacks.popleft()
            yield Call(fn, args)

    def _complain(self, timeout_s: float) -> None:
        """Raise what only the caller can mend: at once, then once in the time-out of a poll.

        Between two errors the other partitions are read, so that one that stopped stops only
        itself; several take turns. A new exception each time (see `fresh`).
        """
        core = self.core
        error = core.fatal
        if error is None and (core.positions.denials or core.positions.counts[Phase.FAILED]):
            with core.lock:
                failed = [p.error for p in core.positions if p.error is not None and not p.paused]
            if failed:
                error = failed[self._complaints % len(failed)]
        if error is not None:
            self._complaints += 1
            wait_ms = max(round(timeout_s * 1_000), COMPLAINTS_MS)
            self._complain_at_ms = core.loop.now_ms() + wait_ms
            raise fresh(error)

    def _raise_hopeless(self) -> None:
        """Nothing came: because nothing that came could be decoded, or of what does not exist."""
        core, now_ms = self.core, self.core.loop.now_ms()
        error = core.cluster.damaged.worst(now_ms) or core.topics.nowhere.overdue(now_ms)
        if error is not None:
            raise fresh(error)

    # -- rebalance steps -------------------------------------------------------------------------

    def _revoke(self, step: RevokeStep, until_ms: int) -> Steps[bool]:
        core, now_ms = self.core, self.core.loop.now_ms
        if step.stage is Stage.BEGIN:
            step.give_up_ms = now_ms() + core.config.default_api_timeout_ms
            step.commit = None if step.lost else self._commit_acknowledged(step)
            step.stage = Stage.COMMITTING
        if step.stage is Stage.COMMITTING:
            commit: Outcome | None = step.commit
            while commit is not None and not commit.done and now_ms() < step.give_up_ms:
                if not (yield from self._wait(min(until_ms, step.give_up_ms))):
                    return False
            step.stage = Stage.LISTENER
        if step.stage is Stage.LISTENER:
            step.stage = Stage.DRAINING
            callback = (
                self.listener.on_partitions_lost
                if step.lost
                else (self.listener.on_partitions_revoked)
            )
            begun_ms, event = now_ms(), PartitionsLost if step.lost else PartitionsRevoked
            if step.partitions:
                try:
                    yield Call(callback, (list(step.partitions),))
                    core.cluster.events.emit(event(step.partitions, now_ms() - begun_ms))
                except BaseException:  # any error: the step is finished before it propagates
                    self._given_up(step)
                    raise
        while not step.lost and not core.commits.idle and now_ms() < step.give_up_ms:
            if not (yield from self._wait(min(until_ms, step.give_up_ms))):
                return False
        self._given_up(step)
        return True

    def _commit_acknowledged(self, step: RevokeStep) -> Outcome | None:
        core = self.core
        if not core.config.enable_auto_commit:
            return None
        with core.lock:
            offsets = core.commits.acknowledged()
        offsets = {tp: offset for tp, offset in offsets.items() if tp in step.partitions}
        return self.submit(offsets, core.config.default_api_timeout_ms) if offsets else None

    def _given_up(self, step: RevokeStep) -> None:
        core = self.core
        with core.lock:
            core.positions.remove(step.partitions)
        core.inbox.steps.popleft()
        core.post(core.confirm, step)

    def _assign(self, step: AssignStep) -> Steps[bool]:
        core = self.core
        if step.stage is Stage.BEGIN:
            core.topics.take_over(step.added)
            step.stage = Stage.DONE
            begun_ms = core.loop.now_ms()
            try:
                yield Call(self.listener.on_partitions_assigned, (list(step.added),))
                took_ms = core.loop.now_ms() - begun_ms
                core.cluster.events.emit(PartitionsAssigned(step.added, took_ms))
            except BaseException:  # any error: the step is finished before it propagates
                self._taken(step)
                raise
        self._taken(step)
        return True

    def _taken(self, step: AssignStep) -> None:
        self.core.inbox.steps.popleft()
        self.core.post(self.core.confirm, step)

    # -- commits and questions -------------------------------------------------------------------

    def submit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int
    ) -> Outcome:
        """Begin a commit."""
        core, outcome = self.core, Outcome()
        job = core.commits.job(offsets, timeout_ms)
        core.post(core.commit, job, self._completing(outcome))
        self.expect(job)
        return outcome

    def expect(self, job: CommitJob) -> None:
        """A call that waits for pending commits waits for this one, too."""
        with self.core.lock:
            if self.core.commits.queue is not None:
                self.core.commits.queue.expect(job)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int
    ) -> Steps[None]:
        """Commit and wait for the coordinator's word."""
        begun_ms = self.core.loop.now_ms()
        outcome = self.submit(offsets, timeout_ms)
        yield from self._done(outcome, timeout_ms, "committing")
        self._called("commit", begun_ms)
        yield from self.callbacks()

    def offsets(
        self, targets: Mapping[TopicPartition, int], timeout_ms: int
    ) -> Steps[dict[TopicPartition, OffsetAndTimestamp | None]]:
        """Ask the leaders for offsets by time or sentinel."""
        core, outcome = self.core, Outcome()
        query = OffsetQuery(dict(targets), core.loop.now_ms() + timeout_ms)
        if targets:
            core.post(core.query, query, self._completing(outcome))
            yield from self._done(outcome, timeout_ms, "asking for offsets")
        return {tp: query.found[tp] for tp in targets}

    def committed(
        self, tps: Sequence[TopicPartition], timeout_ms: int
    ) -> Steps[dict[TopicPartition, OffsetAndMetadata | None]]:
        """Ask the coordinator for committed offsets."""
        core, outcome = self.core, Outcome()
        query = CommittedQuery(tuple(tps), core.loop.now_ms() + timeout_ms)
        if tps:
            begun_ms = core.loop.now_ms()
            core.post(core.query, query, self._completing(outcome))
            yield from self._done(outcome, timeout_ms, "asking for committed offsets")
            self._called("committed", begun_ms)
        return {tp: query.found[tp] for tp in tps}

    def position(self, tp: TopicPartition, timeout_ms: int) -> Steps[int]:
        """The offset of the next record, once it is known."""
        core = self.core
        until_ms = core.loop.now_ms() + timeout_ms
        while True:
            with core.lock:
                position = core.positions.get(tp)
                if position.known:
                    return position.offset
                error, doing = position.error, position.phase.value
            if error is not None:
                raise fresh(error)
            core.kick()
            if not (yield from self._wait(until_ms)):
                raise KafkaTimeoutError(
                    f"the position of {tp} is not known after {timeout_ms} ms: {doing}"
                )

    # -- subscribing and closing -----------------------------------------------------------------

    def unsubscribe(self, timeout_ms: int) -> Steps[None]:
        """Give everything up, listener included; a member leaves its group."""
        core = self.core
        until_ms = core.loop.now_ms() + timeout_ms
        core.subscription = Subscription()  # here: when this call is cut off, the next one counts
        yield from self.on_network(core.unsubscribe, until_ms=until_ms)
        yield from self._run_steps(until_ms)
        while self._owing() and (yield from self._wait(until_ms)):
            pass  # what was committed without waiting belongs to what is given up now
        with core.lock:
            core.positions.remove(list(core.positions.partitions))
        core.kick()

    def close(self, timeout_ms: int, *, dealt_with: bool) -> Steps[CloseReport]:
        """Commit, give up, leave, and end: each within what is left of the time (C11)."""
        core, problems = self.core, list[str]()
        until_ms = core.loop.now_ms() + timeout_ms
        self._deaf, committed, left = True, True, True
        failure: BaseException | None = None
        core.reader.leave_piece()
        if dealt_with:
            core.reader.acknowledge(core.loop.now_ms())
        try:
            committed = yield from self._last_commit(until_ms, problems)
            if core.session is not None and core.session.member is not None:
                yield from self.on_network(core.session.close, until_ms=until_ms)
                yield from self._run_steps(until_ms)
                left = yield from self._gone(until_ms)
            yield from self._end_sessions(until_ms)
        except GeneratorExit:  # no caller is left to carry out the rest: nothing can be
            raise
        except BaseException as error:  # a listener's, or a cancel: the end comes first
            failure = error
        self.closed = True
        shut = ClosedError("the consumer was closed")
        yield from self.on_network(core.shut, shut, until_ms=until_ms + SLACK_MS)
        yield from self.callbacks()
        if failure is not None:
            raise failure
        if not left:
            problems.append("the coordinator did not confirm that this member left in time")
        return CloseReport(committed, left, tuple(problems))

    def _end_sessions(self, until_ms: int) -> Steps[None]:
        """Brokers keep a place for each fetch session (KIP-227), of which they have a thousand."""
        core, outcome = self.core, Outcome()
        if core.fatal is not None:
            return
        until_ms = min(until_ms, core.loop.now_ms() + SESSIONS_END_MS)
        core.post(core.exchange.end_sessions, self._completing(outcome))
        while not outcome.done and (yield from self._wait(until_ms)):
            pass

    def _last_commit(self, until_ms: int, problems: list[str]) -> Steps[bool]:
        core, outcome = self.core, Outcome(done=True)
        if core.commits.queue is None or core.fatal is not None:
            return True
        with core.lock:
            offsets = core.commits.acknowledged() if core.config.enable_auto_commit else {}
        if offsets:
            outcome = self.submit(offsets, max(1, until_ms - core.loop.now_ms()))
        while not outcome.done or self._owing():  # with what was committed without waiting
            if not (yield from self._wait(until_ms)):
                kind = "automatic" if offsets else "asynchronous"
                problems.append(f"the last {kind} commit was not confirmed in time")
                return False
        if outcome.error is not None:
            problems.append(f"the last automatic commit failed: {outcome.error}")
        return outcome.error is None

    def _owing(self) -> bool:
        """Whether the outcome of a commit has not been delivered yet."""
        queue = self.core.commits.queue
        with self.core.lock:
            return queue is not None and queue.owing

    def _run_steps(self, until_ms: int) -> Steps[bool]:
        """Every open rebalance step, in order; False when the time is over first."""
        steps = self.core.inbox.steps
        while steps:
            step = steps[0]
            if isinstance(step, RevokeStep):
                run = self._revoke(step, until_ms)
            else:
                run = self._assign(step)
            if not (yield from run):
                return False
        return True

    def _gone(self, until_ms: int) -> Steps[bool]:
        """Wait until the coordinator has taken the member's leave."""
        core = self.core
        while True:
            yield from self._run_steps(until_ms)
            assert core.session is not None, "only members leave"
            member = core.session.member
            if member is None or member.is_out:
                return True
            if not (yield from self._wait(until_ms)):
                return False

    # -- inside ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise when the consumer cannot be used (any more)."""
        if self.closed:
            raise ClosedError("this consumer was closed; make a new one")
        if self.core.loop.forked:
            self._network.check()

    def on_network(self, fn: Callable[..., T], *args: Any, until_ms: int) -> Steps[T | None]:
        """Run `fn` on the network thread and wait for it; None when the time is over first."""
        future = self._network.call(fn, *args)
        future.add_done_callback(lambda _: self.core.notify())
        while not future.done:
            if not (yield from self._wait(until_ms)):
                return None
        return future.result()

    def _completing(self, outcome: Outcome) -> Callable[[KohortError | None], None]:
        def on_committed(error: KohortError | None) -> None:
            outcome.error, outcome.done = error, True
            self.core.notify()

        return on_committed

    def _done(self, outcome: Outcome, timeout_ms: int, doing: str) -> Steps[None]:
        until_ms = self.core.loop.now_ms() + timeout_ms + SLACK_MS
        while not outcome.done:
            if not (yield from self._wait(until_ms)):
                raise KafkaTimeoutError(f"{doing} was not done within {timeout_ms} ms; call again")
        if outcome.error is not None:
            raise fresh(outcome.error)

    def _wait(self, until_ms: int) -> Steps[bool]:
        """Wait for a ring; False when the time is over."""
        left_ms = until_ms - self.core.loop.now_ms()
        if left_ms <= 0:
            return False
        yield Wait(min(left_ms / 1_000, LONGEST_WAIT_S))
        self._wakeup_if_asked()
        return True

    def _wakeup_if_asked(self) -> None:
        if self.woken and not self._deaf:
            self.woken = False
            raise WakeupError("the call was ended by wakeup(); nothing is lost, call again")


def _polled(core: ConsumerCore) -> bool:
    if core.session is not None:
        core.session.polled(core.loop.now_ms())
    return True
