"""`__consumer_offsets` records byte for byte: vectors worked out by hand from the facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohort.errors import DecodeError, EncodeError, ProtocolError
from kohort.group.coordinator.shard import GroupShard
from kohort.group.coordinator.state.classic_records import (
    GroupEntry,
    OffsetEntry,
    Skipped,
    StoredGroup,
    StoredMember,
    StoredOffset,
    decode_record,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from kohort.group.coordinator.state.durable_state import NO_PRODUCER, DurableState
from kohort.group.coordinator.state.effects import GroupRecord
from kohort.wire import decode_versioned, encode_versioned
from kohort.wire.messages.offset_commit_value import OffsetCommitValue
from tests.group.harness import Bench
from tests.known import known

MEMBER = StoredMember("m-1", "i", "cl", "/h", 60_000, 10_000, b"\x01\x02", b"\x03")
STATED = StoredGroup("consumer", 5, "range", "m-1", 1_000, {"m-1": MEMBER})
GROUP_KEY = bytes.fromhex("0002 0002 6731")
OFFSET_KEY = bytes.fromhex("0001 0002 6731 0001 74 00000003")

OFFSET_VECTORS = [
    # v3: offset, leader epoch, metadata, commit timestamp
    (
        StoredOffset(42, 7, "me", 1_000),
        "0003 000000000000002a 00000007 0002 6d65 00000000000003e8",
    ),
    # v1: offset, metadata, commit timestamp, expire timestamp
    (
        StoredOffset(42, -1, "me", 1_000, 2_000),
        "0001 000000000000002a 0002 6d65 00000000000003e8 00000000000007d0",
    ),
]
GROUP_VALUE = (
    "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0003 6d2d31 00000000000003e8"
    "00000001 0003 6d2d31 0001 69 0002 636c 0002 2f68 0000ea60 00002710"
    "00000002 0102 00000001 03"
)
EMPTY_VALUE = "0003 0000 00000000 ffff ffff 00000000000003e8 00000000"


@pytest.mark.parametrize(("offset", "value"), OFFSET_VECTORS)
def test_offset_record(offset: StoredOffset, value: str) -> None:
    record = offset_record("g1", ("t", 3), offset)
    assert record == GroupRecord(OFFSET_KEY, bytes.fromhex(value))
    assert decode_record(record, -1) == OffsetEntry("g1", ("t", 3), offset)


@given(
    st.tuples(
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.just("") | st.text(max_size=50),
        st.integers(-(1 << 63), (1 << 63) - 1),
    ).map(lambda fields: StoredOffset(*fields)),
    st.binary(max_size=40),
    st.integers(0, 60),
)
def test_offsets_are_written_and_read_as_the_generated_codec_does(
    offset: StoredOffset, noise: bytes, cut: int
) -> None:
    """The fast path of every commit is the codec's, byte for byte, also on damaged values."""
    message = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
    )
    record = offset_record("g1", ("t", 3), offset)
    assert record.value == encode_versioned(message, 3)
    assert decode_record(record, -1) == OffsetEntry("g1", ("t", 3), offset)
    state = DurableState()
    state.apply(record, -1, NO_PRODUCER)
    assert state.offsets == {"g1": {("t", 3): offset}}
    for damaged in (known(record.value)[:cut], known(record.value) + noise, noise):
        try:
            _, read = decode_versioned(OffsetCommitValue, damaged)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                decode_record(GroupRecord(OFFSET_KEY, damaged), -1)
            with pytest.raises(ProtocolError):
                DurableState().apply(GroupRecord(OFFSET_KEY, damaged), -1, NO_PRODUCER)
            continue
        entry = decode_record(GroupRecord(OFFSET_KEY, damaged), -1)
        assert isinstance(entry, OffsetEntry)
        assert entry.value == StoredOffset(
            read.offset,
            read.leader_epoch,
            read.metadata,
            read.commit_timestamp,
            read.expire_timestamp,
        )


def test_metadata_that_is_too_long_for_its_record_is_refused() -> None:
    with pytest.raises(EncodeError):
        offset_record("g1", ("t", 3), StoredOffset(1, -1, "x" * 0x8000, 0))


def test_group_record() -> None:
    record = group_record("g1", STATED)
    assert record == GroupRecord(GROUP_KEY, bytes.fromhex(GROUP_VALUE))
    assert decode_record(record, -1) == GroupEntry("g1", STATED)


def test_record_of_a_newborn_group() -> None:
    newborn = StoredGroup(None, 0, None, None, 1_000)
    record = group_record("g1", newborn)
    assert record == GroupRecord(GROUP_KEY, bytes.fromhex(EMPTY_VALUE))
    assert decode_record(record, -1) == GroupEntry("g1", newborn)


