"""The shell around the engine: one thread that polls, feeds workers, publishes and commits.

Rules (W1):
- One owner. Workers, the producer and the poller of retry topics put events into one queue and
  nudge the poll; no other thread touches the engine.
- Polling never stops while partitions are ours: what may not be read is paused or bounded instead.
- Revoked: begin nothing more, let what is in flight end within `drain_ms`, commit, then give up.
  Lost: drop everything, commit nothing.
- The end of the program is a revocation of everything, on purpose. Records in flight have
  `drain_ms` for it, once; a second request does not wait. An end by an error is a revocation, too,
  but waits for nothing in flight, and gets no second error.
- Intervals are counted by a steady clock. The engine gets the time of day, for what is
  due by timestamps, and is notified when that was set.

Shell: threads, the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple

from kohort.client.common.completion import driven, pause, steady_ms, wall_ms
from kohort.client.common.listener import RebalanceListener
from kohort.client.common.types import OffsetAndMetadata, TopicPartition
from kohort.client.consumer.consumer import Consumer
from kohort.client.consumer.plan.missing_topics import UNKNOWN_TOPIC_CODES
from kohort.errors import (
    BrokerError,
    ConnectionFailedError,
    ErrorCode,
    KafkaTimeoutError,
    KohortError,
)
from kohort.processing.engine.engine import Engine
from kohort.processing.engine.failures import FailedAttempt, FailureLog
from kohort.processing.engine.key_holds import Scanned
from kohort.processing.engine.partition_state import Route
from kohort.processing.engine.tracker import Commit
from kohort.processing.runtime.clock_steps import ClockSteps
from kohort.processing.runtime.publishing import Published, Publisher
from kohort.processing.runtime.report import Report
from kohort.processing.runtime.retry_topic_poller import Released, RetryTopicPoller
from kohort.processing.runtime.unreadable_batches import PastDamage
from kohort.processing.workers.worker_pools import QUEUED_PER_WORKER, Feed, Finished, Pool, Portions
from kohort.records import Record
from kohort.retry.classify import Failure

log = logging.getLogger("kohort.processing")

LONGEST_POLL_MS = 1_000
VIRTUAL_POLL_MS = 60_000
PAUSE_S = 0.5
LOOK_FOR_GAPS_MS = 100
LOOK_FOR_TROUBLE_MS = 1_000
LAST_WAIT_S = 0.5
"""For workers that have nothing to do, or are cancelled, to end."""


@dataclass(frozen=True)
class RetryEndsMoved:
    """From the poller of retry topics: they may be read up to here."""

    ends: Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class Resumed:
    """A stopped partition may continue."""

    key: tuple[str, int]


@dataclass(frozen=True)
class Paused:
    """The app is paused: no record is begun; or resumed."""

    on: bool


@dataclass(frozen=True)
class TakeEarly:
    """One record of a retry topic is to be tried now, or with `failure` to be dead-lettered."""

    record: Record
    failure: Failure | None
    answer: Callable[[str], object]
    """Called with the reason why that cannot be, or with ""."""


@dataclass(frozen=True)
class Joined:
    """Topics that match a pattern were created; their retry topics are there."""

    routes: Sequence[Route]
    failed: Mapping[str, tuple[str, int]]
    """Of each source topic: its dead-letter topic, and that topic's number of partitions."""


@dataclass(frozen=True)
class DrainSkipped:
    """The end does not wait for records in flight."""


class Start(NamedTuple):
    """Where a partition continues, and the snapshot beside it; None: nothing was done yet."""

    offset: int | None
    snapshot: str


@dataclass(frozen=True)
class Timing:
    """How the runner paces itself; all in milliseconds.

    Args:
        commit_interval_ms: how often finished work is committed.
        drain_ms: how long a partition that is taken away may keep its records in flight.
        progress_timeout_ms: end the program when workers hold records and none has been finished
            for longer; 0: never.
    """

    commit_interval_ms: int = 1_000
    drain_ms: int = 10_000
    progress_timeout_ms: int = 0


class StoppedError(KohortError):
    """The app was stopped before it was known where new partitions continue."""

    def __init__(self, partitions: Iterable[tuple[str, int]], why: object) -> None:
        names = ", ".join(f"{topic}-{number}" for topic, number in partitions)
        super().__init__(
            f"not taken over, since the app is being stopped ({why}): {names}; "
            "another member, or the next start, continues there"
        )


