"""What the driver decides on every trigger: how far to read next. Pure but for its port.

Rules (Spark reference 0, 2, 5):
- `initial` gives the same answer whenever it is asked: Spark asks it several times, and keeps no
  record of where a Python source began. What is not fixed by itself is fixed in the group.
- `latest` never goes back, never runs ahead of what is due in a tier, and with AvailableNow never
  past the target of its first call. It is not asked when a batch is replayed.
- Records are lost when the log's start is past the wanted offset, and only then. A topic that was
  made anew is not the topic that was read.
- Progress is published from the `start` of `latest`, which is what the checkpoint has committed;
  it never goes back.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from kohort.errors import BrokerError, ConfigError, DataLossError
from kohort.retry.asking import OffsetPort, TopicView, ask
from kohort.retry.gate import TierGate
from kohort.spark.offsets import Position, Range, TopicPartition, limited, pack, ranges
from kohort.spark.options import EARLIEST, GROUP, SourceOptions

log = logging.getLogger("kohort.spark")
METADATA_MAX_AGE_MS: Final = 10_000


class Port(OffsetPort, Protocol):
    """What the planner asks of a cluster. Every call raises a KohortError when it cannot answer."""

    def topics(self) -> Mapping[str, TopicView]: ...
    def earliest(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...
    def committed(
        self, group: str, wanted: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]: ...
    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...


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
        self._gate = TierGate(options.tier_delays_ms, skew_ms=options.clock_skew_ms)
        self._initial: Position | None = None
        self._views: dict[str, TopicView] = {}
        self._views_at: int | None = None
        self._log_starts: dict[TopicPartition, int] = {}
        self._frozen = False
        self._target: dict[TopicPartition, int] | None = None
        self._published: dict[TopicPartition, int] | None = None
        self.ends: dict[TopicPartition, int] = {}

    # Where it begins

    def initial(self) -> Position:
        """The start of the first batch; the same at every call and after every restart."""
        if self._initial is None:
            self._refresh()
            wanted = self._partitions()
            if not wanted:
                raise ConfigError(self._nothing_there())
            offsets = self._starting(wanted)
            self._initial = Position(
                next=offsets, began=dict(offsets), ids=self._ids(), tasks=self._tasks
            )
        return self._initial

    def _starting(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        options = self._options
        found: dict[TopicPartition, int] = {}
        word = options.starting
        if options.group and word in (GROUP, "latest"):
            found = self._port.committed(options.group, wanted)
        if isinstance(word, dict):
            self._check_named(word, wanted)
            found = {at: word[at[0]][at[1]] for at in wanted}
            word = "earliest"
        if options.starting_ms is not None:
            by_time = self._port.by_time(dict.fromkeys(wanted, options.starting_ms))
            found = {at: s.offset for at, s in by_time.items() if s.offset >= 0}
            word = "latest"
        found = self._resolve(found)
        missing = [at for at in wanted if at not in found]
        if missing:
            ask = self._port.latest if word == "latest" else self._port.earliest
            resolved = ask(missing)
            found |= resolved
            if options.group and options.starting in (GROUP, "latest"):
                self._commit(resolved)
        return found

    def _resolve(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """-2 and -1 as offsets, after the connector's manner."""
        early = [at for at, o in offsets.items() if o == EARLIEST]
        late = [at for at, o in offsets.items() if o == -1]
        return {
            **offsets,
            **(self._port.earliest(early) if early else {}),
            **(self._port.latest(late) if late else {}),
        }

    def _check_named(
        self, named: Mapping[str, Mapping[int, int]], wanted: Sequence[TopicPartition]
    ) -> None:
        given = {(t, p) for t, ps in named.items() for p in ps}
        missing, extra = set(wanted) - given, given - set(wanted)
        if missing or extra:
            raise ConfigError(
                "startingOffsets must name every partition that is read and no other; missing "
                f"{_listed(missing)}, extra {_listed(extra)}"
            )

    # How far to go

    def freeze(self) -> None:
        """AvailableNow: the first target stands, and so does the time by which tiers are due."""
        self._frozen = True

    def latest(self, start: Position, max_offsets: int | None = None) -> Position:
        """The end of the next batch; equal to `start` when there is nothing to do."""
        self._publish(start)
        self._refresh()
        self._check_ids(start)
        began, origin = dict(start.began), dict(start.next)
        fresh = [at for at in self._partitions() if at not in origin]
        if fresh:
            for at, offset in self._port.earliest(fresh).items():
                began[at] = origin[at] = offset
        self._check_loss(origin)
        if not self._frozen or self._target is None:
            self._target = self._ends(origin)
        target = {at: max(o, self._target.get(at, o)) for at, o in origin.items()}
        end = limited(origin, target, max_offsets)
        return Position(next=end, began=began, ids={**start.ids, **self._ids()}, tasks=self._tasks)

    def _ends(self, origin: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How far each partition may be read: to its end, or to what is due."""
        plain = [at for at in origin if at[0] not in self._options.tier_delays_ms]
        tiers = {at: o for at, o in origin.items() if at[0] in self._options.tier_delays_ms}
        found = self._port.latest(plain) if plain else {}
        self.ends.update(found)
        if tiers:
            self.ends.update(ask(self._gate, self._port, tiers, self._now_ms(), self._log_starts))
            for at, offset in tiers.items():
                opened = self._gate.opened(at)
                found[at] = max(offset, opened.end) if opened else offset
        return found

    def tasks(self, start: Position, end: Position) -> list[list[Range]]:
        """The ranges of each task: a function of the two positions alone."""
        options = self._options
        return pack(
            ranges(start, end), end.tasks,
            max_records=options.max_records_per_partition, split=not options.range_markers,
        )  # fmt: skip

    # Progress

    def _publish(self, start: Position) -> None:
        group = self._options.group
        if group is None or not self._options.publish_progress:
            return
        if self._published is None:
            self._published = self._port.committed(group, list(start.next))
        news = {at: o for at, o in start.next.items() if o > self._published.get(at, -1)}
        if news:
            self._commit(news)

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        group = self._options.group
        assert group is not None, "progress has a group to go to"
        try:
            self._port.commit(group, offsets)
        except BrokerError as error:
            if self._published is None and not error.retriable:
                raise ConfigError(
                    f"group {group} does not take offsets from a Spark query ({error}); a group "
                    "with running consumers keeps its own. Give the query a group of its own"
                ) from error
            log.warning("progress of group %s was not published: %s", group, error)
            return
        self._published = {**(self._published or {}), **offsets}

    # What is there

    def _refresh(self) -> None:
        now = self._now_ms()
        if self._views_at is not None and now - self._views_at < METADATA_MAX_AGE_MS:
            return
        self._views = dict(self._wanted(self._port.topics()))
        self._views_at = now
        partitions = self._partitions()
        self._log_starts = self._port.earliest(partitions) if partitions else {}

    def _wanted(self, views: Mapping[str, TopicView]) -> Iterable[tuple[str, TopicView]]:
        options = self._options
        for name, view in views.items():
            if options.pattern is not None:
                if re.fullmatch(options.pattern, name):
                    yield name, view
            elif name in options.topics or (options.assign and name in options.assign):
                yield name, view

    def _partitions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for name, view in sorted(self._views.items()):
            chosen = self._options.assign
            found += [(name, p) for p in (chosen[name] if chosen else range(view.partitions))]
        return found

    def _ids(self) -> dict[str, str]:
        return {name: view.topic_id for name, view in self._views.items()}

    def _nothing_there(self) -> str:
        options = self._options
        what = options.pattern or ", ".join(options.topics or (options.assign or {}))
        return (
            f"there is no topic {what}, or this user may not see it (it needs DESCRIBE); create it "
            "first (kohort topic create), or ask whoever keeps the cluster for the right"
        )

    def _check_ids(self, start: Position) -> None:
        for name, old in start.ids.items():
            new = self._views[name].topic_id if name in self._views else ""
            if old and new and old != new:
                raise DataLossError(
                    f"topic {name} was deleted and made anew (id {old} became {new}) while it was "
                    "read; start a new query with a new checkpoint"
                )

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
                raise DataLossError(f"{text}. To go on without them, say failOnDataLoss=false")
            log.warning("%s; going on without them", text)


def _listed(partitions: Iterable[TopicPartition]) -> str:
    names = [f"{t}/{p}" for t, p in sorted(partitions)]
    return ", ".join(names[:10]) + (" ..." if len(names) > 10 else "") if names else "none"
