"""A consumer group while a request is being decided: its state with the changes proposed so far.

Rules:
- Every change is a record put into `Effects`, and is visible at once to readers of the draft;
  the group itself changes when the records are replayed, and not before.
- Records keep the order in which they are proposed. The helpers for whole members write them
  in Kafka's order: 8, 7, 5 when one goes, 5, 7, 8 when one takes another's place.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohort.group.coordinator.state.consumer_group import NO_PARTITIONS, ConsumerGroup
from kohort.group.coordinator.state.consumer_records import (
    NEW_MEMBER,
    Current,
    Field,
    MemberMetadata,
    Partitions,
    Resolved,
    current_record,
    epoch_record,
    member_record,
    regex_record,
    target_epoch_record,
    target_record,
    tombstone,
)
from kohort.group.coordinator.state.effects import Effects
from kohort.group.coordinator.state.rebalance_history import Cause


class Draft:
    """A consumer group as it will be once `out.records` are replayed."""

    __slots__ = (
        "_currents",
        "_gone",
        "_members",
        "_regexes",
        "_targets",
        "causes",
        "epoch",
        "group",
        "looked_at_regex",
        "looked_at_topics",
        "metadata_hash",
        "out",
        "target_epoch",
    )

    def __init__(self, group: ConsumerGroup, out: Effects) -> None:
        self.group, self.out = group, out
        self.epoch, self.metadata_hash = group.epoch, group.metadata_hash
        self.target_epoch = group.target_epoch
        self.causes: list[Cause] = []  # why the epoch rises
        self.looked_at_topics = False  # the epoch includes their present state
        self.looked_at_regex = ""  # its resolution is included
        self._members: dict[str, MemberMetadata] = {}
        self._targets: dict[str, Partitions] = {}
        self._currents: dict[str, Current] = {}
        self._regexes: dict[str, Resolved | None] = {}
        self._gone: set[str] = set()

    # Questions

    def members(self) -> Iterator[tuple[str, MemberMetadata]]:
        """Every member, in the order in which they came."""
        for member_id, member in self.group.members.items():
            if member_id not in self._gone:
                yield member_id, self._members.get(member_id, member)
        for member_id, member in self._members.items():
            if member_id not in self.group.members:
                yield member_id, member

    def count(self) -> int:
        """How many members there are."""
        new = sum(m not in self.group.members for m in self._members)
        return len(self.group.members) - len(self._gone) + new

    def member(self, member_id: str) -> MemberMetadata | None:
        """A member, or None when there is no such member."""
        if member_id in self._gone:
            return None
        return self._members.get(member_id) or self.group.members.get(member_id)

    def current(self, member_id: str) -> Current:
        """What a member has."""
        if member_id in self._gone:
            return NEW_MEMBER
        return self._currents.get(member_id) or self.group.current(member_id)

    def target(self, member_id: str) -> Partitions:
        """What a member is to have."""
        if member_id in self._gone:
            return NO_PARTITIONS
        target = self._targets.get(member_id)
        return self.group.target(member_id) if target is None else target

    def has_target(self, member_id: str) -> bool:
        """Whether the target says anything of the member, be it nothing at all."""
        if member_id in self._gone:
            return False
        return member_id in self._targets or member_id in self.group.targets

    def is_taken(self, member_id: str, topic_id: bytes, partition: int) -> bool:
        """Whether anybody but this member has the partition (G1)."""
        for other, current in self._currents.items():
            if other != member_id and (
                partition in current.assigned.get(topic_id, ())
                or partition in current.pending.get(topic_id, ())
            ):
                return True
        owner = self.group.owner(topic_id, partition)
        return not (
            owner is None or owner == member_id or owner in self._gone or owner in self._currents
        )

    def resolved(self, regex: str) -> Resolved | None:
        """The topics that a regular expression resolves to; None when it is not resolved."""
        return self._regexes[regex] if regex in self._regexes else self.group.regexes.get(regex)

    def regexes(self) -> list[str]:
        """Every resolved regular expression."""
        known = dict.fromkeys((*self.group.regexes, *self._regexes))
        return [regex for regex in known if self.resolved(regex) is not None]

    @property
    def regexes_changed(self) -> bool:
        """Whether a regular expression resolves to other topics than before."""
        return bool(self._regexes)

    def topics_of(self, member: MemberMetadata) -> frozenset[str]:
        """The topics a member reads, by name or by regular expression."""
        resolved = self.resolved(member.regex) if member.regex else None
        return frozenset(member.topics) | frozenset(resolved.topics if resolved else ())

    # Changes

    def set_member(self, member_id: str, member: MemberMetadata) -> None:
        """A member is new, or describes itself differently."""
        self._members[member_id] = member
        self._gone.discard(member_id)
        self.out.records.append(member_record(self.group.group_id, member_id, member))

    def set_target(self, member_id: str, target: Partitions) -> None:
        """What a member is to have."""
        self._targets[member_id] = target
        self.out.records.append(target_record(self.group.group_id, member_id, target))

    def set_current(self, member_id: str, current: Current) -> None:
        """What a member has, and its epochs."""
        self._currents[member_id] = current
        self.out.records.append(current_record(self.group.group_id, member_id, current))

    def set_regex(self, regex: str, resolved: Resolved | None) -> None:
        """Set the topics of a regular expression; None when no member uses it any more."""
        self._regexes[regex] = resolved
        group_id = self.group.group_id
        if resolved is None:
            self.out.records.append(tombstone(Field.REGEX, group_id, regex))
        else:
            self.out.records.append(regex_record(group_id, regex, resolved))

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        """The group's epoch rises, for all to hear; what an older broker kept of topics goes."""
        self.epoch, self.metadata_hash = epoch, metadata_hash
        self.out.heartbeat_hints += [
            (member.client_id, member.client_host) for _, member in self.members()
        ]
        group_id = self.group.group_id
        if self.group.has_partition_metadata:
            self.out.records.append(tombstone(Field.PARTITION_METADATA, group_id))
        self.out.records.append(epoch_record(group_id, epoch, metadata_hash))

    def set_target_epoch(self, epoch: int) -> None:
        """The target is that of this epoch."""
        self.target_epoch = epoch
        self.out.records.append(target_epoch_record(self.group.group_id, epoch))

    def remove(self, member_id: str) -> None:
        """A member goes, with its target and all that it had."""
        for field in (Field.CURRENT, Field.TARGET, Field.MEMBER):
            self.out.records.append(tombstone(field, self.group.group_id, member_id))
        for kept in (self._members, self._targets, self._currents):
            kept.pop(member_id, None)
        if member_id in self.group.members:
            self._gone.add(member_id)

    def replace(self, old_id: str, new_id: str, current: Current) -> None:
        """A static member comes back under a new id: it gets what the old one had (KIP-848)."""
        member, target = self.member(old_id), self.target(old_id)
        assert member is not None
        self.remove(old_id)
        self.set_member(new_id, member)
        self.set_target(new_id, target)
        self.set_current(new_id, current)


def group_tombstones(group: ConsumerGroup, out: Effects) -> None:
    """Every record of a group, removed in Kafka's order: 8s, 7s, 6, 5s, 16s, 4, 3."""
    group_id = group.group_id
    out.records += [tombstone(Field.CURRENT, group_id, m) for m in group.currents]
    out.records += [tombstone(Field.TARGET, group_id, m) for m in group.targets]
    out.records.append(tombstone(Field.TARGET_EPOCH, group_id))
    out.records += [tombstone(Field.MEMBER, group_id, m) for m in group.members]
    out.records += [tombstone(Field.REGEX, group_id, regex) for regex in group.regexes]
    if group.has_partition_metadata:
        out.records.append(tombstone(Field.PARTITION_METADATA, group_id))
    out.records.append(tombstone(Field.GROUP, group_id))
