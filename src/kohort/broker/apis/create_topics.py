"""CreateTopics (19), v2-7. KIP-464 (broker's default counts), KIP-525 (configs in the answer).

Differs from Apache Kafka: there is one broker, so a replication factor above 1 is refused with
INVALID_REPLICATION_FACTOR, and a replica assignment may name this broker alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kohort.broker.calls import Call, serve
from kohort.broker.config import SETTINGS, default_of
from kohort.errors import BrokerError, ErrorCode
from kohort.wire.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from kohort.wire.messages.create_topics_response import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from kohort.broker.node import Node

_DYNAMIC_TOPIC_CONFIG, _DEFAULT_CONFIG = 1, 5


def handle(node: Node, request: CreateTopicsRequest, call: Call) -> None:
    """Make topics, each on its own."""
    names = Counter(t.name for t in request.topics)
    results = [
        _create(node, topic, request.validate_only, names[topic.name] > 1)
        for topic in {t.name: t for t in request.topics}.values()
    ]
    call.answer(CreateTopicsResponse(topics=results))


def _create(
    node: Node, wanted: CreatableTopic, validate_only: bool, twice: bool
) -> CreatableTopicResult:
    try:
        if twice:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        partitions = _partition_count(node, wanted)
        config = {c.name: c.value for c in wanted.configs if c.value is not None}
        if validate_only:
            node.topics.check_new(wanted.name, partitions, config)
            return _created(node, wanted.name, bytes(16), partitions, config)
        topic = node.topics.create(wanted.name, partitions, config)
    except BrokerError as error:
        return CreatableTopicResult(
            name=wanted.name, error_code=error.code, error_message=error.detail, configs=[]
        )
    return _created(node, wanted.name, topic.topic_id, partitions, config)


def _partition_count(node: Node, wanted: CreatableTopic) -> int:
    if wanted.assignments:
        if wanted.num_partitions != -1 or wanted.replication_factor != -1:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. Both "
                "cannot be used at the same time.",
            )
        me = [node.config.node_id]
        indexes = sorted(a.partition_index for a in wanted.assignments)
        whole = indexes == list(range(len(indexes)))
        if not whole or any(a.broker_ids != me for a in wanted.assignments):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partitions 0 to n-1, each on broker {me[0]} alone, are all that can be assigned",
            )
        return len(wanted.assignments)
    if wanted.replication_factor not in (-1, 1):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {wanted.replication_factor}; this cluster has 1 broker.",
        )
    return node.config.num_partitions if wanted.num_partitions == -1 else wanted.num_partitions


def _created(
    node: Node, name: str, topic_id: bytes, partitions: int, config: dict[str, str]
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(
                name=setting,
                value=config.get(setting, default_of(node.config, setting)),
                config_source=_DYNAMIC_TOPIC_CONFIG if setting in config else _DEFAULT_CONFIG,
            )
            for setting in SETTINGS
        ],
    )


API = serve(CreateTopicsRequest, handle)
