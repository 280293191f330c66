"""Frames: size prefix, header versions, ApiVersions (KIP-482, KIP-511)."""

from __future__ import annotations

import struct

import pytest

from kohort.errors import DecodeError, EncodeError, UnsupportedVersionError
from kohort.wire import (
    API_NAMES,
    decode,
    decode_body,
    decode_request,
    decode_request_header,
    decode_response,
    encode,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from kohort.wire.api_versions import decode_api_versions, unsupported_api_versions
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.metadata_request import MetadataRequest
from kohort.wire.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kohort.wire.messages.request_header import RequestHeader


def body(parts: list[bytes | bytearray | memoryview]) -> bytes:
    """The frame behind its size, which must be right."""
    data = b"".join(parts)
    assert struct.unpack(">i", data[:4])[0] == len(data) - 4
    return data[4:]


@pytest.mark.parametrize("client_id", [None, "", "me", "ü" * 200])
@pytest.mark.parametrize("version", [0, 3, 4])
def test_request_headers_agree_with_the_schema(client_id: str | None, version: int) -> None:
    header = RequestHeader(
        request_api_key=12, request_api_version=version, correlation_id=-7, client_id=client_id
    )
    message = HeartbeatRequest(group_id="g", member_id="m")
    frame = body(encode_request(message, version, -7, client_id))
    assert frame == encode(header, 2 if version == 4 else 1) + encode(message, version)
    head = decode_request_header(frame)
    assert head[:4] == (12, version, -7, client_id)
    assert decode_body(frame, head) == message
    request = decode_request(memoryview(frame))
    assert request == (12, version, -7, client_id, message)


def test_every_api_has_both_classes() -> None:
    for key, name in API_NAMES.items():
        request, response = request_class(key), response_class(key)
        assert (f"{name}Request", f"{name}Response") == (request.NAME, response.NAME)
        assert (key, key) == (request.API_KEY, response.API_KEY)
        assert request.MAX_VERSION == response.MAX_VERSION
        assert request.FLEXIBLE_FROM == response.FLEXIBLE_FROM


def test_unknown_keys_and_damaged_headers() -> None:
    with pytest.raises(UnsupportedVersionError, match="API key 4 "):
        decode_request_header(struct.pack(">hhih", 4, 0, 1, -1))
    for frame in (
        b"",
        b"\0\x0c\0\x04",
        struct.pack(">hhih", 12, 4, 1, 50) + b"short",
        struct.pack(">hhih", 12, 4, 1, -2) + b"\0",
        struct.pack(">hhih", 12, 4, 1, 1) + b"\xff\0",
        struct.pack(">hhih", 12, 4, 1, -1),
        struct.pack(">hhih", 12, 4, 1, -1) + b"\xff\xff\xff\xff\x0f",
    ):
        with pytest.raises(DecodeError):
            decode_request_header(frame)
    with pytest.raises(UnsupportedVersionError):
        request_class(4)


def test_header_tags_are_skipped() -> None:
    message = HeartbeatRequest(group_id="g")
    frame = struct.pack(">hhih", 12, 4, 1, -1) + b"\x01\x05\x03abc" + encode(message, 4)
    assert decode_request(frame).message == message


def test_responses_have_the_header_of_their_version() -> None:
    message = HeartbeatResponse(error_code=27)
    assert body(encode_response(message, 3, 9)) == b"\0\0\0\x09" + encode(message, 3)
    flexible = body(encode_response(message, 4, 9))
    assert flexible == b"\0\0\0\x09\0" + encode(message, 4)
    assert decode_response(HeartbeatResponse, 4, flexible) == (9, message)
    with pytest.raises(EncodeError, match="does not fit int32"):
        encode_response(message, 4, 1 << 31)


def test_large_records_travel_uncopied() -> None:
    records = memoryview(bytearray(10_000))
    data = PartitionProduceData(records=records)
    message = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[data])])
    parts = encode_request(message, 9, 1, "c")
    assert parts[1].obj is records.obj  # type: ignore[union-attr]
    assert decode_request(body(parts)).message == message


def test_api_versions_responses_always_have_header_v0() -> None:
    message = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=4)])
    frame = body(encode_response(message, 3, 9))
    assert frame == b"\0\0\0\x09" + encode(message, 3)
    assert decode_api_versions(frame, 3) == (9, message, None)


def test_a_server_refuses_an_unknown_version_in_v0_with_key_18() -> None:
    asked = struct.pack(">hhih", 18, 99, 5, -1) + b"\0anything at all"
    head = decode_request_header(asked)
    assert head.api_version == 99
    with pytest.raises(UnsupportedVersionError):
        decode_body(asked, head)
    frame = body(unsupported_api_versions(head.correlation_id))
    assert frame == b"\0\0\0\x05" + struct.pack(">hihhh", 35, 1, 18, 0, 4)


def test_a_client_asks_again_with_what_the_server_listed() -> None:
    frame = body(unsupported_api_versions(5))
    assert decode_api_versions(frame, 4) == (5, None, 3)
    low = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=2)])
    assert decode_api_versions(body(encode_response(low, 0, 5)), 4) == (5, None, 2)


@pytest.mark.parametrize("form", ["newer body", "empty", "nothing"])
def test_a_client_tolerates_any_body_behind_error_35(form: str) -> None:
    message = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=3)])
    frame = body(encode_response(message, 3, 5))
    if form == "empty":
        frame = body(encode_response(ApiVersionsResponse(error_code=35), 0, 5))
    elif form == "nothing":
        frame = frame[:6]
    assert decode_api_versions(frame, 4) == (5, None, 0)
    with pytest.raises(DecodeError, match="v0 was refused"):
        decode_api_versions(frame, 0)


def test_other_errors_are_the_callers_to_read() -> None:
    message = ApiVersionsResponse(error_code=42)
    answer = decode_api_versions(body(encode_response(message, 3, 5)), 3)
    assert answer.message == message
    with pytest.raises(DecodeError):
        decode_api_versions(b"\0\0\0\x05\0", 3)
    request = ApiVersionsRequest(client_software_name="kohort", client_software_version="1")
    assert decode(ApiVersionsRequest, 4, encode(request, 4)) == request


def test_bytes_behind_a_request_are_let_be() -> None:
    """librdkafka's MetadataRequest for all topics has three bytes too many; Kafka takes it."""
    frame = bytes.fromhex("0003000d00000003000772646b61666b61" + "00" + "00000000010000")
    request = decode_request(frame)
    assert request.api_version == 13
    assert isinstance(request.message, MetadataRequest)
    assert request.message.topics is None


def test_bytes_behind_a_response_are_ignored_as_kafkas_clients_do() -> None:
    """librdkafka's mock broker sends one byte too many with every Metadata answer."""
    frame = body(encode_response(HeartbeatResponse(), 4, 5)) + b"\0"
    assert decode_response(HeartbeatResponse, 4, frame) == (5, HeartbeatResponse())
