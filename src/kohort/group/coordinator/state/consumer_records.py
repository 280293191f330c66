"""The records of `__consumer_offsets` that consumer groups are made of (KIP-848), as Kafka's.

Rules:
- Written: key types 3 (group), 5 (member), 6 (target epoch), 7 (a member's target), 8 (a member's
  current assignment), 16 (a resolved regular expression), values v0. Type 4 (partition metadata) is
  what older brokers wrote: it is only removed.
- Partitions are written by topic id in order of id, numbers ascending, so equal assignments are
  equal bytes. Assignment epochs (KIP-1251) always go with the current assignment.
- A current assignment in a state that a newer broker added is read as `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from kohort.group.coordinator.state.consumer_table import MemberState
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.wire import (
    Message,
    decode_record_key,
    decode_versioned,
    encode_record_key,
    encode_versioned,
)
from kohort.wire.messages.consumer_group_current_member_assignment_key import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from kohort.wire.messages.consumer_group_current_member_assignment_value import (
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kohort.wire.messages.consumer_group_member_metadata_key import ConsumerGroupMemberMetadataKey
from kohort.wire.messages.consumer_group_member_metadata_value import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
)
from kohort.wire.messages.consumer_group_metadata_key import ConsumerGroupMetadataKey
from kohort.wire.messages.consumer_group_metadata_value import ConsumerGroupMetadataValue
from kohort.wire.messages.consumer_group_partition_metadata_key import (
    ConsumerGroupPartitionMetadataKey,
)
from kohort.wire.messages.consumer_group_regular_expression_key import (
    ConsumerGroupRegularExpressionKey,
)
from kohort.wire.messages.consumer_group_regular_expression_value import (
    ConsumerGroupRegularExpressionValue,
)
from kohort.wire.messages.consumer_group_target_assignment_member_key import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from kohort.wire.messages.consumer_group_target_assignment_member_value import (
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from kohort.wire.messages.consumer_group_target_assignment_metadata_key import (
    ConsumerGroupTargetAssignmentMetadataKey,
)
from kohort.wire.messages.consumer_group_target_assignment_metadata_value import (
    ConsumerGroupTargetAssignmentMetadataValue,
)

V = TypeVar("V", bound=Message)

Partitions = Mapping[bytes, tuple[int, ...]]
"""Partitions by topic id; numbers ascending, no topic without partitions."""
Epochs = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with the epoch it was assigned in (KIP-1251)."""

NO_TIMEOUT: Final = -1
LEFT_FOR_A_WHILE: Final = -2
"""The member epoch of a static member that is expected back."""


class Field(Enum):
    """What a record of a consumer group is about; the value is its key type."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16

    __hash__ = object.__hash__


class ClassicMetadata(NamedTuple):
    """What a member that speaks the classic protocol has beyond the others."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberMetadata(NamedTuple):
    """A member as it describes itself. `topics` ascending; `regex` is "" without one."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMetadata | None = None


class Current(NamedTuple):
    """A member's epochs, its state, and its partitions: assigned, and to be given up."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Epochs
    pending: Epochs


NEW_MEMBER: Final = Current(0, 0, MemberState.STABLE, {}, {})
"""A member that has just come."""


class GroupMetadata(NamedTuple):
    """The group's epoch, and the hash of what its assignor saw of the topics."""

    epoch: int
    metadata_hash: int


class Resolved(NamedTuple):
    """The topics that a regular expression matched, ascending, and when."""

    topics: tuple[str, ...]
    timestamp_ms: int


class ConsumerEntry(NamedTuple):
    """A decoded record; `key` is the member id or regular expression; no value: a tombstone."""

    field: Field
    group_id: str
    key: str
    value: GroupMetadata | MemberMetadata | int | Partitions | Current | Resolved | None


# Written


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    """Type 3: the group has this epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return GroupRecord(_key(Field.GROUP, group_id), encode_versioned(value, 0))


def member_record(group_id: str, member_id: str, member: MemberMetadata) -> GroupRecord:
    """Type 5: a member describes itself so."""
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=None,  # Kafka writes that there is none
    )
    if member.classic is not None:
        value.classic_member_metadata = ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=data) for name, data in member.classic.protocols
            ],
        )
    return GroupRecord(_key(Field.MEMBER, group_id, member_id), encode_versioned(value, 0))


def target_epoch_record(group_id: str, epoch: int) -> GroupRecord:
    """Type 6: the target assignment is that of this epoch."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return GroupRecord(_key(Field.TARGET_EPOCH, group_id), encode_versioned(value, 0))


def target_record(group_id: str, member_id: str, target: Partitions) -> GroupRecord:
    """Type 7: what a member is to have in the end."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=list(target[topic_id]))
            for topic_id in sorted(target)
        ]
    )
    return GroupRecord(_key(Field.TARGET, group_id, member_id), encode_versioned(value, 0))


def current_record(group_id: str, member_id: str, current: Current) -> GroupRecord:
    """Type 8: what a member has, and in which epoch."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state.value,
        assigned_partitions=_with_epochs(current.assigned),
        partitions_pending_revocation=_with_epochs(current.pending),
    )
    return GroupRecord(_key(Field.CURRENT, group_id, member_id), encode_versioned(value, 0))


