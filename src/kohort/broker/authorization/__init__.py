"""One authorizer per API. Fails closed: an API without one is denied.

Imports `broker.security`, `broker.state` and the folders before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kohort.acl import Operation
from kohort.broker.authorization import admin, groups, topics, transactions
from kohort.broker.authorization.request_check import Asking, Check, Patch
from kohort.broker.base.request import Call
from kohort.broker.security.authorizer import Authorizer
from kohort.wire import Message
from kohort.wire.messages.describe_acls_response import DescribeAclsResponse
from kohort.wire.messages.describe_log_dirs_response import DescribeLogDirsResponse
from kohort.wire.messages.describe_quorum_response import DescribeQuorumResponse
from kohort.wire.messages.describe_user_scram_credentials_response import (
    DescribeUserScramCredentialsResponse,
)
from kohort.wire.messages.heartbeat_response import HeartbeatResponse
from kohort.wire.messages.leave_group_response import LeaveGroupResponse
from kohort.wire.messages.list_config_resources_response import ListConfigResourcesResponse
from kohort.wire.messages.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
)
from kohort.wire.messages.sync_group_response import SyncGroupResponse
from kohort.wire.messages.update_features_response import UpdateFeaturesResponse

if TYPE_CHECKING:
    from kohort.broker.authorization.request_check import AuthorizedNode


def _open(_: Asking, __: Any) -> None:
    """Everybody may."""


AUTHORIZERS: Final[dict[str, Check]] = {
    "AddOffsetsToTxn": transactions.add_offsets_to_txn,
    "AddPartitionsToTxn": transactions.add_partitions_to_txn,
    "AlterClientQuotas": admin.alter_client_quotas,
    "AlterConfigs": admin.alter_configs,
    "AlterPartitionReassignments": admin.alter_partition_reassignments,
    "AlterUserScramCredentials": admin.alter_user_scram_credentials,
    "ApiVersions": _open,
    "ConsumerGroupDescribe": groups.consumer_group_describe,
    "ConsumerGroupHeartbeat": groups.consumer_group_heartbeat,
    "CreateAcls": admin.create_acls,
    "CreatePartitions": topics.create_partitions,
    "CreateTopics": topics.create_topics,
    "DeleteAcls": admin.delete_acls,
    "DeleteGroups": groups.delete_groups,
    "DeleteRecords": topics.delete_records,
    "DeleteTopics": topics.delete_topics,
    "DescribeAcls": admin.cluster(Operation.DESCRIBE, DescribeAclsResponse),
    "DescribeClientQuotas": admin.describe_client_quotas,
    "DescribeCluster": admin.describe_cluster,
    "DescribeConfigs": admin.describe_configs,
    "DescribeGroups": groups.describe_groups,
    "DescribeLogDirs": admin.cluster(Operation.DESCRIBE, DescribeLogDirsResponse, reported_from=3),
    "DescribeProducers": topics.describe_producers,
    "DescribeQuorum": admin.cluster(Operation.DESCRIBE, DescribeQuorumResponse),
    "DescribeTopicPartitions": topics.describe_topic_partitions,
    "DescribeTransactions": transactions.describe_transactions,
    "DescribeUserScramCredentials": admin.cluster(
        Operation.DESCRIBE, DescribeUserScramCredentialsResponse
    ),
    "ElectLeaders": admin.elect_leaders,
    "EndTxn": transactions.end_txn,
    "Fetch": topics.fetch,
    "FindCoordinator": groups.find_coordinator,
    "GetTelemetrySubscriptions": _open,
    "Heartbeat": groups.member(HeartbeatResponse),
    "IncrementalAlterConfigs": admin.incremental_alter_configs,
    "InitProducerId": transactions.init_producer_id,
    "JoinGroup": groups.join_group,
    "LeaveGroup": groups.member(LeaveGroupResponse),
    "ListConfigResources": admin.cluster(Operation.DESCRIBE_CONFIGS, ListConfigResourcesResponse),
    "ListGroups": groups.list_groups,
    "ListOffsets": topics.list_offsets,
    "ListPartitionReassignments": admin.cluster(
        Operation.DESCRIBE, ListPartitionReassignmentsResponse
    ),
    "ListTransactions": transactions.list_transactions,
    "Metadata": topics.metadata,
    "OffsetCommit": groups.offset_commit,
    "OffsetDelete": groups.offset_delete,
    "OffsetFetch": groups.offset_fetch,
    "OffsetForLeaderEpoch": topics.offset_for_leader_epoch,
    "Produce": topics.produce,
    "PushTelemetry": _open,
    "SaslAuthenticate": _open,
    "SaslHandshake": _open,
    "SyncGroup": groups.member(SyncGroupResponse),
    "TxnOffsetCommit": transactions.txn_offset_commit,
    "UpdateFeatures": admin.cluster(Operation.ALTER, UpdateFeaturesResponse),
    "WriteTxnMarkers": transactions.write_txn_markers,
}
"""By the API's name."""


def screen(
    node: AuthorizedNode, authorizer: Authorizer, request: Message, call: Call
) -> Call | None:
    """The call to continue with; None when the request was refused, and answered so."""
    name = request.NAME.removesuffix("Request")
    verdict = AUTHORIZERS[name](Asking(node, authorizer, call), request)
    if verdict is None:
        return call
    if isinstance(verdict, Message):
        call.answer(verdict)
        return None
    return _patched(call, verdict)


def _patched(call: Call, patch: Patch) -> Call:
    """A call whose answer is patched before the one who asks gets it."""

    def answered(inner: Call) -> None:
        if inner.response is not None:
            patch(inner.response)
        call.answer(inner.response)

    def given_up() -> None:
        if inner.given_up is not None:
            inner.given_up()

    inner = Call(
        call.api_version,
        call.correlation_id,
        call.client_id,
        call.client_host,
        call.may_park,
        answered,
        call.hint_cursor,
        call.principal,
    )
    inner.hides = call.hides
    call.given_up = given_up
    return inner


__all__ = ["AUTHORIZERS", "screen"]
