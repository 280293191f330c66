"""ListConfigResources (74), v0-1. KIP-714 (v0: client metrics alone), KIP-1142 (every kind).

Topics and brokers are listed; groups, where something was configured for them.

Differs from Apache Kafka: there are no loggers and no client metrics to configure, so none of them
is listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kohort.broker.apis.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
)
from kohort.broker.base.request import Call
from kohort.errors import ErrorCode
from kohort.wire.messages.list_config_resources_request import ListConfigResourcesRequest
from kohort.wire.messages.list_config_resources_response import (
    ConfigResource,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_ALL = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
_KINDS_FROM = 1


def handle(node: NodeServices, request: ListConfigResourcesRequest, call: Call) -> None:
    """List what may have a configuration."""
    if call.api_version < _KINDS_FROM:
        kinds: set[int] = {CLIENT_METRICS}
    else:
        kinds = set(request.resource_types or _ALL)
    if not kinds <= set(_ALL):
        call.answer(ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
        return
    named = {
        TOPIC: [topic.name for topic in node.topics],
        BROKER: [str(node_id) for node_id, *_ in node.nodes.believed()],
        GROUP: node.group_configs.groups(),
    }
    call.answer(
        ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_name=name, resource_type=kind)
                for kind in sorted(kinds & set(named))
                for name in named[kind]
            ]
        )
    )
