"""A group's rebalances, read off the records of `__consumer_offsets`: of Apache Kafka, too.

Rules:
- Records come in the order of the log, with the times at which they were written. They are exact:
  generations and epochs, members, assignments. They do not say why it happened: causes are
  inferred from what differs between two generations, and named so (`inferred`).
- Apache Kafka writes a classic generation when its leader's assignment comes: when the join phase
  began is not known, when it ended is the record's own timestamp of the group's state. Our
  coordinator writes a generation first without its assignment (spec 2.6): that time is exact.
- Of a compacted log some generations are missing. The one after them has their number (`gap`), and
  its moves are then relative to the last one that is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kohort.group.coordinator.state.classic_records import (
    LEGACY_OFFSET,
    OFFSET,
    GroupEntry,
    StoredGroup,
    StoredMember,
    decode_record,
)
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import ConsumerEntry, Field, MemberMetadata
from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.group.coordinator.state.rebalance_history import (
    CLASSIC,
    CONSUMER,
    REBALANCES_MAX,
    Cause,
    ConsumerView,
    Entry,
    Trigger,
    cause_of,
)
from kohort.group.coordinator.state.topics_image import TopicsImage
from kohort.group.explain.timeline import CAUSES, JOINED, MOVES, Rebalance, describe
from kohort.wire import record_type


class Inference:
    """Takes the records of one group's partition; tells the rebalances of that group.

    `topics` gives the names of topics, which consumer groups store by id only.
    """

    def __init__(self, group_id: str, topics: TopicsImage) -> None:
        self.group_id = group_id
        self._topics = topics
        self._entries: deque[tuple[Entry, list[str]]] = deque(maxlen=REBALANCES_MAX)
        self._classic = _ClassicReader(group_id, self._entries)
        self._consumer = _ConsumerReader(group_id, topics, self._entries)

    def take(self, record: GroupRecord, timestamp_ms: int) -> None:
        """The next record. Raises DecodeError for bytes that are no legal record."""
        if record_type(record.key) in (LEGACY_OFFSET, OFFSET):
            return  # most of the log; not worth decoding
        entry = decode_record(record, 0)
        if isinstance(entry, GroupEntry):
            if entry.group_id == self.group_id:
                self._classic.take(entry.value, timestamp_ms)
        elif isinstance(entry, ConsumerEntry) and entry.group_id == self.group_id:
            self._consumer.take(entry, timestamp_ms)

    def rebalances(self) -> list[Rebalance]:
        """What has been read so far, the oldest first."""
        return [describe(entry, inferred) for entry, inferred in self._entries]


def _begin(entries: deque[tuple[Entry, list[str]]], entry: Entry, inferred: Iterable[str]) -> None:
    if entries and entries[-1][0].settled_ms is None:
        entries[-1][0].superseded = True
    entries.append((entry, list(inferred)))


class _ClassicReader:
    """The records of a classic group: one value, written again and again."""

    def __init__(self, group_id: str, entries: deque[tuple[Entry, list[str]]]) -> None:
        self._group_id, self._entries = group_id, entries
        self._held: StoredGroup | None = None
        self._last: StoredGroup | None = None

    def take(self, stored: StoredGroup | None, at_ms: int) -> None:
        if stored is None:
            self._held = self._last = None
            return
        last, self._last = self._last, stored
        if stored.generation == 0 or (last is not None and stored.generation < last.generation):
            self._held = None
        if stored.generation == 0:
            return
        if last is None or stored.generation != last.generation:
            self._next(last, stored, at_ms)
        if not stored.members or not stored.lacks_assignment():
            self._assigned(stored, at_ms)

    def _next(self, last: StoredGroup | None, stored: StoredGroup, at_ms: int) -> None:
        entry = Entry(self._group_id, CLASSIC, generation=stored.generation, before=self._held)
        inferred = [CAUSES]
        if stored.members and stored.lacks_assignment():
            entry.joined_ms = at_ms
        elif 0 < stored.state_timestamp_ms <= at_ms:
            entry.joined_ms = stored.state_timestamp_ms
            inferred.append(JOINED)
        if last is not None and stored.generation > last.generation + 1:
            entry.gap = stored.generation - last.generation - 1
            inferred.append(MOVES)
        elif last is None and stored.generation > 1:
            entry.gap = stored.generation - 1
            inferred.append(MOVES)
        for cause in _classic_causes(last, stored, entry.joined_ms or at_ms):
            entry.add(cause)
        _begin(self._entries, entry, inferred)

    def _assigned(self, stored: StoredGroup, at_ms: int) -> None:
        self._held = stored
        if not self._entries:
            return
        entry = self._entries[-1][0]
        if entry.generation == stored.generation and entry.settled_ms is None:
            entry.after, entry.settled_ms = stored, at_ms


def _classic_causes(last: StoredGroup | None, stored: StoredGroup, at_ms: int) -> list[Cause]:
    before = last.members if last is not None else {}
    places = {m.instance_id: m.member_id for m in before.values() if m.instance_id}
    causes: list[Cause] = []
    changed: list[Cause] = []  # most do whenever partitions move: it says something alone only
    for member_id, member in stored.members.items():
        old = before.get(places.get(member.instance_id or "", member_id))
        if old is None:
            causes.append(_stored_cause(Trigger.JOINED, member, at_ms))
        elif old.subscription != member.subscription and _same_protocol(last, stored):
            changed.append(_stored_cause(Trigger.CHANGED, member, at_ms))
    now = {m.instance_id for m in stored.members.values() if m.instance_id}
    causes += [
        _stored_cause(Trigger.GONE, member, at_ms)
        for member_id, member in before.items()
        if member_id not in stored.members and member.instance_id not in now
    ]
    return causes or changed or [Cause(Trigger.UNKNOWN, at_ms)]


def _same_protocol(last: StoredGroup | None, stored: StoredGroup) -> bool:
    return last is not None and last.protocol == stored.protocol


def _stored_cause(trigger: Trigger, member: StoredMember, at_ms: int) -> Cause:
    return Cause(
        trigger, at_ms, member.member_id, member.instance_id, member.client_id, member.client_host
    )


class _ConsumerReader:
    """The records of a consumer group (KIP-848): members, epochs, targets, what everybody has."""

    def __init__(
        self, group_id: str, topics: TopicsImage, entries: deque[tuple[Entry, list[str]]]
    ) -> None:
        self._entries, self._topics = entries, topics
        self._group = ConsumerGroup(group_id)
        self._members: dict[str, MemberMetadata] = {}
        self._view: ConsumerView | None = None
        self._epoch = 0
        self._waiting: set[str] = set()

    def take(self, entry: ConsumerEntry, at_ms: int) -> None:
        group = self._group
        group.apply(entry)
        if entry.field is Field.GROUP:
            if entry.value is None:
                self._members, self._view, self._epoch = {}, None, 0
            elif group.epoch > self._epoch:
                self._raised(at_ms)
        elif entry.field is Field.TARGET_EPOCH and entry.value is not None:
            self._targeted(at_ms)
        elif entry.field is Field.CURRENT and entry.value is not None:
            current = group.current(entry.key)
            if current.state is MemberState.STABLE and current.epoch == group.target_epoch:
                self._reached(entry.key, at_ms)

    def _raised(self, at_ms: int) -> None:
        group = self._group
        entry = Entry(group.group_id, CONSUMER, at_ms, group.epoch, before=self._view)
        inferred = [CAUSES]
        if group.epoch > self._epoch + 1:
            entry.gap = group.epoch - self._epoch - 1
            inferred.append(MOVES)
        for cause in _consumer_causes(self._members, group, at_ms):
            entry.add(cause)
        self._members, self._epoch, self._waiting = dict(group.members), group.epoch, set()
        _begin(self._entries, entry, inferred)

    def _targeted(self, at_ms: int) -> None:
        group = self._group
        members = dict(group.members)
        targets = {m: group.target(m) for m in members}
        self._view = ConsumerView(members, targets, dict(group.regexes), self._topics)
        if not self._entries or self._entries[-1][0].generation != group.target_epoch:
            return
        entry = self._entries[-1][0]
        entry.after, entry.joined_ms = self._view, at_ms
        self._waiting = set(members)
        if not members:
            entry.settled_ms = at_ms

    def _reached(self, member_id: str, at_ms: int) -> None:
        if member_id not in self._waiting:
            return
        self._waiting.discard(member_id)
        if not self._waiting:
            entry = self._entries[-1][0]
            entry.settled_ms, entry.last = at_ms, member_id


def _consumer_causes(
    before: dict[str, MemberMetadata], group: ConsumerGroup, at_ms: int
) -> list[Cause]:
    causes: list[Cause] = []
    for member_id, member in group.members.items():
        old = before.get(member_id)
        if old is None:
            causes.append(cause_of(Trigger.JOINED, member, member_id, at_ms))
        elif (old.topics, old.regex) != (member.topics, member.regex):
            causes.append(cause_of(Trigger.SUBSCRIPTION, member, member_id, at_ms))
    causes += [
        cause_of(Trigger.GONE, member, member_id, at_ms)
        for member_id, member in before.items()
        if member_id not in group.members
    ]
    return causes or [Cause(Trigger.TOPICS, at_ms)]
