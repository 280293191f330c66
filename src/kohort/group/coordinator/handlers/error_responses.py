"""Answers with one error code, in the form that each request's answer has.

Rules:
- `refusal_of` answers a request that the shard does not look into: it is loading, or gone.
- `refused` turns answers round whose records could not be written; `append_code` says which code
  that gives (CoordinatorOperationExceptionHelper in Apache Kafka).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kohort.errors import ErrorCode
from kohort.group.coordinator.state.effects import Reply, RequestContext
from kohort.wire import Message
from kohort.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from kohort.wire.messages.consumer_group_describe_response import ConsumerGroupDescribeResponse
from kohort.wire.messages.consumer_group_describe_response import (
    DescribedGroup as DescribedConsumerGroup,
)
from kohort.wire.messages.consumer_group_heartbeat_request import ConsumerGroupHeartbeatRequest
from kohort.wire.messages.consumer_group_heartbeat_response import ConsumerGroupHeartbeatResponse
from kohort.wire.messages.delete_groups_request import DeleteGroupsRequest
from kohort.wire.messages.delete_groups_response import DeletableGroupResult, DeleteGroupsResponse
from kohort.wire.messages.describe_groups_request import DescribeGroupsRequest
from kohort.wire.messages.describe_groups_response import DescribedGroup, DescribeGroupsResponse
from kohort.wire.messages.heartbeat_request import HeartbeatRequest
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.join_group_request import JoinGroupRequest
from kohort.wire.messages.join_group_response import JoinGroupResponse
from kohort.wire.messages.leave_group_request import LeaveGroupRequest
from kohort.wire.messages.leave_group_response import LeaveGroupResponse
from kohort.wire.messages.list_groups_request import ListGroupsRequest
from kohort.wire.messages.list_groups_response import ListGroupsResponse
from kohort.wire.messages.offset_commit_request import OffsetCommitRequest
from kohort.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kohort.wire.messages.offset_delete_request import OffsetDeleteRequest
from kohort.wire.messages.offset_delete_response import OffsetDeleteResponse
from kohort.wire.messages.offset_fetch_request import OffsetFetchRequest
from kohort.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kohort.wire.messages.sync_group_request import SyncGroupRequest
from kohort.wire.messages.sync_group_response import SyncGroupResponse
from kohort.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest
from kohort.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_E = ErrorCode
_APPEND_CODES: Final = {
    _E.UNKNOWN_TOPIC_OR_PARTITION: _E.COORDINATOR_NOT_AVAILABLE,
    _E.NOT_ENOUGH_REPLICAS: _E.COORDINATOR_NOT_AVAILABLE,
    _E.REQUEST_TIMED_OUT: _E.COORDINATOR_NOT_AVAILABLE,
    _E.NOT_LEADER_OR_FOLLOWER: _E.NOT_COORDINATOR,
    _E.KAFKA_STORAGE_ERROR: _E.NOT_COORDINATOR,
    _E.MESSAGE_TOO_LARGE: _E.UNKNOWN_SERVER_ERROR,
    _E.RECORD_LIST_TOO_LARGE: _E.UNKNOWN_SERVER_ERROR,
    _E.INVALID_FETCH_SIZE: _E.UNKNOWN_SERVER_ERROR,
    _E.NETWORK_EXCEPTION: _E.COORDINATOR_LOAD_IN_PROGRESS,
}
TOP_LEVEL_FETCH_ERROR_FROM, BATCH_FETCH_FROM = 2, 8


def append_code(code: int) -> ErrorCode:
    """The error code for the client when an append failed with `code`; an unlisted code is kept."""
    known = _E(code) if code in _E._value2member_map_ else _E.UNKNOWN_SERVER_ERROR
    return _APPEND_CODES.get(known, known)


def refusal_of(request: Message, context: RequestContext, code: int) -> Message:
    """The answer to `request` that says `code` and nothing else.

    Raises TypeError for a request that is no group coordinator's.
    """
    match request:
        case HeartbeatRequest():
            return HeartbeatResponse(error_code=code)
        case ConsumerGroupHeartbeatRequest():
            return ConsumerGroupHeartbeatResponse(error_code=code)
        case ConsumerGroupDescribeRequest():
            return ConsumerGroupDescribeResponse(
                groups=[
                    DescribedConsumerGroup(error_code=code, group_id=g) for g in request.group_ids
                ]
            )
        case JoinGroupRequest():
            name = None if context.api_version >= 7 else ""
            return JoinGroupResponse(
                error_code=code, member_id=request.member_id, protocol_name=name
            )
        case SyncGroupRequest():
            return SyncGroupResponse(error_code=code)
        case LeaveGroupRequest():
            return LeaveGroupResponse(error_code=code)
        case OffsetCommitRequest():
            return _commit_refusal(request, code)
        case TxnOffsetCommitRequest():
            return _txn_commit_refusal(request, code)
        case OffsetFetchRequest():
            return _fetch_refusal(request, context.api_version, code)
        case OffsetDeleteRequest():
            return OffsetDeleteResponse(error_code=code)
        case DescribeGroupsRequest():
            groups = [DescribedGroup(error_code=code, group_id=g) for g in request.groups]
            return DescribeGroupsResponse(groups=groups)
        case ListGroupsRequest():
            return ListGroupsResponse(error_code=code)
        case DeleteGroupsRequest():
            names = request.groups_names
            results = [DeletableGroupResult(group_id=g, error_code=code) for g in names]
            return DeleteGroupsResponse(results=results)
        case _:
            raise TypeError(f"{type(request).__name__} is not a group coordinator's request")


def _commit_refusal(request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
    return committed(request, [code] * sum(len(t.partitions) for t in request.topics))


def committed(request: OffsetCommitRequest, codes: Sequence[int]) -> OffsetCommitResponse:
    """The answer to a commit with a code for each of its partitions, in their order."""
    results = iter(codes)
    topics: list[OffsetCommitResponseTopic] = []
    for t in request.topics:
        partitions = [
            OffsetCommitResponsePartition(
                partition_index=p.partition_index, error_code=next(results)
            )
            for p in t.partitions
        ]
        topics.append(
            OffsetCommitResponseTopic(name=t.name, topic_id=t.topic_id, partitions=partitions)
        )
    return OffsetCommitResponse(topics=topics)


def _txn_commit_refusal(request: TxnOffsetCommitRequest, code: int) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=t.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=code
                    )
                    for p in t.partitions
                ],
            )
            for t in request.topics
        ]
    )


def _fetch_refusal(request: OffsetFetchRequest, api_version: int, code: int) -> OffsetFetchResponse:
    """v1 has a place for errors at partitions only, v8 and later one at each group."""
    if api_version >= BATCH_FETCH_FROM:
        groups = [
            OffsetFetchResponseGroup(group_id=g.group_id, error_code=code) for g in request.groups
        ]
        return OffsetFetchResponse(groups=groups)
    if api_version >= TOP_LEVEL_FETCH_ERROR_FROM:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=t.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=i, committed_offset=-1, error_code=code
                    )
                    for i in t.partition_indexes
                ],
            )
            for t in request.topics or []
        ]
    )


def refused(reply: Reply, code: int) -> Reply:
    """The same answer, saying that its records could not be written.

    Partitions and groups that were refused already keep their own code. Answers that only read are
    refused too: their data may depend on records that were not written.
    """
    response = reply.response
    match response:
        case JoinGroupResponse():
            name = None if response.protocol_name is None else ""
            failed: Message = JoinGroupResponse(
                error_code=code, member_id=response.member_id, protocol_name=name
            )
        case SyncGroupResponse():
            failed = SyncGroupResponse(error_code=code)
        case ConsumerGroupHeartbeatResponse():
            failed = ConsumerGroupHeartbeatResponse(
                error_code=response.error_code or code, error_message=response.error_message
            )
        case ConsumerGroupDescribeResponse():
            failed = ConsumerGroupDescribeResponse(
                groups=[
                    DescribedConsumerGroup(error_code=code, group_id=g.group_id)
                    for g in response.groups
                ]
            )
        case OffsetCommitResponse() | TxnOffsetCommitResponse():
            for topic in response.topics:
                for partition in topic.partitions:
                    partition.error_code = partition.error_code or code
            failed = response
        case OffsetDeleteResponse():
            failed = OffsetDeleteResponse(error_code=code)
        case DeleteGroupsResponse():
            for result in response.results:
                result.error_code = result.error_code or code
            failed = response
        case LeaveGroupResponse():
            failed = LeaveGroupResponse(error_code=response.error_code or code)
        case OffsetFetchResponse():
            failed = _fetch_refused(response, code)
        case DescribeGroupsResponse():
            groups = [DescribedGroup(error_code=code, group_id=g.group_id) for g in response.groups]
            failed = DescribeGroupsResponse(groups=groups)
        case ListGroupsResponse():
            failed = ListGroupsResponse(error_code=code)
        case _:
            failed = response  # a heartbeat's: it tells nothing that a crash could take back
    return Reply(reply.token, failed)


def _fetch_refused(response: OffsetFetchResponse, code: int) -> OffsetFetchResponse:
    """What was read may not last. COORDINATOR_NOT_AVAILABLE is unknown to clients here."""
    if code == _E.COORDINATOR_NOT_AVAILABLE:
        code = int(_E.NOT_COORDINATOR)
    groups = [
        OffsetFetchResponseGroup(group_id=g.group_id, error_code=code) for g in response.groups
    ]
    for topic in response.topics:
        for partition in topic.partitions:
            partition.committed_offset, partition.committed_leader_epoch = -1, -1
            partition.metadata, partition.error_code = "", code
    top_level = 0 if groups else code
    return OffsetFetchResponse(error_code=top_level, topics=response.topics, groups=groups)
