"""DescribeConfigs (32), v1-4. KIP-133, KIP-226, KIP-569.

Topics: every configuration that is acted upon, and those that were set and are not. The broker: its
own configuration, read-only.

Groups (KIP-848): their own session timeout and heartbeat interval.

Differs from Apache Kafka: other kinds of resource (loggers, client metrics) have none here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from kohort.broker.calls import Call, serve
from kohort.broker.config import SETTINGS, default_of
from kohort.broker.group_configs import FIELDS
from kohort.broker.topics import Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.group.assignors import Assignor
from kohort.wire.messages.describe_configs_request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kohort.wire.messages.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from kohort.broker.node import Node

TOPIC, BROKER, GROUP = 2, 4, 32
_DYNAMIC_TOPIC, _STATIC_BROKER, _DEFAULT, _OF_GROUP = 1, 4, 5, 8
_STRING, _INT, _LONG, _LIST, _BOOLEAN = 2, 3, 5, 7, 1
_INTS: Final = frozenset(
    {"max.message.bytes", "index.interval.bytes", "min.insync.replicas", "segment.bytes"}
)


def handle(node: Node, request: DescribeConfigsRequest, call: Call) -> None:
    """Describe resources, each on its own."""
    call.answer(
        DescribeConfigsResponse(
            results=[_describe(node, r, request.include_synonyms) for r in request.resources]
        )
    )


def _describe(node: Node, wanted: DescribeConfigsResource, synonyms: bool) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=wanted.resource_type, resource_name=wanted.resource_name, error_message=None
    )
    keys = wanted.configuration_keys
    try:
        if wanted.resource_type == TOPIC:
            topic = node.topics.get(wanted.resource_name)
            if topic is None:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            found = _topic(node, topic, synonyms)
        elif wanted.resource_type == BROKER:
            if wanted.resource_name not in ("", str(node.node_id)):
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST,
                    f"this is broker {node.node_id}, not {wanted.resource_name!r}",
                )
            found = _broker(node)
        elif wanted.resource_type == GROUP:
            found = _group(node, wanted.resource_name, synonyms)
        else:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"resource type {wanted.resource_type} has no configuration here",
            )
    except BrokerError as error:
        result.error_code, result.error_message = error.code, error.detail
        return result
    result.configs = found if keys is None else [c for c in found if c.name in keys]
    return result


def _topic(node: Node, topic: Topic, synonyms: bool) -> list[DescribeConfigsResourceResult]:
    own = topic.record.config
    found: list[DescribeConfigsResourceResult] = []
    for name in [*SETTINGS, *(n for n in own if n not in SETTINGS)]:
        chain = [(own[name], _DYNAMIC_TOPIC)] if name in own else []
        if name in SETTINGS:
            chain.append((default_of(node.config, name), _DEFAULT))
        value, source = chain[0]
        found.append(
            DescribeConfigsResourceResult(
                name=name,
                value=value,
                config_source=source,
                synonyms=[DescribeConfigsSynonym(name=name, value=v, source=s) for v, s in chain]
                if synonyms
                else [],
                config_type=_type_of(name),
                documentation=SETTINGS[name].doc or None if name in SETTINGS else None,
            )
        )
    return found


def _group(node: Node, group_id: str, synonyms: bool) -> list[DescribeConfigsResourceResult]:
    groups = node.commons.group_configs
    own = groups.own(group_id)
    found: list[DescribeConfigsResourceResult] = []
    for name in FIELDS:
        chain = [(own[name], _OF_GROUP)] if name in own else []
        chain.append((groups.default_of(name), _DEFAULT))
        value, source = chain[0]
        result = DescribeConfigsResourceResult(
            name=name, value=value, config_source=source, config_type=_INT, documentation=None
        )
        if synonyms:
            result.synonyms = [
                DescribeConfigsSynonym(name=name, value=v, source=s) for v, s in chain
            ]
        found.append(result)
    return found


def _type_of(name: str) -> int:
    setting = SETTINGS.get(name)
    if setting is None:
        return _STRING
    if setting.kind is int:
        return _INT if name in _INTS else _LONG
    return _LIST if name == "cleanup.policy" else _STRING


def _broker(node: Node) -> list[DescribeConfigsResourceResult]:
    config = node.config
    values: dict[str, object] = {n: getattr(config, n) for n in config.field_names()}
    values |= {"node_id": node.node_id, "port": node.port, "broker_rack": node.rack}
    return [
        DescribeConfigsResourceResult(
            name=name.replace("_", "."),
            value=_shown(value),
            read_only=True,
            config_source=_STATIC_BROKER,
            config_type=_BOOLEAN if isinstance(value, bool) else _STRING,
            documentation=None,
        )
        for name, value in values.items()
    ]


def _shown(value: object) -> str | None:
    """As Kafka writes it: booleans small, lists with commas, assignors by name."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case tuple():
            parts = cast("tuple[object, ...]", value)
            return ",".join(p.name if isinstance(p, Assignor) else str(p) for p in parts)
        case _:
            return str(value)


API = serve(DescribeConfigsRequest, handle)