class StuckError(KohortError):
    """Workers hold records and have finished none of them for longer than allowed."""


@dataclass
class Runner(RebalanceListener):
    """Runs one engine until `stop`."""

    engine: Engine
    consumer: Consumer
    pools: Sequence[Pool]
    timing: Timing = field(default_factory=Timing)
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    now_ms: Callable[[], int] = wall_ms
    """The time of day for the engine."""
    steady_ms: Callable[[], int] = steady_ms
    """A steady clock, for what is done at intervals."""

    def __post_init__(self) -> None:
        self._inbox: SimpleQueue[object] = SimpleQueue()
        self.feeds = {p.name: Feed(p, Portions(p.workers)) for p in self.pools}
        self._publisher: Publisher | None = None
        self.retry_poller: RetryTopicPoller | None = None
        self._is_virtual = False
        """Time is virtual: it costs nothing to wait, and something to look in between."""
        self._epoch = 0
        self._committing = 0
        """So many commits have no answer yet."""
        self._commit_apart = False
        """One was refused for the sake of one topic: the next are made for each topic by itself."""
        self._steps = ClockSteps()
        # Of the steady clock, as is every other member named `..._due_ms`:
        self._commit_due_ms = self._gaps_due_ms = self.steady_ms()
        self._progress_ms = 0
        self._stopping = self._hurried = self._is_over = self._is_broken = False
        self.is_paused = False
        """By hand: no record is begun until `pause(on=False)`."""
        self.trouble = ""
        """The part of the cluster that is unavailable at present, as text."""
        self.on_trouble: Callable[[str], None] | None = None
        self.on_failure: Sequence[Callable[[FailedAttempt], object]] = ()
        """Called for every failed attempt, on this runner's thread."""
        self.failure_log = FailureLog()
        self._reported_trouble = ""
        self._past_damage = PastDamage(self.engine, self.consumer, self._time, self.steady_ms)
        self._trouble_due_ms = 0
        self.report = Report(self, self._unanswered, self._skew_ms)
        """What other threads may ask."""
        self.given_up = 0
        """Records that were still being worked on when the drain at the end was over."""
        self.uncommitted = 0
        """Partitions whose last commit, at the end, failed."""

    def _time(self) -> int:
        """The time of day, for the engine: it hears first when that was set."""
        steady_ms = self.steady_ms()
        now_ms = self.now_ms()
        if step_ms := self._steps.step_ms(now_ms, steady_ms):
            log.info("the clock was set by %+g s", step_ms / 1_000)
            self.engine.clock_stepped(step_ms)
        return now_ms

    def _unanswered(self) -> str:
        """Who has not answered this runner for too long, as text."""
        return ""

    def _skew_ms(self) -> int | None:
        return None if self._publisher is None else self._publisher.skew_ms

    # -- from other threads ------------------------------------------------------------------

    def post(self, event: object) -> None:
        """Send an event to the owner, such as `Finished` or `Published`. Any thread."""
        self._inbox.put(event)
        waits = isinstance(event, Finished) and self.feeds[event.pool].can_wait(
            event, self._inbox.qsize()
        )
        if not waits:
            self.consumer.nudge()

    def opened(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The poller of retry topics reports new ends."""
        self.post(RetryEndsMoved(ends))

    def stop(self, *, at_once: bool = False) -> None:
        """End the run soon, or without waiting for what is in flight. Any thread, and from a signal
        handler."""
        self._stopping = True
        if at_once:
            self._hurried = True
            self._inbox.put(DrainSkipped())
        self.consumer.nudge()

    def resume(self, key: tuple[str, int]) -> None:
        """Try the record again that stopped a partition. Any thread."""
        self.post(Resumed(key))

    def pause(self, *, on: bool) -> None:
        """Begin no more records, or continue. Any thread."""
        self.is_paused = on
        self.post(Paused(on))

    def retry_now(self) -> None:
        """Try at once what waits for its next try, here and in retry topics. Any thread."""
        if self.retry_poller is not None:
            self.retry_poller.release()
        self.post(Released({}))

    # -- the owner -----------------------------------------------------------------------------

    def run(self, publisher: Publisher, retry_poller: RetryTopicPoller | None) -> None:
        """Work until `stop`. Raises what ends a worker, and what only the user can mend."""
        try:
            self._run(publisher, retry_poller)
        finally:
            late = self._late_error()
            if late is not None and self._is_broken:  # the first error is the one to raise
                log.error("the end of the workers failed, too: %s", late, exc_info=late)
        if late is not None:
            raise late

    def _run(self, publisher: Publisher, retry_poller: RetryTopicPoller | None) -> None:
        self._publisher, self.retry_poller = publisher, retry_poller
        self._is_virtual = driven() is not None
        for pool in self.pools:
            pool.start(self.post)
        if retry_poller is not None:
            retry_poller.start()
        ending_ms: int | None = None
        self._progress_ms = self.steady_ms()
        self._trouble_due_ms = self._progress_ms + LOOK_FOR_TROUBLE_MS  # connecting is no trouble
        try:
            self.consumer.subscribe(self.engine.topics, self)
            while not self._stopping:
                self._turn()
            ending_ms = self.steady_ms()
            self._end()
        except Exception:  # any error: finished records are committed before it is raised
            self._is_broken = True
            with suppress(KohortError):  # the first error is the one to raise
                self._end()
            raise
        finally:
            self._is_over = True
            if retry_poller is not None:
                retry_poller.stop()
            for pool in self.pools:
                self._stop_pool(pool, ending_ms)

    def _stop_pool(self, pool: Pool, ending_ms: int | None) -> None:
        """Give the closing code of lifespans what is left of the drain."""
        left_s = LAST_WAIT_S
        if ending_ms is not None and not self._hurried:
            left_s = max(left_s, (ending_ms + self.timing.drain_ms - self.steady_ms()) / 1_000)
        if not pool.stop(left_s) and not self.given_up:  # of given up records it says so already
            log.warning("a worker of %s was still at work after %g s", pool.name, left_s)

    def _late_error(self) -> BaseException | None:
        """What a worker, or the closing code of a lifespan, has raised since the last turn."""
        while not self._inbox.empty():
            event = self._inbox.get()
            if isinstance(event, Finished) and event.error is not None:
                return event.error
        return None

    def _turn(self) -> None:
        """Once around: poll, take in, hand out, publish, commit."""
        now_ms = self._time()
        self.engine.tick(now_ms)
        self._feed(now_ms)
        self._publish()
        self._pause(now_ms)
        if self.retry_poller is not None:
            for retry_topic, start, epoch in self.engine.scans():
                self.retry_poller.scan(retry_topic, start, epoch)
            self.retry_poller.attend()
        records = self._past_damage.poll(self._wait_s(now_ms))
        now_ms, steady_ms = self._time(), self.steady_ms()
        if records:
            self._take_in(records, now_ms)
        self._handle_events(now_ms)
        if steady_ms >= self._gaps_due_ms:
            self._gaps_due_ms = steady_ms + LOOK_FOR_GAPS_MS
            self._see_gaps(now_ms)
        self._feed(now_ms)
        self._publish()
        if steady_ms >= self._commit_due_ms or self.engine.commit_urgent or self._is_virtual:
            self._commit()
        self._look_at_progress()
        if steady_ms >= self._trouble_due_ms:
            self._trouble_due_ms = steady_ms + LOOK_FOR_TROUBLE_MS
            self._report_trouble()

    def _report_trouble(self) -> None:
        """Say what is wrong outside when that changes."""
        text = "; ".join(self.report.troubles())
        if text != self._reported_trouble:
            self._reported_trouble = text
            if self.on_trouble is not None:
                self.on_trouble(text)

    def _wait_s(self, now_ms: int) -> float:
        if self._is_virtual:  # finished records are committed in each turn, so nothing is due later
            wait_ms = VIRTUAL_POLL_MS
        else:
            wait_ms = min(LONGEST_POLL_MS, self._commit_due_ms - self.steady_ms())
        if (due_ms := self.engine.next_deadline()) is not None:
            wait_ms = min(wait_ms, due_ms - now_ms)
        if self.retry_poller is not None and (look_ms := self.retry_poller.due_ms) is not None:
            wait_ms = min(wait_ms, look_ms - self.steady_ms())
        return max(0.0, wait_ms / 1_000)

    def _take_in(self, records: Sequence[Record], now_ms: int) -> None:
        """Give the engine what was read, partition by partition."""
        positions = self.consumer.positions()
        runs = _runs(records)
        last = {key: end for key, _, end in runs}
        for key, start, end in runs:
            next_fetch = records[end - 1].offset + 1
            if last[key] == end:  # the position is past the last that was handed out
                next_fetch = max(next_fetch, positions.get(TopicPartition(*key), 0))
            self.engine.polled(key, records[start:end], next_fetch, now_ms)

    def _see_gaps(self, now_ms: int) -> None:
        """Positions also pass what holds no records (markers, compaction): the commit follows."""
        positions = self.consumer.positions()
        for key, partition in self.engine.partitions.items():
            position = positions.get(TopicPartition(*key))
            if position is not None and position > partition.tracker.next_fetch:
                self.engine.polled(key, (), position, now_ms)
        if self.retry_poller is not None:
            self.retry_poller.moved(positions.items())

    def _handle_events(self, now_ms: int) -> None:
        """Handle all events from other threads."""
        while events := self._events():
            self._handle_some(events, now_ms)
        self._report_failures()

    def _handle_next_events(self, wait_ms: int) -> None:
        """Handle all events from other threads; wait for one where there is none."""
        if (clock := driven()) is not None:
            clock.run_until(lambda: not self._inbox.empty(), wait_ms / 1_000)
        else:
            with suppress(Empty):
                self._handle_some([self._inbox.get(timeout=wait_ms / 1_000)], self._time())
        self._handle_events(self._time())

    def _handle_some(self, events: Sequence[object], now_ms: int) -> None:
        if self._is_broken:
            events = [x for x in events if not (isinstance(x, Finished) and x.error is not None)]
        self._refill_workers(events, now_ms)
        for event in events:
            self._dispatch(event, now_ms)

    def _report_failures(self) -> None:
        """Log new failures that are due, and call the registered callbacks for each."""
        for failed in self.engine.take_failures():
            entry = self.failure_log.note(failed)
            if entry is not None:
                log.log(entry.level, "%s", entry.text, extra={"failed": failed})
            for hook in self.on_failure:
                try:
                    hook(failed)
                except Exception:  # the hook is the user's, and may raise anything
                    log.exception("a hook of on_failure raised for %s", failed)

    def _events(self) -> list[object]:
        """What lies in the inbox."""
        events: list[object] = []
        with suppress(Empty):
            while True:
                events.append(self._inbox.get_nowait())
        return events

    def _refill_workers(self, events: Sequence[object], now_ms: int) -> None:
        """Workers first: their results are accounted for while they work on."""
        for event in events:
            if isinstance(event, Finished):
                if event.error is not None:
                    raise event.error
                feed = self.feeds[event.pool]
                feed.lists -= 1
                feed.portions.learn(len(event.items), event.seconds)
                self._progress_ms = self.steady_ms()
        self._feed(now_ms)

    def _dispatch(self, event: object, now_ms: int) -> None:
        if isinstance(event, Finished):
            self.engine.finished(event.items, event.outcomes, now_ms)
        elif isinstance(event, Published):
            if event.error is not None:
                log.warning("publishing for %r failed: %s", event.publication.item, event.error)
            self.engine.published(event.publication, now_ms, event.error, unfit=event.unfit)
        elif isinstance(event, RetryEndsMoved):
            self._limit(event.ends)
        elif isinstance(event, Scanned):
            self.engine.scanned(event, now_ms)
        elif isinstance(event, Joined):
            self._join(event)
        else:
            self._take_request(event, now_ms)

    def _take_request(self, event: object, now_ms: int) -> None:
        """What an operator has asked for."""
        if isinstance(event, Resumed):
            self.engine.resume(event.key, now_ms)
        elif isinstance(event, Released):
            self.engine.retry_now(event.ends, now_ms)
        elif isinstance(event, TakeEarly):
            event.answer(self.engine.take_early(event.record, now_ms, event.failure))
        elif not isinstance(event, DrainSkipped | Paused):  # those only wake the runner
            self._handle_other_event(event, now_ms)

    def _handle_other_event(self, event: object, now_ms: int) -> None:
        """Events that only some runners know."""
        raise TypeError(f"{type(self).__name__} got {event!r} at {now_ms}")

    def _join(self, event: Joined) -> None:
        """Read more topics; the partitions that are ours stay."""
        self.engine.add_routes(event.routes)
        if self.retry_poller is not None:
            delays_ms = {t: d for r in event.routes for t, d in r.topics.delays_ms.items()}
            self.retry_poller.add(delays_ms, event.failed)
        self.consumer.subscribe(self.engine.topics, self)

    def _limit(self, ends: Mapping[tuple[str, int], int]) -> None:
        mine = self.consumer.assignment()
        for key, end in ends.items():
            if key in self.engine.partitions and TopicPartition(*key) in mine:
                self.consumer.limit(key, end)

    def _feed(self, now_ms: int) -> None:
        """Keep every worker in work, with one list in hand and one on the table."""
        if self.is_paused and not self._stopping:
            return
        for name, feed in self.feeds.items():
            most = feed.pool.workers * QUEUED_PER_WORKER
            while feed.lists < most and (ready := self.engine.ready(name)):
                most_items = max(
                    feed.portions.size(ready), self.engine.dispatchers[name].batch_size
                )
                items = self.engine.take(name, most_items, now_ms)
                if not items:
                    break
                if not self.engine.in_flight - len(items):
                    self._progress_ms = self.steady_ms()
                feed.lists += 1
                feed.pool.submit(items)

    def _publish(self) -> None:
        assert self._publisher is not None, "set by run"
        for publication in self.engine.publications():
            self._publisher.publish(publication)

    def _pause(self, now_ms: int) -> None:
        """Pauses follow from the present state; the consumer's own flags are only compared."""
        to_pause = {TopicPartition(*key) for key in self.engine.paused(now_ms)}
        if self.is_paused:
            to_pause |= self.consumer.assignment()
        paused = self.consumer.paused()
        if new := (to_pause - paused) & self.consumer.assignment():
            self.consumer.pause(*new)
        if over := paused - to_pause:
            self.consumer.resume(*over)

    def _look_at_progress(self) -> None:
        limit_ms = self.timing.progress_timeout_ms
        if not (limit_ms and self.engine.in_flight):
            return
        without_ms = self.steady_ms() - self._progress_ms
        if without_ms > limit_ms:
            raise StuckError(
                f"{self.engine.in_flight} records are with workers and none was finished for "
                f"{without_ms / 1_000:.0f} s (progress_timeout); the program "
                "ends so that another member takes them over. Give handlers a timeout"
            )

    # -- committing ------------------------------------------------------------------------------

    def _commit(self) -> None:
        if self._committing:
            return
        self._commit_due_ms = self.steady_ms() + self.timing.commit_interval_ms
        commits = self.engine.commits()
        if not commits:
            return
        if self._commit_apart:
            self._commit_apart = False
            parts = _by_topic(commits)
        else:
            parts = [commits]
        self._committing = len(parts)
        for part in parts:
            self._commit_part(part)

    def _commit_part(self, commits: Mapping[tuple[str, int], Commit]) -> None:
        def on_committed(_: object, error: KohortError | None) -> None:
            self._committing -= 1
            self._committed(commits, error)
            self.consumer.nudge()  # what waited for this commit may begin, or wants one of its own

        self.consumer.commit_async(_offsets(commits), on_committed)

    def _committed(
        self, commits: Mapping[tuple[str, int], Commit], error: KohortError | None
    ) -> None:
        if error is None:
            self.engine.committed(commits, self._time())
        elif isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
            self.engine.metadata_refused(commits)
            self._commit_due_ms = self.steady_ms()
        else:
            if isinstance(error, BrokerError) and error.code in UNKNOWN_TOPIC_CODES:
                self._commit_apart = True
            log.warning("a commit failed: %s; it is repeated", error)

    # -- rebalances (on the owner's thread, inside poll) ---------------------------------------

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Take over the committed offsets; close the retry topics until their ends are known.

        A consumer that is being closed may still be given some: by then no thread is there to look
        up their offsets, or to work on them.
        """
        if not partitions or self._is_over:
            return
        try:
            starts = self._starts(partitions)
        except StoppedError as error:  # nothing of them was begun, so there is nothing to end
            log.info("%s", error)
            return
        now_ms = self._time()
        retry_topics: dict[tuple[str, int], int] = {}
        for tp in partitions:
            self._epoch += 1
            start = starts[tp]
            if tp.topic in self.engine.delays_ms:
                retry_topics[tp] = start.offset or 0
                if start.offset is None:
                    self.consumer.seek_to_beginning(tp)
                self.consumer.limit(tp, start.offset or 0)
            self.engine.assigned(
                tp,
                self._epoch,
                start.offset,
                start.snapshot,
                topic_id=self.topic_ids.get(tp.topic, ""),
                now_ms=now_ms,
            )
        if self.retry_poller is not None:
            self.retry_poller.look_after(partitions)
            if retry_topics:
                self.retry_poller.watch(retry_topics)

    def _starts(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        """Where partitions continue. A cluster that does not answer is asked until it does.

        Raises StoppedError when the app is stopped meanwhile.
        """
        while True:
            try:
                committed = self.consumer.committed(partitions)
                break
            except KohortError as error:
                if not _may_pass(error):
                    raise
                if self._stopping:
                    raise StoppedError(partitions, error) from error
                self.trouble = f"the group's commits cannot be read: {error}"
                log.warning("%s; asked again", self.trouble)
                pause(PAUSE_S)
        self.trouble = ""
        return {
            tp: Start(None, "")
            if (at := committed.get(tp)) is None
            else Start(at.offset, at.metadata)
            for tp in partitions
        }

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """The last chance: let work in flight end, and commit."""
        self._give_up(partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Another member may own them already: nothing is committed."""
        self._remove(partitions)

    def _give_up(self, partitions: Iterable[TopicPartition]) -> tuple[int, int]:
        """Let what is in flight end, and commit.

        Returns:
            How many records were given up, and of how many partitions the commit failed.
        """
        keys = list(partitions)
        self.engine.draining(keys)
        self.engine.given_up(keys)
        drain_ms = 0 if self._is_broken else self.timing.drain_ms
        until_ms = self.steady_ms() + drain_ms
        while self.engine.in_flight_of(keys) and (left_ms := until_ms - self.steady_ms()) > 0:
            if self._hurried:
                break
            now_ms = self._time()
            again_ms = self.engine.publish_again(now_ms)
            self._publish()
            wait_ms = left_ms if again_ms is None else min(left_ms, again_ms - now_ms)
            self._handle_next_events(wait_ms)
        left = self.engine.in_flight_of(keys)
        uncommitted = self._commit_last(keys)
        self._remove(keys)
        if left:
            waited_s = 0.0 if self._hurried else drain_ms / 1_000
            log.warning(
                "%d %s still in progress after %g s; the next owner of the partition "
                "handles them again",
                left,
                "record was" if left == 1 else "records were",
                waited_s,
            )
        return left, uncommitted

    def _commit_last(self, keys: Sequence[TopicPartition]) -> int:
        """The finished records of partitions that are about to go; of how many it failed."""
        commits = {key: c for key, c in self.engine.commits().items() if key in set(keys)}
        if commits:
            try:
                self.consumer.commit(_offsets(commits))
            except KohortError as error:
                log.warning("the last commit of revoked partitions failed: %s", error)
                return len(commits)
        return 0

    def _remove(self, partitions: Iterable[TopicPartition]) -> None:
        keys = list(partitions)
        self._past_damage.forget(keys)
        self.engine.removed(keys)
        if self.retry_poller is not None:
            self.retry_poller.forget(keys)

    def _end(self) -> None:
        """Everything is given up, on purpose."""
        keys = [TopicPartition(*key) for key in self.engine.partitions]
        self.given_up, self.uncommitted = self._give_up(keys)


def _may_pass(error: KohortError) -> bool:
    """Whether asking again may help: the cluster is away, or busy."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, (KafkaTimeoutError, ConnectionFailedError))


def _by_topic(
    commits: Mapping[tuple[str, int], Commit],
) -> list[dict[tuple[str, int], Commit]]:
    """The commits of each topic by themselves."""
    by: dict[str, dict[tuple[str, int], Commit]] = {}
    for key, commit in commits.items():
        by.setdefault(key[0], {})[key] = commit
    return list(by.values())


def _offsets(commits: Mapping[tuple[str, int], Commit]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(*key): OffsetAndMetadata(commit.offset, commit.metadata)
        for key, commit in commits.items()
    }


def _runs(records: Sequence[Record]) -> list[tuple[tuple[str, int], int, int]]:
    """Neighbours of one partition: (topic, number), start, end."""
    runs: list[tuple[tuple[str, int], int, int]] = []
    topic, number, start = records[0].topic, records[0].partition, 0
    for index, record in enumerate(records):
        if record.partition != number or record.topic != topic:
            runs.append(((topic, number), start, index))
            topic, number, start = record.topic, record.partition, index
    runs.append(((topic, number), start, len(records)))
    return runs
