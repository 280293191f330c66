"""The records of `__consumer_offsets` that offsets and classic groups are made of, as Kafka's.

Rules:
- Written: key type 1 (committed offset) with value v3, or v1 when the offset has an expiry time of
  its own; key type 2 (group metadata) with value v3. No version flag is consulted: Kafka 4 writes
  the same, and every broker since 2.3 reads it.
- Read: key types 0, 1 and 2, value versions 0 to 4. Those of consumer groups are read by
  `consumer_records`. Any other key type belongs to groups of another kind (KIP-932, streams) or to
  a newer broker, and decodes to `Skipped`.
- Bytes of a known type that break its format raise `DecodeError`: the log is not ours to guess at.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from kohort.group.coordinator.state.consumer_records import (
    CONSUMER_TYPES,
    ConsumerEntry,
    decode_consumer_record,
)
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.lean import dataclass, field, quick
from kohort.wire import decode_record_key, decode_versioned, encode_record_key, encode_versioned
from kohort.wire import record_type as record_type_of
from kohort.wire.messages.group_metadata_key import GroupMetadataKey
from kohort.wire.messages.group_metadata_value import GroupMetadataValue, MemberMetadata
from kohort.wire.messages.legacy_offset_commit_key import LegacyOffsetCommitKey
from kohort.wire.messages.offset_commit_key import OffsetCommitKey
from kohort.wire.messages.offset_commit_value import OffsetCommitValue

LEGACY_OFFSET, OFFSET, GROUP = 0, 1, 2
STRING_BYTES_MAX: Final = 0x7FFF
NO_EXPIRY = -1
_VALUE_HEAD: Final = Struct(">hqih")
"""An offset's value v3 up to its metadata: version, offset, leader epoch, bytes of metadata."""
_TIME: Final = Struct(">q")
_BARE_VALUE: Final = Struct(">hqihq")
"""All of a value v3 without metadata."""
OFFSET_PREFIX: Final = b"\0\1"
"""What keys of type 1 begin with."""
_KEYS_KEPT: Final = 16_384
"""Keys of offsets are few and come again with every commit: that many are kept, both ways."""
TopicPartition = tuple[str, int]


class StoredOffset(NamedTuple):
    """A committed offset. `record_offset` is the offset of its record in the log."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    record_offset: int = -1


class StoredMember(NamedTuple):
    """A member of a generation; `subscription` is its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as the log has it: its last generation and, once there, its assignment."""

    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: dict[str, StoredMember] = field(default_factory=dict[str, StoredMember])

    def lacks_assignment(self) -> bool:
        """True for a generation that was written and whose leader's assignment was not (spec 2.6).

        One without a leader is what a consumer group was converted to.
        """
        return bool(self.members) and (
            self.leader is None or not any(m.assignment for m in self.members.values())
        )


class GroupEntry(NamedTuple):
    """A decoded record of key type 2; a value of None is a tombstone."""

    group_id: str
    value: StoredGroup | None


class OffsetEntry(NamedTuple):
    """A decoded record of key type 0 or 1; a value of None is a tombstone."""

    group_id: str
    partition: TopicPartition
    value: StoredOffset | None


class Skipped(NamedTuple):
    """A record of a key type that belongs to groups of another kind."""

    record_type: int


def group_record(group_id: str, group: StoredGroup) -> GroupRecord:
    """The record that stores `group`."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                rebalance_timeout=m.rebalance_timeout_ms,
                session_timeout=m.session_timeout_ms,
                subscription=m.subscription,
                assignment=m.assignment,
            )
            for m in group.members.values()
        ],
    )
    return GroupRecord(_group_key(group_id), encode_versioned(value, 3))


def group_tombstone(group_id: str) -> GroupRecord:
    """The record that removes a group's metadata."""
    return GroupRecord(_group_key(group_id), None)


def offset_record(group_id: str, partition: TopicPartition, offset: StoredOffset) -> GroupRecord:
    """The record that stores a committed offset."""
    key = _offset_key(group_id, partition)
    at, leader_epoch, metadata, time_ms, expire_ms, _ = offset
    if expire_ms != NO_EXPIRY:
        return GroupRecord(key, _encode_value(offset))
    if metadata:
        value = _encode_usual_value(offset) or _encode_value(offset)
    else:
        value = _BARE_VALUE.pack(3, at, leader_epoch, 0, time_ms)
    record: GroupRecord = quick(GroupRecord, (key, value))
    return record


