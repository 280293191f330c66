"""What both faces of the producer share: the lock, the batches, and the network side.

Rules:
- One lock guards everything that users' threads and the network thread share: routes, accumulator,
  sender. Batches are built, and futures completed, outside of it.
- Records are refused with something to wait for, never by blocking here: the faces wait.
- One `_drain` is posted at a time, however many records ask for it.

Shell: threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kohort.client.cluster.client import ANY, ClusterClient, Versioned
from kohort.client.cluster.credentials import Credentials
from kohort.client.cluster.metadata import TOPIC_IDLE_MS, ClusterMetadata
from kohort.client.cluster.network_thread import NetworkThread, warner
from kohort.client.common import arguments as arguments
from kohort.client.common.config import ProducerConfig
from kohort.client.common.future import Future
from kohort.client.producer.flushes import Flushes, UnseenFailures
from kohort.client.producer.outgoing import Outgoing
from kohort.client.producer.plan.accumulator import Accumulator, Add, Batch, PartitionQueue
from kohort.client.producer.plan.fast_send_choice import Guard, RecordFuture, for_key
from kohort.client.producer.plan.partitioner import Sticky, checked
from kohort.client.producer.plan.produce_requests import (
    answers_in,
    leader_hints,
    nodes_in,
    produce_request,
)
from kohort.client.producer.plan.sender import (
    IdState,
    Outcome,
    ProducePlan,
    Sender,
    topic_recreated,
)
from kohort.client.producer.topic_route import FATAL_TOPIC_ERRORS, Route, cure
from kohort.errors import (
    AuthenticationError,
    BrokerError,
    ClosedError,
    KafkaTimeoutError,
    KohortError,
    ProtocolError,
    UsageError,
    fresh,
)
from kohort.metrics.events import BatchFailed, BatchRetried, BatchStored, CallDone, ProduceSent
from kohort.net import Timer
from kohort.wire import Message
from kohort.wire.messages.init_producer_id_request import InitProducerIdRequest
from kohort.wire.messages.init_producer_id_response import InitProducerIdResponse
from kohort.wire.messages.produce_request import ProduceRequest
from kohort.wire.messages.produce_response import ProduceResponse

if TYPE_CHECKING:  # most producers have no transactions
    from kohort.client.producer.plan.transaction_manager import Settled
    from kohort.client.producer.transactions_shell import Transactional

_cores: set[ProducerCore] = set()  # not a WeakSet, where a Ctrl-C can get lost


def _forget_after_fork() -> None:
    for core in list(_cores):
        # No batch is open in the child, so that every `send` comes to `add` and its check.
        core.lock.reset()
        core.routes.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def forget_ended() -> None:
    """Let go of producers whose network thread has ended: a simulated process that is killed closes
    nothing, and each of its producers would keep the whole world."""
    for core in list(_cores):
        if not core.thread.alive:
            _cores.discard(core)


class ProducerCore:
    """A producer without a face. `add` and `fill` are for users' threads."""

    def __init__(self, config: ProducerConfig) -> None:
        self.config = config
        self.lock = Guard()
        self.routes: dict[str, Route] = {}
        self.closed = False
        self._released = False
        self._topic_errors: dict[str, int] = {}
        self._topics: frozenset[str] = frozenset()
        self._last_used: dict[str, tuple[int, int]] = {}
        """By topic: how many batches its queues had seen, and when that changed last."""
        self._topic_ids: dict[str, bytes] = {}
        """The ids that topics had last, also while the metadata lacks them."""
        self._accumulator = Accumulator(config)
        custom = config.partitioner
        self.custom = None if isinstance(custom, str) else custom
        self.chooses = self.custom is not None or config.partitioner_ignore_keys
        """True when the key alone does not say the partition."""
        self._room: list[Future[None]] = []
        self._news: list[Future[None]] = []
        self.failures = UnseenFailures(self.lock)
        self.flushes = Flushes(self.lock, self._accumulator, self._wake, self._check_may_flush)
        self._drain_posted = False
        self._timer: Timer | None = None
        credentials = Credentials(config)  # refuses first what would leave the thread behind
        self.thread = NetworkThread.shared()
        self._loop = self.thread.loop
        self.now_ms, self.wall_ms = self._loop.now_ms, self._loop.wall_ms
        self._sender = Sender(self._accumulator, config, self.thread.uniform)
        self._cluster = ClusterClient(
            self._loop,
            config,
            auto_create_topics=True,
            uniform=self.thread.uniform,
            credentials=credentials,
        )
        self._cluster.refused = self._refused
        self.events = self._cluster.events
        self._cluster.warn = warner("producer")
        self._cluster.add_listener(self._metadata_changed)
        self.transactional: Transactional | None = None
        if config.transactional_id is not None:
            from kohort.client.producer.transactions_shell import Transactional

            self.transactional = Transactional(
                config, self._cluster, self.lock, self._sender, self._wake
            )
        self._outgoing = Outgoing(
            self._loop,
            self._accumulator,
            self.thread.compression_pool,
            self._send,
            transactional=self.transactional is not None,
        )
        _cores.add(self)

    # -- users' threads

    def add(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Any,
    ) -> RecordFuture | Future[None]:
        """Add a record: its future, or what to wait for before the next try."""
        self.thread.check()
        arguments.record(topic, value, key, partition, timestamp_ms, headers)
        if timestamp_ms is None:
            timestamp_ms = self.wall_ms()
        with self.lock:
            route = self.routes.get(topic)
            if route is None:
                return self._wait_for_topic(topic)
            if partition is None:
                partition = self.choose(topic, key, len(route.slots))
            when_ms = timestamp_ms
            added = self._add_slowly(
                route, topic, partition, lambda b: b.append(when_ms, key, value, headers) + 1
            )
            if isinstance(added, Future):
                return added
            return RecordFuture(added[0].delivery, added[1] - 1, timestamp_ms)

    def fill(
        self, topic: str, partition: int | None, add: Add, timestamp_ms: int
    ) -> tuple[RecordFuture, int] | Future[None]:
        """Let `add` fill one batch: the future of its last record and how many fitted.

        Filling may take as long as sending: it is done without the lock, with a batch on lease.
        """
        self.thread.check()
        while True:
            route: Route | None = None
            batch: Batch | None = None
            count = 0
            try:
                with self.lock:
                    route = self.routes.get(topic)
                    if route is None:
                        return self._wait_for_topic(topic)
                    queue = self._queue(route, topic, partition)
                    self._check_may_write()
                    before = queue.open
                    batch = self._accumulator.lease(queue, self._loop.now_ms())
                    if queue.open is not before:
                        self._wake()
                    if batch is None:
                        return self._wait_for_room()
                builder = batch.builder
                assert builder is not None
                count = add(builder)
                last = RecordFuture(batch.delivery, len(builder) - 1, timestamp_ms)
            finally:
                if batch is not None:  # also when Ctrl-C comes here
                    self._give_back(route, batch, count)
            if count:
                return last, count

    def _give_back(self, route: Route | None, batch: Batch, count: int) -> None:
        """A batch on lease comes back with so many more records."""
        queue = batch.queue
        with self.lock:
            size = 0 if batch.builder is None else batch.builder.size
            was_open = queue.open is batch
            there = self._accumulator.give_back(batch, count)
            if queue.open is not batch:
                if was_open and there and route is not None:
                    route.move_on(queue.partition)
                self._wake()
        if not there:
            batch.delivery.complete(None)  # for a flush that saw it
            self._accumulator.check_size(size, queue)

    def partition_count(self, topic: str) -> int | Future[None]:
        """How many partitions a topic has, or what to wait for before the next try."""
        with self.lock:
            route = self.routes.get(topic)
            return self._wait_for_topic(topic) if route is None else len(route.slots)

    def choose(self, topic: str, key: Any, count: int) -> int | None:
        """The partition of a key of a topic with `count` of them; None leaves it to the batches."""
        if self.custom is not None:
            return self.custom(topic, key, count)
        return None if key is None or self.config.partitioner_ignore_keys else for_key(key, count)

    def _queue(self, route: Route, topic: str, partition: int | None) -> PartitionQueue:
        queues: list[PartitionQueue] = route.slots
        sticky = partition is None
        return queues[route.sticky if sticky else checked(topic, partition, len(queues))]

    def _add_slowly(
        self, route: Route, topic: str, partition: int | None, add: Add
    ) -> tuple[Batch, int] | Future[None]:
        """Add when perhaps a new batch must be opened; or what to wait for."""
        self._check_may_write()
        queue = self._queue(route, topic, partition)
        if partition is None and queue.open is not None:
            added = self._accumulator.add_to_open(queue, add)
            if added is not None:
                return added
            # It goes with those that come after it (KIP-794): behind the full batch it would travel
            # alone.
            route.move_on(queue.partition)
            self._wake()
            queue = self._queue(route, topic, None)
        before = queue.open
        added = self._accumulator.add(queue, add, self._loop.now_ms())
        if queue.open is not before:
            if before is not None and partition is not None:
                route.move_on(queue.partition)
            self._wake()
        return self._wait_for_room() if added is None else added

    def _wait_for_room(self) -> Future[None]:
        room: Future[None] = Future()
        self._room.append(room)
        self._wake()
        return room

    def _wait_for_topic(self, topic: str) -> Future[None]:
        self._check_alive()
        code = self._topic_errors.get(topic, 0)
        if code in FATAL_TOPIC_ERRORS:
            raise BrokerError(code, f"topic {topic!r} cannot be produced to{cure(code)}")
        news: Future[None] = Future()
        self._news.append(news)
        if topic not in self._topics:
            self._topics |= {topic}
            self._loop.call_soon_threadsafe(self._watch_topics)
        return news

    def _check_may_write(self) -> None:
        self._check_alive()
        if self.transactional is not None:
            self.transactional.check_may_write()

    def _check_alive(self) -> None:
        if self.closed:
            raise ClosedError("this producer was closed; make a new one")
        if self._cluster.refusal is not None:
            raise fresh(self._cluster.refusal)

    @property
    def give_way_s(self) -> float:
        """How long a thread of a user's that has begun a batch had better sleep, in seconds."""
        return 0.0 if self._loop.on_loop_thread else self._accumulator.give_way_s

    def check_may_wait(self) -> None:
        """Raise UsageError on the network thread, which would wait for itself."""
        if self._loop.on_loop_thread:
            raise UsageError(
                "this call would have to wait, and it is made on the network thread (from a done "
                "callback); hand the work to a thread of your own"
            )

    def _check_may_flush(self) -> None:
        self.thread.check()
        self.check_may_wait()

    def blocked_error(self, topic: str) -> KohortError:
        """Why `max_block_ms` ran out."""
        with self.lock:
            if topic not in self.routes:
                self._topics -= {topic}  # no caller waits for it any more
                self._loop.call_soon_threadsafe(self._watch_topics)
        waited = f"within max_block_ms={self.config.max_block_ms}"
        if topic in self.routes:
            return KafkaTimeoutError(
                f"no room for a record of {topic!r} {waited}: buffer_memory="
                f"{self.config.buffer_memory} bytes are full; the brokers take records more slowly "
                f"than they are sent"
            )
        code = self._topic_errors.get(topic, 0)
        if code:
            return BrokerError(
                code, f"topic {topic!r} has no metadata {waited}; does it exist? create it first"
            )
        cause = self._cluster.metadata_error
        return KafkaTimeoutError(
            f"no metadata for topic {topic!r} {waited}; is a broker reachable at "
            f"{','.join(self.config.bootstrap_servers)}?"
            + (f" Last error: {cause}" if cause is not None else "")
        )

    def now_s(self) -> float:
        """Seconds on the clock of `now_ms`; for deadlines."""
        return self.now_ms() / 1_000

    def called(self, call: str, begun_ms: int) -> None:
        """A call that waits has ended, well or not."""
        self.events.emit(CallDone(call, self.now_ms() - begun_ms))

    def usage(self) -> tuple[int, int, int, int]:
        """Bytes there are for records, bytes free, requests in flight, callers that wait."""
        with self.lock:
            total = self.config.buffer_memory
            free = max(0, total - self._accumulator.memory_bytes)
            return total, free, self._sender.in_flight, len(self._room)

    def _wake(self) -> None:
        """Post a drain; the lock is held."""
        if not self._drain_posted:
            self._drain_posted = True
            self._loop.call_soon_threadsafe(self._drain)

    # -- the network thread

    def _refused(self, error: AuthenticationError) -> None:
        """A login was refused: nothing will be stored any more."""
        with self.lock:
            outcomes = self._sender.drop_unsent(error)
            waiting = self._room + self._news
            self._room, self._news = [], []
        self._complete(outcomes)
        for future in waiting:
            future.set_result(None)

    def _watch_topics(self) -> None:
        self._cluster.watch_topics(self._topics)

    def _metadata_changed(self, metadata: ClusterMetadata) -> None:
        with self.lock:
            idle = self._forget_idle_topics()
            self._topic_errors = dict(metadata.errors)
            for name, topic in metadata.topics.items():
                if name not in self._topics:
                    continue  # given up meanwhile: the next answer does not name its leaders
                if self._topic_ids.get(name, topic.topic_id) != topic.topic_id:
                    topic_recreated(self._accumulator.queues.values(), name)
                self._topic_ids[name] = topic.topic_id
                count = max(topic.partitions, default=-1) + 1
                available = [
                    p for p in sorted(topic.partitions) if metadata.leader(name, p) >= 0
                ] or sorted(topic.partitions)
                route = self.routes.get(name)
                if route is None or len(route.slots) != count:
                    queues = [self._accumulator.queue(name, p) for p in range(count)]
                    if available:
                        self.routes[name] = Route(
                            queues,
                            Sticky(available, self.thread.uniform),
                            self.config.partitioner_adaptive_partitioning_enable,
                            self._accumulator.ready,
                        )
                else:
                    route.offer(available)
            news, self._news = self._news, []
        for future in news:
            future.set_result(None)
        if idle:
            self._watch_topics()
        self._drain()

    def _forget_idle_topics(self) -> bool:
        """Ask no more for topics that nothing was sent to for a while (KIP-526); True if any were.

        Else a topic that somebody deletes is created again as long as this producer lives. The
        queues stay: they know the sequences. The lock is held.
        """
        now_ms, idle = self._loop.now_ms(), list[str]()
        for name, route in self.routes.items():
            queues: list[PartitionQueue] = route.slots
            batches = sum(queue.ordinals for queue in queues)
            known, since_ms = self._last_used.get(name, (-1, now_ms))
            if batches != known or any(queue.busy for queue in queues):
                self._last_used[name] = (batches, now_ms)
            elif now_ms - since_ms >= TOPIC_IDLE_MS:
                idle.append(name)
        for name in idle:
            del self.routes[name], self._last_used[name]
        self._topics -= set(idle)
        return bool(idle)

    def _drain(self) -> None:
        """Send ready batches, give up overdue ones, and compute the next wake-up."""
        now_ms = self._loop.now_ms()
        plans: list[ProducePlan] = []
        expired: list[Outcome] = []
        try:
            with self.lock:
                self._drain_posted = False
                expired += self._sender.expire(now_ms)
                if self.transactional is not None:
                    expired += self.transactional.drop_unsent()
                leader, flushes = self._cluster.metadata.leader, self.flushes.under_way > 0
                planned, closed = self._sender.drain(now_ms, leader, everything=flushes)
                plans += planned
                for queue in closed:
                    self.routes[queue.topic].move_on(queue.partition)
                if plans and self.transactional is not None:
                    self.transactional.sent()
                wants_id = self._sender.id_state is IdState.WANTED and bool(self._accumulator.ready)
                if wants_id:
                    self._sender.id_state = IdState.ASKED
                leader_missing = self._sender.leader_missing
                report = self._sender.refusals.look(now_ms)
                deadlines = (self._accumulator.next_linger_ms(), self._sender.next_deadline())
        finally:  # even after an error: these are in no queue any more
            if plans:
                self._outgoing.add(plans)
            if expired:
                self._complete(expired)
        if wants_id:
            self._ask_producer_id()
        if self.transactional is not None:
            self.transactional.pump()
        if leader_missing:
            self._cluster.refresh_soon()
        if report is not None:
            report.emit(warner("producer"), self.events)
        self._arm(min((d for d in deadlines if d is not None), default=None))

    def _arm(self, deadline_ms: int | None) -> None:
        if self._timer is not None:
            if self._timer.active and self._timer.when_ms == deadline_ms:
                return
            self._timer.cancel()
        self._timer = None
        if deadline_ms is not None and not self._cluster.is_closed:
            self._timer = self._loop.call_at(deadline_ms, self._drain)

    def _send(self, plan: ProducePlan, error: KohortError | None) -> None:
        """The turn of a request has come; with `error` it cannot be built."""
        if error is not None:
            self._loop.call_soon(self._answered, plan, error, {})
            return
        tx = self.transactional
        sent: dict[bytes, str] = {}  # the request's topics by their ids
        self._cluster.request(
            plan.node_id,
            Versioned(
                ProduceRequest,
                lambda _: self._leaving(plan, sent),
                at_most=tx and tx.produce_at_most,
            ),
            lambda answer: self._answered(plan, answer, sent),
            timeout_ms=self._wait_ms(plan),
            kind="produce",
            answered=int(self.config.acks) != 0,
        )

    def _leaving(self, plan: ProducePlan, sent: dict[bytes, str]) -> ProduceRequest | None:
        """The request as it leaves, which may be long after its turn: a connection may have to be
        opened first. None: by now all of its batches wait behind others of their partitions.
        """
        now_ms = self._loop.now_ms()
        with self.lock:
            if self._sender.hold_back(plan, now_ms):
                self._wake()
        if not plan.batches:
            return None
        tx = self.transactional
        fresh = tuple(now_ms - b.created_ms for b in plan.batches if b.attempts == 1)
        records = sum(batch.count for batch in plan.batches)
        self.events.emit(ProduceSent(plan.node_id, records, fresh))
        request = produce_request(
            plan.batches,
            self._topic_ids,
            int(self.config.acks),
            self._wait_ms(plan),
            tx and tx.transactional_id,
        )
        sent.update((data.topic_id, data.name) for data in request.topic_data)
        return request

    def _wait_ms(self, plan: ProducePlan) -> int:
        """How long its answer may take."""
        return max(1, min(self.config.request_timeout_ms, plan.deadline_ms - self._loop.now_ms()))

    def _answered(
        self, plan: ProducePlan, answer: Message | KohortError, sent: Mapping[bytes, str]
    ) -> None:
        now_ms = self._loop.now_ms()
        with self.lock:
            if isinstance(answer, ProduceResponse):
                answers = answers_in(answer, plan.batches, sent)
                outcomes = self._sender.answered(plan, answers, now_ms)
                troubled = any(a is None or a.code for a in answers)
            elif isinstance(answer, KohortError):
                outcomes = self._sender.failed(plan, answer, now_ms)
                troubled = not isinstance(answer, ClosedError | ProtocolError)
            else:
                outcomes = self._sender.unanswered(plan)
                troubled = False
        if isinstance(answer, ProduceResponse) and troubled:
            nodes = nodes_in(answer)
            for topic, partition, leader, epoch in leader_hints(answer, sent):
                self._cluster.leader_hint(topic, partition, leader, epoch, nodes)
        if troubled:
            self._cluster.refresh_soon()
            ended = {outcome.batch for outcome in outcomes}
            for batch in (each for each in plan.batches if each not in ended):
                name, number = batch.queue.topic, batch.queue.partition
                self.events.emit(BatchRetried(name, number, batch.count, batch.error))
        self._complete(outcomes)
        self._drain()

    def _complete(self, outcomes: list[Outcome]) -> None:
        """Give memory back, settle the futures, wake who waits for room."""
        room: list[Future[None]] = []
        settled: list[Settled] = []
        events = [_event_of(outcome) for outcome in outcomes]
        with self.lock:
            for outcome in outcomes:
                self._accumulator.release(outcome.batch)
                if outcome.error is not None:
                    self.failures.add(outcome.batch, outcome.error)
                    if self.transactional is not None:
                        settled += self.transactional.failed(outcome.error)
            if self._room and not self._accumulator.full:
                room, self._room = self._room, []
        for event in events:
            self.events.emit(event)
        for batch, error, base_offset, append_time_ms in outcomes:
            batch.delivery.complete(error, base_offset, append_time_ms)
        for future in room:
            future.set_result(None)
        if settled:
            from kohort.client.producer.transactions_shell import settle

            settle(settled)

    def _ask_producer_id(self) -> None:
        self._cluster.request(
            ANY,
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000),
            self._producer_id_answered,
        )

    def _producer_id_answered(self, answer: Message | KohortError) -> None:
        code = answer.error_code if isinstance(answer, InitProducerIdResponse) else 0
        with self.lock:
            if isinstance(answer, InitProducerIdResponse) and not code:
                self._sender.producer_id_assigned(answer.producer_id, answer.producer_epoch)
            else:
                self._sender.producer_id_missing(code, self._loop.now_ms())
        if self._sender.id_state is IdState.HELD:
            self._drain()
            return
        error = answer if isinstance(answer, KohortError) else None
        if code:
            what = "asking for a producer id, which takes the right to write to some topic"
            error = BrokerError(code, f"{what} (or enable_idempotence=False)")
        if error is None or error.retriable:
            wait_ms = self.config.retry_backoff_ms
            self._loop.call_at(self._loop.now_ms() + wait_ms, self._drain)
        elif not isinstance(error, ClosedError):
            with self.lock:
                outcomes = self._sender.abort(error)
            self._complete(outcomes)

    def shut_down(self) -> None:
        """On the network thread: give up what is left, close the connections, wake everybody."""
        error = ClosedError("the producer was closed before this record was stored")
        with self.lock:
            self.closed = True
            outcomes = self._sender.abort(error)
            waiting = self._room + self._news
            self._room, self._news = [], []
        if self.transactional is not None:
            self.transactional.close(ClosedError("the producer was closed"))
        self._cluster.close()
        _cores.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._complete(outcomes)
        for future in waiting:
            future.set_result(None)

    def release_thread(self) -> None:
        """Let the network thread go, once: two threads or tasks may close one producer."""
        with self.lock:
            released, self._released = self._released, True
        if not released:
            self.thread.release()


def _event_of(outcome: Outcome) -> BatchStored | BatchFailed:
    batch, queue = outcome.batch, outcome.batch.queue
    if outcome.error is not None:
        return BatchFailed(queue.topic, queue.partition, batch.count, outcome.error)
    return BatchStored(queue.topic, queue.partition, batch.count, len(batch.payload))
