"""Metadata (3), v0-13. KIP-204 (auto creation), KIP-430, KIP-516 (topic ids), KIP-1102.

Topics that do not exist are made when the request and `auto_create_topics_enable` allow it, and are
in the same answer.

Differs from Apache Kafka: a topic made by this request is answered as usable at once, not with
LEADER_NOT_AVAILABLE.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kohort.broker.apis._operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kohort.broker.base.request import Call
from kohort.broker.log.directory import topic_name_fault
from kohort.broker.state.leadership import NO_NODE, Led
from kohort.broker.state.topics import Topic
from kohort.errors import BrokerError, ErrorCode
from kohort.wire import ZERO_UUID
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from kohort.broker.coordinator.node_services import NodeServices

Shown = tuple[list[int], list[int], list[int]]
"""Replicas, those that live, those that do not; partitions that have the same share the lists."""
_AUTO_CREATION_FROM = 4
_IDS_FROM = 12
"""Versions 10 and 11 have a place for topic ids and none for an answer without a name."""


def handle(node: NodeServices, request: MetadataRequest, call: Call) -> None:
    """Describe the cluster and some or all of its topics."""
    requested = request.topics
    if call.api_version < _IDS_FROM and any(
        topic.name is None or topic.topic_id != ZERO_UUID for topic in requested or ()
    ):
        refused = [
            MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "")
            for topic in requested or ()
        ]
        call.answer(MetadataResponse(topics=refused))
        return
    if requested is None or (call.api_version == 0 and not requested):
        topics = [describe(node, topic) for topic in node.topics]
    else:
        may_create = node.config.auto_create_topics_enable and (
            call.api_version < _AUTO_CREATION_FROM or request.allow_auto_topic_creation
        )
        once = {(topic.name, bytes(topic.topic_id)): topic for topic in requested}
        topics = [_describe_wanted(node, topic, may_create) for topic in once.values()]
    allowed = _operations(TOPIC_OPERATIONS, request.include_topic_authorized_operations)
    for topic in topics:
        if topic.name is not None:
            topic.topic_authorized_operations = allowed
    call.answer(
        MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in node.nodes.believed()
            ],
            cluster_id=node.cluster_id,
            controller_id=node.nodes.controller_id(),
            cluster_authorized_operations=_operations(
                CLUSTER_OPERATIONS, request.include_cluster_authorized_operations
            ),
            topics=topics,
        )
    )


def _operations(operations: int, asked: bool) -> int:
    return operations if asked else NOT_ASKED


def describe(node: NodeServices, topic: Topic) -> MetadataResponseTopic:
    """One topic."""
    leadership = node.leadership
    leds, alive = leadership.of(topic.name), leadership.alive

    @cache
    def shown(replicas: tuple[int, ...]) -> Shown:
        live = [n for n in replicas if n in alive]
        return list(replicas), live, [n for n in replicas if n not in alive]

    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[_partition(index, led, shown(led.replicas)) for index, led in enumerate(leds)],
    )


def _partition(index: int, led: Led, shown: Shown) -> MetadataResponsePartition:
    replicas, live, offline = shown
    return MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if led.leader == NO_NODE else 0,
        partition_index=index,
        leader_id=led.leader,
        leader_epoch=led.epoch,
        replica_nodes=replicas,
        isr_nodes=live,
        offline_replicas=offline,
    )


def _describe_wanted(
    node: NodeServices, requested: MetadataRequestTopic, may_create: bool
) -> MetadataResponseTopic:
    if requested.name is None or requested.topic_id != ZERO_UUID:  # Java sends "" beside the id
        topic = node.topics.by_id(requested.topic_id)
        if topic is not None:
            return describe(node, topic)
        code = ErrorCode.UNKNOWN_TOPIC_ID
        return MetadataResponseTopic(error_code=code, name=None, topic_id=requested.topic_id)
    topic = node.topics.get(requested.name)
    if topic is not None:
        return describe(node, topic)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_name_fault(requested.name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif may_create:
        try:
            return describe(node, node.auto_create(requested.name))
        except BrokerError as error:
            code = ErrorCode(error.code)
    return MetadataResponseTopic(error_code=code, name=requested.name, topic_id=ZERO_UUID)
