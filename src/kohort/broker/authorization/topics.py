"""What may be done with topics: reading, writing, describing, making, changing.

A topic that may not even be described is refused by name as if it might exist: the answer does not
tell whether it does.
"""

from __future__ import annotations

from kohort.acl import Operation, Resource
from kohort.broker.authorization.request_check import Asking, Patch, split, with_refusals
from kohort.errors import ErrorCode
from kohort.wire import ZERO_UUID, Message
from kohort.wire.messages.create_partitions_request import CreatePartitionsRequest
from kohort.wire.messages.create_partitions_response import (
    CreatePartitionsTopicResult,
)
from kohort.wire.messages.create_topics_request import CreateTopicsRequest
from kohort.wire.messages.create_topics_response import CreatableTopicResult, CreateTopicsResponse
from kohort.wire.messages.delete_records_request import DeleteRecordsRequest
from kohort.wire.messages.delete_records_response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsTopicResult,
)
from kohort.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from kohort.wire.messages.delete_topics_response import DeletableTopicResult
from kohort.wire.messages.describe_producers_request import DescribeProducersRequest
from kohort.wire.messages.describe_producers_response import (
    PartitionResponse,
    TopicResponse,
)
from kohort.wire.messages.describe_topic_partitions_request import DescribeTopicPartitionsRequest
from kohort.wire.messages.describe_topic_partitions_response import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from kohort.wire.messages.fetch_request import FetchRequest
from kohort.wire.messages.list_offsets_request import ListOffsetsRequest
from kohort.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)
from kohort.wire.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from kohort.wire.messages.metadata_response import MetadataResponse, MetadataResponseTopic
from kohort.wire.messages.offset_for_leader_epoch_request import OffsetForLeaderEpochRequest
from kohort.wire.messages.offset_for_leader_epoch_response import (
    EpochEndOffset,
    OffsetForLeaderTopicResult,
)
from kohort.wire.messages.produce_request import ProduceRequest
from kohort.wire.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_O = Operation
_IDS_FROM = 12


def produce(asking: Asking, request: ProduceRequest) -> Message | Patch | None:
    """WRITE the topics, and the transactional id."""
    tx_id = request.transactional_id
    code, refused = REFUSED, request.topic_data
    if tx_id is not None and not asking.transactional(_O.WRITE, tx_id):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    else:
        request.topic_data, refused = split(
            refused, lambda t: asking.knows(_O.WRITE, t.name, t.topic_id)
        )
    answers = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                PartitionProduceResponse(index=p.index, error_code=code, base_offset=-1)
                for p in topic.partition_data
            ],
        )
        for topic in refused
    ]
    if not answers:
        return None
    if code != REFUSED or not request.topic_data:
        return ProduceResponse(responses=answers)

    return with_refusals("responses", answers)


def fetch(asking: Asking, request: FetchRequest) -> Message | Patch | None:
    """READ the topics; asked again at each look, because a session remembers what was asked for."""
    asking.call.hides = lambda topic: not asking.topic(_O.READ, topic)
    return None


def list_offsets(asking: Asking, request: ListOffsetsRequest) -> Message | Patch | None:
    """DESCRIBE the topics."""
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.DESCRIBE, t.name))
    answers = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsPartitionResponse(
                    partition_index=p.partition_index, error_code=REFUSED, offset=-1, timestamp=-1
                )
                for p in topic.partitions
            ],
        )
        for topic in refused
    ]

    return with_refusals("topics", answers)


def offset_for_leader_epoch(
    asking: Asking, request: OffsetForLeaderEpochRequest
) -> Message | Patch | None:
    """DESCRIBE the topics."""
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.DESCRIBE, t.topic))
    answers = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[
                EpochEndOffset(partition=p.partition, error_code=REFUSED) for p in topic.partitions
            ],
        )
        for topic in refused
    ]

    return with_refusals("topics", answers)


def metadata(asking: Asking, request: MetadataRequest) -> Message | Patch | None:
    """DESCRIBE the topics; CREATE those that would be made, or CREATE in the cluster."""
    creates = request.allow_auto_topic_creation and asking.node.config.auto_create_topics_enable
    kept, refused = split(request.topics or (), lambda t: _may_name(asking, t, creates))
    if request.topics is not None:
        request.topics = kept
    answers = [
        MetadataResponseTopic(
            error_code=REFUSED,
            name=t.name if t.topic_id == ZERO_UUID else None,
            topic_id=t.topic_id,
        )
        for t in refused
    ]

    def patch(response: MetadataResponse) -> None:
        # Version 0 has no null: an empty list means every topic, also one that was emptied here.
        topics = [t for t in response.topics if not t.name or asking.topic(_O.DESCRIBE, t.name)]
        if refused and not kept:
            topics = []
        response.topics = [*topics, *answers]
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = asking.cluster_operations()
        if request.include_topic_authorized_operations:
            for topic in topics:
                if topic.name and not topic.error_code:
                    bits = asking.operations(Resource.TOPIC, topic.name)
                    topic.topic_authorized_operations = bits

    return patch


