"""DescribeConfigs (32), v1-4. KIP-133, KIP-226, KIP-569.

Topics: every configuration that Kafka knows, also those without effect here. The broker: its own
configuration, read-only but for what can be changed while it runs. Groups (KIP-848): their own
session timeout and heartbeat interval. Synonyms say where a value comes from, with the broker's
name for it.

Differs from Apache Kafka: loggers and client metrics have no configuration here and are refused;
the broker's own configuration has this broker's keys; a resource that is named twice is described
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from kohort.broker.apis._fixed_configs import fixed_configs
from kohort.broker.base.config import BrokerConfig
from kohort.broker.base.request import Call
from kohort.broker.log.directory import topic_name_fault
from kohort.broker.log.topic_config import ALL_SETTINGS, Kind, default_of
from kohort.broker.state.dynamic_broker_config import ALL_BROKERS, DYNAMIC_DEFAULT, SETTABLE
from kohort.broker.state.group_config import FIELDS
from kohort.broker.state.topics import Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.group.assignors import Assignor
from kohort.lean import fields
from kohort.setting_keys import is_secret
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
    from kohort.broker.coordinator.node_services import NodeServices

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_TOPIC, _STATIC_BROKER, _DEFAULT, _OF_GROUP = 1, 4, 5, 8


DEFAULTS: Final = {field.name: field.default for field in fields(BrokerConfig)}
_ALWAYS_SET: Final = frozenset({"node_id", "port"})
_INT32_MAX: Final = (1 << 31) - 1
_SET_IN_HOURS: Final = frozenset({"log_retention_ms", "log_roll_ms"})
"""Kafka's defaults for these are of other names (in hours), which are not shown as synonyms."""


def handle(node: NodeServices, request: DescribeConfigsRequest, call: Call) -> None:
    """Describe resources, each on its own."""
    once = {(r.resource_type, r.resource_name): r for r in request.resources}
    results = [_describe(node, resource) for resource in once.values()]
    for result in results:
        for entry in result.configs:
            if not request.include_synonyms:
                entry.synonyms = []
            if not request.include_documentation:
                entry.documentation = None
    call.answer(DescribeConfigsResponse(results=results))


def _describe(node: NodeServices, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=""
    )
    try:
        entries = _entries(node, resource.resource_type, resource.resource_name)
    except BrokerError as error:
        result.error_code, result.error_message = error.code, error.detail
        return result
    keys = resource.configuration_keys
    result.configs = [entry for entry in entries if entry.name in keys] if keys else entries
    return result


def _entries(node: NodeServices, kind: int, name: str) -> list[DescribeConfigsResourceResult]:
    if kind == TOPIC:
        fault = topic_name_fault(name)
        if fault:
            raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name!r}: {fault}")
        topic = node.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return [_of_topic(node, topic, setting) for setting in ALL_SETTINGS]
    if kind == BROKER:
        if name not in ("", str(node.node_id)):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, f"this is broker {node.node_id}, not {name!r}"
            )
        return _of_broker(node) if name else _of_all_brokers(node)
    if kind == GROUP:
        if not name:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "a group's name must not be empty")
        return [_of_group(node, name, setting) for setting in FIELDS]
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"resource type {kind} has no configuration here")


def _entry(
    name: str, chain: list[tuple[str, str, int]], kind: Kind, documentation: str | None
) -> DescribeConfigsResourceResult:
    """`chain`: name, value and source, that which holds first."""
    _, value, source = chain[0]
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        config_source=source,
        synonyms=[DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in chain],
        config_type=kind,
        documentation=documentation,
    )


def _of_topic(node: NodeServices, topic: Topic, name: str) -> DescribeConfigsResourceResult:
    own, setting = topic.record.config, ALL_SETTINGS[name]
    chain = [(name, own[name], DYNAMIC_TOPIC)] if name in own else []
    broker_name = (setting.broker_field or name).replace("_", ".")
    dynamic = node.broker_configs.topic_chain(name)
    chain += [(broker_name, value, source) for value, source in dynamic]
    chain.append((broker_name, default_of(node.config, name), source_of(node, name)))
    entry = _entry(name, chain, setting.kind, setting.doc)
    if setting.broker_field in _SET_IN_HOURS and entry.synonyms[-1].source == _DEFAULT:
        entry.synonyms.pop()
    return entry


def source_of(node: NodeServices, name: str) -> int:
    """Where the value of a topic's configuration comes from that the topic has not set itself."""
    field = ALL_SETTINGS[name].broker_field
    default = DEFAULTS.get(field) if field else None
    is_default = default is None or str(default) == default_of(node.config, name)
    return _DEFAULT if is_default else _STATIC_BROKER


def _of_group(node: NodeServices, group_id: str, name: str) -> DescribeConfigsResourceResult:
    groups = node.group_configs
    own = groups.own(group_id)
    chain = [(name, own[name], _OF_GROUP)] if name in own else []
    chain.append((f"group.{name}", groups.default_of(name), _DEFAULT))
    return _entry(name, chain, Kind.INT, f"overrides group.{name} for this group")


def _of_broker(node: NodeServices) -> list[DescribeConfigsResourceResult]:
    config = node.config
    values: dict[str, object] = {n: getattr(config, n) for n in config.field_names()}
    values |= {"node_id": node.node_id, "port": node.port, "broker_rack": node.rack}
    entries: list[DescribeConfigsResourceResult] = []
    for field, value in values.items():
        if field.replace("_", ".") in SETTABLE:
            continue
        default = field not in _ALWAYS_SET and DEFAULTS[field] == value
        secret = is_secret(field)
        entries.append(
            DescribeConfigsResourceResult(
                name=field.replace("_", "."),
                value=None if secret else _shown(value),
                read_only=True,
                is_sensitive=secret,
                config_source=_DEFAULT if default else _STATIC_BROKER,
                config_type=Kind.PASSWORD if secret else _kind_of(field, value),
                documentation=None,
            )
        )
    entries += [
        DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=True,
            config_source=_STATIC_BROKER if is_set else _DEFAULT,
            config_type=kind,
            documentation=None,
        )
        for name, kind, value, is_set in fixed_configs(node)
    ]
    configs = node.broker_configs
    for name, setting in SETTABLE.items():
        chain = [(name, v, source) for v, source in configs.chain(str(node.node_id), name)]
        entries.append(_entry(name, chain, setting.kind, setting.doc))
    return entries


def _of_all_brokers(node: NodeServices) -> list[DescribeConfigsResourceResult]:
    """What was set for all brokers while they ran."""
    own = node.broker_configs.own(ALL_BROKERS)
    return [
        _entry(name, [(name, value, DYNAMIC_DEFAULT)], SETTABLE[name].kind, SETTABLE[name].doc)
        for name, value in own.items()
    ]


def _kind_of(field: str, value: object) -> Kind:
    match value:
        case bool():
            return Kind.BOOLEAN
        case int():
            return Kind.LONG if field.endswith("_ms") or abs(value) > _INT32_MAX else Kind.INT
        case tuple():
            return Kind.LIST
        case _:
            return Kind.STRING


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
