"""One consumer's engine: joins the pure parts to the cluster and to the caller's thread.

    CallerInbox      the caller's work: rebalance steps, callbacks, errors
    Commits          jobs, automatic commits, their outcome
    TopicWatch       metadata of the topics: matches, new ids, missing ones
    AnswerHandlers   what answers change
    Exchange         requests on their way

Rules:
- `lock` protects positions, planner, offset fetcher, commit queue and queries. It is held for
  moments and never while something is sent, decoded or called back.
- Methods under "on the network thread" run there only; the caller's thread uses `post`.
- After every event the core plans again (`pump`): lookups, fetches, commits, queries; it sends
  everything that may go out now. One timer wakes it for the nearest deadline.
- `notify` wakes a caller that waits.

Shell: threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from kohort.client.cluster.client import ClusterClient, ConnectionKind
from kohort.client.cluster.metadata import NO_LEADER, ClusterMetadata
from kohort.client.common.config import ConsumerConfig
from kohort.client.common.offset_reset import ResetPolicy
from kohort.client.common.types import TopicPartition
from kohort.client.consumer.answers import AnswerHandlers
from kohort.client.consumer.caller_inbox import CallerInbox
from kohort.client.consumer.commits import Commits
from kohort.client.consumer.exchange import Exchange
from kohort.client.consumer.fetch_reader import FetchReader
from kohort.client.consumer.group_session import GroupSession
from kohort.client.consumer.plan.commit_queue import NO_MEMBER, CommitJob
from kohort.client.consumer.plan.committed_offsets import (
    CommittedDone,
    CommittedQueries,
    CommittedSend,
)
from kohort.client.consumer.plan.fetch_planner import FetchPlanner
from kohort.client.consumer.plan.offset_fetcher import OffsetFetcher, Question
from kohort.client.consumer.plan.offset_lookups import (
    OffsetQueries,
    OffsetQuery,
    QueryDone,
    QuerySend,
)
from kohort.client.consumer.plan.positions import Phase, Positions
from kohort.client.consumer.plan.subscription import Subscription
from kohort.client.consumer.rebalance_steps import RevokeStep, Step
from kohort.client.consumer.setup import fetch_limits, warn
from kohort.client.consumer.topic_watch import TopicWatch
from kohort.errors import KohortError
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
        self.inbox = CallerInbox(notify)
        self.subscription = Subscription()
        """The caller's latest choice. The caller sets it; `subscribe` and `assign` here run later,
        maybe after the next choice, and must not."""
        self.fatal: KohortError | None = None
        self.overdue = False
        self.born_ms = self.last_poll_ms = self.loop.now_ms()
        self.in_poll = False
        self.beats: int = 0
        """Counted up by an iteration with each record: cheaper than reading a clock."""
        self._beats_seen: int = 0
        self.positions = Positions(ResetPolicy.parse(config.auto_offset_reset))
        self.planner = FetchPlanner(self.positions, fetch_limits(config))
        self.offset_fetcher = OffsetFetcher(
            self.positions, config.retry_backoff_ms, has_group=config.group_id is not None
        )
        self.reader = FetchReader(
            self.positions, self.lock, check_crcs=config.check_crcs, attend=self.inbox.attend
        )
        self.queries = OffsetQueries(config.retry_backoff_ms)
        self.committed = CommittedQueries(config.group_id or "", config.retry_backoff_ms)
        self.session: GroupSession | None = None
        if config.group_id is not None:
            self.session = GroupSession(config, cluster, self, self.positions.refusals)
        self.topics = TopicWatch(self)
        self.exchange = Exchange(config, cluster)
        self.commits = Commits(self)
        self.exchange.answers = AnswerHandlers(self)
        self._callbacks: dict[object, Callable[[KohortError | None], None]] = {}
        self._timer: Timer | None = None
        self._pump_posted = False
        self.closed = False
        """Shut: no connection is open, nothing is under way."""
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

    # -- on the network thread: calls ------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Read what the group assigns of these topics."""
        self.topics.watch()
        assert self.session is not None, "subscribing needs a group"
        matched = self.topics.matched = self.topics.match()
        if subscription.remote is not None:
            self.session.subscribe_pattern(subscription.remote.pattern)
        elif subscription.pattern is None or matched or self._is_subscribed():
            self.session.subscribe(matched)  # to nothing: what an earlier one matched is given up

    def _is_subscribed(self) -> bool:
        """Whether a member reads by an earlier subscription."""
        member = None if self.session is None else self.session.member
        return member is not None and member.subscription is not None

    def assign(self) -> None:
        """Read the caller's own choice of partitions (positions are set by the caller)."""
        self.topics.watch()
        self._metadata_changed(self.cluster.metadata)

    def unsubscribe(self) -> None:
        """Stop reading; a member gives up its partitions and leaves."""
        self.topics.matched = frozenset()
        if self.session is not None:
            self.session.unsubscribe()
        self.topics.watch()

    def confirm(self, step: Step) -> None:
        """The caller has carried out this step of a rebalance."""
        if self.session is not None and not self.closed:
            if isinstance(step, RevokeStep):
                self.session.revoked(step.token)
            else:
                self.session.assigned(step.token)
                self.pump()

    def commit(self, job: CommitJob, on_done: Callable[[KohortError | None], None]) -> None:
        """Commit; `on_done` is called on the network thread."""
        self.commits.submit(job, on_done)
        self.pump()

    def query(self, query: Any, on_done: Callable[[KohortError | None], None]) -> None:
        """Look up offsets by time (OffsetQuery) or committed ones (CommittedQuery); completes the
        query."""
        self._callbacks[query] = on_done
        with self.lock:
            if isinstance(query, OffsetQuery):
                self.queries.submit(query)
                self.topics.look_up(tp.topic for tp in query.targets)
            else:
                self.committed.submit(query)
        self.topics.watch()
        self.pump()

    def shut(self, error: KohortError) -> None:
        """Everything under way ends with `error`; the connections are closed."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._abandon(error)
        self.cluster.close()
        self.notify()

    def _abandon(self, error: KohortError) -> None:
        with self.lock:
            requested = [*self.queries.abandon(error), *self.committed.abandon(error)]
        self.commits.abandon(error)
        for done in requested:
            self._complete(done.query, done.query.error)

    # -- on the network thread: what the session reports -----------------------------------------

    def failed(self, error: KohortError) -> None:
        """Every later poll raises this."""
        self.fatal = error
        self.inbox.attend()
        self.pump()

    def changed(self) -> None:
        """Something that the plans rest on has changed."""
        self.topics.watch()
        self.notify()
        if not self._pump_posted:
            self._pump_posted = True
            self.loop.call_soon(self.pump)

    def _metadata_changed(self, metadata: ClusterMetadata) -> None:
        self.topics.changed(metadata)
        self.pump()

    # -- on the network thread: planning ---------------------------------------------------------

    def pump(self) -> None:
        """Send everything that may go out now, and set the timer for the next deadline."""
        self._pump_posted = False
        if self.closed:
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
            commits = self.commits.plan(identity, now_ms, known)
            wall_ms = self.loop.wall_ms()
            questions = self.offset_fetcher.plan(
                leader_of, now_ms, wall_ms, coordinator_known=known
            )
            orders = self.planner.plan(leader_of, now_ms)
            queries = self.queries.next(leader_of, now_ms)
            committed = self.committed.next(now_ms, coordinator_known=known)
            wants_coordinator = not known and self._wants_coordinator()
            wants_metadata = self._wants_metadata()
            failed = bool(self.positions.denials or self.positions.counts[Phase.FAILED])
            report = self.positions.refusals.look(now_ms)
        self.commits.run(commits)
        for order in orders:
            self.exchange.fetch(order)
        self._ask(questions, queries, committed)
        if wants_metadata:
            self.cluster.refresh_soon()
        if wants_coordinator and session is not None:
            session.need_coordinator()
        if failed:
            self.inbox.attend()
        if report is not None:
            report.emit(warn, self.cluster.events)
        self._arm(now_ms)

    def _ask(
        self,
        questions: Iterable[Question],
        queries: Iterable[QuerySend | QueryDone],
        committed: Iterable[CommittedSend | CommittedDone],
    ) -> None:
        """Send what was planned to find out, and complete the queries that have ended."""
        exchange, session = self.exchange, self.session
        coordinator = None if session is None else session.coordinator
        asker = NO_MEMBER if session is None else session.asker
        kind: ConnectionKind = "group" if session is None else session.free_connection
        for question in questions:
            exchange.ask(question, coordinator, asker, kind)
        for query in queries:
            if isinstance(query, QuerySend):
                exchange.ask_offsets(query)
            else:
                self._complete(query.query, query.query.error)
        for one in committed:
            if not isinstance(one, CommittedSend):
                self._complete(one.query, one.query.error)
            elif coordinator is not None:
                exchange.ask_committed(one, coordinator, asker, kind)

    def _wants_coordinator(self) -> bool:
        queue = self.commits.queue
        if queue is None:
            return False
        if not queue.idle or self.committed.waiting:
            return True
        return self.positions.counts[Phase.AWAITING_OFFSET] > 0

    def _wants_metadata(self) -> bool:
        planner, fetcher, queries = self.planner, self.offset_fetcher, self.queries
        needed = planner.needs_metadata or fetcher.needs_metadata or queries.needs_metadata
        planner.needs_metadata = fetcher.needs_metadata = queries.needs_metadata = False
        return needed

    def _arm(self, now_ms: int) -> None:
        """One timer for the nearest deadline; what was due has been dealt with just now."""
        with self.lock:
            due = [
                self.planner.next_deadline(now_ms),
                self.offset_fetcher.next_deadline(now_ms),
                self.queries.next_deadline(now_ms),
                self.committed.next_deadline(now_ms),
            ]
            due += self.commits.deadlines(now_ms)
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
                self.inbox.lose()
                self.inbox.attend()
        self.pump()

    def _complete(self, query: object, error: KohortError | None) -> None:
        callback = self._callbacks.pop(query, None)
        if callback is not None:
            callback(error)
