"""What the engine knows, and the steps that its events share; see `engine` for the rules.

Rules:
- Every record that was read is counted: it is in the backlog, ready, with a worker, waiting for its
  next try, or being published. `outstanding` counts all of these.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from kohort.config import format_duration
from kohort.errors import ConfigError
from kohort.processing.engine.circuit_breaker import CircuitState
from kohort.processing.engine.counters import DEAD_LETTER, Tally
from kohort.processing.engine.dispatcher import Dispatcher
from kohort.processing.engine.due_queue import DueQueue
from kohort.processing.engine.failures import FailedAttempt
from kohort.processing.engine.items_choice import offsets_of
from kohort.processing.engine.key_holds import HoldScans, KeyHolds, Scanned
from kohort.processing.engine.lingering import Lingering
from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.partition_state import Item, OnFailure, Partition, Route
from kohort.processing.engine.tracker import Commit
from kohort.records import Record
from kohort.retry.classify import Disposition, Failure, stated
from kohort.retry.copies import (
    DEFAULT_SKEW_MS,
    Attempt,
    Copy,
    copy_for,
    disposition_of,
    postponed_copy,
)
from kohort.retry.headers import Origin
from kohort.retry.policy import Step
from kohort.retry.unreadable import Unreadable

TopicPartition = tuple[str, int]

CRASHED_REASON: Final = "process_crashed"
MOST_FAILURES: Final = 10_000
OUTPUT_REFUSED: Final = "output_refused"
REFUSED_AFTER_ALL: Final = "refused_after_all"
"""Counts records whose handler succeeded, and that failed since what it caused cannot be."""


def output_refused(error: Exception | None) -> Failure:
    """Why a record fails whose handler succeeded, and sent what no broker accepts."""
    text = f"the broker takes no such record as its handler sent: {error}"
    return stated(OUTPUT_REFUSED, permanent=True, message=text)


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be under way at once.

    Args:
        records: read and not done, over all partitions.
        bytes: the same in bytes of key and value.
        head_timeout_ms: how long one record may hold up its partition's commit when everything
            after it is done; 0 for ever. Then it is sent to its first retry topic (order
            permitting).
    """

    records: int = 10_000
    bytes: int = 64 * 1024 * 1024
    head_timeout_ms: int = 0

    def __post_init__(self) -> None:
        if self.records < 1 or self.bytes < 1 or self.head_timeout_ms < 0:
            raise ConfigError(
                f"limits: records={self.records}, bytes={self.bytes}, head_timeout_ms="
                f"{self.head_timeout_ms}; the first two are at least 1, the last at least 0"
            )


