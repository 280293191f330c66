"""The owner of completion: records read, in progress and done, and the offsets to commit.

Rules (spec 4.12, 5.4; W1):
- Pure. One owner calls it from one thread; workers get items from `take` and their outcomes come
  back through `finished`. Nothing else touches trackers, lanes or circuits.
- A record is done when its handler succeeded and its outputs are acknowledged, or when its copy in
  a retry topic or in the dead-letter topic is. Only then may a commit pass it (R2).
- Results for a partition that was taken away are dropped when they come back (C7).
- Pauses are derived from the present state (W4). Reading stops at the caps, polling never.

    assigned, polled -> take -> finished -> publications -> published -> commits -> committed
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kohort.config import format_duration
from kohort.processing.engine.circuit_breaker import CircuitState
from kohort.processing.engine.dispatcher import Order
from kohort.processing.engine.items_choice import (
    by_key,
    in_one_lane,
    of_one_partition,
    offsets_and_size,
)
from kohort.processing.engine.outbox import Publication
from kohort.processing.engine.output import Output
from kohort.processing.engine.partition_state import Item, OnFailure, Partition
from kohort.processing.engine.state import EngineCore, TopicPartition, output_refused
from kohort.processing.engine.tracker import PartitionTracker
from kohort.records import Record
from kohort.retry.classify import Disposition, Failure, describe, stated
from kohort.retry.copies import (
    BAD_HEADERS_REASON,
    Attempt,
    due_ms,
    held_copy,
    omitted_value,
    read_attempt,
    waits_on,
)
from kohort.retry.headers import HeaderFault
from kohort.retry.sql_statements import Effect

CRASHES_BEFORE_CARE: Final = 2
CAREFUL_RECORDS: Final = 100
EVICTED_REASON: Final = "head_of_line"


class Done(NamedTuple):
    """The handler succeeded; this is to be produced, and stored, before it counts."""

    outputs: Sequence[Output]
    effects: Sequence[Effect] = ()


class NotBegun:
    """The worker gave the record back: a record before it in its lane failed."""

    __slots__ = ()


NOT_BEGUN: Final = NotBegun()
Outcome = Done | Failure | NotBegun | None
"""None: done, and nothing is to be produced."""


class Engine(EngineCore):
    """All partitions of one consumer. Times are wall-clock milliseconds."""

    # -- what it shows -------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """Everything to be read: source topics, entry topics and retry topics."""
        return list(self._places)

    @property
    def delays_ms(self) -> dict[str, int]:
        """The delay of every topic that is not a source."""
        return {topic: delay for topic, (_, delay) in self._places.items() if delay is not None}

    def ready(self, pool: str) -> int:
        """How many records a worker of this pool could begin now."""
        dispatcher = self.dispatchers[pool]
        return dispatcher.ready + dispatcher.chained

    @property
    def in_flight(self) -> int:
        """How many records workers hold."""
        return sum(dispatcher.in_flight for dispatcher in self.dispatchers.values())

    @property
    def idle(self) -> bool:
        """True when nothing that was read is left to do."""
        return not self.outstanding and not self._outbox

    def in_flight_of(self, keys: Iterable[TopicPartition]) -> int:
        """How many records of these partitions are with workers or being published."""
        partitions = {p for key in keys if (p := self.partitions.get(key)) is not None}
        held = sum(item.partition in partitions for work in self._works.values() for item in work)
        return held + sum(partition.publishing for partition in partitions)

    def next_deadline(self) -> int | None:
        """When `tick` has something to do."""
        circuits = (
            p.circuit.reopens_ms
            for p in self.partitions.values()
            if p.circuit.state is CircuitState.OPEN
        )
        first = min((*circuits, *self._lingering.deadlines()), default=None)
        waits_ms = self.waits.next_ms
        return first if waits_ms is None or (first is not None and first < waits_ms) else waits_ms

    # -- ownership -----------------------------------------------------------------------------

    def assigned(
        self,
        key: TopicPartition,
        epoch: int,
        committed: int | None,
        metadata: str = "",
        topic_id: str = "",
        now_ms: int = 0,
    ) -> Partition:
        """A partition is ours from now on. `committed` and `metadata` are its group's commit.

        With the crash-loop guard no record of it is begun before a first commit is acknowledged.
        """
        route, delay_ms = self._places[key[0]]
        tracker = PartitionTracker(epoch, committed, metadata)
        dispatcher = self.dispatchers[route.pool]
        partition = Partition(key[0], key[1], route, tracker, dispatcher, delay_ms, topic_id)
        partition.head_since_ms = partition.status_since_ms = now_ms
        if tracker.unreadable:
            self.counts["metadata_unreadable"] += 1
        if self._crash_guard:
            if tracker.crashes >= CRASHES_BEFORE_CARE:
                partition.careful = CAREFUL_RECORDS
                partition.suspect = tracker.suspect
                self.counts["careful_starts"] += 1
            tracker.guard(tracker.crashes + 1)
            partition.begin_version = tracker.version
        self.partitions[key] = partition
        self._scans.assigned(key)
        self._look_at_holds(self._scans.family(key), now_ms)
        return partition

    def draining(self, keys: Iterable[TopicPartition]) -> None:
        """Partitions are about to go: begin nothing more of them; what is in flight may end."""
        for key in keys:
            partition = self.partitions.get(key)
            if partition is not None:
                partition.draining = True
                self._forget_waiting(partition)
                self._drop(partition, [*partition.aside, *partition.dispatcher.withdraw(partition)])
                partition.aside.clear()
                self._lingering.leave(partition)

    def removed(self, keys: Iterable[TopicPartition]) -> None:
        """Partitions are gone. What still comes back of them is dropped."""
        gone = list(keys)
        self.draining(gone)
        for key in gone:
            partition = self.partitions.pop(key, None)
            self._released.pop(key, None)
            if partition is not None:
                partition.live = False
                self.outstanding -= partition.outstanding
                self.outstanding_bytes -= partition.outstanding_bytes
            source = self._scans.source_of(key[0])
            if source is not None:
                self.holds.forget(source, key[1], key[0])
            self._scans.removed(key)
            self._look_at_holds(self._scans.family(key), 0)
        self._outbox = [p for p in self._outbox if p.item.partition.live]

    def _forget_waiting(self, partition: Partition) -> None:
        """What kept its lane while it waited for its next try lets go of it."""
        waiting = self.waits.withdraw(partition)
        stopped, partition.stopped_items = partition.stopped_items, []
        waiting += stopped
        if waiting:
            self._drop(partition, waiting)
            for item in waiting:
                if item.tries or item in stopped:  # not those that are not due: they hold no lane
                    partition.dispatcher.release(item.lane)

    # -- reading -------------------------------------------------------------------------------

    def polled(
        self, key: TopicPartition, records: Sequence[Record], next_fetch: int, now_ms: int
    ) -> None:
        """Records of one partition were read, in order; the next read starts at `next_fetch`."""
        partition = self.partitions.get(key)
        if partition is None or partition.draining:
            return
        if records and partition.tracker.is_set_back(records[0].offset):
            partition = self._set_back(partition, records[0].offset, now_ms)
        offsets, size = offsets_and_size(records)
        to_do = partition.tracker.polled(offsets, next_fetch)
        if len(to_do) < len(records):
            self.counts["done_before"] += len(records) - len(to_do)
            chosen = set(to_do)
            records = [record for record in records if record.offset in chosen]
            size = offsets_and_size(records)[1]
        if not records:
            return
        partition.outstanding += len(records)
        partition.outstanding_bytes += size
        self.outstanding += len(records)
        self.outstanding_bytes += size
        if partition.is_source:
            items = self._of_source(partition, records)
        else:
            items = self._of_retry_topic(partition, records, now_ms)
        if items:
            partition.aside.extend(items)
            self._refill(partition, now_ms)

    def _set_back(self, old: Partition, offset: int, now_ms: int) -> Partition:
        """The reader went back (the log was cut or created again): the records have changed."""
        self.counts["set_back"] += 1
        self.removed([old.key])
        epoch = -1 - next(self._serial)  # no commit on its way may be taken for one of the new log
        return self.assigned(old.key, epoch, offset, "", old.topic_id, now_ms)

    def _of_source(self, partition: Partition, records: Sequence[Record]) -> list[Item]:
        order, topic = partition.route.order, partition.topic
        if order is Order.PARTITION:
            return in_one_lane(records, partition, partition.key)
        if order is Order.NONE:
            return in_one_lane(records, partition, None)
        return by_key(records, partition, topic)

    def _of_retry_topic(
        self, partition: Partition, records: Sequence[Record], now_ms: int
    ) -> list[Item]:
        """Records of a retry topic that may start; the rest goes where it belongs."""
        sound: list[Item] = []
        for record in records:
            item = Item(record, partition, self._lane_of_retry_topic(partition, record))
            try:
                item.attempt = self._read_attempt(partition, record)
            except HeaderFault as fault:
                self._publish_copy(
                    item, describe(fault, permanent=True, reason=BAD_HEADERS_REASON), now_ms
                )
                continue
            sound.append(item)
        return self._admit(sound, now_ms)

    def _read_attempt(self, partition: Partition, record: Record) -> Attempt:
        """What the headers of a retry topic's record say. Raises HeaderFault."""
        topics = partition.route.topics
        return read_attempt(
            record.topic,
            record.partition,
            record.offset,
            record.key,
            record.value,
            record.headers,
            policy=topics.policy,
            delay_ms=partition.delay_ms or 0,
            group=topics.group,
        )

    def _admit(self, items: Sequence[Item], now_ms: int) -> list[Item]:
        """Sound records of a retry topic: those that are due. The others wait out what is left."""
        ready: list[Item] = []
        for item in items:
            attempt, delay_ms = item.attempt, item.partition.delay_ms or 0
            assert attempt is not None, "a sound record of a retry topic says which attempt it is"
            self._note_waiting(item, attempt, item.record.topic)
            if (failure := omitted_value(attempt)) is not None:
                self._publish_copy(item, failure, now_ms)
                continue
            due = due_ms(attempt, item.record.timestamp, delay_ms, self._skew_ms)
            if self._is_released(item):
                ready.append(item)
            elif due > now_ms:
                self.tally.early[item.partition.route.topic] += 1
                self._wait(item, due)
            elif waits_on(attempt):
                self._postpone(item, attempt, now_ms)
            else:
                ready.append(item)
        return ready

    def _lane_of_retry_topic(self, partition: Partition, record: Record) -> Hashable | None:
        """Retried records keep the order of their key or partition among themselves."""
        if partition.route.order is Order.PARTITION:
            return partition.key
        if partition.route.order is Order.NONE or record.key is None:
            return None
        return (partition.route.topic, record.key)

    # -- working -------------------------------------------------------------------------------

    def take(self, pool: str, most: int, now_ms: int) -> list[Item]:
        """Up to `most` records for one worker of a pool, to be worked on in this order.

        The same list is to be given to `finished`.
        """
        dispatcher, sizes = self.dispatchers[pool], self.dispatchers[pool].batch_sizes
        mixed = len(sizes) > 1
        items = dispatcher.take_alike(most) if mixed else dispatcher.take(most)
        if len(self.holds) and items:
            items = self._follow(pool, items, now_ms)
        if items:
            self._works[id(items)] = items
        return items

    def _follow(self, pool: str, items: list[Item], now_ms: int) -> list[Item]:
        """Send records after an earlier one of their key to a retry topic (`hold_key`)."""
        kept: list[Item] = []
        sent: list[Item] = []
        for item in items:
            retry_topic = self._retry_topic_to_follow(item)
            if retry_topic is None:
                kept.append(item)
                continue
            attempt, topics = self._attempt(item), item.partition.route.topics
            copy = held_copy(attempt, topics=topics, retry_topic=retry_topic, now_ms=now_ms)
            self._note_held(item, attempt, copy, ended=False)
            self.counts["held"] += 1
            self._post(Publication(item, copy=copy))
            item.partition.probing = False  # the probe has no result: the next one is
            sent.append(item)
        if sent:
            self.dispatchers[pool].finished(sent, {item.lane for item in kept})
        return kept

    def _retry_topic_to_follow(self, item: Item) -> str | None:
        key, route = item.record.key, item.partition.route
        if key is None or route.on_failure is not OnFailure.HOLD_KEY:
            return None
        origin = self._attempt(item).origin
        return self.holds.behind((route.topic, key), (origin.partition, origin.offset))

    def finished(self, items: list[Item], outcomes: Sequence[Outcome] | None, now_ms: int) -> None:
        """A worker is done with what it took. `outcomes` None: every one succeeded."""
        del self._works[id(items)]
        kept: set[Hashable] = set()
        if outcomes is None:
            self._all_done(items, now_ms)
        else:
            back: list[Item] = []
            for item, outcome in zip(items, outcomes, strict=True):
                if outcome is None:
                    self._all_done((item,), now_ms)
                elif isinstance(outcome, NotBegun):
                    back.append(item)
                elif isinstance(outcome, Done):
                    self._succeeded_with(item, outcome, now_ms)
                elif self._failed(item, outcome, now_ms):
                    kept.add(item.lane)
            self._put_back(back)
        items[0].partition.dispatcher.finished(items, kept)

    def _put_back(self, items: Sequence[Item]) -> None:
        """Records that a worker gave back: to the head of their lane, or to the backlog if that
        waits."""
        for item in reversed(items):
            partition = item.partition
            if not partition.live:
                continue
            if partition.draining:
                self._drop(partition, (item,))
            elif partition.stopped or partition.circuit.state is not CircuitState.CLOSED:
                partition.aside.appendleft(item)
                partition.probing = False  # if it was the probe, it has no result
            else:
                partition.dispatcher.put_back((item,))

    def _all_done(self, items: Sequence[Item], now_ms: int) -> None:
        self.counts["succeeded"] += len(items)
        first = items[0].partition
        if of_one_partition(items):
            self._done_in(first, items, now_ms)
            return
        by: dict[Partition, list[Item]] = {}
        for item in items:
            by.setdefault(item.partition, []).append(item)
        for partition, done in by.items():
            self._done_in(partition, done, now_ms)

    def _done_in(self, partition: Partition, done: Sequence[Item], now_ms: int) -> None:
        self._circuit_succeeded(partition, len(done))
        if not partition.is_source:
            self._count_recovered(partition, done)
        if not partition.is_source or len(self.holds):
            self._no_longer_held(done)
        self._complete(partition, done, now_ms)

    def _count_recovered(self, partition: Partition, done: Sequence[Item]) -> None:
        for item in done:
            if item.attempt is not None:
                self.tally.recovered[partition.route.topic, item.attempt.number] += 1

    def _circuit_succeeded(self, partition: Partition, count: int) -> None:
        if partition.is_source and partition.circuit.succeeded(count):
            partition.probing = False
            self.counts["circuit_closed"] += 1

    def _succeeded_with(self, item: Item, outcome: Done, now_ms: int) -> None:
        if not (outcome.outputs or outcome.effects) or not item.partition.live:
            self._all_done((item,), now_ms)
            return
        self.counts["succeeded"] += 1
        self._count_recovered(item.partition, (item,))
        self._circuit_succeeded(item.partition, 1)
        self._no_longer_held((item,))
        self._post(Publication(item, outcome.outputs, effects=outcome.effects))

    def _failed(self, item: Item, failure: Failure, now_ms: int) -> bool:
        """What becomes of a failed record. True when it keeps its lane."""
        partition, route = item.partition, item.partition.route
        if not partition.live or not self._is_open(item):
            partition.probing = False
            return False  # taken away, or evicted meanwhile
        self.counts["failures"] += 1
        if not failure.permanent:
            delay_ms = route.blocking.delay_ms(item.tries)
            too_soon = delay_ms is not None and failure.min_delay_ms > delay_ms
            if delay_ms is not None and not (too_soon and route.topics.policy.retries):
                item.tries += 1
                due_ms = now_ms + max(delay_ms, failure.min_delay_ms)
                self._wait(item, due_ms)
                self._note_failure(item, failure, now_ms, next_try_ms=due_ms)
                return True
            if route.on_failure is OnFailure.STOP_PARTITION:
                self._stop(partition, item, failure, now_ms)
                return True
        self._publish_copy(item, failure, now_ms)
        if partition.is_source and partition.circuit.failed(now_ms):
            self.counts["circuit_opened"] += 1
            partition.probing = False
            partition.aside.extendleft(reversed(partition.dispatcher.withdraw(partition)))
        return False

    def _stop(self, partition: Partition, item: Item, failure: Failure, now_ms: int) -> None:
        """Stop at a failed record. Others that workers have at that time may fail after it."""
        partition.stopped_items.append(item)
        if partition.stopped:
            self._note_failure(item, failure, now_ms)
            return
        partition.stopped = (
            f"offset {item.offset} failed ({failure.reason}: {failure.message[:200]}) and "
            f'on_failure is "stop_partition"; mend the cause, then resume it'
        )
        self.counts["partitions_stopped"] += 1
        self._note_failure(item, failure, now_ms)
        partition.aside.extendleft(reversed(partition.dispatcher.withdraw(partition)))

    def resume(self, key: TopicPartition, now_ms: int) -> bool:
        """Try the records again that stopped a partition. False when it is not stopped."""
        partition = self.partitions.get(key)
        if partition is None or not partition.stopped_items:
            return False
        items, partition.stopped_items, partition.stopped = partition.stopped_items, [], ""
        for item in sorted(items, key=lambda one: one.offset, reverse=True):
            item.tries = 0
            partition.dispatcher.ready_now(item)
        self._refill(partition, now_ms)
        return True

    # -- publishing ----------------------------------------------------------------------------

    def publications(self) -> list[Publication]:
        """What is to be produced now. Each must be answered by `published`."""
        publications, self._outbox = self._outbox, []
        return publications

    def published(
        self,
        publication: Publication,
        now_ms: int,
        error: Exception | None = None,
        *,
        unfit: bool = False,
    ) -> None:
        """All of a publication is acknowledged, or some of it was refused (`unfit`: for ever)."""
        item, partition = publication.item, publication.item.partition
        if not partition.live:
            return
        if error is None:
            self._published(publication)
            self._complete(partition, (item,), now_ms)
            return
        self.counts["publish_errors"] += 1
        if unfit and publication.smaller():
            self._outbox.append(publication)
            return
        if unfit and publication.copy is None:
            self._published(publication)
            self._count_refused()
            self._publish_copy(item, output_refused(error), now_ms)
            return
        if not publication.refusals:
            partition.publish_blocked += 1
        partition.publish_refusal = str(error)
        self.waits.add(publication, now_ms + publication.pause_ms())

    def _published(self, publication: Publication) -> None:
        """It is not waited for any longer."""
        publication.item.partition.publishing -= 1
        publication.item.partition.publish_blocked -= bool(publication.refusals)

    # -- time ----------------------------------------------------------------------------------

    def retry_now(self, ends: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Try at once what waits in memory, and what is read below these offsets.

        Args:
            ends: of partitions of retry topics: records below do not wait to be due.
            now_ms: the time of day.
        """
        self._released |= {key: end for key, end in ends.items() if key in self.partitions}
        self.waits.hurry(now_ms)

    def take_early(self, record: Record, now_ms: int, failure: Failure | None = None) -> str:
        """Take one record of a retry topic before it is due and before those in front of it.

        Args:
            record: as it lies in the retry topic.
            now_ms: the time of day.
            failure: send it to the dead-letter topic for this reason instead of trying it.

        Why that cannot be, as text; "" when it is under way.
        """
        partition = self.partitions.get((record.topic, record.partition))
        if partition is None or partition.draining or partition.is_source:
            return f"{record.topic}-{record.partition} is with another process"
        item = Item(record, partition, self._lane_of_retry_topic(partition, record))
        try:
            item.attempt = self._read_attempt(partition, record)
        except HeaderFault as fault:
            return f"it was not written by Kohort: {fault}"
        if not partition.tracker.begin_early(record.offset):
            return "it is being handled, was handled, or is too far behind what waits before it"
        partition.outstanding += 1
        partition.outstanding_bytes += record.size
        self.outstanding += 1
        self.outstanding_bytes += record.size
        if failure is not None:
            self._publish_copy(item, failure, now_ms)
            return ""
        partition.early.add(record.offset)
        partition.aside.extend(self._admit([item], now_ms))
        self._refill(partition, now_ms)
        return ""

    def _is_released(self, item: Item) -> bool:
        if item.offset in item.partition.early:
            return True
        return item.record.offset < self._released.get(item.partition.key, 0)

    def tick(self, now_ms: int) -> None:
        """Begin what has become due; look after circuits and stuck heads."""
        while (what := self.waits.pop(now_ms)) is not None:
            if isinstance(what, Publication):
                if what.item.partition.live:
                    self._outbox.append(what)
            elif what.tries:
                what.partition.dispatcher.ready_now(what)
            elif what.attempt and waits_on(what.attempt) and not self._is_released(what):
                self._postpone(what, what.attempt, now_ms)
            else:
                what.partition.dispatcher.add((what,))
        self._look_for_room(now_ms)
        self._lingering.tick(now_ms)
        for partition in self.partitions.values():
            partition.circuit.may_try(now_ms)
            if not (partition.lingers and partition.may_linger):
                self._refill(partition, now_ms)
            partition.look(now_ms)
            if self.limits.head_timeout_ms:
                self._look_at_head(partition, now_ms)

    def _look_at_head(self, partition: Partition, now_ms: int) -> None:
        """A record that alone holds up the commit for too long goes to its first retry topic."""
        tracker = partition.tracker
        stuck_ms = now_ms - partition.head_since_ms
        if stuck_ms < self.limits.head_timeout_ms:
            return
        head, route = tracker.head, partition.route
        mostly_done = tracker.unfinished * 50 <= tracker.next_fetch - tracker.base
        passes = route.order is Order.NONE or route.on_failure is OnFailure.PASS
        if head is None or not (mostly_done and passes) or partition.evicting == head:
            return
        for item in [i for work in self._works.values() for i in work]:
            if item.offset != head or item.partition is not partition:
                continue
            partition.evicting = head
            text = f"it was not done after {format_duration(stuck_ms)}"
            failure = stated(
                EVICTED_REASON, permanent=False, message=text, disposition=Disposition.EVICTED
            )
            self._publish_copy(item, failure, now_ms)

    def paused(self, now_ms: int) -> frozenset[TopicPartition]:
        """The partitions that are not to be read on at present."""
        records, size = self.outstanding, self.outstanding_bytes
        # Stopped partitions keep their records: the others share the rest, and always a quarter, or
        # one stopped partition would stop all.
        still = [p for p in self.partitions.values() if p.must_be_mended]
        held, held_size = sum(p.outstanding for p in still), sum(p.outstanding_bytes for p in still)
        most = max(self.limits.records - held, -(-self.limits.records // 4))
        most_size = max(self.limits.bytes - held_size, -(-self.limits.bytes // 4))
        moving, moving_size = records - held, size - held_size
        if moving >= most or moving_size >= most_size:
            self._full = True
        elif moving <= most // 2 and moving_size <= most_size // 2:
            self._full = False
        if self._full:
            return frozenset(self.partitions)
        busy = sum(1 for p in self.partitions.values() if p.outstanding)
        share = (
            self.limits.records // max(1, busy) if 2 * records >= self.limits.records else records
        )
        return frozenset(
            key
            for key, p in self.partitions.items()
            if p.outstanding > share or p.why_stopped(now_ms)
        )
