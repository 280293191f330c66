"""The driver's decision on every trigger: how far to read next. Pure but for its port.

Rules (spec 6.7, D4):
- `initial` gives the same answer whenever it is asked: Spark asks it several times, and keeps no
  record of where a Python source began. What is not fixed by itself is fixed in the group.
- `latest` never goes back, never runs ahead of what is due in a retry topic, and with AvailableNow
  never past the target of its first call. It is not asked when a batch is replayed.
- Transaction markers alone make no batch. Where every partition has moved by a few offsets only,
  the planner looks whether there is a record among them.
- Records are lost when the log's start is past the wanted offset, or their topic was deleted, and
  only then. A topic that was created again is not the topic that was read.
- A topic that the options name no longer keeps its offset and is not read; a deleted one is an
  error, or with failOnDataLoss=false the same.
- A topic or partition that the options name and that was never there is an error. A pattern takes
  retry topics of ours only when it names them.
- Progress is published from the `start` of `latest`, which is what the checkpoint has committed;
  it never goes back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from kohort.errors import BrokerError, ConfigError, DataLossError, KafkaTimeoutError
from kohort.observe.spark_query import RUNS, QueryNote
from kohort.retry.due_schedule import DueSchedule
from kohort.retry.offset_queries import OffsetPort, RecordPort, TopicView, ask, markers_alone
from kohort.retry.policy import retry_topics_among
from kohort.setting_keys import nearest
from kohort.spark.admission import FIRST_RECORDS, Pace, aligned, limited, within_bytes
from kohort.spark.offsets import (
    Position,
    Range,
    TopicPartition,
    check_renewed,
    lag,
    pack,
    ranges,
    renewed,
)
from kohort.spark.options import EARLIEST, GROUP, LATEST, SourceOptions, Times

log = logging.getLogger("kohort.spark")
METADATA_MAX_AGE_MS: Final = 10_000
SIZES_MAX_AGE_MS: Final = 60_000
"""How long the size of a topic's sampled records is used."""
ENDS_TIMEOUT_S: Final = 10.0
"""After this long without an answer the plan checks whether a topic was deleted."""
_NAMES_RETRY_TOPICS: Final = re.compile("retry|dlt")


class Port(OffsetPort, RecordPort, Protocol):
    """What the planner asks of a cluster. Every call raises a KohortError when it cannot answer."""

    def topics(self, names: Collection[str] = ()) -> Mapping[str, TopicView]: ...
    def earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...
    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]: ...
    def commit(
        self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = ""
    ) -> None: ...
    def record_bytes(self, at: TopicPartition, start: int, end: int) -> float | None: ...