class EngineCore:
    """State of all partitions of one consumer."""

    def __init__(
        self,
        routes: Iterable[Route],
        limits: Limits | None = None,
        *,
        skew_ms: int = DEFAULT_SKEW_MS,
        crash_guard: bool = True,
    ) -> None:
        self.limits = limits or Limits()
        self.counts: Counter[str] = Counter()
        """What has happened so far, by name; the metrics are made from it."""
        self.tally = Tally()
        self.partitions: dict[TopicPartition, Partition] = {}
        self.holds = KeyHolds()
        self.outstanding: int = 0
        self.outstanding_bytes: int = 0
        self._skew_ms = skew_ms
        self._crash_guard = crash_guard
        self._places: dict[str, tuple[Route, int | None]] = {}
        self._scans = HoldScans()
        self.dispatchers: defaultdict[str, Dispatcher] = defaultdict(Dispatcher)
        """By pool of workers."""
        self._lingering = Lingering()
        self._works: dict[int, list[Item]] = {}
        """What each worker holds, by the identity of the list."""
        self._outbox: list[Publication] = []
        self.waits = DueQueue()
        self._released: dict[TopicPartition, int] = {}
        """Partitions of retry topics: below these offsets nothing waits to be due."""
        self._serial = count()
        self._failures: deque[FailedAttempt] = deque(maxlen=MOST_FAILURES)
        self._full = False
        self._held_full = False
        self.add_routes(routes)

    def add_routes(self, routes: Iterable[Route]) -> None:
        """These source topics, with their retry topics, are read as well from now on."""
        for route in routes:
            self._places[route.topic] = (route, None)
            for topic, delay_ms in route.topics.delays_ms.items():
                self._places[topic] = (route, delay_ms)
            if route.on_failure is OnFailure.HOLD_KEY:
                delays_ms = route.topics.delays_ms
                self._scans.add(route.topic, [t for t, delay in delays_ms.items() if delay])
            self.dispatchers[route.pool].batch_sizes.add(route.max_batch)

    # -- beginning -----------------------------------------------------------------------------

    def _refill(self, partition: Partition, now_ms: int) -> None:
        """Let records of the backlog begin, as far as the partition may go."""
        aside, circuit = partition.aside, partition.circuit.state
        if partition.lingers and not partition.may_linger:
            self._lingering.leave(partition)
        if not aside or partition.stopped or circuit is CircuitState.OPEN or partition.unknown:
            return
        if partition.tracker.committed_version < partition.begin_version:
            return
        if circuit is CircuitState.HALF_OPEN:
            if not partition.probing:
                partition.probing = True
                partition.dispatcher.add((aside.popleft(),))
        elif partition.careful:
            self._one_carefully(partition, now_ms)
        elif partition.tracker.may_begin(aside[-1].offset):
            if partition.route.linger_ms:
                self._lingering.enter(partition, now_ms)
                self._lingering.begin(partition.route, now_ms, all_of_it=self._full)
                return
            partition.dispatcher.add(aside)
            aside.clear()
        else:
            while aside and partition.tracker.may_begin(aside[0].offset):
                partition.dispatcher.add((aside.popleft(),))

    def _one_carefully(self, partition: Partition, now_ms: int) -> None:
        """The next record alone, and only when its offset is the committed one (guard)."""
        tracker, first = partition.tracker, partition.aside[0]
        if partition.alone is None:
            partition.alone = first
            tracker.guard(tracker.crashes, first.offset)
            partition.begin_version = tracker.version
        elif partition.alone is first:
            partition.aside.popleft()
            if first.offset != partition.suspect:
                partition.dispatcher.add((first,))
                return
            text = f"the process died {tracker.crashes - 1} times at work on this record"
            failure = stated(
                CRASHED_REASON, permanent=True, message=text, disposition=Disposition.CRASH
            )
            self._publish_copy(first, failure, now_ms)

    def _wait(self, item: Item, due: int) -> None:
        self.waits.add(item, due)

    def clock_stepped(self, step_ms: int) -> None:
        """The time of day was set by so much: nothing waits longer for that, or less long."""
        self.waits.clock_stepped(step_ms)
        self._lingering.clock_stepped(step_ms)
        for partition in self.partitions.values():
            partition.clock_stepped(step_ms)

    def publish_again(self, now_ms: int) -> int | None:
        """Let refused records be published when due, and let none begin.

        For partitions that are being given up. When there is something next, if there is.
        """
        due = self.waits.pop_publications(now_ms)
        self._outbox += [publication for publication in due if publication.item.partition.live]
        return self.waits.next_publication_ms

    # -- completing and committing -------------------------------------------------------------

    def commits(self) -> dict[TopicPartition, Commit]:
        """What has not been committed yet, for each partition."""
        return {
            key: partition.tracker.snapshot()
            for key, partition in self.partitions.items()
            if partition.tracker.dirty and partition.tracker.known
        }

    @property
    def commit_urgent(self) -> bool:
        """True when records wait for a commit before they may be begun (crash-loop guard)."""
        return any(
            p.aside and p.tracker.committed_version < p.begin_version
            for p in self.partitions.values()
        )

    def committed(self, commits: Mapping[TopicPartition, Commit], now_ms: int) -> None:
        """These commits are safe. Those of a former assignment are not listened to."""
        for key, commit in commits.items():
            partition = self.partitions.get(key)
            if partition is not None and partition.tracker.epoch == commit.epoch:
                partition.tracker.committed(commit.version)
                self._refill(partition, now_ms)

    def metadata_refused(self, commits: Mapping[TopicPartition, Commit]) -> None:
        """The broker took none of these, because their metadata is too long for it."""
        longest = max((len(commit.metadata) for commit in commits.values()), default=0)
        for key, commit in commits.items():
            partition = self.partitions.get(key)
            if partition is None or partition.tracker.epoch != commit.epoch:
                continue
            if 2 * len(commit.metadata) >= longest:  # the short ones were not what was refused
                partition.tracker.metadata_too_large(len(commit.metadata))
                self.counts["metadata_too_large"] += 1

    def given_up(self, keys: Iterable[TopicPartition]) -> None:
        """They are left on purpose: their next owner does not start after a crash."""
        for key in keys:
            partition = self.partitions.get(key)
            if partition is not None:
                partition.tracker.guard(0)

    # -- keys that are held --------------------------------------------------------------------

    def scans(self) -> list[tuple[TopicPartition, int, int]]:
        """Retry topics to read to their end: partition, start offset, and the epoch to answer."""
        scans = [(key, self.partitions[key].tracker) for key in self._scans.wanted()]
        # What has been read already is held since then, or has ended.
        return [(key, max(t.base, t.next_fetch), t.epoch) for key, t in scans]

    def scanned(self, scanned: Scanned, now_ms: int) -> None:
        """What waits in a retry topic: its keys are held from now on."""
        partition = self.partitions.get(scanned.retry_topic)
        if partition is None or partition.tracker.epoch != scanned.epoch:
            return
        source = partition.route.topic
        for waiting in scanned.waiting:
            # The records read meanwhile are held since then, or have ended.
            unread = waiting.offset >= partition.tracker.next_fetch
            if unread and not partition.tracker.was_done(waiting.offset):
                self.holds.scheduled((source, waiting.key), waiting.place, scanned.retry_topic[0])
        self._scans.scanned(scanned.retry_topic, whole=scanned.whole)
        self.counts["retry_topics_scanned"] += 1
        self._look_at_holds(self._scans.family(scanned.retry_topic), now_ms)

    def _look_at_holds(self, keys: Iterable[TopicPartition], now_ms: int) -> None:
        """Whether these may begin: only when it is known which keys are held, and there is room."""
        for key in keys:
            partition = self.partitions.get(key)
            if partition is None:
                continue
            why = self._scans.why(key)
            if not why and partition.is_source and self.holds.full:
                why = f"{len(self.holds)} records wait for a retry; others of their keys are held"
            if why and not partition.unknown:
                partition.aside.extendleft(reversed(partition.dispatcher.withdraw(partition)))
                partition.probing = False  # the probe may be among them
            partition.unknown = why
            if not why:
                self._refill(partition, now_ms)

    def _look_for_room(self, now_ms: int) -> None:
        """Held keys have a bound: stop before it, and continue when half of it has ended."""
        full = self.holds.full
        if 2 * len(self.holds) <= self.holds.most:
            self._scans.again()
        if full != self._held_full:
            self._held_full = full
            self.counts["holds_full"] += full
            self._look_at_holds(list(self.partitions), now_ms)

    # -- ending --------------------------------------------------------------------------------

    def _complete(self, partition: Partition, items: Sequence[Item], now_ms: int) -> None:
        if not partition.live:
            return
        tracker, base = partition.tracker, partition.tracker.base
        if partition.evicting is not None:  # then one of these may have been completed before
            items = [item for item in items if tracker.is_unfinished(item.offset)]
        offsets, size = offsets_of(items)
        tracker.complete_all(tracker.epoch, offsets)
        self._subtract(partition, len(items), size)
        if partition.careful:
            partition.careful = max(0, partition.careful - len(items))
            partition.alone = None
        if tracker.base != base and not partition.careful:
            tracker.guard(0)
        if partition.aside:
            self._refill(partition, now_ms)

    def _drop(self, partition: Partition, items: Sequence[Item]) -> None:
        """Records that the partition's next owner will read again."""
        self._subtract(partition, len(items), offsets_of(items)[1])

    def _subtract(self, partition: Partition, count: int, size: int) -> None:
        partition.outstanding -= count
        partition.outstanding_bytes -= size
        self.outstanding -= count
        self.outstanding_bytes -= size

    def _publish_copy(self, item: Item, failure: Failure, now_ms: int) -> None:
        attempt, route = self._attempt(item), item.partition.route
        copy, step = copy_for(attempt, failure, topics=route.topics, now_ms=now_ms)
        self._count_copy(route, failure, step)
        self._note_held(item, attempt, copy, ended=step is None)
        self._note_copied(item, failure, copy, now_ms)
        self._post(Publication(item, copy=copy, failure=failure, step=step))

    def _note_copied(self, item: Item, failure: Failure, copy: Copy, now_ms: int) -> None:
        due_ms = None if copy.dead_letter else copy.retry.not_before_ms
        self._note_failure(
            item, failure, now_ms, next_try_ms=due_ms, waits_in=copy.topic, dead=copy.dead_letter
        )

    def _note_failure(
        self,
        item: Item,
        failure: Failure,
        now_ms: int,
        *,
        next_try_ms: int | None = None,
        waits_in: str = "",
        dead: bool = False,
    ) -> None:
        """The shell must learn of it; see `take_failures`."""
        attempt = self._attempt(item)
        origin = attempt.origin
        self._failures.append(
            FailedAttempt(
                origin.topic,
                origin.partition,
                origin.offset,
                attempt.number,
                failure.reason,
                failure.error_class,
                failure.message,
                failure.stack,
                failure.fingerprint,
                failure.permanent,
                now_ms,
                next_try_ms,
                waits_in,
                dead,
            )
        )

    def take_failures(self) -> list[FailedAttempt]:
        """Every failed attempt since this was asked last; the oldest are lost beyond 10,000."""
        failures = list(self._failures)
        self._failures.clear()
        return failures

    def _postpone(self, item: Item, attempt: Attempt, now_ms: int) -> None:
        """Its delay is over, but its handler asked for more: it waits in another retry topic."""
        copy = postponed_copy(attempt, topics=item.partition.route.topics, now_ms=now_ms)
        self._note_held(item, attempt, copy, ended=False)
        self.counts["postponed"] += 1
        self._post(Publication(item, copy=copy))

    def unreadable(self, key: TopicPartition, unreadable: Unreadable, now_ms: int) -> None:
        """A batch of a partition cannot be read: it is done when its bytes are dead-lettered."""
        partition = self.partitions.get(key)
        if partition is None or partition.draining:
            return
        tracker, route = partition.tracker, partition.route
        again = partition.damage is not None and unreadable.batch == partition.damage
        partition.damage = unreadable.batch
        if again or not tracker.polled((unreadable.offset,), unreadable.next_offset):
            # The same batch, one offset on: its header does not say where it ends.
            tracker.polled((), unreadable.next_offset)
            return
        attempt = unreadable.attempt(partition.topic_id)
        record = Record(*key, unreadable.offset, timestamp=-1, key=None, value=unreadable.batch)
        item = Item(record, partition, None, attempt)
        partition.outstanding += 1
        partition.outstanding_bytes += record.size
        self.outstanding += 1
        self.outstanding_bytes += record.size
        failure = unreadable.failure()
        self.counts["unreadable"] += 1
        self._count_copy(route, failure, None)
        copy = unreadable.copy(attempt, route.topics, now_ms)
        self._note_copied(item, failure, copy, now_ms)
        self._post(Publication(item, copy=copy, failure=failure))

    def _count_copy(self, route: Route, failure: Failure, step: Step | None) -> None:
        self.counts["to_dead_letter" if step is None else "to_retry"] += 1
        retry_topic = DEAD_LETTER if step is None else format_duration(step.delay_ms)
        self.tally.copies[route.topic, retry_topic, disposition_of(failure, step)] += 1

    def _count_refused(self) -> None:
        """A record whose handler succeeded fails after all, since what it caused cannot be."""
        self.counts["failures"] += 1
        self.counts[REFUSED_AFTER_ALL] += 1

    def _is_open(self, item: Item) -> bool:
        """Whether it is still to be decided what becomes of a record."""
        return item.partition.tracker.is_unfinished(item.offset)

    def _post(self, publication: Publication) -> None:
        publication.item.partition.publishing += 1
        self._outbox.append(publication)

    def _note_held(self, item: Item, attempt: Attempt, copy: Copy, *, ended: bool) -> None:
        if ended:
            self._no_longer_held((item,))
        else:
            self._note_waiting(item, attempt, copy.topic)

    def _note_waiting(self, item: Item, attempt: Attempt, retry_topic: str) -> None:
        route, key = item.partition.route, attempt.key
        if route.topics.delays_ms.get(retry_topic) == 0:
            return  # a redriven record is due at once: its lane keeps the key's order
        if key is not None and route.on_failure is OnFailure.HOLD_KEY:
            place = (attempt.origin.partition, attempt.origin.offset)
            self.holds.scheduled((route.topic, key), place, retry_topic)

    def _no_longer_held(self, items: Iterable[Item]) -> None:
        for item in items:
            attempt = item.attempt
            if attempt is not None and attempt.key is not None:
                place = (attempt.origin.partition, attempt.origin.offset)
                self.holds.ended((item.partition.route.topic, attempt.key), place)

    def _attempt(self, item: Item) -> Attempt:
        if item.attempt is None:
            record, partition = item.record, item.partition
            origin = Origin(
                record.topic,
                record.partition,
                record.offset,
                record.timestamp,
                int(record.timestamp_type),
                partition.topic_id,
            )
            place = (record.topic, record.partition, record.offset)
            item.attempt = Attempt(origin, 0, place, record.key, record.value, record.headers)
        return item.attempt
