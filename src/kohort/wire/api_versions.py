"""The one exchange whose version is not agreed on yet (KIP-511).

Rules:
- A server that is asked in a version it does not have answers in v0 with error 35 and lists at
  least ApiVersions itself (Apache Kafka lists only that one).
- A client reads the error first, before the body: on 35 it reads as much as it can
  from a v0 body and asks again with a version both have; some servers send a newer body with 35.
"""

from __future__ import annotations

from struct import Struct as Packer
from typing import Final, NamedTuple

from kohort.errors import DecodeError, ErrorCode
from kohort.wire._codec import decode
from kohort.wire._frames import API_VERSIONS, encode_response, response_correlation_id
from kohort.wire._types import Buffer
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse

_ERROR: Final = Packer(">h")


class ApiVersionsAnswer(NamedTuple):
    """What a client makes of an answer: the message, or the version to ask again with."""

    correlation_id: int
    message: ApiVersionsResponse | None
    retry_version: int | None


def unsupported_api_versions(correlation_id: int) -> list[Buffer]:
    """A server's answer frame to an ApiVersions request of an unknown version."""
    own = ApiVersion(
        api_key=API_VERSIONS,
        min_version=ApiVersionsRequest.MIN_VERSION,
        max_version=ApiVersionsRequest.MAX_VERSION,
    )
    message = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
    return encode_response(message, 0, correlation_id)


def decode_api_versions(frame: Buffer, version: int) -> ApiVersionsAnswer:
    """Reads the answer frame to an ApiVersions request that was sent in `version`.

    With error 35 the answer names the version to ask again with: the newest that the server listed
    and we have, below the one sent, else 0. Raises `DecodeError` if 35 answers version 0.
    """
    correlation_id = response_correlation_id(frame)
    body = bytes(frame[4:])
    if len(body) < 2:
        raise DecodeError(f"ApiVersionsResponse is cut short: {len(body)} bytes")
    if _ERROR.unpack_from(body)[0] != ErrorCode.UNSUPPORTED_VERSION:
        return ApiVersionsAnswer(correlation_id, decode(ApiVersionsResponse, version, body), None)
    if version == 0:
        raise DecodeError("ApiVersions v0 was refused as an unsupported version")
    try:
        listed = decode(ApiVersionsResponse, 0, body).api_keys
    except DecodeError:
        listed = []
    newest = max((api.max_version for api in listed if api.api_key == API_VERSIONS), default=0)
    return ApiVersionsAnswer(correlation_id, None, max(0, min(newest, version - 1)))
