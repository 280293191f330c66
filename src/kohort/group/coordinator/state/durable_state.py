"""A shard's durable state: what replaying its log gives, and nothing else.

Rules:
- `apply` and `apply_marker` are the only ways to change it; both take what the log has.
- It is a pure function of the last value of each key (and of the transactions still open), so a
  compacted log gives the same state as the whole one (invariant G9).
- A transactional offset waits in `pending` until its producer's marker. Committed, it replaces the
  stored offset only when its own record comes later in the log: live state and replay then pick
  the same winner against plain commits.
- Values are immutable and there are no empty inner mappings, so states compare with `==`.
"""

from __future__ import annotations

from collections import Counter

from kohort.group.coordinator.state.classic_records import (
    OFFSET_PREFIX,
    GroupEntry,
    OffsetEntry,
    StoredGroup,
    StoredOffset,
    TopicPartition,
    decode_offset_key,
    decode_offset_value,
    decode_record,
)
from kohort.group.coordinator.state.consumer_group import ConsumerGroup
from kohort.group.coordinator.state.consumer_records import ConsumerEntry
from kohort.group.coordinator.state.effects import GroupRecord

NO_PRODUCER = -1
Offsets = dict[TopicPartition, StoredOffset]


class DurableState:
    """Groups, committed offsets and pending transactional offsets of one shard."""

    __slots__ = ("consumer_groups", "groups", "offsets", "open_producers", "pending", "skipped")

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.offsets: dict[str, Offsets] = {}
        self.pending: dict[int, dict[str, Offsets]] = {}
        self.open_producers: dict[str, set[int]] = {}  # group id -> producers in `pending`
        self.skipped: Counter[int] = Counter()  # records left alone, by key type; not state

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DurableState):
            return NotImplemented
        return (
            self.groups == other.groups
            and self.consumer_groups == other.consumer_groups
            and self.offsets == other.offsets
            and self.pending == other.pending
        )

    def __repr__(self) -> str:
        return (
            f"DurableState(groups={self.groups}, consumer_groups={self.consumer_groups}, "
            f"offsets={self.offsets}, pending={self.pending})"
        )

    def apply(self, record: GroupRecord, record_offset: int, producer_id: int) -> None:
        """Take in one record. Raises DecodeError for bytes that are no legal record."""
        key, value = record
        if value is not None and producer_id == NO_PRODUCER and key.startswith(OFFSET_PREFIX):
            # As below, without an entry: of most records there is no other kind.
            group_id, partition = decode_offset_key(key)
            stored = decode_offset_value(value, record_offset)
            offsets = self.offsets.get(group_id)
            if offsets is None:
                offsets = self.offsets[group_id] = {}
            offsets[partition] = stored
            return
        entry = decode_record(record, record_offset)
        if isinstance(entry, OffsetEntry):
            self._apply_offset(entry, producer_id)
        elif isinstance(entry, GroupEntry):
            if entry.value is None:
                self.groups.pop(entry.group_id, None)
            else:
                self.groups[entry.group_id] = entry.value
        elif isinstance(entry, ConsumerEntry):
            self._apply_to_consumer_group(entry)
        else:
            self.skipped[entry.record_type] += 1

    def _apply_offset(self, entry: OffsetEntry, producer_id: int) -> None:
        group_id, partition, value = entry
        if value is None:
            self._forget(group_id, partition)
        elif producer_id == NO_PRODUCER:
            offsets = self.offsets.get(group_id)
            if offsets is None:
                offsets = self.offsets[group_id] = {}
            offsets[partition] = value
        else:
            staged = self.pending.setdefault(producer_id, {}).setdefault(group_id, {})
            staged[partition] = value
            self.open_producers.setdefault(group_id, set()).add(producer_id)

    def _apply_to_consumer_group(self, entry: ConsumerEntry) -> None:
        group = self.consumer_groups.get(entry.group_id)
        if group is None:
            group = self.consumer_groups[entry.group_id] = ConsumerGroup(entry.group_id)
        group.apply(entry)
        if entry.value is None and group.is_gone():
            del self.consumer_groups[entry.group_id]

    def settle(self) -> None:
        """The log has been replayed to its end."""
        for group in self.consumer_groups.values():
            group.settle()

    def apply_marker(self, producer_id: int, committed: bool) -> None:
        """End the producer's transaction: its offsets become visible, or are gone."""
        for group_id, staged in self.pending.pop(producer_id, {}).items():
            self._close(group_id, producer_id)
            if not committed:
                continue
            offsets = self.offsets.setdefault(group_id, {})
            for partition, value in staged.items():
                stored = offsets.get(partition)
                if stored is None or value.record_offset > stored.record_offset:
                    offsets[partition] = value

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction holds an offset of this partition (KIP-447)."""
        return any(
            partition in self.pending[producer_id][group_id]
            for producer_id in self.open_producers.get(group_id, ())
        )

    def partitions_of(self, group_id: str) -> list[TopicPartition]:
        """Every partition with an offset, committed or pending."""
        partitions = dict.fromkeys(self.offsets.get(group_id, {}))
        for producer_id in sorted(self.open_producers.get(group_id, ())):
            partitions.update(dict.fromkeys(self.pending[producer_id][group_id]))
        return list(partitions)

    def holds_offsets(self, group_id: str) -> bool:
        """Whether the group has any offset, committed or pending."""
        return group_id in self.offsets or group_id in self.open_producers

    def _forget(self, group_id: str, partition: TopicPartition) -> None:
        """A tombstone removes the committed offset and every pending one."""
        offsets = self.offsets.get(group_id)
        if offsets is not None:
            offsets.pop(partition, None)
            if not offsets:
                del self.offsets[group_id]
        for producer_id in list(self.open_producers.get(group_id, ())):
            staged = self.pending[producer_id][group_id]
            staged.pop(partition, None)
            if not staged:
                del self.pending[producer_id][group_id]
                self._close(group_id, producer_id)
                if not self.pending[producer_id]:
                    del self.pending[producer_id]

    def _close(self, group_id: str, producer_id: int) -> None:
        producers = self.open_producers[group_id]
        producers.discard(producer_id)
        if not producers:
            del self.open_producers[group_id]