def _encode_usual_value(offset: StoredOffset) -> bytes | None:
    """What `_encode_value` gives for v3, three times as fast: every commit needs it."""
    metadata = offset.metadata.encode()
    if len(metadata) > STRING_BYTES_MAX:
        return None
    head = _VALUE_HEAD.pack(3, offset.offset, offset.leader_epoch, len(metadata))
    return head + metadata + _TIME.pack(offset.commit_timestamp_ms)


def _encode_value(offset: StoredOffset) -> bytes:
    value = OffsetCommitValue(
        offset=offset.offset,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
    )
    if offset.expire_timestamp_ms == NO_EXPIRY:
        value.leader_epoch = offset.leader_epoch
        return encode_versioned(value, 3)
    value.expire_timestamp = offset.expire_timestamp_ms  # only v1 has a place for it
    return encode_versioned(value, 1)


def offset_tombstone(group_id: str, partition: TopicPartition) -> GroupRecord:
    """The record that removes a committed offset."""
    return GroupRecord(_offset_key(group_id, partition), None)


def decode_record(
    record: GroupRecord, record_offset: int
) -> GroupEntry | OffsetEntry | ConsumerEntry | Skipped:
    """Decode `record`, which is at `record_offset` in the log.

    Raises DecodeError or UnsupportedVersionError when key or value break their format.
    """
    kind = record_type_of(record.key)
    if kind in (OFFSET, LEGACY_OFFSET):
        group_id, partition = decode_offset_key(record.key)
        return OffsetEntry(
            group_id,
            partition,
            None if record.value is None else decode_offset_value(record.value, record_offset),
        )
    if kind == GROUP:
        group_id = decode_record_key(GroupMetadataKey, record.key).group
        return GroupEntry(group_id, _group_value(record.value))
    if kind in CONSUMER_TYPES:
        return decode_consumer_record(kind, record)
    return Skipped(kind)


@lru_cache(_KEYS_KEPT)
def decode_offset_key(data: bytes) -> tuple[str, TopicPartition]:
    """Group and partition of a key of type 0 or 1."""
    kind = OffsetCommitKey if record_type_of(data) == OFFSET else LegacyOffsetCommitKey
    key = decode_record_key(kind, data)
    return key.group, (key.topic, key.partition)


def _group_key(group_id: str) -> bytes:
    return encode_record_key(GroupMetadataKey(group=group_id))


@lru_cache(_KEYS_KEPT)
def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    return encode_record_key(
        OffsetCommitKey(group=group_id, topic=partition[0], partition=partition[1])
    )


def decode_offset_value(data: bytes, record_offset: int) -> StoredOffset:
    """The committed offset that a record says."""
    if len(data) == _BARE_VALUE.size:
        version, offset, leader_epoch, size, time = _BARE_VALUE.unpack(data)
        if version == 3 and size == 0:
            fields = (offset, leader_epoch, "", time, NO_EXPIRY, record_offset)
            stored: StoredOffset = quick(StoredOffset, fields)
            return stored
    return _decode_usual_value(data, record_offset) or _decode_value(data, record_offset)


def _decode_usual_value(data: bytes, record_offset: int) -> StoredOffset | None:
    """What `_decode_value` gives for v3 in ASCII, four times as fast; None for all else."""
    if len(data) < _VALUE_HEAD.size + _TIME.size:
        return None
    version, offset, leader_epoch, size = _VALUE_HEAD.unpack_from(data)
    end = len(data) - _TIME.size
    metadata = data[_VALUE_HEAD.size : end]
    if version != 3 or size != len(metadata) or not metadata.isascii():
        return None
    (time,) = _TIME.unpack_from(data, end)
    return StoredOffset(offset, leader_epoch, metadata.decode(), time, NO_EXPIRY, record_offset)


def _decode_value(data: bytes, record_offset: int) -> StoredOffset:
    _, value = decode_versioned(OffsetCommitValue, data)
    return StoredOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=value.expire_timestamp,
        record_offset=record_offset,
    )


def _group_value(data: bytes | None) -> StoredGroup | None:
    if data is None:
        return None
    _, value = decode_versioned(GroupMetadataValue, data)
    return StoredGroup(
        protocol_type=value.protocol_type or None,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members={m.member_id: _member(m) for m in value.members},
    )


def _member(m: MemberMetadata) -> StoredMember:
    """A stored member; v0 has no rebalance timeout, which then is the session timeout."""
    known = m.rebalance_timeout >= 0
    return StoredMember(
        member_id=m.member_id,
        instance_id=m.group_instance_id,
        client_id=m.client_id,
        client_host=m.client_host,
        rebalance_timeout_ms=m.rebalance_timeout if known else m.session_timeout,
        session_timeout_ms=m.session_timeout,
        subscription=m.subscription,
        assignment=m.assignment,
    )