def _may_name(asking: Asking, topic: MetadataRequestTopic, creates: bool) -> bool:
    """Whether a topic may be described, and made where the request would make it.

    An id goes before a name, as in the API: the name beside it may be of another topic.
    """
    name = topic.name
    if topic.topic_id != ZERO_UUID or name is None:
        if asking.call.api_version < _IDS_FROM:
            return True  # the API itself refuses it
        name = asking.name_of(None, topic.topic_id)
        return name is None or asking.topic(_O.DESCRIBE, name)
    if not asking.topic(_O.DESCRIBE, name):
        return False
    return not creates or asking.node.topics.get(name) is not None or may_create(asking, name)


def describe_topic_partitions(
    asking: Asking, request: DescribeTopicPartitionsRequest
) -> Message | Patch | None:
    """DESCRIBE the topics; pages are made of those alone, so that no cursor names another."""
    asking.call.hides = lambda topic: not asking.topic(_O.DESCRIBE, topic)
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.DESCRIBE, t.name))
    answers = [
        DescribeTopicPartitionsResponseTopic(error_code=REFUSED, name=t.name) for t in refused
    ]
    if refused and not request.topics:  # nothing asked for would mean everything
        return DescribeTopicPartitionsResponse(topics=answers)

    def patch(response: DescribeTopicPartitionsResponse) -> None:
        for topic in response.topics:
            if topic.name:
                bits = asking.operations(Resource.TOPIC, topic.name)
                topic.topic_authorized_operations = bits
        response.topics = sorted([*response.topics, *answers], key=lambda t: t.name or "")

    return patch


def may_create(asking: Asking, name: str) -> bool:
    """CREATE in the cluster, or this very topic."""
    return asking.cluster(_O.CREATE) or asking.topic(_O.CREATE, name)


def create_topics(asking: Asking, request: CreateTopicsRequest) -> Message | Patch | None:
    """CREATE in the cluster, or these topics; their settings are shown to DESCRIBE_CONFIGS."""
    request.topics, refused = split(request.topics, lambda t: may_create(asking, t.name))
    answers = [
        CreatableTopicResult(name=t.name, error_code=REFUSED, error_message="Authorization failed.")
        for t in refused
    ]

    def patch(response: CreateTopicsResponse) -> None:
        for topic in response.topics:
            shown = asking.topic(_O.DESCRIBE_CONFIGS, topic.name)
            if not topic.error_code and not shown:
                topic.topic_config_error_code = REFUSED
                topic.configs, topic.num_partitions, topic.replication_factor = [], -1, -1
        response.topics = [*response.topics, *answers]

    return patch


def delete_topics(asking: Asking, request: DeleteTopicsRequest) -> Message | Patch | None:
    """DELETE the topics, or in the cluster; only DESCRIBE reveals the name behind an id, or that
    there is no such topic."""
    every = asking.cluster(_O.DELETE)

    def may_pass(name: str) -> bool:
        if every or asking.topic(_O.DELETE, name):
            return True
        return asking.topic(_O.DESCRIBE, name) and asking.node.topics.get(name) is None

    answers: list[DeletableTopicResult] = []
    kept = list[DeleteTopicState]()
    for topic in request.topics:
        name = asking.name_of(topic.name, topic.topic_id)
        if name is None or may_pass(name):
            kept.append(topic)
        else:
            shown = name if topic.name or asking.topic(_O.DESCRIBE, name) else None
            answers.append(
                DeletableTopicResult(name=shown, topic_id=topic.topic_id, error_code=REFUSED)
            )
    request.topics = kept
    request.topic_names, refused = split(request.topic_names, may_pass)
    answers += [DeletableTopicResult(name=name, error_code=REFUSED) for name in refused]

    return with_refusals("responses", answers)


def delete_records(asking: Asking, request: DeleteRecordsRequest) -> Message | Patch | None:
    """DELETE the topics."""
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.DELETE, t.name))
    answers = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                DeleteRecordsPartitionResult(
                    partition_index=p.partition_index, low_watermark=-1, error_code=REFUSED
                )
                for p in topic.partitions
            ],
        )
        for topic in refused
    ]

    return with_refusals("topics", answers)


def create_partitions(asking: Asking, request: CreatePartitionsRequest) -> Message | Patch | None:
    """ALTER the topics."""
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.ALTER, t.name))
    answers = [
        CreatePartitionsTopicResult(name=t.name, error_code=REFUSED, error_message=None)
        for t in refused
    ]

    return with_refusals("results", answers)


def describe_producers(asking: Asking, request: DescribeProducersRequest) -> Message | Patch | None:
    """READ the topics."""
    request.topics, refused = split(request.topics, lambda t: asking.topic(_O.READ, t.name))
    answers = [
        TopicResponse(
            name=topic.name,
            partitions=[
                PartitionResponse(partition_index=index, error_code=REFUSED, error_message=None)
                for index in topic.partition_indexes
            ],
        )
        for topic in refused
    ]

    return with_refusals("topics", answers)
