"""One consumer's engine: joins the pure parts to the cluster and to the caller's thread.

Rules:
- `lock` protects positions, planner, resolver, lane and queries. It is held for moments and never
  while something is sent, decoded or called back.
- Methods under "on the network thread" run there only; the caller's thread uses `post`.
- After every event the core plans again (`pump`): lookups, fetches, commits, queries; it sends
  everything that may go out now. One timer wakes it for the nearest deadline.
- What the caller's thread has to do comes to it as steps, in order; `attention` says that there is
  something beside records. `notify` wakes a caller that waits.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kohort.client.cluster.client import ClusterClient
from kohort.client.cluster.metadata import ALL, MAX_ASKED_TOPICS, NO_LEADER, ClusterMetadata
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.offset_reset import ResetPolicy
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.exchange import Exchange
from kohort.client.consumer.fetch_reader import FetchReader
from kohort.client.consumer.group_session import GroupSession
from kohort.client.consumer.plan.commit_queue import (
    NOBODY,
    CommitDone,
    CommitEffect,
    CommitJob,
    CommitLane,
    CommitRefused,
    CommitSend,
    CoordinatorLost,
    Identity,
)
from kohort.client.consumer.plan.committed_offsets import Committed, CommittedQueries, CommittedSend
from kohort.client.consumer.plan.fetch_planner import FetchPlanner, FetchResult
from kohort.client.consumer.plan.missing_topics import (
    TOPIC_ERRORS,
    TOPIC_ID_CODES,
    MissingPartitions,
    MissingTopics,
)
from kohort.client.consumer.plan.offset_lookups import (
    OffsetQueries,
    OffsetQuery,
    QuerySend,
    TimeAnswer,
)
from kohort.client.consumer.plan.offset_resolver import OffsetAnswer, OffsetResolver
from kohort.client.consumer.plan.positions import Phase, Positions
from kohort.client.consumer.plan.subscription import Subscription
from kohort.client.consumer.rebalance_steps import AssignStep, RevokeStep, Stage, Step
from kohort.client.consumer.setup import fetch_limits, flat, log, log_reset
from kohort.errors import BrokerError, KohortError
from kohort.group.member.effects import Assign, Revoke
from kohort.metrics.events import OffsetsCommitted
from kohort.net import Timer


class ConsumerCore:
    """The engine below `Consumer` and `AsyncConsumer`. `notify` may be called from any thread."""

    def __init__(
        self, config: ConsumerConfig, cluster: ClusterClient, notify: Callable[[], None]
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.loop = cluster.loop
        self.lock = threading.Lock()
        self.notify = notify
        self.subscription = Subscription()
        self.steps: deque[Step] = deque()
        self.callbacks: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self.errors: deque[KohortError] = deque(maxlen=100)
        self.fatal: KohortError | None = None
        self.attention = False
        self.overdue = False
        self.born_ms = self.last_poll_ms = self.loop.now_ms()
        self.in_poll = False
        self.beats: int = 0
        """Counted up by an iteration with each record: cheaper than reading a clock."""
        self._beats_seen: int = 0
        self.positions = Positions(ResetPolicy.parse(config.auto_offset_reset))
        self.planner = FetchPlanner(self.positions, fetch_limits(config))
        self.resolver = OffsetResolver(
            self.positions, config.retry_backoff_ms, has_group=config.group_id is not None
        )
        self.reader = FetchReader(
            self.positions, self.lock, check_crcs=config.check_crcs, attend=self._attend
        )
        self.queries = OffsetQueries(config.retry_backoff_ms)
        self.lane: CommitLane | None = None
        self.session: GroupSession | None = None
        if config.group_id is not None:
            self.lane = CommitLane(config.group_id, config.retry_backoff_ms)
            self.session = GroupSession(config, cluster, self, self.positions.refusals)
        self.committed = CommittedQueries(config.group_id or "", config.retry_backoff_ms)
        self.exchange = Exchange(config, cluster, self)
        self._callbacks: dict[object, Callable[[KohortError | None], None]] = {}
        self.matched: frozenset[str] = frozenset()
        self._asked_topics: set[str] = set()
        self.missing = MissingTopics(creates=config.allow_auto_create_topics)
        self.nowhere = MissingPartitions()
        self._topic_ids: dict[str, bytes] = {}
        self._auto_at_ms = 0
        self._timer: Timer | None = None
        self._pump_posted = False
        self._closed = False
        cluster.add_listener(self._metadata_changed)
        cluster.refused = self.failed

    # -- from the caller's thread ----------------------------------------------------------------

    def post(self, fn: Callable[..., object], *args: Any) -> None:
        """Run `fn(*args)` on the network thread, soon."""
        self.loop.call_soon_threadsafe(fn, *args)

    def kick(self) -> None:
        """Let the network thread look for what may go out now."""
        if not self._pump_posted:
            self._pump_posted = True
            self.loop.call_soon_threadsafe(self.pump)

    def commit_job(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int
    ) -> CommitJob:
        """A job for these offsets, bound to what the group has assigned; `commit` has to follow.

        What is committed counts as dealt with: an automatic commit that comes while this one is
        under way must not set the offset back (C5).
        """
        assert self.lane is not None, "committing needs a group"
        owned: dict[TopicPartition, int] = {}
        until_ms, bound = self.loop.now_ms() + timeout_ms, not self.subscription.partitions
        job = CommitJob(offsets, owned, until_ms, bound)
        with self.lock:
            for tp, offset in offsets.items():
                position = self.positions.partitions.get(tp)
                if position is None:
                    continue
                owned[tp] = position.stamp.assignment
                if position.acked < offset.offset <= position.offset:
                    position.acked, position.acked_epoch = offset.offset, offset.leader_epoch
        return job

    def acknowledged(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What an automatic commit covers now (C4). Under the lock."""
        return {
            position.tp: OffsetAndMetadata(position.acked, "", position.acked_epoch)
            for position in self.positions
            if position.acked >= 0 and position.acked != position.committed
        }

    @property
    def lane_idle(self) -> bool:
        """True when no commit waits or is under way."""
        with self.lock:
            return self.lane is None or self.lane.idle

    def take_over(self, tps: Iterable[TopicPartition]) -> None:
        """These partitions are this consumer's from now on."""
        metadata, now_ms = self.cluster.metadata, self.loop.now_ms()
        with self.lock:
            for position in self.positions.add(tps, now_ms):
                tp = position.tp
                position.leader_epoch = metadata.leader_epoch(tp.topic, tp.partition)

    # -- on the network thread: calls ------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Read what the group assigns of these topics."""
        self.subscription = subscription
        self._watch()
        assert self.session is not None, "subscribing needs a group"
        self.matched = self._matches(self.cluster.metadata)
        if subscription.remote is not None:
            self.session.subscribe_pattern(subscription.remote.pattern)
        elif subscription.pattern is None or self.matched:
            self.session.subscribe(self.matched)

    def assign(self, subscription: Subscription) -> None:
        """Read the caller's own choice of partitions (positions are set by the caller)."""
        self.subscription = subscription
        self._watch()
        self._metadata_changed(self.cluster.metadata)

    def unsubscribe(self) -> None:
        """Stop reading; a member gives up its partitions and leaves."""
        self.subscription = Subscription()
        self.matched = frozenset()
        if self.session is not None:
            self.session.unsubscribe()
        self._watch()

    def confirm_revoked(self, token: int) -> None:
        """The caller has given up what this step named."""
        if self.session is not None and not self._closed:
            self.session.revoked(token)

    def confirm_assigned(self, token: int) -> None:
        """The caller has taken what this step named."""
        if self.session is not None and not self._closed:
            self.session.assigned(token)
        self.pump()

    def commit(self, job: CommitJob, on_done: Callable[[KohortError | None], None]) -> None:
        """Commit; `on_done` is called on the network thread."""
        assert self.lane is not None, "committing needs a group"
        self._callbacks[job] = on_done
        with self.lock:
            effects = self.lane.submit(job)
        self._run_commits(effects)
        self.pump()

    def query(self, query: Any, on_done: Callable[[KohortError | None], None]) -> None:
        """Look up offsets by time (OffsetQuery) or committed ones (CommittedQuery); completes the
        query."""
        self._callbacks[query] = on_done
        with self.lock:
            if isinstance(query, OffsetQuery):
                self.queries.submit(query)
                if len(self._asked_topics) >= MAX_ASKED_TOPICS:
                    self._asked_topics.clear()
                self._asked_topics.update(tp.topic for tp in query.targets)
            else:
                self.committed.submit(query)
        self._watch()
        self.pump()

    def shut(self, error: KohortError) -> None:
        """Everything under way ends with `error`; the connections are closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._abandon(error)
        self.cluster.close()
        self.notify()

    def _abandon(self, error: KohortError) -> None:
        with self.lock:
            left = self.lane.abandon(error) if self.lane is not None else []
            asked = [*self.queries.abandon(error), *self.committed.abandon(error)]
        self._run_commits(left)
        for done in asked:
            self._tell(done.query, done.query.error)

    # -- on the network thread: what the session tells -------------------------------------------

    def rebalance(self, step: Revoke | Assign) -> None:
        """Hand a step to the caller's thread."""
        if isinstance(step, Revoke):
            if step.lost:
                self._lost()
            self._step(RevokeStep(step.token, flat(step.partitions), step.lost, step.reason))
        else:
            added, assignment = flat(step.added), flat(step.assignment)
            self._step(AssignStep(step.token, added, assignment, step.generation))

    def failed(self, error: KohortError) -> None:
        """Every later poll raises this."""
        self.fatal = error
        self._attend()
        self.pump()

    def warn(self, text: str) -> None:
        """Something for the log."""
        log("WARNING", text)

    def changed(self) -> None:
        """Something that the plans rest on has changed."""
        self._watch()
        self.notify()
        if not self._pump_posted:
            self._pump_posted = True
            self.loop.call_soon(self.pump)

    # -- on the network thread: planning ---------------------------------------------------------

    def pump(self) -> None:
        """Send everything that may go out now, and set the timer for the next deadline."""
        self._pump_posted = False
        if self._closed:
            return
        if self.cluster.refusal is not None:
            self._abandon(self.cluster.refusal)
            return
        now_ms, metadata, session = self.loop.now_ms(), self.cluster.metadata, self.session
        known = session is not None and session.coordinator is not None
        identity = None if session is None else session.identity

        def leader_of(tp: TopicPartition) -> int | None:
            node = metadata.leader(tp.topic, tp.partition)
            return None if node == NO_LEADER else node

        with self.lock:
            commits = self._plan_commits(identity, now_ms, known)
            wall_ms = self.loop.wall_ms()
            questions = self.resolver.plan(leader_of, now_ms, wall_ms, coordinator_known=known)
            orders = self.planner.plan(leader_of, now_ms)
            queries = self.queries.next(leader_of, now_ms)
            committed = self.committed.next(now_ms, coordinator_known=known)
            wants_coordinator = not known and self._wants_coordinator()
            wants_metadata = self._wants_metadata()
            failed = self.positions.counts[Phase.FAILED] > 0
            report = self.positions.refusals.look(now_ms)
        self._run_commits(commits)
        exchange, coordinator = self.exchange, None if session is None else session.coordinator
        asker = NOBODY if session is None else session.asker
        for order in orders:
            exchange.fetch(order)
        for question in questions:
            exchange.ask(question, coordinator, asker)
        for query in queries:
            if isinstance(query, QuerySend):
                exchange.ask_offsets(query)
            else:
                self._tell(query.query, query.query.error)
        for one in committed:
            if not isinstance(one, CommittedSend):
                self._tell(one.query, one.query.error)
            elif coordinator is not None:
                exchange.ask_committed(one, coordinator, asker)
        if wants_metadata:
            self.cluster.refresh_soon()
        if wants_coordinator and session is not None:
            session.need_coordinator()
        if failed:
            self._attend()
        if report is not None:
            report.tell(self.warn, self.cluster.events)
        self._arm(now_ms)

    def _plan_commits(
        self, identity: Identity | None, now_ms: int, known: bool
    ) -> list[CommitEffect]:
        lane = self.lane
        if lane is None:
            return []
        effects: list[CommitEffect] = []
        if self.config.enable_auto_commit and now_ms >= self._auto_at_ms:
            self._auto_at_ms = now_ms + self.config.auto_commit_interval_ms
            if (
                identity is not None
                and self.session is not None
                and self.session.may_commit
                and not lane.automatic_pending
                and (offsets := self.acknowledged())
            ):
                owned = {tp: self.positions.get(tp).stamp.assignment for tp in offsets}
                until_ms = now_ms + self.config.default_api_timeout_ms
                job = CommitJob(offsets, owned, until_ms, not self.subscription.partitions, True)
                effects += lane.submit(job)
        effects += lane.next(identity, self._owned, now_ms, coordinator_known=known)
        return effects

    def _owned(self, tp: TopicPartition) -> int | None:
        position = self.positions.partitions.get(tp)
        return None if position is None else position.stamp.assignment

    def _wants_coordinator(self) -> bool:
        lane = self.lane
        if lane is None:
            return False
        if not lane.idle or self.committed.waiting:
            return True
        return self.positions.counts[Phase.AWAITING_OFFSET] > 0

    def _wants_metadata(self) -> bool:
        planner, resolver, queries = self.planner, self.resolver, self.queries
        needed = planner.needs_metadata or resolver.needs_metadata or queries.needs_metadata
        planner.needs_metadata = resolver.needs_metadata = queries.needs_metadata = False
        return needed

    def _arm(self, now_ms: int) -> None:
        """One timer for the nearest deadline; what was due has been dealt with just now."""
        with self.lock:
            due = [
                self.planner.next_deadline(),
                self.resolver.next_deadline(),
                self.queries.next_deadline(),
                self.committed.next_deadline(),
            ]
            if self.lane is not None:
                due.append(self.lane.next_deadline())
                if self.config.enable_auto_commit and len(self.positions):
                    due.append(self._auto_at_ms)
        if self.session is not None:
            session_ms = self.session.next_deadline()
            due.append(None if session_ms is None else max(session_ms, now_ms + 1))
        when_ms = min((at for at in due if at is not None and at > now_ms), default=None)
        timer = self._timer
        if timer is not None:
            if timer.active and timer.when_ms == when_ms:
                return
            timer.cancel()
        self._timer = None if when_ms is None else self.loop.call_at(when_ms, self._timer_fired)

    def _timer_fired(self) -> None:
        session = self.session
        if session is not None:
            now_ms = self.loop.now_ms()
            if self.in_poll or self.beats != self._beats_seen:
                self.last_poll_ms, self._beats_seen = now_ms, self.beats
            session.polled(self.last_poll_ms)
            session.tick()
            if session.overdue and not self.overdue:
                self.overdue = True
                self._lost()
                self._attend()
        self.pump()

    # -- on the network thread: metadata ---------------------------------------------------------

    def _watch(self) -> None:
        subscription = self.subscription
        if subscription.pattern is not None:
            self.cluster.watch_topics(ALL)
            return
        names = set(subscription.topics) | self._asked_topics
        names.update(tp.topic for tp in subscription.partitions)
        if self.session is not None:
            names |= self.session.watched
        if names != self.cluster.watched_topics:
            self.cluster.watch_topics(names)

    def _matches(self, metadata: ClusterMetadata) -> frozenset[str]:
        hide = self.config.exclude_internal_topics
        return self.subscription.matches(metadata, exclude_internal=hide)

    def _metadata_changed(self, metadata: ClusterMetadata) -> None:
        now_ms = self.loop.now_ms()
        self._look_at_ids(metadata)
        with self.lock:
            for position in self.positions:
                tp = position.tp
                epoch = metadata.leader_epoch(tp.topic, tp.partition)
                self.positions.leader_moved(tp, epoch, can_validate=True, now_ms=now_ms)
            self.nowhere.look(self.positions.partitions, metadata, now_ms)
        if self.session is not None:
            if self.nowhere.overdue(now_ms) is not None:
                self.session.doubt_assignment()
            matched = self._matches(metadata)
            if self.subscription.pattern is not None and matched != self.matched:
                self.matched = matched
                self.session.subscribe(matched)
            self.session.metadata_changed(metadata)
        self._look_at_errors(metadata)
        self.pump()

    def _look_at_ids(self, metadata: ClusterMetadata) -> None:
        """A topic with another id is another topic under the old name (KIP-516)."""
        with self.lock:
            names = {position.tp.topic for position in self.positions}
            ids = {name: t.topic_id for name in names if (t := metadata.topics.get(name))}
            changed = [n for n, i in ids.items() if self._topic_ids.get(n, i) != i]
            for name in changed:
                self.positions.topic_made_anew(name)
            kept = {name: i for name, i in self._topic_ids.items() if name in names}
            self._topic_ids = {**kept, **ids}
        for name in changed:
            self.warn(
                f"topic {name!r} was deleted and created again; positions in it are kept, and are "
                "reset if they are out of range. seek() to choose where reading continues"
            )

    def _look_at_id_errors(self, codes: Iterable[int]) -> None:
        """A topic id that the coordinator does not know: metadata's is out of date, or damaged."""
        if not TOPIC_ID_CODES.isdisjoint(codes):
            self.cluster.refresh_soon()

    def _look_at_errors(self, metadata: ClusterMetadata) -> None:
        names = self.subscription.topics | {tp.topic for tp in self.subscription.partitions}
        for name in names:
            if (code := metadata.errors.get(name, 0)) in TOPIC_ERRORS:
                self.errors.append(BrokerError(code, f"topic {name!r}"))
                self._attend()
        for event in self.missing.look(names, metadata):
            self.warn(event)

    # -- inside ----------------------------------------------------------------------------------

    def _lost(self) -> None:
        """The generation is gone: what waits to be given up has another owner by now (C6)."""
        for step in list(self.steps):
            if isinstance(step, RevokeStep) and step.stage is Stage.BEGIN:
                step.lost = True

    def _step(self, step: Step) -> None:
        self.steps.append(step)
        self._attend()

    def _attend(self) -> None:
        self.attention = True
        self.notify()

    def call_back(self, fn: Callable[..., Any], *args: Any) -> None:
        """Have a user's function called inside the caller's next call."""
        self.callbacks.append((fn, args))
        self._attend()

    def _tell(self, what: object, error: KohortError | None) -> None:
        callback = self._callbacks.pop(what, None)
        if callback is not None:
            callback(error)

    def _run_commits(self, effects: Iterable[CommitEffect]) -> None:
        for effect in effects:
            match effect:
                case CommitSend():
                    assert self.session is not None, "only a group's lane commits"
                    coordinator = self.session.coordinator
                    assert coordinator is not None, "commits are planned for a known coordinator"
                    self.exchange.commit(effect, coordinator, self.session.free_lane)
                case CommitDone():
                    self._committed(effect)
                case CoordinatorLost():
                    if self.session is not None:
                        self.session.coordinator_lost()
                case CommitRefused():
                    if self.session is not None:
                        self.session.commit_refused(effect.code, effect.identity)

    def _committed(self, done: CommitDone) -> None:
        job, error = done.job, done.error
        if error is None:
            with self.lock:
                for tp, offset in job.offsets.items():
                    position = self.positions.partitions.get(tp)
                    if position is not None and position.stamp.assignment == job.owned.get(tp):
                        position.committed = offset.offset
        elif job.automatic:
            self.warn(f"automatic commit failed: {error}")
        self.cluster.events.emit(OffsetsCommitted(job.offsets, job.automatic, error))
        self._tell(job, error)
        self.notify()  # somebody may wait until nothing is under way

    # -- on the network thread: answers ----------------------------------------------------------

    def fetched(self, token: int, answer: list[FetchResult] | KohortError) -> None:
        """A Fetch was answered, or was not."""
        now_ms = self.loop.now_ms()
        with self.lock:
            if isinstance(answer, KohortError):
                self.planner.failed(token, now_ms)
                ready, stale = False, False
            else:
                arrival = self.planner.arrived(token, answer, now_ms)
                for position in arrival.ready:
                    self.reader.queue(position)
                ready, stale = bool(arrival.ready), arrival.stale_metadata
        if ready:
            self.notify()
        if stale:
            self.cluster.refresh_soon()
        self.pump()

    def resolved(
        self, token: int, answer: Mapping[TopicPartition, OffsetAnswer] | KohortError
    ) -> None:
        """A question about where to read was answered, or was not."""
        with self.lock:
            settled = self.resolver.answered(token, answer, self.loop.now_ms())
            for position in self.positions:
                if position.phase is Phase.FETCHING:
                    self.reader.queue(position)
        for event in settled.resets:
            log_reset(event)
        if settled.coordinator_lost and self.session is not None:
            self.session.coordinator_lost()
        if settled.stale_metadata:
            self.cluster.refresh_soon()
        self.notify()
        self.pump()

    def listed(self, token: int, answer: Mapping[TopicPartition, TimeAnswer] | KohortError) -> None:
        """A query by time was answered, or was not."""
        with self.lock:
            stale = self.queries.answered(token, answer, self.loop.now_ms())
        if stale:
            self.cluster.refresh_soon()
        self.pump()

    def looked_up(
        self, token: int, answer: tuple[int, Mapping[TopicPartition, Committed]] | KohortError
    ) -> None:
        """A query for committed offsets was answered, or was not."""
        with self.lock:
            lost = self.committed.answered(token, answer, self.loop.now_ms())
        if not isinstance(answer, KohortError):
            self._look_at_id_errors(part.error for part in answer[1].values())
        if lost and self.session is not None:
            self.session.coordinator_lost()
        self.pump()

    def cut_short(self) -> None:
        """A fetch was ended early for nothing: there may be news for the member."""
        if self.session is not None:
            self.session.hint()

    def stale_epoch(self) -> None:
        """A look-up was made with a member epoch that is not the present one any more."""
        if self.session is not None:
            self.session.hurry()

    def commit_answered(
        self, token: int, answer: Mapping[TopicPartition, int] | KohortError
    ) -> None:
        """An OffsetCommit was answered, or was not."""
        assert self.lane is not None, "only a group's lane commits"
        if self.session is not None and not isinstance(answer, KohortError):
            self.session.coordinator_said(*answer.values())
            self._look_at_id_errors(answer.values())
        with self.lock:
            effects = self.lane.answered(token, answer, self.loop.now_ms())
        self._run_commits(effects)
        self.pump()
