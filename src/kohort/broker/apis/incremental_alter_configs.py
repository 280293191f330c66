"""IncrementalAlterConfigs (44), v0-1. KIP-339.

Sets, deletes, appends to and subtracts from single configurations of topics, groups and brokers.

Differs from Apache Kafka: loggers and client metrics have no configuration here; of a broker's,
defaults of topics act, and `max.connections.per.ip`, `producer.id.expiration.ms` and
`log.cleaner.backoff.ms`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kohort.broker.apis.alter_configs import change
from kohort.broker.apis.describe_configs import BROKER
from kohort.broker.base.request import Call
from kohort.broker.log.topic_config import ALL_SETTINGS, Kind, Setting
from kohort.broker.state.dynamic_broker_config import SETTABLE
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kohort.wire.messages.incremental_alter_configs_response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


def handle(node: NodeServices, request: IncrementalAlterConfigsRequest, call: Call) -> None:
    """Change configurations, each resource on its own."""
    responses: list[AlterConfigsResourceResponse] = []
    named = Counter((r.resource_type, r.resource_name) for r in request.resources)
    for resource in request.resources:
        kind, name = resource.resource_type, resource.resource_name
        if named[kind, name] > 1:
            code, message = ErrorCode.INVALID_REQUEST.value, "this resource is named twice"
        else:
            code, message = change(
                node,
                kind,
                name,
                lambda own, resource=resource: _changed(node, own, resource),
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
    call.answer(IncrementalAlterConfigsResponse(responses=responses))


def _changed(
    node: NodeServices, own: Mapping[str, str], resource: AlterConfigsResource
) -> dict[str, str]:
    changes, of_broker = resource.configs, resource.resource_type == BROKER
    settings = SETTABLE if of_broker else ALL_SETTINGS
    names = [c.name for c in changes]
    if len(set(names)) < len(names):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a configuration is changed twice")
    new = dict(own)
    for operation in changes:
        name = operation.name
        if operation.config_operation == _DELETE:
            new.pop(name, None)
        elif operation.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name}: no value")
        elif operation.config_operation == _SET:
            new[name] = operation.value
        elif operation.config_operation in (_APPEND, _SUBTRACT) and _is_list(settings, name):
            present = _parts(new[name] if name in new else _in_force(node, resource, name))
            requested = _parts(operation.value)
            if operation.config_operation == _APPEND:
                present += [v for v in requested if v not in present]
            else:
                present = [v for v in present if v not in requested]
            new[name] = ",".join(present)
        else:
            kind = "unknown" if name not in settings else "not a list"
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is {kind}: operation {operation.config_operation} cannot be done with it",
            )
    return new


def _is_list(settings: Mapping[str, Setting], name: str) -> bool:
    return name in settings and settings[name].kind is Kind.LIST


def _in_force(node: NodeServices, resource: AlterConfigsResource, name: str) -> str:
    """The value that holds for a list which the resource has not set itself."""
    configs = node.broker_configs
    if resource.resource_type == BROKER:
        return configs.chain(resource.resource_name, name)[0][0]
    return configs.topic_default(name)


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]
