"""UpdateFeatures (57), v0-2. KIP-584, KIP-1022.

The features have one level each, which this broker was written for: a request for that level is
granted, any other is refused as a whole.

Differs from Apache Kafka: no feature can be set to another level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis.api_versions import FEATURES
from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.update_features_request import FeatureUpdateKey, UpdateFeaturesRequest
from kohort.wire.messages.update_features_response import (
    UpdatableFeatureResult,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_KINDS_FROM, _ALL_OR_NONE_FROM = 1, 2
_KINDS = (1, 2, 3)


def handle(node: NodeServices, request: UpdateFeaturesRequest, call: Call) -> None:
    """Grant what is so already."""
    version = call.api_version
    for update in request.feature_updates:
        fault = _fault(update, version)
        if fault is not None:
            code = ErrorCode.INVALID_UPDATE_VERSION
            call.answer(UpdateFeaturesResponse(error_code=code, error_message=fault))
            return
    results = [
        UpdatableFeatureResult(feature=update.feature, error_message="it is so")
        for update in request.feature_updates
    ]
    if version >= _ALL_OR_NONE_FROM:
        results = []
    call.answer(UpdateFeaturesResponse(error_message=None, results=results))


def _fault(update: FeatureUpdateKey, version: int) -> str | None:
    levels = dict(FEATURES)
    if version >= _KINDS_FROM and update.upgrade_type not in _KINDS:
        return f"upgrade type {update.upgrade_type} is not one of {list(_KINDS)}"
    if update.feature not in levels:
        return f"there is no feature {update.feature!r}; there are: {', '.join(levels)}"
    level = levels[update.feature]
    if update.max_version_level != level:
        return f"{update.feature} has level {level} here and no other"
    return None
