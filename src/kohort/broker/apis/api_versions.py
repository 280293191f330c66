"""ApiVersions (18), v0-4. KIP-35, KIP-511.

The list has every supported version, and Produce from v0, although v0 to v2 are not served. The
server answers an unknown version in v0 with UNSUPPORTED_VERSION, before it calls this module.

A Kohort client on this machine also learns where it may read the log's files (ADR 0015).

Features: `transaction.version` 2, which tells clients to end transactions as of KIP-890. Features
cannot be changed here.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire import constant, local_files
from kohort.wire.messages.api_versions_request import ApiVersionsRequest
from kohort.wire.messages.api_versions_response import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_FROM = 3
OUR_SOFTWARE = "kohort"
_LEVEL_ZERO_FROM = 4
"""Java's clients before 3.9 refuse the whole answer if a feature may have level 0 (KAFKA-17011)."""
_LISTED_FROM = {0: 0}
"""Produce: librdkafka before 2.10 takes a broker that does not list v0 for one that cannot take
compressed records; it never sends what is not served (as Apache Kafka does, KAFKA-18659)."""
FEATURES = (("transaction.version", 2),)
"""Features and their level, which every client may count on (KIP-584)."""


def handle(node: NodeServices, request: ApiVersionsRequest, call: Call) -> None:
    """List the APIs."""
    if call.api_version >= _SOFTWARE_FROM and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        call.answer(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    gate, level_zero = node.gate, call.api_version >= _LEVEL_ZERO_FROM
    if gate is not None and gate.watching:  # faults may change the message
        call.answer(_answer(level_zero=level_zero))
    else:
        call.answer(_usual(level_zero, _directory(node, request, call)))


def _directory(node: NodeServices, request: ApiVersionsRequest, call: Call) -> str | None:
    """Where this client may read segments itself."""
    links = node.links
    ours = request.client_software_name == OUR_SOFTWARE and call.api_version >= _SOFTWARE_FROM
    return links.directory if links is not None and ours and call.is_local else None


@lru_cache(maxsize=16)
def _usual(level_zero: bool, directory: str | None) -> ApiVersionsResponse:
    answer = _answer(level_zero=level_zero)
    if directory is not None:
        answer.unknown_tags = [(local_files.TAG, local_files.encode_directory(directory))]
    return constant(answer)


def _answer(*, level_zero: bool) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        api_keys=_listed(),
        supported_features=[
            SupportedFeatureKey(name=name, max_version=level)
            for name, level in FEATURES
            if level_zero
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES
        ],
    )


@cache
def _listed() -> list[ApiVersion]:
    from kohort.broker.apis import APIS  # the table lists this module too

    return [
        ApiVersion(
            api_key=api.key,
            min_version=_LISTED_FROM.get(api.key, api.min_version),
            max_version=api.max_version,
        )
        for api in sorted(APIS.values(), key=lambda a: a.key)
    ]
