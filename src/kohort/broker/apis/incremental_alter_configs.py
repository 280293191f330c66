"""IncrementalAlterConfigs (44), v0-1. KIP-339.

Sets, deletes, appends to and subtracts from single configurations of topics.

Differs from Apache Kafka: topics and groups alone have configurations that can be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kohort.broker.apis.alter_configs import change
from kohort.broker.calls import Call, serve
from kohort.broker.config import SETTINGS, default_of
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
_LISTS = frozenset({"cleanup.policy"})


def handle(node: Node, request: IncrementalAlterConfigsRequest, call: Call) -> None:
    """Change configurations, each resource on its own."""
    responses: list[AlterConfigsResourceResponse] = []
    for resource in request.resources:
        code, message = change(
            node,
            resource.resource_type,
            resource.resource_name,
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
        elif wanted.config_operation in (_APPEND, _SUBTRACT) and name in _LISTS:
            present = (new.get(name) or default_of(node.config, name)).split(",")
            given = wanted.value.split(",")
            if wanted.config_operation == _APPEND:
                present += [v for v in given if v not in present]
            else:
                present = [v for v in present if v not in given]
            new[name] = ",".join(present)
        else:
            kind = "unknown" if name not in SETTINGS else "not a list"
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"{name} is {kind}: operation {wanted.config_operation} cannot be done with it",
            )
    return new


API = serve(IncrementalAlterConfigsRequest, handle)
