"""Records of the internal topics, bit for bit as Apache Kafka 4.3 writes them (design 6).

`records.golden` holds one random record of each type and version; Kafka's own classes read and
wrote them back the same (`tools/check_against_kafka.py`).
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from kohort.errors import DecodeError, EncodeError
from kohort.wire import (
    decode,
    decode_record_key,
    decode_versioned,
    encode,
    encode_record_key,
    encode_versioned,
    message_class,
    record_type,
)
from kohort.wire.messages.consumer_group_member_metadata_value import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)
from kohort.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from kohort.wire.messages.fetch_response import PartitionData
from kohort.wire.messages.group_metadata_key import GroupMetadataKey
from kohort.wire.messages.offset_commit_key import OffsetCommitKey
from kohort.wire.messages.offset_commit_value import OffsetCommitValue
from kohort.wire.messages.streams_group_metadata_value import StreamsGroupMetadataValue

GOLDEN = [
    line.split() for line in Path(__file__).with_name("records.golden").read_text().splitlines()
]


@pytest.mark.parametrize(("name", "version", "text"), GOLDEN)
def test_golden_records_come_back_the_same(name: str, version: str, text: str) -> None:
    cls, data = message_class(name), bytes.fromhex(text)
    assert encode(decode(cls, int(version), data), int(version)) == data


def test_an_offset_commit_as_kafka_writes_it() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_record_key(key).hex() == "000100016700017400000003"
    value = OffsetCommitValue(offset=7, leader_epoch=-1, metadata="m", commit_timestamp=9)
    expected = "00030000000000000007ffffffff00016d0000000000000009"
    assert encode_versioned(value, 3).hex() == expected
    assert decode_versioned(OffsetCommitValue, bytes.fromhex(expected)) == (3, value)


def test_a_tagged_nullable_struct_as_kafka_writes_it() -> None:
    """Its marker is a varint: absent is the default struct, null is 0, present is 1."""
    head = "010101010101ffffffff"
    empty = ConsumerGroupMemberMetadataValue()
    assert encode(empty, 0).hex() == head + "0100"
    null = ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    assert encode(null, 0).hex() == head + "0101000100"
    classic = ClassicMemberMetadata(session_timeout_ms=5)
    some = ConsumerGroupMemberMetadataValue(classic_member_metadata=classic)
    assert encode(some, 0).hex() == head + "0101000701000000050100"
    for message in (empty, null, some):
        assert decode(ConsumerGroupMemberMetadataValue, 0, encode(message, 0)) == message
    streams = StreamsGroupMetadataValue(last_assignment_configs=None)
    assert encode(streams, 0).hex() == "00" * 12 + "01010100"


def test_record_keys_carry_their_type() -> None:
    data = encode_record_key(GroupMetadataKey(group="g"))
    assert record_type(data) == 2
    assert decode_record_key(GroupMetadataKey, memoryview(data)) == GroupMetadataKey(group="g")
    with pytest.raises(DecodeError, match="record type 2 is not OffsetCommitKey"):
        decode_record_key(OffsetCommitKey, data)
    with pytest.raises(DecodeError, match="cut short"):
        record_type(b"\0")


def test_a_newer_subscription_is_read_as_the_newest_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], generation_id=5, rack_id="r")
    data = bytearray(encode_versioned(subscription, 3))
    data[1] = 9
    newer = bytes(data) + b"of a version to come"
    assert decode_versioned(ConsumerProtocolSubscription, newer, newer=True) == (9, subscription)
    with pytest.raises(DecodeError):
        decode_versioned(ConsumerProtocolSubscription, newer[:8], newer=True)


def test_a_version_that_does_not_fit_is_refused() -> None:
    with pytest.raises(EncodeError):
        encode_versioned(OffsetCommitValue(offset=1 << 63), 3)


def test_messages_copy_and_pickle() -> None:
    partition = PartitionData(partition_index=4, records=b"r")
    for other in (copy.deepcopy(partition), pickle.loads(pickle.dumps(partition))):
        assert other == partition
        other.current_leader = type(partition.current_leader).__mro__[1](leader_id=2)
        assert other != partition
