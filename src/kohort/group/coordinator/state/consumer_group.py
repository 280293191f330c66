"""A consumer group as replaying its records gives it (KIP-848), and what can be read off it.

Rules:
- Only `apply` changes it. It keeps the last value of each key, in any order, so
  every legal compaction of the log gives the same group, and none raises (G9, B24).
- `owners`, `static_members` and `classic_members` are indexes over those values; `settle` rebuilds
  them when a load has ended, in any order of the records.
- A partition has an owner while it is assigned to a member or the member has not given it up (G1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kohort.group.coordinator.state.consumer_records import (
    NEW_MEMBER,
    ConsumerEntry,
    Current,
    Field,
    GroupMetadata,
    MemberMetadata,
    Partitions,
    Resolved,
)
from kohort.group.coordinator.state.consumer_table import ConsumerState, MemberState

NO_PARTITIONS: Partitions = {}


class ConsumerGroup:
    """One consumer group. One that is to take another's place starts from that one's epoch."""

    __slots__ = (
        "classic_members",
        "currents",
        "group_id",
        "has_partition_metadata",
        "members",
        "metadata",
        "owners",
        "regexes",
        "static_members",
        "target_epoch_stored",
        "targets",
    )

    def __init__(self, group_id: str, epoch: int = 0) -> None:
        self.group_id = group_id
        self.metadata: GroupMetadata | None = GroupMetadata(epoch, 0) if epoch else None
        self.target_epoch_stored: int | None = None
        self.members: dict[str, MemberMetadata] = {}
        self.targets: dict[str, Partitions] = {}
        self.currents: dict[str, Current] = {}
        self.regexes: dict[str, Resolved] = {}
        self.has_partition_metadata = False
        self.owners: dict[bytes, dict[int, str]] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.classic_members = 0

    __hash__ = None  # type: ignore[assignment]  # mutable

    def _kept(self) -> tuple[object, ...]:
        return (
            self.metadata,
            self.target_epoch_stored,
            self.members,
            self.targets,
            self.currents,
            self.regexes,
            self.has_partition_metadata,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerGroup):
            return NotImplemented
        return self.group_id == other.group_id and self._kept() == other._kept()

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.group_id!r}, {self._kept()})"

    # Replay

    def apply(self, entry: ConsumerEntry) -> None:
        """Take in one record."""
        key, value = entry.key, entry.value
        match entry.field:
            case Field.GROUP:
                assert value is None or isinstance(value, GroupMetadata)
                self.metadata = value
            case Field.PARTITION_METADATA:
                self.has_partition_metadata = value is not None
            case Field.TARGET_EPOCH:
                assert value is None or isinstance(value, int)
                self.target_epoch_stored = value
            case Field.MEMBER:
                assert value is None or isinstance(value, MemberMetadata)
                self._set_member(key, value)
            case Field.TARGET:
                assert value is None or isinstance(value, Mapping)
                if value is None:
                    self.targets.pop(key, None)
                else:
                    self.targets[key] = value
            case Field.CURRENT:
                assert value is None or isinstance(value, Current)
                self._set_current(key, value)
            case Field.REGEX:
                assert value is None or isinstance(value, Resolved)
                if value is None:
                    self.regexes.pop(key, None)
                else:
                    self.regexes[key] = value

    def _set_member(self, member_id: str, value: MemberMetadata | None) -> None:
        old = self.members.get(member_id)
        if old is not None:
            self.classic_members -= old.classic is not None
            if (
                old.instance_id is not None
                and self.static_members.get(old.instance_id) == member_id
            ):
                del self.static_members[old.instance_id]
        if value is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = value
        self.classic_members += value.classic is not None
        if value.instance_id is not None:
            self.static_members[value.instance_id] = member_id

    def _set_current(self, member_id: str, value: Current | None) -> None:
        old = self.currents.get(member_id)
        if old is not None:
            for held in (old.assigned, old.pending):
                for topic_id, numbers in held.items():
                    owners = self.owners.get(topic_id, {})
                    for number in numbers:
                        if owners.get(number) == member_id:
                            del owners[number]
                    if not owners:
                        self.owners.pop(topic_id, None)
        if value is None:
            self.currents.pop(member_id, None)
            return
        self.currents[member_id] = value
        for held in (value.assigned, value.pending):
            for topic_id, numbers in held.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member_id))

    def settle(self) -> None:
        """After a load: rebuild the indexes from the records."""
        members, currents = self.members, self.currents
        self.members, self.currents, self.owners = {}, {}, {}
        self.static_members, self.classic_members = {}, 0
        for member_id, member in members.items():
            self._set_member(member_id, member)
        for member_id, current in currents.items():
            self._set_current(member_id, current)

    def is_gone(self) -> bool:
        """Whether every record of the group has been removed."""
        return not any(self._kept())

    # Questions

    @property
    def epoch(self) -> int:
        """The group epoch; 0 before the first."""
        return self.metadata.epoch if self.metadata else 0

    @property
    def metadata_hash(self) -> int:
        """The hash of the topics that the group epoch was raised for."""
        return self.metadata.metadata_hash if self.metadata else 0

    @property
    def target_epoch(self) -> int:
        """The epoch that the target was made for; 0 before the first."""
        return self.target_epoch_stored or 0

    def current(self, member_id: str) -> Current:
        """What a member has; nothing when it has just come."""
        return self.currents.get(member_id, NEW_MEMBER)

    def target(self, member_id: str) -> Partitions:
        """What a member is to have."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """The member that has the partition, or has not given it up yet."""
        owners = self.owners.get(topic_id)
        return None if owners is None else owners.get(partition)

    def state(self) -> ConsumerState:
        """The state that clients are shown. Looks at every member."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerState.ASSIGNING
        for member_id in self.members:
            current = self.current(member_id)
            if current.state is not MemberState.STABLE or current.epoch != self.target_epoch:
                return ConsumerState.RECONCILING
        return ConsumerState.STABLE

    def topics_of(self, member: MemberMetadata) -> frozenset[str]:
        """The topics a member reads: by name, and by its resolved regular expression."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return frozenset(member.topics) | frozenset(resolved.topics if resolved else ())

    def subscribed_topics(self) -> frozenset[str]:
        """The topics that any member reads."""
        return frozenset[str]().union(*(self.topics_of(m) for m in self.members.values()))

    def all_classic_without(self, gone: Collection[str]) -> bool:
        """Whether everybody but `gone` speaks the classic protocol."""
        there = {member_id for member_id in gone if member_id in self.members}
        classic_gone = sum(self.members[member_id].classic is not None for member_id in there)
        return len(self.members) - len(there) == self.classic_members - classic_gone