def regex_record(group_id: str, regex: str, resolved: Resolved) -> GroupRecord:
    """Type 16: the topics that a regular expression resolves to."""
    value = ConsumerGroupRegularExpressionValue(
        topics=list(resolved.topics), version=0, timestamp=resolved.timestamp_ms
    )
    return GroupRecord(_key(Field.REGEX, group_id, regex), encode_versioned(value, 0))


def tombstone(field: Field, group_id: str, key: str = "") -> GroupRecord:
    """The record that removes another."""
    return GroupRecord(_key(field, group_id, key), None)


def _key(field: Field, group_id: str, key: str = "") -> bytes:
    made: Message
    match field:
        case Field.GROUP:
            made = ConsumerGroupMetadataKey(group_id=group_id)
        case Field.PARTITION_METADATA:
            made = ConsumerGroupPartitionMetadataKey(group_id=group_id)
        case Field.MEMBER:
            made = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=key)
        case Field.TARGET_EPOCH:
            made = ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
        case Field.TARGET:
            made = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=key)
        case Field.CURRENT:
            made = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=key)
        case Field.REGEX:
            made = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=key)
    return encode_record_key(made)


def _with_epochs(partitions: Epochs) -> list[TopicPartitions]:
    shown: list[TopicPartitions] = []
    for topic_id in sorted(partitions):
        numbers = sorted(partitions[topic_id])
        epochs = [partitions[topic_id][number] for number in numbers]
        shown.append(
            TopicPartitions(topic_id=topic_id, partitions=numbers, assignment_epochs=epochs)
        )
    return shown


# Read


def _group(data: bytes) -> GroupMetadata:
    value = _decoded(ConsumerGroupMetadataValue, data)
    return GroupMetadata(value.epoch, value.metadata_hash)


def _partition_metadata(data: bytes) -> int:
    return len(data)  # that there is one is all that matters


def _member(data: bytes) -> MemberMetadata:
    value = _decoded(ConsumerGroupMemberMetadataValue, data)
    classic = value.classic_member_metadata
    return MemberMetadata(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=tuple(sorted(set(value.subscribed_topic_names))),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=None  # a record without the field is one of before there was any migration
        if classic is None or not classic.supported_protocols
        else ClassicMetadata(
            classic.session_timeout_ms,
            tuple((p.name, p.metadata) for p in classic.supported_protocols),
        ),
    )


def _target_epoch(data: bytes) -> int:
    return _decoded(ConsumerGroupTargetAssignmentMetadataValue, data).assignment_epoch


def _target(data: bytes) -> Partitions:
    value = _decoded(ConsumerGroupTargetAssignmentMemberValue, data)
    return {
        t.topic_id: tuple(sorted(set(t.partitions))) for t in value.topic_partitions if t.partitions
    }


def _current(data: bytes) -> Current:
    value = _decoded(ConsumerGroupCurrentMemberAssignmentValue, data)
    return Current(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState.of(value.state),
        _epochs(value.assigned_partitions, value.member_epoch),
        _epochs(value.partitions_pending_revocation, value.member_epoch),
    )


def _epochs(topics: list[TopicPartitions], member_epoch: int) -> Epochs:
    """Brokers before KIP-1251 wrote no assignment epochs: the member's own is taken then."""
    epochs_by_topic: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        if topic.partitions:
            pairs = sorted(zip(topic.partitions, epochs, strict=True))
            epochs_by_topic.setdefault(topic.topic_id, {}).update(pairs)
    return epochs_by_topic


def _regex(data: bytes) -> Resolved:
    value = _decoded(ConsumerGroupRegularExpressionValue, data)
    return Resolved(tuple(sorted(set(value.topics))), value.timestamp)


def _decoded(kind: type[V], data: bytes) -> V:
    return decode_versioned(kind, data)[1]


def _group_of(key: Message, name: str = "") -> tuple[str, str]:
    group_id: str = getattr(key, "group_id")  # noqa: B009  # every key of these types has one
    return group_id, getattr(key, name) if name else ""


_READERS: Final[Mapping[int, tuple[Field, type[Message], str, Callable[[bytes], object]]]] = {
    3: (Field.GROUP, ConsumerGroupMetadataKey, "", _group),
    4: (Field.PARTITION_METADATA, ConsumerGroupPartitionMetadataKey, "", _partition_metadata),
    5: (Field.MEMBER, ConsumerGroupMemberMetadataKey, "member_id", _member),
    6: (Field.TARGET_EPOCH, ConsumerGroupTargetAssignmentMetadataKey, "", _target_epoch),
    7: (Field.TARGET, ConsumerGroupTargetAssignmentMemberKey, "member_id", _target),
    8: (Field.CURRENT, ConsumerGroupCurrentMemberAssignmentKey, "member_id", _current),
    16: (Field.REGEX, ConsumerGroupRegularExpressionKey, "regular_expression", _regex),
}
CONSUMER_TYPES: Final = frozenset(_READERS)
"""The key types of consumer groups."""


def decode_consumer_record(kind: int, record: GroupRecord) -> ConsumerEntry:
    """What a record of one of `CONSUMER_TYPES` says. Raises DecodeError for damaged bytes."""
    field, key_class, name, read = _READERS[kind]
    group_id, key = _group_of(decode_record_key(key_class, record.key), name)
    value = None if record.value is None else read(record.value)
    return ConsumerEntry(field, group_id, key, value)  # type: ignore[arg-type]
