"""AlterConfigs (33), v0-2. KIP-133.

Replaces the whole configuration of topics, groups and brokers. Kafka has deprecated it for
IncrementalAlterConfigs; older clients still send it.

Differs from Apache Kafka: loggers and client metrics have no configuration here; of a broker's,
defaults of topics act, and `max.connections.per.ip`, `producer.id.expiration.ms` and
`log.cleaner.backoff.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kohort.broker.apis.describe_configs import BROKER, GROUP, TOPIC
from kohort.broker.base.request import Call
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.alter_configs_request import AlterConfigsRequest, AlterConfigsResource
from kohort.wire.messages.alter_configs_response import (
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: AlterConfigsRequest, call: Call) -> None:
    """Replace configurations, each on its own."""
    responses: list[AlterConfigsResourceResponse] = []
    for resource in request.resources:
        code, message = change(
            node,
            resource.resource_type,
            resource.resource_name,
            lambda _, resource=resource: _replacement(resource),
            request.validate_only,
        )
        responses.append(
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    call.answer(AlterConfigsResponse(responses=responses))


def _replacement(resource: AlterConfigsResource) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{config.name}: no value")
        configs[config.name] = config.value
    return configs


def change(
    node: NodeServices,
    resource_type: int,
    name: str,
    new: Callable[[Mapping[str, str]], dict[str, str]],
    validate_only: bool,
) -> tuple[int, str | None]:
    """Give a topic, group or broker what `new` makes of its configuration.

    The answer is `(error code, message)`.
    """
    try:
        if resource_type == GROUP:
            groups = node.group_configs
            groups.configure(name, new(groups.own(name)), validate_only=validate_only)
            return 0, None
        if resource_type == BROKER:
            brokers = node.broker_configs
            brokers.configure(name, new(brokers.own(name)), validate_only=validate_only)
            return 0, None
        if resource_type != TOPIC:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"resource type {resource_type} cannot be configured"
            )
        if not name:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a topic's name must not be empty")
        topic = node.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        node.topics.configure(topic, new(topic.record.config), validate_only=validate_only)
    except BrokerError as error:
        return error.code, error.detail
    return 0, None