def test_tombstones() -> None:
    assert group_tombstone("g1") == GroupRecord(GROUP_KEY, None)
    assert offset_tombstone("g1", ("t", 3)) == GroupRecord(OFFSET_KEY, None)
    assert decode_record(GroupRecord(GROUP_KEY, None), 0) == GroupEntry("g1", None)
    assert decode_record(GroupRecord(OFFSET_KEY, None), 0) == OffsetEntry("g1", ("t", 3), None)


OLD_OFFSETS = [
    # v0: offset, metadata, timestamp
    ("0000 000000000000002a 0002 6d65 00000000000003e8", StoredOffset(42, -1, "me", 1_000)),
    # v1 without an expiry of its own (KAFKA-8069)
    (
        "0001 000000000000002a 0002 6d65 00000000000003e8 ffffffffffffffff",
        StoredOffset(42, -1, "me", 1_000, -1),
    ),
    # v2: as v0
    ("0002 000000000000002a 0002 6d65 00000000000003e8", StoredOffset(42, -1, "me", 1_000)),
    # v4: flexible, here with a topic id in tag 0
    (
        "0004 000000000000002a 00000007 03 6d65 00000000000003e8"
        "01 00 10 000102030405060708090a0b0c0d0e0f",
        StoredOffset(42, 7, "me", 1_000),
    ),
]


@pytest.mark.parametrize(("value", "offset"), OLD_OFFSETS)
@pytest.mark.parametrize("key_type", ["0000", "0001"])
def test_other_versions_of_offsets_are_read(
    key_type: str, value: str, offset: StoredOffset
) -> None:
    key = bytes.fromhex(key_type) + OFFSET_KEY[2:]
    entry = decode_record(GroupRecord(key, bytes.fromhex(value)), -1)
    assert entry == OffsetEntry("g1", ("t", 3), offset)


OLD_GROUPS = [
    # v0: no rebalance timeout (the session timeout serves), no timestamp, no instance id
    (
        "0000 0008 636f6e73756d6572 00000005 0005 72616e6765 0003 6d2d31"
        "00000001 0003 6d2d31 0002 636c 0002 2f68 00002710 00000002 0102 00000001 03",
        MEMBER._replace(instance_id=None, rebalance_timeout_ms=10_000),
        -1,
    ),
    (
        "0001 0008 636f6e73756d6572 00000005 0005 72616e6765 0003 6d2d31"
        "00000001 0003 6d2d31 0002 636c 0002 2f68 0000ea60 00002710 00000002 0102 00000001 03",
        MEMBER._replace(instance_id=None),
        -1,
    ),
    (
        "0002 0008 636f6e73756d6572 00000005 0005 72616e6765 0003 6d2d31 00000000000003e8"
        "00000001 0003 6d2d31 0002 636c 0002 2f68 0000ea60 00002710 00000002 0102 00000001 03",
        MEMBER._replace(instance_id=None),
        1_000,
    ),
    # v4: flexible
    (
        "0004 09 636f6e73756d6572 00000005 06 72616e6765 04 6d2d31 00000000000003e8"
        "02 04 6d2d31 02 69 03 636c 03 2f68 0000ea60 00002710 03 0102 02 03 00 00",
        MEMBER,
        1_000,
    ),
]


@pytest.mark.parametrize(("value", "member", "timestamp_ms"), OLD_GROUPS)
def test_other_versions_of_groups_are_read(
    value: str, member: StoredMember, timestamp_ms: int
) -> None:
    entry = decode_record(GroupRecord(GROUP_KEY, bytes.fromhex(value)), -1)
    assert entry == GroupEntry(
        "g1", StoredGroup("consumer", 5, "range", "m-1", timestamp_ms, {"m-1": member})
    )


def test_unknown_types_are_skipped_with_a_note() -> None:
    """Types 9 to 15 belong to other kinds of groups; a shard counts what it left alone."""
    bench = Bench()
    for kind in (9, 9, 15, 99):
        key = kind.to_bytes(2, "big") + b"anything"
        assert decode_record(GroupRecord(key, b"x"), 0) == Skipped(kind)
        bench.shard.replay(GroupRecord(key, b"x"), 0)
    assert bench.shard.durable.skipped == {9: 2, 15: 1, 99: 1}
    assert bench.shard.durable == Bench().shard.durable


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0", None),
        (GROUP_KEY[:-1], None),
        (GROUP_KEY + b"x", None),
        (GROUP_KEY, b""),
        (GROUP_KEY, bytes.fromhex(GROUP_VALUE)[:-1]),
        (OFFSET_KEY, bytes.fromhex(OFFSET_VECTORS[0][1]) + b"x"),
    ],
)
def test_damaged_records_are_refused(key: bytes, value: bytes | None) -> None:
    """The log is not ours to guess at: the load fails and says so."""
    shard: GroupShard = Bench().new_shard()
    with pytest.raises(DecodeError):
        shard.replay(GroupRecord(key, value), 0)
