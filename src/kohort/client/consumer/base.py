"""What both faces of a consumer share: set-up, and every call that never waits.

Rules:
- One call at a time: a second thread (or task) inside a call gets ConcurrentUseError at once; the
  same thread may call again from its listener (spec 4.9).
- Times that callers give are seconds (float); configuration is milliseconds, as Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kohort.client.cluster.measured import Observed
from kohort.client.cluster.waiting import CloseReport
from kohort.client.common import arguments as arguments
from kohort.client.common.config import CONSUMER_PROTOCOL, ConsumerConfig
from kohort.client.common.listener import RebalanceListener
from kohort.client.common.offset_reset import EARLIEST, LATEST
from kohort.client.common.types import ByPartition, GroupMetadata, OffsetAndMetadata, TopicPartition
from kohort.client.consumer.plan.commit_queue import NO_MEMBER
from kohort.client.consumer.plan.subscription import (
    SubscriptionPattern,
    Topics,
    by_partitions,
    by_topics,
)
from kohort.errors import ClosedError, ConcurrentUseError, ConfigError, KohortError, UsageError
from kohort.records import COLUMN_NAMES, Record

if TYPE_CHECKING:
    from kohort.client.cluster.network_thread import NetworkThread
    from kohort.client.consumer.health import ConsumerHealth
    from kohort.client.consumer.plan.positions import OffsetReset

DEFAULT_ARROW_ROWS = 65_536
INTERRUPTED = "closing was interrupted; the group assigns the partitions after the session timeout"
ENOUGH_ROWS = 8_192
ARROW_COLUMNS = COLUMN_NAMES
Offsets = ByPartition[OffsetAndMetadata | int]


class Gate:
    """Lets one thread (or task) in at a time, and the same one again.

    To come in and to say who did is one step: a Ctrl-C between the two would leave the gate shut.
    """

    __slots__ = ("_depth", "_inside", "_me")

    def __init__(self, me: Callable[[], object]) -> None:
        self._inside: dict[str, object] = {}
        self._depth = 0
        self._me = me

    def __enter__(self) -> None:
        me = self._me()
        if self._inside.setdefault("who", me) != me:
            raise ConcurrentUseError(
                "this consumer is in use by another thread or task; a consumer serves one at a "
                "time: give each its own, or hand records over by a queue. wakeup() is the one "
                "call that others may make"
            )
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._inside.clear()


def settled(
    config: ConsumerConfig | Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> ConsumerConfig:
    """One configuration of an object or a mapping and keywords, checked before anything starts."""
    config = ConsumerConfig.settled(config, keywords)
    if config.group_id is not None:
        from kohort.group.assignors import make_assignors  # only members need them

        make_assignors(config.partition_assignment_strategy)
    return config


class ConsumerBase(Observed):
    """The calls that never wait. Make a `Consumer` or an `AsyncConsumer`."""

    def __init__(
        self,
        config: ConsumerConfig,
        me: Callable[[], object],
        notify: Callable[[], None],
        network: NetworkThread | None = None,
    ) -> None:
        """`me` names the thread or task that calls; `notify`, from any thread, wakes it.

        `notify` must not refer to this object, or it would never be found to be dropped.
        """
        # What a consumer works with is imported with the first one, not with its class.
        from kohort.client.cluster.client import ClusterClient
        from kohort.client.cluster.finalizers import watch_over
        from kohort.client.cluster.network_thread import NetworkThread
        from kohort.client.consumer.calls import ConsumerCalls
        from kohort.client.consumer.core import ConsumerCore
        from kohort.client.consumer.finalizer import end_consumer
        from kohort.client.consumer.metrics import ConsumerMetrics

        self.config = config
        self._notify = notify
        self._gate = Gate(me)
        self._network = NetworkThread.shared() if network is None else network
        try:
            self._cluster = ClusterClient(
                self._network.loop,
                config,
                auto_create_topics=config.allow_auto_create_topics,
                uniform=self._network.uniform,
            )
            self._core = ConsumerCore(config, self._cluster, notify)
            self._calls = ConsumerCalls(self._core, self._network)
            self._metrics = ConsumerMetrics(self._core)
        except BaseException:  # nothing may keep the thread alive
            self._network.release()
            raise
        self._closed_before = CloseReport(True, True, ())
        """What another `close` reports."""
        self._released = False
        self._watched: Callable[[], object] | None = None
        if network is None:
            self._watched = watch_over(self, self._network, end_consumer(self._core)).detach

    # -- what is read ----------------------------------------------------------------------------

    def _subscribe(
        self, topics: Topics, listener: RebalanceListener | None, *, awaits: bool = False
    ) -> None:
        self._calls.check()
        arguments.listener(listener, awaits=awaits)
        if self.config.group_id is None:
            raise ConfigError(
                "subscribe() needs a group_id, because the group decides who reads what; give "
                "one, or choose partitions with assign()"
            )
        if (
            isinstance(topics, SubscriptionPattern)
            and self.config.group_protocol != CONSUMER_PROTOCOL
        ):
            raise UsageError(
                "a SubscriptionPattern is matched by the broker and needs group_protocol=consumer; "
                "with classic, subscribe by re.compile(...)"
            )
        core = self._core
        core.subscription = by_topics(topics, core.subscription)
        self._calls.listener = listener or RebalanceListener()
        core.post(core.subscribe, core.subscription)

    def _assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        self._calls.check()
        core = self._core
        chosen = by_partitions(arguments.partitions(partitions, "assign"), core.subscription)
        core.reader.acknowledge(core.loop.now_ms())
        gone = [tp for tp in core.positions.partitions if tp not in chosen.partitions]
        if gone and core.commits.queue is not None and self.config.enable_auto_commit:
            with core.lock:
                left = {tp: o for tp, o in core.commits.acknowledged().items() if tp in gone}
            if left:
                self._calls.submit(left, self.config.default_api_timeout_ms)
        with core.lock:
            core.positions.remove(gone)
        core.subscription = chosen
        core.topics.take_over(sorted(chosen.partitions))
        core.post(core.assign)

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads at present."""
        with self._core.lock:
            return frozenset(self._core.positions.partitions)

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to by name; for a pattern, those that match at present.

        What a `SubscriptionPattern` matches only the broker knows: the topics assigned at present.
        """
        core = self._core
        if core.subscription.remote is not None:
            return frozenset(tp.topic for tp in self.assignment())
        if core.subscription.pattern is not None:
            return core.topics.matched
        return core.subscription.topics

    # -- positions -------------------------------------------------------------------------------

    def seek(
        self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata
    ) -> None:
        """Continue at `offset`. Affects this consumer only; it commits nothing.

        Raises UsageError when the partition is not assigned or the offset is negative.
        """
        with self._gate:
            self._calls.check()
            core, tp = self._core, arguments.partition(partition, "seek")
            place = arguments.offset(offset, tp, "seek")
            with core.lock:
                now_ms = core.loop.now_ms()
                core.positions.seek(tp, place.offset, place.leader_epoch, now_ms)
            core.kick()

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the first available record; all assigned partitions when none is named."""
        self._seek_reset(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue after the last record; all assigned partitions when none is named."""
        self._seek_reset(partitions, LATEST)

    def _seek_reset(self, named: Collection[TopicPartition | tuple[str, int]], to: int) -> None:
        with self._gate:
            self._calls.check()
            core = self._core
            chosen = arguments.partitions(
                named, "seek_to_end" if to == LATEST else "seek_to_beginning"
            )
            with core.lock:
                tps = chosen or list(core.positions.partitions)
                for position in [core.positions.get(tp) for tp in tps]:
                    core.positions.seek_reset(position.tp, to, core.loop.now_ms())
            core.kick()

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Hand out nothing of these until `resume`. What has been fetched is kept."""
        with self._gate:
            self._calls.check()
            chosen = arguments.partitions(partitions, "pause")
            with self._core.lock:
                self._core.positions.pause(chosen)

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Undo `pause`."""
        with self._gate:
            self._calls.check()
            core, chosen = self._core, arguments.partitions(partitions, "resume")
            with core.lock:
                for position in core.positions.resume(chosen):
                    core.reader.queue(position)
            core.kick()

    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions among the assigned ones."""
        with self._core.lock:
            return frozenset(p.tp for p in self._core.positions if p.paused)

    def limit(self, partition: TopicPartition | tuple[str, int], end_offset: int | None) -> None:
        """Read this partition only below `end_offset` (None: without a bound).

        Nothing at or beyond the bound is fetched. Setting another one reads on from the position.
        A poll that comes to the bound by transaction markers alone returns at once, empty.
        """
        with self._gate:
            self._calls.check()
            core, tp = self._core, arguments.partition(partition, "limit")
            end = end_offset
            if end is not None:
                end = arguments.whole_number(end, f"limit(): the end of {tp}")
            with core.lock:
                core.positions.bound(tp, end)
            core.kick()

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next record of each assigned partition, where known. Never waits.

        An error that stops a partition does not change where it is.
        """
        with self._core.lock:
            return {p.tp: p.offset for p in self._core.positions if p.handed_out}

    def current_lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """Records between the position and the partition's end, as of the last fetch; or None."""
        tp = arguments.partition(partition, "current_lag")
        with self._core.lock:
            position = self._core.positions.get(tp)
            return position.lag(committed_only=self.config.isolation_level == "read_committed")

    def resets(self) -> list[OffsetReset]:
        """Every reset of a position that was not requested, with its cause (the last thousand)."""
        with self._core.lock:
            return list(self._core.positions.resets)

    def health(self) -> ConsumerHealth:
        """The state and lag of every partition, and why it is not moving.

        Costs no request; may be asked from any thread. `str()` of it is for people.
        """
        from kohort.client.consumer.health_snapshot import health_of

        return health_of(self._core)

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group, for transactions (KIP-447).

        One that its group has left behind is who it was last, until it has joined again: what it
        commits is refused then.
        """
        if self.config.group_id is None:
            raise ConfigError("this consumer has no group_id")
        session, instance_id = self._core.session, self.config.group_instance_id
        who = NO_MEMBER if session is None else session.last_identity
        return GroupMetadata(self.config.group_id, who.generation, who.member_id, instance_id)

    @property
    def rebalance_pending(self) -> bool:
        """True while a rebalance waits for the next `poll`."""
        return bool(self._core.inbox.steps)

    # -- any thread ------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End the present (or else the next) waiting call with WakeupError.

        The one call that any thread and any signal handler may make.
        """
        self._calls.woken = True
        self._core.inbox.attention = True
        self._notify()

    def nudge(self) -> None:
        """Let the present (or else the next) `poll` return at once with what there is. Any thread.

        For a thread that polls and also has other things to attend to; unlike `wakeup` no error.
        """
        self._calls.nudged = True
        self._notify()

    # -- inside ----------------------------------------------------------------------------------

    def _offsets(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit without offsets covers: all that has been handed out."""
        self._calls.check()
        if self.config.group_id is None:
            raise ConfigError("this consumer has no group_id; give it one to commit offsets")
        if offsets is None:
            with self._core.lock:
                return {
                    p.tp: OffsetAndMetadata(p.offset, "", p.offset_epoch)
                    for p in self._core.positions
                    if p.handed_out
                }
        return arguments.offsets(offsets, "commit")

    def _commit_async(
        self,
        offsets: Offsets | None,
        callback: Callable[..., Any] | None,
        *,
        awaits: bool = False,
    ) -> None:
        chosen, core = self._offsets(offsets), self._core
        arguments.callback(callback, "commit_async")
        if callback is not None:
            arguments.not_awaited(callback, "the callback of commit_async()", awaits=awaits)
        job = core.commits.job(chosen, self.config.default_api_timeout_ms)

        def on_committed(error: KohortError | None) -> None:
            if callback is not None:
                core.inbox.call_back(callback, chosen, error)
            elif error is not None:
                from kohort.client.consumer.setup import warn  # loads the planner

                warn(f"asynchronous commit failed: {error}")

        core.post(core.commit, job, on_committed)
        self._calls.expect(job)

    def _most(self, requested: int | None, default: int) -> int:
        if requested is None:
            return default
        return arguments.whole_number(requested, "the most records of a poll", 1)

    def _time_ms(self, timeout: float | None, call: str) -> int:
        if timeout is None:
            return self.config.default_api_timeout_ms
        return round(arguments.seconds(timeout, call) * 1_000)

    def _times(self, times: ByPartition[int]) -> dict[TopicPartition, int]:
        call = "offsets_for_times"
        return {
            tp: arguments.whole_number(at, f"{call}(): the time of {tp} in ms", -(1 << 63))
            for tp, at in arguments.by_partition(times, call, "times in ms")
        }

    def _take_records(self, most: int) -> Callable[[], list[Record]]:
        take = self._core.reader.take
        return lambda: take(most)

    def _take_batch(self, max_rows: int, columns: Collection[str]) -> Callable[[], Any]:
        from kohort.client.consumer.arrow import checked, record_batch, require_pyarrow

        require_pyarrow("poll_arrow()")  # before any row is taken
        names = checked(columns)
        reader, max_bytes = self._core.reader, self._core.planner.limits.part_bytes(1)
        enough = min(max_rows, ENOUGH_ROWS)

        def take() -> Any:
            pieces = reader.take_columns(max_rows, enough, names, max_bytes)
            return record_batch(pieces, names) if pieces else None

        return take

    def _empty_batch(self, columns: Collection[str]) -> Any:
        from kohort.client.consumer.arrow import checked, empty_batch

        return empty_batch(checked(columns))

    def _closed_already(self) -> CloseReport | None:
        """The report of a close that has nothing (more) to do; None when there is something."""
        calls = self._calls
        if not calls.closed and self._core.loop.forked:
            calls.closed = True
            self._unwatch()
            return CloseReport(False, False, ("made in another process: nothing was done",))
        return self._closed_before if calls.closed else None

    def _release(self) -> None:
        """End what an interrupted close has left, and let the network thread go.

        The consumer's member would otherwise keep its partitions for as long as another client
        keeps the network thread.
        """
        calls, core = self._calls, self._core
        if not calls.closed:
            calls.closed = True
            self._closed_before = CloseReport(False, False, (INTERRUPTED,))
        if not core.closed:
            core.post(core.shut, ClosedError(INTERRUPTED))
        self._unwatch()
        released, self._released = self._released, True
        if not released:  # a signal handler may close a consumer that is being closed
            self._network.release()

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._watched()

    def _partitions(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], call: str
    ) -> list[TopicPartition]:
        self._calls.check()
        return arguments.partitions(partitions, call)
