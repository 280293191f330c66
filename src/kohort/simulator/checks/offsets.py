"""Checks of committed offsets: O2-O5, O7, C4, C5, on logs and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kohort.client.common.types import TopicPartition
from kohort.group.coordinator.state.classic_records import OffsetEntry, decode_record
from kohort.simulator.checks.violation import demand
from kohort.wire import Message
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse

if TYPE_CHECKING:
    from kohort.simulator.group_host import WatchedHost
    from kohort.simulator.group_log import GroupLog
    from kohort.simulator.network import Asked
    from kohort.simulator.world import World

Key = tuple[str, TopicPartition]
_FASTEST = 0.9
"""So much of a time has gone by at least when a clock, which may be fast, says all of it."""


class Commit(NamedTuple):
    """A committed offset as the log has it. `at_ms` is when it began to count."""

    at_ms: int
    offset: int | None
    record_offset: int
    written_ms: int


def o2_acknowledged_is_kept(key: Key, acknowledged: Commit, stored: Any) -> None:
    """O2: a commit answered without an error is there after every load."""
    demand(
        stored is not None and stored.record_offset >= acknowledged.record_offset,
        "O2",
        f"group {key[0]}: the commit of {acknowledged.offset} in {key[1]} was confirmed and lost",
    )


def o3_rises(key: Key, before: Commit | None, offset: int, excused: bool) -> None:
    """O3: a committed offset falls only when somebody moved a position back."""
    if before is None or before.offset is None or excused:
        return
    demand(
        offset >= before.offset,
        "O3",
        f"group {key[0]}: {key[1]} was committed at {before.offset}, now at {offset}",
    )


def o4_time_is_over(key: Key, last: Commit | None, before_ms: int, held: bool) -> None:
    """O4: an offset goes when it is old enough, and never while a transaction holds one."""
    demand(not held, "O4", f"group {key[0]}: {key[1]} expires, which a transaction has staged")
    demand(
        last is None or last.written_ms <= before_ms,
        "O4",
        f"group {key[0]}: the offset of {key[1]} expires before its time",
    )


def o5_later_record_wins(key: Key, expected: int | None, actual: int | None) -> None:
    """O5: after a marker the offset whose record is last in the log wins."""
    demand(
        expected == actual,
        "O5",
        f"group {key[0]}: after a marker {key[1]} is committed at {actual}; the last record that "
        f"counts says {expected}",
    )


def o7_success_is_durable(key: Key, record_offset: int, flushed: int) -> None:
    """O7, G10: a commit is confirmed only when it is on disk."""
    demand(
        0 <= record_offset < flushed,
        "O7",
        f"group {key[0]}: the commit of {key[1]} was confirmed, and its record {record_offset} is "
        f"not flushed ({flushed})",
    )


class OffsetChecks:
    """The commits, their answers, and their times."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history: dict[Key, list[Commit]] = {}
        """Every change of a committed offset, oldest first."""
        self.excused: set[TopicPartition] = set()
        """Partitions in which somebody has moved a position back, or began behind."""
        self._acknowledged: dict[Key, Commit] = {}
        self._staged: dict[int, dict[Key, Commit]] = {}
        """What open transactions hold, by producer."""

    def staged(self, group_id: str) -> frozenset[TopicPartition]:
        """The partitions of which an open transaction holds an offset."""
        keys = (key for staged in self._staged.values() for key in staged)
        return frozenset(tp for name, tp in keys if name == group_id)

    def appended(self, host: WatchedHost, first: int) -> None:
        """O3 on what was written; and C4, C5 where the committer is known."""
        at, now_ms = first - host.log.end, self._world.schedule.now_ms
        for entry in host.log.entries[at:]:
            if entry.record is None:
                self._ended(host, entry.producer_id, entry.committed)
                continue
            decoded = decode_record(entry.record, entry.offset)
            if not isinstance(decoded, OffsetEntry):
                continue
            tp = TopicPartition(*decoded.partition)
            key = decoded.group_id, tp
            past = self.history.setdefault(key, [])
            offset = None if decoded.value is None else decoded.value.offset
            if offset is None:
                self._expired(key, past[-1] if past else None)
            elif entry.producer_id >= 0:
                commit = Commit(now_ms, offset, entry.offset, now_ms)
                self._staged.setdefault(entry.producer_id, {})[key] = commit
                continue
            if offset is not None:
                o3_rises(key, past[-1] if past else None, offset, tp in self.excused)
            past.append(Commit(now_ms, offset, entry.offset, now_ms))

    def _expired(self, key: Key, last: Commit | None) -> None:
        """O4: nothing in the simulator deletes offsets but the sweep."""
        settings, now_ms = self._world.settings, self._world.schedule.now_ms
        kept_ms = int(settings.retention_minutes * 60_000 * _FASTEST)
        held = any(key in staged for staged in self._staged.values())
        o4_time_is_over(key, last, now_ms - kept_ms, held)

    def _ended(self, host: WatchedHost, producer_id: int, committed: bool) -> None:
        """O5: of a transaction's offset and a plain one the later record wins, marker or not."""
        for key, commit in self._staged.pop(producer_id, {}).items():
            past = self.history.setdefault(key, [])
            if committed and (not past or commit.record_offset > past[-1].record_offset):
                past.append(commit._replace(at_ms=self._world.schedule.now_ms))
            group_id, tp = key
            stored = host.shard.durable.offsets.get(group_id, {}).get((tp.topic, tp.partition))
            o5_later_record_wins(
                key, past[-1].offset if past else None, None if stored is None else stored.offset
            )

    def lost(self, log: GroupLog) -> None:
        """Records lost with the log's end were never committed."""
        for staged in self._staged.values():
            for key in [key for key, commit in staged.items() if commit.record_offset >= log.end]:
                if self._world.cluster.partition_of(key[0]) == log.index:
                    del staged[key]
        for (group_id, _), past in self.history.items():
            if self._world.cluster.partition_of(group_id) == log.index:
                kept = [commit for commit in past if commit.record_offset < log.end]
                if len(kept) < len(past):
                    now_ms, last = self._world.schedule.now_ms, kept[-1] if kept else None
                    offset, record = (None, -1) if last is None else (last.offset, last[2])
                    past[:] = [*kept, Commit(now_ms, offset, record, now_ms)]

    def loaded(self, host: WatchedHost) -> None:
        """O2 after a load."""
        for key, acknowledged in self._acknowledged.items():
            group_id, tp = key
            if self._world.cluster.partition_of(group_id) == host.log.index:
                if self.history[key][-1].offset is None:
                    continue  # its time was over (O4)
                stored = host.shard.durable.offsets.get(group_id, {}).get((tp.topic, tp.partition))
                o2_acknowledged_is_kept(key, acknowledged, stored)

    def answered(self, host: WatchedHost, asked: Asked, response: Message) -> None:
        """O7 on confirmed commits."""
        if not isinstance(response, OffsetCommitResponse):
            return
        request: Any = asked.request
        committed = {
            TopicPartition(topic.name, part.partition_index): part.committed_offset
            for topic in request.topics
            for part in topic.partitions
        }
        names = self._world.cluster.names
        for topic in response.topics:
            name = topic.name or names.get(bytes(topic.topic_id), "")
            for part in topic.partitions:
                if part.error_code:
                    continue
                tp = TopicPartition(name, part.partition_index)
                key = request.group_id, tp
                same = [c for c in self.history.get(key, ()) if c.offset == committed[tp]]
                at = min((c.record_offset for c in same if c.record_offset >= 0), default=-1)
                o7_success_is_durable(key, at, host.log.flushed)
                self._acknowledged[key] = [c for c in same if c.record_offset < host.log.flushed][
                    -1
                ]

    def in_effect(self, key: Key, from_ms: int) -> set[int | None]:
        """Every committed offset that held at some time since `from_ms`; None: none."""
        past = self.history.get(key, [])
        before = [commit.offset for commit in past if commit.at_ms <= from_ms]
        since = {commit.offset for commit in past if commit.at_ms > from_ms}
        return since | {before[-1] if before else None}
