"""IncrementalAlterConfigs (44), v0-1. KIP-339.

Sets, deletes, appends to and subtracts from single configurations of topics.

Differs from Apache Kafka: topics and groups alone have configurations that can be changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kohort.broker.apis.alter_configs import change
from kohort.broker.calls import Call, serve
from kohort.broker.topic_settings import ALL_SETTINGS, Kind, default_of
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.incremental_alter_configs_request import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
)
from kohort.wire.messages.incremental_alter_configs_response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.node import Node

_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


def handle(node: Node, request: IncrementalAlterConfigsRequest, call: Call) -> None:
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
                lambda own, resource=resource: _changed(node, own, resource.configs),
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


def _changed(node: Node, own: Mapping[str, str], changes: list[AlterableConfig]) -> dict[str, str]:
    names = [c.name for c in changes]
    if len(set(names)) < len(names):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a configuration is changed twice")
    new = dict(own)
    for wanted in changes:
        name = wanted.name
        if wanted.config_operation == _DELETE:
            new.pop(name, None)
        elif wanted.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name}: no value")
        elif wanted.config_operation == _SET:
            new[name] = wanted.value
        elif wanted.config_operation in (_APPEND, _SUBTRACT) and _is_list(name):
            present = _parts(new[name] if name in new else default_of(node.config, name))
            given = _parts(wanted.value)
            if wanted.config_operation == _APPEND:
                present += [v for v in given if v not in present]
            else:
                present = [v for v in present if v not in given]
            new[name] = ",".join(present)
        else:
            kind = "unknown" if name not in ALL_SETTINGS else "not a list"
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is {kind}: operation {wanted.config_operation} cannot be done with it",
            )
    return new


def _is_list(name: str) -> bool:
    return name in ALL_SETTINGS and ALL_SETTINGS[name].kind is Kind.LIST


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


API = serve(IncrementalAlterConfigsRequest, handle)