class Planner:
    """One query's plan, living as long as the query does.

    Args:
        tasks: how many tasks a batch is packed into, when the options do not say.
    """

    def __init__(
        self, options: SourceOptions, port: Port, now_ms: Callable[[], int], tasks: int
    ) -> None:
        self._options = options
        self._port = port
        self._now_ms = now_ms
        self._tasks = options.min_partitions or tasks
        self._gate = DueSchedule(options.retry_delays_ms, skew_ms=options.clock_skew_ms)
        self._initial: Position | None = None
        self._views: dict[str, TopicView] = {}
        self._views_at: int | None = None
        self._log_starts: dict[TopicPartition, int] = {}
        self._frozen = False
        self._target: dict[TopicPartition, int] | None = None
        self._published: dict[TopicPartition, int] | None = None
        self._noted: set[tuple[str, TopicPartition]] = set()
        self._batch_at: int | None = None
        self._pace = _pace(options)
        self._next_ms: dict[TopicPartition, tuple[int, int]] = {}
        """Of a partition: an offset, and the timestamp of the first record from there."""
        self._sizes: dict[str, float] = {}
        self._sizes_at: dict[str, int] = {}
        self._no_records_until: dict[TopicPartition, int] = {}
        """Nothing but markers lies between a partition's position and this offset."""
        self.ends: dict[TopicPartition, int] = {}

    # Where it begins

    def initial(self) -> Position:
        """The start of the first batch; the same at every call and after every restart."""
        if self._initial is None:
            self._refresh()
            self._check_partitions(())
            if self._options.fail_on_data_loss:  # else a deleted one may be in a batch to replay
                self._check_topics(())
            wanted = self._partitions()
            if not wanted:
                raise ConfigError(self._nothing_there())
            offsets = self._starting(wanted)
            self._initial = Position(
                next=offsets,
                began=dict(offsets),
                ids=self._ids(),
                tasks=self._tasks,
                initial=True,
            )
        return self._initial

    def _starting(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where each partition begins. What would move with time is fixed in the group."""
        group = self._options.group
        requested = self._request_ends(wanted)
        moving = self._moving(requested)
        kept = self._port.committed(group, moving) if group and moving else {}
        offsets = self._resolve({**requested, **kept})
        fresh = {at: offsets[at] for at in moving if at not in kept}
        if fresh and self._options.commits:
            self._keep(fresh)
        return offsets

    def _request_ends(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The start by the options: an offset, EARLIEST or LATEST."""
        options = self._options
        if options.starting_ms is not None:
            return self._by_time(wanted, options.starting_ms)
        starting = options.starting
        if isinstance(starting, dict):
            check_named(starting, wanted, "startingOffsets")
            return {at: starting[at[0]][at[1]] for at in wanted}
        return dict.fromkeys(wanted, LATEST if starting == "latest" else EARLIEST)

    def _by_time(self, wanted: Sequence[TopicPartition], times: Times) -> dict[TopicPartition, int]:
        """The first record at or after a time; where there is none, by the options' strategy."""
        if isinstance(times, dict):
            check_named(times, wanted, "startingOffsetsByTimestamp")
        by_time = self._port.by_time(times_of(wanted, times))
        none = [at for at, stamped in by_time.items() if stamped.offset < 0]
        if none and not self._options.latest_where_no_record:
            raise ConfigError(
                f"{_listed(none)}: there is no record at or after the starting timestamp. Give an "
                "earlier time, or startingOffsetsByTimestampStrategy=latest to begin at the end "
                "there"
            )
        return {at: s.offset if s.offset >= 0 else LATEST for at, s in by_time.items()}

    def _moving(self, requested: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """The partitions whose start the group decides, or keeps when there is one."""
        options = self._options
        if options.starting == GROUP and options.starting_ms is None:
            return list(requested)
        return [at for at, o in requested.items() if o == LATEST] if options.group else []

    def _resolve(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """-2 and -1 as offsets, after the connector's manner."""
        early = [at for at, o in offsets.items() if o == EARLIEST]
        late = [at for at, o in offsets.items() if o == LATEST]
        return {
            **offsets,
            **(self._port.earliest(early) if early else {}),
            **(self._port.latest(late) if late else {}),
        }

    def _keep(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fix a start in the group. Raises when it cannot be: a restart would begin elsewhere."""
        group = self._options.group
        assert group is not None, "the options refuse a moving start without a group"
        try:
            self._port.commit(group, offsets)
        except BrokerError as error:
            if error.retriable:
                raise
            raise self._group_refuses(error) from error

    # How far to go

    def freeze(self) -> None:
        """AvailableNow: the first target is kept, and so is the time by which retries are due."""
        self._frozen = True

    def latest(self, start: Position, max_offsets: int | None = None) -> Position:
        """The end of the next batch; equal to `start` when there is nothing to do."""
        self._refresh()
        try:
            return self._next(start, max_offsets)
        except KafkaTimeoutError:
            before, self._views_at = self._partitions(), None
            self._refresh()
            if self._partitions() == before:
                raise
            return self._next(start, max_offsets)  # a topic was deleted: the plan does without it

    def _next(self, start: Position, max_offsets: int | None) -> Position:
        self._check_topics(start.next)
        self._check_partitions(start.next)
        ids = {**start.ids, **self._ids()}
        origin = self._still_read(start)
        self._publish({at: self._past_markers(at, o) for at, o in origin.items()})
        recreated = renewed(start, ids)
        # Nothing is kept of a topic that was created again: it may have fewer partitions.
        kept = {at: o for at, o in start.next.items() if at[0] not in recreated}
        began = {at: o for at, o in start.began.items() if at[0] not in recreated}
        fresh = [at for at in self._partitions() if at not in kept]
        if fresh:
            for at, offset in self._port.earliest(fresh).items():
                self._forget(at)
                began[at] = origin[at] = offset
        self._check_loss(origin)
        if not self._frozen or self._target is None:
            self._target = self._ends(origin)
            if start.initial:
                self._check_begins_within(origin, self._target)
        target = {at: max(o, self._target.get(at, o)) for at, o in origin.items()}
        if self._options.streaming and not self._has_records(origin, target):
            self.ends.update(origin)
            target = dict(origin)
        if self._is_recreated(origin, self._target):
            return self._next(start, max_offsets)
        if self._should_wait(lag(origin, target)):
            return start
        end = self._admitted(origin, target, max_offsets)
        offsets = {**kept, **end}
        if offsets == start.next:
            planned_ms = start.planned_ms  # nothing is new: Spark must see the same position
        else:
            planned_ms = self._now_ms() if self._options.retry_delays_ms else 0
        return Position(offsets, began, ids, self._tasks, planned_ms)

    def _forget(self, at: TopicPartition) -> None:
        """Drop what was known of a topic of the same name that was deleted."""
        self._no_records_until.pop(at, None)
        if self._published:
            self._published.pop(at, None)

    def _past_markers(self, at: TopicPartition, offset: int) -> int:
        return max(offset, self._no_records_until.get(at, offset))

    def _has_records(
        self, origin: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int]
    ) -> bool:
        """False when partitions have moved by markers of transactions alone, or not at all.

        A batch of markers would write markers itself, by the transaction of its outputs, and so on
        for ever.
        """
        for at, end in target.items():  # a leader that was behind truncates the log
            if self._no_records_until.get(at, end) > end:
                del self._no_records_until[at]
        news = {
            at: (start, target[at])
            for at, o in origin.items()
            if (start := self._past_markers(at, o)) < target[at]
        }
        if not news:
            return False
        if not markers_alone(self._port, news):
            return True
        self._no_records_until |= {at: end for at, (_, end) in news.items()}
        return False

    def _is_recreated(
        self, origin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> bool:
        """Whether a topic whose end has moved is another topic of that name by now.

        The ids are asked for after the ends, so these are not of a topic that the plan does not
        know; while nothing moves, nothing is asked.
        """
        moved = {
            at[0]
            for at, o in origin.items()
            if ends.get(at, o) not in (o, self._past_markers(at, o))
        }
        if not moved:
            return False
        ids = {name: view.topic_id for name, view in self._port.topics(sorted(moved)).items()}
        if not renewed(Position(ids=self._ids()), ids):
            return False
        self._views_at = self._target = None
        self._refresh()
        return True

    def _admitted(
        self,
        origin: Mapping[TopicPartition, int],
        target: Mapping[TopicPartition, int],
        max_offsets: int | None,
    ) -> dict[TopicPartition, int]:
        """How much of what is there the next batch takes."""
        options = self._options
        if options.align_ms is not None:
            target = self._aligned(origin, target, options.align_ms)
        if options.max_bytes is not None:
            self._look_at_sizes(origin, target)
            fitting = within_bytes(origin, target, self._sizes, options.max_bytes)
            if fitting is not None:
                max_offsets = min(fitting, max_offsets or fitting)
        if self._pace is not None:
            self._pace.finished(self._now_ms())
            max_offsets = min(self._pace.limit, max_offsets or self._pace.limit)
        end = limited(
            origin,
            target,
            max_offsets,
            floor=options.topic_floor,
            priorities=options.topic_priorities,
        )
        if self._pace is not None:
            self._pace.planned(lag(origin, end), self._now_ms())
        return end

    def _look_at_sizes(
        self, origin: Mapping[TopicPartition, int], target: Mapping[TopicPartition, int]
    ) -> None:
        """How large the next records of each topic are, by those of its fullest partition."""
        now = self._now_ms()
        fullest: dict[str, TopicPartition] = {}
        for at in sorted(origin, key=lambda at: target[at] - origin[at]):
            fullest[at[0]] = at
        for topic, at in fullest.items():
            fresh = now - self._sizes_at.get(topic, now - SIZES_MAX_AGE_MS) < SIZES_MAX_AGE_MS
            if fresh or target[at] == origin[at]:
                continue
            found = self._port.record_bytes(at, origin[at], target[at])
            if found is not None:
                self._sizes[topic], self._sizes_at[topic] = found, now

    def _aligned(
        self,
        origin: Mapping[TopicPartition, int],
        target: Mapping[TopicPartition, int],
        window_ms: int,
    ) -> Mapping[TopicPartition, int]:
        """The target, no further than a window past the oldest record that is next."""
        behind = {at: o for at, o in origin.items() if target[at] > o}
        for at, offset in behind.items():
            if self._next_ms.get(at, (-1, -1))[0] != offset:
                found = self._port.scan(at, offset, target[at], 0)
                self._next_ms[at] = (offset, found.timestamp_ms)
        times = {at: self._next_ms[at][1] for at in behind if self._next_ms[at][1] >= 0}
        if not times:
            return target
        until_ms = min(times.values()) + window_ms
        caps = self._port.by_time(dict.fromkeys(times, until_ms))
        return aligned(origin, target, times, {at: s.offset for at, s in caps.items()})

    def _should_wait(self, records: int) -> bool:
        """Whether a batch waits for more: `minOffsetsPerTrigger`, for at most `maxTriggerDelay`.

        The first batch of a process does not wait, nor what AvailableNow is to finish.
        """
        least, now = self._options.min_offsets, self._now_ms()
        if least is None or self._frozen:
            return False
        waited = None if self._batch_at is None else now - self._batch_at
        if waited is not None and records < least and waited < self._options.max_delay_ms:
            return True
        if records or waited is None:
            self._batch_at = now
        return False

    def _still_read(self, start: Position) -> dict[TopicPartition, int]:
        """The part of a position that this query continues to read.

        The rest keeps its offset: a partition that is read again later continues there.
        """
        lenient = not self._options.fail_on_data_loss
        if not lenient:
            check_renewed(start, self._ids(), self._options.loss_remedy)
        recreated = renewed(start, self._ids())
        there = set(self._partitions())
        rest = [at for at in start.next if at not in there]
        self._note(
            "not read any more, by the options of this query",
            [at for at in rest if not self._subscribed(at)],
        )
        gone = [at for at in rest if self._subscribed(at)]
        if gone and not lenient:
            raise self._gone(gone)
        self._note("deleted; continuing without", gone)
        self._note(
            "deleted and created again; read from the beginning",
            [a for a in there if a[0] in recreated],
        )
        return {at: o for at, o in start.next.items() if at in there and at[0] not in recreated}

    def _subscribed(self, at: TopicPartition) -> bool:
        options = self._options
        if options.pattern is not None:
            return re.fullmatch(options.pattern, at[0]) is not None
        if options.assign is not None:
            return at[1] in options.assign.get(at[0], ())
        return at[0] in options.topics

    def _gone(self, gone: Iterable[TopicPartition]) -> DataLossError:
        remedy = self._options.loss_remedy or (
            "Take it out of the query's topics, or say failOnDataLoss=false to continue without it"
        )
        return DataLossError(
            f"{_listed(gone)}: the topic was deleted while this query read it. {remedy}"
        )

    def _note(self, what: str, partitions: Iterable[TopicPartition]) -> None:
        """Warn of partitions, once each."""
        new = [at for at in partitions if (what, at) not in self._noted]
        if new:
            self._noted |= {(what, at) for at in new}
            log.warning("%s: %s", what, _listed(new))

    def _ends(self, origin: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How far each partition may be read: to its end, or to what is due."""
        plain = [at for at in origin if at[0] not in self._options.retry_delays_ms]
        retry_topics = {at: o for at, o in origin.items() if at[0] in self._options.retry_delays_ms}
        found = self._port.latest(plain, ENDS_TIMEOUT_S) if plain else {}
        self.ends.update(found)
        if retry_topics:
            self.ends.update(
                ask(self._gate, self._port, retry_topics, self._now_ms(), self._log_starts)
            )
            for at, offset in retry_topics.items():
                opened = self._gate.opened(at)
                found[at] = max(offset, opened.end) if opened else offset
        return found

    def tasks(self, start: Position, end: Position) -> list[list[Range]]:
        """The ranges of each task: a function of the two positions, but for deleted topics."""
        options = self._options
        self._refresh()
        return pack(
            self._readable(ranges(start, end, lenient=not options.fail_on_data_loss)),
            end.tasks,
            max_records=options.max_records_per_partition,
            split=not options.range_markers,
            least=1 if options.range_markers else options.least_records_a_task,
        )

    def _readable(self, spans: list[Range]) -> list[Range]:
        """The ranges of topics that are there. A batch may be replayed after one was deleted."""
        gone = [s for s in spans if not self._exists(s)]
        if gone and self._options.fail_on_data_loss:
            raise self._gone((s.topic, s.partition) for s in gone)
        self._note("deleted; continuing without", [(s.topic, s.partition) for s in gone])
        return [s for s in spans if s not in gone]

    def _exists(self, span: Range) -> bool:
        view = self._views.get(span.topic)
        if view is None:  # one that is not subscribed to any more is not looked up
            return not self._subscribed((span.topic, span.partition))
        return not (span.topic_id and view.topic_id) or span.topic_id == view.topic_id

    # Progress

    def _publish(self, start: Mapping[TopicPartition, int]) -> None:
        group = self._options.group
        if group is None or not self._options.commits:
            return
        if self._published is None:
            self._published = self._port.committed(group, list(start))
        news = {at: o for at, o in start.items() if o > self._published.get(at, -1)}
        if news:
            self._commit(news)

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        group = self._options.group
        assert group is not None, "progress has a group to go to"
        try:
            self._port.commit(group, offsets, str(QueryNote(RUNS, self._now_ms())))
        except BrokerError as error:
            if self._published is None and not error.retriable:
                raise self._group_refuses(error) from error
            log.warning("progress of group %s was not published: %s", group, error)
            return
        self._published = {**(self._published or {}), **offsets}

    def _group_refuses(self, error: BrokerError) -> ConfigError:
        return ConfigError(
            f"group {self._options.group} does not take offsets from a Spark query ({error}); a "
            "group with running consumers keeps its own. Give the query a group of its own"
        )

    # What is there

    def _refresh(self) -> None:
        now = self._now_ms()
        if self._views_at is not None and now - self._views_at < METADATA_MAX_AGE_MS:
            return
        self._views = dict(self._wanted(self._port.topics(self._named())))
        self._views_at = now
        partitions = self._partitions()
        self._log_starts = self._port.earliest(partitions) if partitions else {}

    def _named(self) -> list[str]:
        """The topics that the options name; none with a pattern."""
        return sorted({*self._options.topics, *(self._options.assign or ())})

    def _wanted(self, views: Mapping[str, TopicView]) -> Iterable[tuple[str, TopicView]]:
        options = self._options
        left_out = retry_topics_among(views) if options.pattern is not None else set[str]()
        for name, view in views.items():
            if options.pattern is not None:
                if not re.fullmatch(options.pattern, name):
                    continue
                if name not in left_out or _NAMES_RETRY_TOPICS.search(options.pattern):
                    yield name, view
                else:
                    self._note(
                        "a retry topic of Kohort's; subscribePattern does not name it",
                        [(name, p) for p in range(view.partitions)],
                    )
            elif name in options.topics or (options.assign and name in options.assign):
                yield name, view

    def _check_topics(self, known: Collection[TopicPartition]) -> None:
        """Refuse topics that the options name and that were never there."""
        for topic in sorted({*self._named()} - {*self._views, *(topic for topic, _ in known)}):
            near = nearest(topic, self._port.topics(), cutoff=0.75)
            raise ConfigError(
                f"there is no topic {topic}, or this user may not see it (it needs DESCRIBE); "
                f"{f'did you mean {near!r}? Else ' if near else ''}create it first (kohort topic "
                "create), or ask the cluster's administrator for the right"
            )

    def _check_partitions(self, known: Collection[TopicPartition]) -> None:
        """Refuse partitions that the options name and that were never there."""
        for topic, chosen in (self._options.assign or {}).items():
            view = self._views.get(topic)
            for partition in chosen:
                if view and partition >= view.partitions and (topic, partition) not in known:
                    raise ConfigError(
                        f"assign: topic {topic} has {view.partitions} "
                        f"partition{'s' * (view.partitions != 1)}, counted from 0, and no "
                        f"partition {partition}"
                    )

    def _partitions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for name, view in sorted(self._views.items()):
            chosen = self._options.assign
            found += [(name, p) for p in (chosen[name] if chosen else range(view.partitions))]
        return found

    def _ids(self) -> dict[str, str]:
        return {name: view.topic_id for name, view in self._views.items()}

    def _nothing_there(self) -> str:
        what = self._options.pattern or ", ".join(self._options.topics)
        return (
            f"there is no topic {what}, or this user may not see it (it needs DESCRIBE); create it "
            "first (kohort topic create), or ask the cluster's administrator for the right"
        )

    def _check_begins_within(
        self, origin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Refuse a start past the end of a log: what is written next would be left out.

        Of the first batch alone: later, an end may be behind for a moment after a leader has
        changed.
        """
        for (topic, partition), offset in origin.items():
            end = ends.get((topic, partition), offset)
            if offset <= end:
                continue
            text = f"{topic}/{partition}: the query begins at {offset}, past the log's end at {end}"
            if not self._options.streaming:
                raise ConfigError(f"{text}. Begin at {end} or before")
            if self._options.fail_on_data_loss:
                remedy = self._options.loss_remedy or (
                    f"Begin at {end} or before, or say failOnDataLoss=false to wait for record "
                    f"{offset}"
                )
                raise DataLossError(f"{text}. {remedy}")
            log.warning("%s; waiting for record %d", text, offset)

    def _check_loss(self, wanted: Mapping[TopicPartition, int]) -> None:
        for at, offset in wanted.items():
            start = self._log_starts.get(at, 0)
            if start <= offset:
                continue
            text = (
                f"{at[0]}/{at[1]}: records {offset} to {start - 1} are gone (the log starts at "
                f"{start}: retention, or they were deleted)"
            )
            if self._options.fail_on_data_loss:
                remedy = self._options.loss_remedy or (
                    "To continue without them, say failOnDataLoss=false"
                )
                raise DataLossError(f"{text}. {remedy}")
            log.warning("%s; continuing without them", text)


def _pace(options: SourceOptions) -> Pace | None:
    """What sets the limit of a batch by how long batches took, where a duration is asked for."""
    if options.target_batch_ms is None:
        return None
    floor = options.target_floor
    return Pace(options.target_batch_ms, floor or FIRST_RECORDS, floor or 1)


def times_of(wanted: Sequence[TopicPartition], times: Times) -> dict[TopicPartition, int]:
    """The time of each partition."""
    if isinstance(times, int):
        return dict.fromkeys(wanted, times)
    return {at: times[at[0]][at[1]] for at in wanted}


def check_named(
    named: Mapping[str, Mapping[int, int]], wanted: Sequence[TopicPartition], option: str
) -> None:
    """Refuse an option's JSON that does not name exactly the partitions that are read."""
    assigned = {(t, p) for t, ps in named.items() for p in ps}
    missing, extra = set(wanted) - assigned, assigned - set(wanted)
    if missing or extra:
        raise ConfigError(
            f"{option} must name every partition that is read and no other; missing "
            f"{_listed(missing)}, extra {_listed(extra)}"
        )


def _listed(partitions: Iterable[TopicPartition]) -> str:
    names = [f"{t}/{p}" for t, p in sorted(partitions)]
    return ", ".join(names[:10]) + (" ..." if len(names) > 10 else "") if names else "none"
