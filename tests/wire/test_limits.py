"""Limits on what a decoder accepts (reliability 5, decoder rules)."""

from __future__ import annotations

import pytest

from kohort.errors import DecodeError
from kohort.wire import REQUEST_LIMITS, RESPONSE_LIMITS, Limits, decode, encode
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kohort.wire.messages.sync_group_response import SyncGroupResponse


@pytest.mark.parametrize(
    ("version", "count"), [(12, b"\xff\xff\xff\xff\x0f"), (4, b"\x7f\xff\xff\xff")]
)
def test_the_array_length_that_kills_kio_is_an_error(version: int, count: bytes) -> None:
    with pytest.raises(DecodeError, match="elements"):
        decode(MetadataRequest, version, count)


def test_a_negative_count_is_an_error() -> None:
    with pytest.raises(DecodeError, match="bad element count -2"):
        decode(MetadataRequest, 4, b"\xff\xff\xff\xfe\0\0\0\0")


def test_elements_of_all_arrays_count_together() -> None:
    partitions = [OffsetDeleteRequestPartition(partition_index=n) for n in range(10)]
    topics = [OffsetDeleteRequestTopic(name=f"t{n}", partitions=partitions) for n in range(10)]
    data = encode(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    decode(OffsetDeleteRequest, 0, data, limits=Limits(elements=110))
    with pytest.raises(DecodeError, match="limit on elements passed by 1"):
        decode(OffsetDeleteRequest, 0, data, limits=Limits(elements=109))


def test_requests_have_the_lower_default() -> None:
    topics = [MetadataRequestTopic(name="")] * (REQUEST_LIMITS.elements + 1)
    data = encode(MetadataRequest(topics=topics), 8)
    with pytest.raises(DecodeError, match="limit on elements passed by 1"):
        decode(MetadataRequest, 8, data)
    assert len(decode(MetadataRequest, 8, data, limits=RESPONSE_LIMITS).topics or []) == 100_001


def test_frame_bytes_are_limited() -> None:
    data = encode(HeartbeatRequest(group_id="x" * 100), 4)
    with pytest.raises(DecodeError, match="limit is 50 bytes"):
        decode(HeartbeatRequest, 4, data, limits=Limits(frame_bytes=50))


def test_unknown_tags_are_limited_and_kept() -> None:
    tags = [(n, b"v" * n) for n in range(64)]
    message = HeartbeatRequest(group_id="g", unknown_tags=tags)
    data = encode(message, 4)
    assert decode(HeartbeatRequest, 4, data).unknown_tags == tags
    with pytest.raises(DecodeError, match="64 tagged fields"):
        decode(HeartbeatRequest, 4, data, limits=Limits(tags=63))


def test_tags_may_come_in_any_order_but_only_once() -> None:
    data = encode(HeartbeatRequest(), 4)[:-1]
    back = decode(HeartbeatRequest, 4, data + b"\x02\x09\x00\x03\x01x")
    assert back.unknown_tags == [(3, b"x"), (9, b"")]
    with pytest.raises(DecodeError, match="tagged field 9 occurs twice"):
        decode(HeartbeatRequest, 4, data + b"\x02\x09\x00\x09\x00")


def test_a_tag_that_reaches_past_the_end_is_an_error() -> None:
    data = encode(HeartbeatRequest(), 4)
    with pytest.raises(DecodeError, match="tagged field 7 of 100 bytes"):
        decode(HeartbeatRequest, 4, data[:-1] + b"\x01\x07\x64abc")


def test_varints_are_at_most_five_bytes_and_32_bits() -> None:
    with pytest.raises(DecodeError, match="more than 5 bytes"):
        decode(MetadataRequest, 12, b"\x80\x80\x80\x80\x80\x01")
    with pytest.raises(DecodeError, match="above 32 bits"):
        decode(MetadataRequest, 12, b"\xff\xff\xff\xff\x7f")


def test_strings_are_strict_utf8_and_at_most_32767_bytes() -> None:
    data = encode(HeartbeatRequest(group_id="abc"), 4)
    with pytest.raises(DecodeError, match="UTF-8"):
        decode(HeartbeatRequest, 4, data.replace(b"abc", b"a\xffc"))
    long = b"\x82\x80\x02" + b"x" * 32769
    with pytest.raises(DecodeError, match="string of 32769 bytes"):
        decode(HeartbeatRequest, 4, long + data[4:])


def test_bytes_may_be_long_but_not_longer_than_the_input() -> None:
    message = SyncGroupResponse(assignment=b"a" * 100_000)
    data = encode(message, 5)
    assert decode(SyncGroupResponse, 5, data) == message
    with pytest.raises(DecodeError, match="bytes left"):
        decode(SyncGroupResponse, 5, data[:-5000])
