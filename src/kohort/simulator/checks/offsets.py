"""Checks of committed offsets: O2, O3, O7, C4, C5, on logs and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kohort.client.types import TopicPartition
from kohort.group.records import OffsetEntry, decode_record
from kohort.simulator.checks.violation import demand
from kohort.wire import Message
from kohort.wire.messages.offset_commit_response import OffsetCommitResponse

if TYPE_CHECKING:
    from kohort.simulator.hosting import Asked, ShardHost
    from kohort.simulator.logs import GroupLog
    from kohort.simulator.world import World

Key = tuple[str, TopicPartition]


class Commit(NamedTuple):
    """A committed offset as the log has it."""

    at_ms: int
    offset: int | None
    record_offset: int


def o2_told_is_kept(key: Key, told: Commit, found: Any) -> None:
    """O2: what was answered without an error is there after every load."""
    demand(
        found is not None and found.record_offset >= told.record_offset,
        "O2",
        f"group {key[0]}: the commit of {told.offset} in {key[1]} was confirmed and is gone",
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


def o7_success_is_durable(key: Key, record_offset: int, flushed: int) -> None:
    """O7, G10: a commit is confirmed only when it is on disk."""
    demand(
        0 <= record_offset < flushed,
        "O7",
        f"group {key[0]}: the commit of {key[1]} was confirmed, and its record {record_offset} is "
        f"not flushed ({flushed})",
    )


class OffsetChecks:
    """What was committed, what was told of it, and when."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history: dict[Key, list[Commit]] = {}
        """Every change of a committed offset, oldest first."""
        self.excused: set[TopicPartition] = set()
        """Partitions in which somebody has moved a position back, or began behind."""
        self._told: dict[Key, Commit] = {}

    def appended(self, host: ShardHost, first: int) -> None:
        """O3 on what was written; and C4, C5 where the committer is known."""
        at = first - host.log.end
        for entry in host.log.entries[at:]:
            assert entry.record is not None, "shards append records"
            decoded = decode_record(entry.record, entry.offset)
            if not isinstance(decoded, OffsetEntry) or entry.producer_id >= 0:
                continue
            tp = TopicPartition(*decoded.partition)
            key = decoded.group_id, tp
            past = self.history.setdefault(key, [])
            offset = None if decoded.value is None else decoded.value.offset
            if offset is not None:
                o3_rises(key, past[-1] if past else None, offset, tp in self.excused)
            past.append(Commit(self._world.schedule.now_ms, offset, entry.offset))

    def lost(self, log: GroupLog) -> None:
        """What was lost with the log's end was never committed."""
        for (group_id, _), past in self.history.items():
            if self._world.cluster.partition_of(group_id) == log.partition:
                kept = [commit for commit in past if commit.record_offset < log.end]
                if len(kept) < len(past):
                    now_ms, last = self._world.schedule.now_ms, kept[-1] if kept else None
                    offset, record = (None, -1) if last is None else (last.offset, last[2])
                    past[:] = [*kept, Commit(now_ms, offset, record)]

    def loaded(self, host: ShardHost) -> None:
        """O2 after a load."""
        assert host.shard is not None, "it has just been loaded"
        for key, told in self._told.items():
            group_id, tp = key
            if self._world.cluster.partition_of(group_id) == host.log.partition:
                found = host.shard.durable.offsets.get(group_id, {}).get((tp.topic, tp.partition))
                o2_told_is_kept(key, told, found)

    def answered(self, host: ShardHost, asked: Asked, response: Message) -> None:
        """O7 on confirmed commits."""
        if not isinstance(response, OffsetCommitResponse):
            return
        request: Any = asked.request
        wanted = {
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
                same = [c for c in self.history.get(key, ()) if c.offset == wanted[tp]]
                at = min((c.record_offset for c in same if c.record_offset >= 0), default=-1)
                o7_success_is_durable(key, at, host.log.flushed)
                self._told[key] = [c for c in same if c.record_offset < host.log.flushed][-1]

    def in_effect(self, key: Key, from_ms: int) -> set[int | None]:
        """Every committed offset that held at some time since `from_ms`; None: none."""
        past = self.history.get(key, [])
        before = [commit.offset for commit in past if commit.at_ms <= from_ms]
        since = {commit.offset for commit in past if commit.at_ms > from_ms}
        return since | {before[-1] if before else None}
