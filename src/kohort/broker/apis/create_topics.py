"""CreateTopics (19), v2-7. KIP-464 (broker's default counts), KIP-525 (configs in the answer).

A replica is a node that may lead the partition. Without a replication factor every node is one.

Differs from Apache Kafka: the nodes share one log, so replicas are no copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kohort.broker.apis.describe_configs import DYNAMIC_TOPIC, source_of
from kohort.broker.base.request import Call
from kohort.broker.log.topic_config import ALL_SETTINGS
from kohort.broker.state.topics import NewTopic, Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from kohort.wire.messages.create_topics_response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices


def handle(node: NodeServices, request: CreateTopicsRequest, call: Call) -> None:
    """Make topics, each on its own."""
    times = Counter(t.name for t in request.topics)
    by_name = {t.name: _new_topic(node, t, times[t.name] > 1) for t in request.topics}
    valid = [new for new in by_name.values() if isinstance(new, NewTopic)]
    if request.validate_only:
        made = [_checked(node, new) for new in valid]
    else:
        made = node.topics.create_all(valid)
    results = {n: _refused(n, e) for n, e in by_name.items() if isinstance(e, BrokerError)}
    for new, topic in zip(valid, made, strict=True):
        results[new.name] = _result(node, new, topic)
    call.answer(CreateTopicsResponse(topics=[results[name] for name in by_name]))


def _new_topic(
    node: NodeServices, requested: CreatableTopic, twice: bool
) -> NewTopic | BrokerError:
    try:
        if twice:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        partitions, replicas, factor = _partitions(node, requested)
        return NewTopic(requested.name, partitions, _configs(requested), replicas, factor=factor)
    except BrokerError as error:
        return error


def _checked(node: NodeServices, new: NewTopic) -> NewTopic | BrokerError:
    try:
        node.topics.check_new(new.name, new.partitions, new.config)
    except BrokerError as error:
        return error
    return new


def _refused(name: str, error: BrokerError) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=error.code, error_message=error.detail, configs=[]
    )


def _result(
    node: NodeServices, new: NewTopic, made: Topic | NewTopic | BrokerError
) -> CreatableTopicResult:
    if isinstance(made, BrokerError):
        return _refused(new.name, made)
    topic_id = made.topic_id if isinstance(made, Topic) else bytes(16)
    factor = len(new.replicas[0]) if new.replicas else new.factor or node.config.nodes
    return _created(node, new.name, topic_id, (new.partitions, factor), new.config)


def _configs(topic: CreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"{config.name}: no value")
        configs[config.name] = config.value
    return configs


def _partitions(node: NodeServices, topic: CreatableTopic) -> tuple[int, list[list[int]], int]:
    """How many partitions; the replicas of each, or of how many nodes they will be (0: all)."""
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. Both "
                "cannot be used at the same time.",
            )
        by_index = {a.partition_index: a.broker_ids for a in topic.assignments}
        if sorted(by_index) != list(range(len(topic.assignments))):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        replicas = [by_index[index] for index in range(len(by_index))]
        check_assigned(node, replicas)
        return len(replicas), replicas, 0
    count = node.config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor, nodes = topic.replication_factor, node.config.nodes
    if factor != -1 and not 1 <= factor <= nodes:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor}; this cluster has {nodes} "
            f"broker{'s' if nodes > 1 else ''}.",
        )
    return count, [], 0 if factor in (-1, nodes) else factor


def check_assigned(node: NodeServices, replicas: list[list[int]]) -> None:
    """Raises BrokerError for nodes that are not there, or twice in one partition."""
    known = node.leadership.nodes
    for assigned in replicas:
        if not assigned or len(set(assigned)) < len(assigned) or not set(assigned) <= set(known):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas {assigned}: one or more of the brokers {list(known)}, each once",
            )


def _created(
    node: NodeServices, name: str, topic_id: bytes, size: tuple[int, int], config: Mapping[str, str]
) -> CreatableTopicResult:
    (partitions, factor), defaults = size, node.broker_configs
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[
            CreatableTopicConfigs(
                name=setting,
                value=config.get(setting, defaults.topic_default(setting)),
                config_source=DYNAMIC_TOPIC if setting in config else source_of(node, setting),
            )
            for setting in ALL_SETTINGS
        ],
    )
