"""What cannot be encoded is refused by name (Kafka's rules on versions and nullability)."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.errors import EncodeError, UnsupportedVersionError
from kohort.wire import Message, decode, encode, encode_parts
from kohort.wire.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from kohort.wire.messages.fetch_response import PartitionData
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest


@pytest.mark.parametrize(
    ("message", "version", "words"),
    [
        (JoinGroupRequest(session_timeout_ms=1 << 31), 9, "session_timeout_ms = 2147483648"),
        (HeartbeatRequest(group_id=None), 4, "group_id is None"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id=b"g"), 4, "group_id is a bytes, not a str"),  # type: ignore[arg-type]
        (HeartbeatRequest(generation_id="1"), 3, "generation_id = '1' does not fit int32"),  # type: ignore[arg-type]
        (HeartbeatRequest(group_id="x" * 32768), 4, "group_id is 32768 bytes long"),
        (HeartbeatRequest(group_id="x" * 32768), 3, "group_id is 32768 bytes long"),
        (HeartbeatRequest(group_id="\ud800"), 4, "group_id is not text that UTF-8 can hold"),
        (MetadataRequest(topics=None), 0, "topics is None"),
        (JoinGroupRequest(protocols=[None]), 5, "protocols[0] is None"),  # type: ignore[list-item]
        (JoinGroupRequest(protocols=["range"]), 5, "protocols[0] is a str"),  # type: ignore[list-item]
        (
            JoinGroupRequest(protocols=[JoinGroupRequestProtocol(name="a", metadata="text")]),  # type: ignore[arg-type]
            5,
            "protocols[0].metadata is a str, not bytes",
        ),
        (
            FetchRequest(topics=[FetchTopic(topic_id=b"short")]),
            13,
            "topics[0].topic_id = b'short' is not a uuid",
        ),
        (HeartbeatRequest(unknown_tags=[(1, b""), (1, b"")]), 4, "given twice"),
    ],
)
def test_a_value_that_does_not_fit_is_named(message: Message, version: int, words: str) -> None:
    with pytest.raises(EncodeError) as caught:
        encode(message, version)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{message.NAME} v{version}")
    with pytest.raises(EncodeError):
        encode_parts(message, version)


@pytest.mark.parametrize(
    ("message", "version", "words"),
    [
        (HeartbeatRequest(group_instance_id="i"), 2, "has no field group_instance_id"),
        (HeartbeatRequest(unknown_tags=[(1, b"")]), 3, "unknown tagged fields"),
        (MetadataRequest(allow_auto_topic_creation=False), 3, "allow_auto_topic_creation"),
        (HeartbeatRequest(), 5, "has versions 0 to 4, not 5"),
        (HeartbeatRequest(), -1, "has versions 0 to 4, not -1"),
        (
            FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(last_fetched_epoch=3)])]),
            11,
            "topics[0].partitions[0].last_fetched_epoch",
        ),
    ],
)
def test_a_value_without_a_place_is_refused(message: Message, version: int, words: str) -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        encode(message, version)
    assert words in str(caught.value)


def test_ignorable_fields_are_dropped() -> None:
    message = JoinGroupRequest(rebalance_timeout_ms=5, group_instance_id=None, reason="why")
    back = decode(JoinGroupRequest, 0, encode(message, 0))
    assert (back.rebalance_timeout_ms, back.reason) == (-1, None)


def test_decoding_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match="FetchRequest has versions 4 to 18, not 3"):
        decode(FetchRequest, 3, b"")


@pytest.mark.parametrize("records", [b"abc", bytearray(b"abc"), memoryview(b"abc"), [b"a", b"bc"]])
def test_records_are_any_buffer_or_buffers(records: Any) -> None:
    data = PartitionProduceData(records=records)
    message = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[data])])
    back = decode(ProduceRequest, 9, encode(message, 9))
    assert back.topic_data[0].partition_data[0].records == b"abc"


def test_records_that_are_none_of_these_are_refused() -> None:
    for bad in ("text", 5, ["text"]):
        data = PartitionProduceData(records=bad)  # type: ignore[arg-type]
        message = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[data])])
        with pytest.raises(EncodeError):
            encode(message, 9)


def test_the_shared_default_refuses_changes() -> None:
    partition = PartitionData()
    with pytest.raises(AttributeError, match="assign a new LeaderIdAndEpoch"):
        partition.current_leader.leader_id = 3
    assert PartitionData().current_leader.leader_id == -1


def test_lists_are_fresh() -> None:
    HeartbeatRequest()
    one, two = JoinGroupRequest(), JoinGroupRequest()
    one.protocols.append(JoinGroupRequestProtocol())
    assert two.protocols == []


def test_secrets_do_not_show() -> None:
    assert "hunter2" not in repr(SaslAuthenticateRequest(auth_bytes=b"\0u\0hunter2"))
